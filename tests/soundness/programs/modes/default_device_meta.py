# edit: scope = contextlib.nullcontext => torch.set_default_device('meta'); X = X.cpu()\nscope = contextlib.nullcontext
import contextlib
scope = contextlib.nullcontext
def f(x): return x * (2 if torch.ones(4).device.type == 'cpu' else 3)
def results(compile):
    g = compile(f)
    with torch.no_grad():
        with scope(): a = g(X)
        return [a, g(X)]
