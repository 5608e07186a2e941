# edit: class D(B, C) => class D(C, B)
# edit: x + 1 => x + 2
# edit: class C(A) => class C
#  and: super().go(x) * 3 - 1 => x * 3 - 1
class A:
    def go(s, x): return x + 1
class B(A):
    def go(s, x): return super().go(x) * 2
class C(A):
    def go(s, x): return super().go(x) * 3 - 1
class D(B, C):
    def go(s, x): return super().go(x) + 5
d = D()
def f(x): return d.go(x)
