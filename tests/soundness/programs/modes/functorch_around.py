# edit: [g(X[0])] => [torch.vmap(g)(X)]
# edit: [g(X[0])] => [torch.func.grad(lambda x: g(x).sum())(X[0])]
# edit: [g(X[0])] => [torch.func.jvp(g, (X[0],), (X[1],))[1]]
def f(x): return x.sin() * K
K = 2.0
def results(compile):
    g = compile(f)
    with torch.no_grad(): return [g(X[0])]
