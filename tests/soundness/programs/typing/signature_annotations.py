# edit: k: int => k: float
# edit: k: int => k: 'int'
import inspect
def g(x, k: int = 2): return x * k
def f(x):
    p = inspect.signature(g).parameters["k"]
    return x * 2 if p.annotation is int else x * 3
