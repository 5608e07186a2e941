# edit: k=2.0 => k=4.0
# edit: partial(g, k=2.0) => partial(torch.mul, other=2.0)
# edit: + 0.5 => + 0.75
# expect: adopted
def g(x, k=3.0): return x * k
part = functools.partial(g, k=2.0)
@functools.wraps(g)
def wrapped(*a, **k): return g(*a, **k) + 0.5
def f(x): return part(x) + wrapped(x) + math.sqrt(4.0) + math.pi
