# cases: 2
# expect: adopted
import json
DATA = json.loads('[2.0, 3.0, 2]')[CASE]
def make(k):
    def inner(x): return x * k
    return inner
g = make(DATA)
def f(x): return g(x)
results = infer(f, X)
