# data: ["a", "abc"]
# expect: adopted
import inspect
def g(x, k: DATA = 2.0): return x * k
def f(x): return g(x) * len(inspect.signature(g).parameters["k"].annotation)
