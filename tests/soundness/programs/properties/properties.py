# edit: s._k = 2.0 => s._k = 3.0
# edit: v * 2 => v * 3
# edit: s._k + 1 => s._k + 2
class A:
    def __init__(s): s._k = 2.0
    @property
    def k(s): return s._k
    @k.setter
    def k(s, v): s._k = v * 2
class B(A):
    @A.k.getter
    def k(s): return s._k + 1
b = B()
def f(x):
    y = x * b.k
    b.k = 5.0
    return y + b.k
def results(compile):
    with torch.no_grad(): found = compile(f)(X)
    return [found, torch.tensor(b._k)]
