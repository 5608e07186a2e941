# edit: deep.k = 2 => deep.k = 3
class H: pass
class C: inner = H()
C.inner.deep = H()
C.inner.deep.k = 2
TAB = {"2": 2.0, "3": 3.0}
def f(x): return x * TAB["{c.inner.deep.k}".format(c=C)]
