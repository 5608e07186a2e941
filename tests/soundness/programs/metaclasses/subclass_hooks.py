# edit: key="a" => key="abc"
# insert: class C(Base):\n    def go(s, x): return x * 5
# edit: x * 3 => x * 4
class Base:
    REG = {}
    def __init_subclass__(cls, key=None, **kw):
        super().__init_subclass__(**kw)
        cls.REG[key or cls.__name__] = cls
class A(Base, key="a"):
    def go(s, x): return x * 2
class B(Base):
    def go(s, x): return x * 3
def f(x):
    for k, c in Base.REG.items(): x = c().go(x) + len(k)
    return x
