# edit: OBJ, FN = A() => OBJ, FN = B()
# edit: torch.sin\nresults => torch.cos\nresults
# edit: A: 2.0, B: 3.0 => B: 2.0, A: 3.0
class A: pass
class B(A): pass
def g(x): return x
D = {A: 2.0, B: 3.0, g: 4.0, None: 5.0, torch.float32: 6.0, torch.sin: 7.0}
def f(x): return x * D[type(OBJ)] + D[g] + D[x.dtype] + D.get(FN, 9.0)
OBJ, FN = A(), torch.sin
