# edit: scale(2.0) => scale(4.0)
# edit: @scale(2.0)\n@scale(3.0) => @scale(3.0)\n@scale(2.0)
# edit: x + 1 => x + 2
# wrong in torch
def scale(k):
    def deco(g):
        @functools.wraps(g)
        def wrapped(*a, **kw): return g(*a, **kw) * k
        return wrapped
    return deco
@scale(2.0)
@scale(3.0)
def g(x): return x + 1
def f(x): return g(x) + g.__wrapped__(x) + len(g.__name__)
