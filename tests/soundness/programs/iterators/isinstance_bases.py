# insert: A.__bases__ = (B2,)
# edit: class A(B1) => class A(B1, B2)
# edit: class A(B1) => class A(B2, B1)
class B1: k = 2.0
class B2: k = 3.0
class A(B1): pass
a = A()
KINDS = [B1, (int, B2)]
def f(x):
    for i, kind in enumerate(KINDS): x = x * (i + 2) if isinstance(a, kind) else x - 1
    return x * a.k + issubclass(A, B1 if F else B2)
F = True
