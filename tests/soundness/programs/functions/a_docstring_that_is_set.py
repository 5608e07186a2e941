# data: ["one", "three"]
# expect: traced
def g(x): return x * len(g.__doc__)
g.__doc__ = DATA
def f(x): return g(x)
