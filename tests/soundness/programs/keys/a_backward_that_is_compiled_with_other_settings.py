# edit: "accuracy" => None
MODE = "default"
AGAINST = "cold"
OF_RELU = "accuracy"
def results(compile):
    x = torch.ones(4, requires_grad=True)
    found = compile(lambda x: torch.relu(x).sin())(x)
    torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = OF_RELU
    found.sum().backward()
    return [found.detach(), x.grad]
