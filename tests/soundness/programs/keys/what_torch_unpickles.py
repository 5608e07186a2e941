# edit: tanh() * 2 => tanh() * 3
# same: region(region(x)) => region( region(x))
MODE = "default"  # lite compiles no regions
@torch.compiler.nested_compile_region
def region(x):
    return x.tanh() * 2
def results(compile):
    x = X.clone().requires_grad_()
    found = compile(lambda x: region(region(x)) + 1)(x)
    found.sum().backward()
    return [found.detach(), x.grad, compile(lambda x: x.sin())(X)]
