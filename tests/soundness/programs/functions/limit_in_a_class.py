# insert: sys.setrecursionlimit(7000)
class C: lim = staticmethod(sys.getrecursionlimit)
def f(x): return x * (2 if C.lim() > 5000 else 3)
