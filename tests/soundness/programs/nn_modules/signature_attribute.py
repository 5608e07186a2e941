# edit: default=3.0 => default=4.0
import inspect
def g(x, k=2.0): return x * k
g.__signature__ = inspect.Signature([inspect.Parameter("z", inspect.Parameter.KEYWORD_ONLY, default=3.0)])
def f(x):
    s = inspect.signature(g)
    return x * len(s.parameters) + s.parameters["z"].default
