# edit: loss.backward() => loss.backward(retain_graph=True)\n    loss.backward()
# edit: loss.backward() => x.grad, = torch.autograd.grad(loss, x, create_graph=True)
def f(x):
    return (x @ x).tanh().sum()
def results(compile):
    x = X.clone().requires_grad_()
    loss = compile(f)(x)
    loss.backward()
    return [loss.detach(), x.grad.detach()]
