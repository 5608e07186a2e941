# edit: return [compile(g)(X)] => \n        torch.set_grad_enabled(False)\n        return [compile(g)(X)]
# edit: with torch.no_grad() => with torch.enable_grad()
def f(x): return x * 2 if torch.is_grad_enabled() else x * 3
def g(x):
    with torch.no_grad(): y = f(x)
    return y + f(x)
def results(compile): return [compile(g)(X)]
