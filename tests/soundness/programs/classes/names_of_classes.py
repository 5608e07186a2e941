# edit: Abc => Abcd
# insert: Abc.__name__ = 'q'
# insert: Abc.__qualname__ = 'q'
class Abc: pass
class Holder: kind = Abc
def f(x): return x * len(Abc.__name__) + len(Holder.kind.__qualname__) * 3
