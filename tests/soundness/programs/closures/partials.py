# edit: k=3.0 => k=5.0
# edit: z=4.0 => z=5.0
# edit: partial(P, z=4.0) => partial(P, z=4.0, k=7.0)
def g(x, k=1.0, *, z=2.0): return x * k + z
P = functools.partial(g, k=3.0)
Q = functools.partial(P, z=4.0)
def f(x): return P(x) + Q(x)
