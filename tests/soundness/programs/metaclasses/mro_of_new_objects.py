# edit: G = True => G = False
G = True
class M(type):
    def mro(cls):
        found = type.mro(cls)
        return found if G else [found[0], found[2], found[1], *found[3:]]
class B: k = 2.0
class D: k = 3.0
class A(B, D, metaclass=M): pass
def f(x): return x * A().k
