# cases: 1
import json
DATA = json.loads('["one", "three"]')[CASE]
def g(x): return x * len(g.__doc__)
g.__doc__ = DATA
def f(x): return g(x)
results = infer(f, X)
