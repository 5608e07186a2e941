# edit: (loss,) => loss, found.detach()
# edit: found[0].backward() => found[0].backward(retain_graph=True)\n    found[0].backward()
# same: found = x @ w => found = x @ w  # logits
MODE = "default"
AGAINST = "cold"
LARGE = torch.randn(64, 64)
def f(x, w):
    found = x @ w
    loss = found.tanh().sum()
    return (loss,)
def results(compile):
    x, w = LARGE.clone().requires_grad_(), LARGE.clone().requires_grad_()
    found = compile(f)(x, w)
    found[0].backward()
    return [each.detach() for each in (*found, x.grad)]
