# edit: K = 2.0 => K = 3.0
# edit: T = torch.ones(4, 4) => T = torch.ones(8, 4)[:4]
# edit: T = torch.ones(4, 4) => T = torch.zeros(4, 4).t()
T = torch.ones(4, 4)
def f(x):
    x.mul_(K)
    T.add_(1)
    return x.view(-1), x.t(), T[0], x
K = 2.0
def results(compile):
    x = X.clone()
    with torch.no_grad(): a, b, c, d = compile(f)(x)
    a.add_(1)
    return [x, a, b, c, T, torch.tensor([float(d is x), float(a.data_ptr() == x.data_ptr()), float(c._base is T)])]
