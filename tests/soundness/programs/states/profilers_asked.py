# edit: SCOPE = torch.no_grad() => SCOPE = torch.autograd.profiler.profile()
def f(x): return x * 2 if torch.autograd._profiler_enabled() else x * 3
SCOPE = torch.no_grad()
def results(compile):
    with SCOPE: return [compile(f)(X).detach()]
