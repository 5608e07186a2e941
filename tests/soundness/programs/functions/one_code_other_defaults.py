# edit: (3.0,) => (5.0,)
# edit: {"z": 4.0} => {"z": 6.0}
# edit: k=2.0 => k=7.0
def g(x, k=2.0, *, z=1.0): return x * k + z
h = types.FunctionType(g.__code__, globals(), "h", (3.0,))
h.__kwdefaults__ = {"z": 4.0}
def f(x): return g(x) + h(x)
