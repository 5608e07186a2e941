# cases: 1
# expect: adopted
import json
DATA = json.loads('["a", "abc"]')[CASE]
import inspect
def g(x, k: DATA = 2.0): return x * k
def f(x): return g(x) * len(inspect.signature(g).parameters["k"].annotation)
results = infer(f, X)
