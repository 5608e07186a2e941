# edit: C(), B => C(), A
class A: pass
class B: pass
class Desc:
    def __get__(s, obj, owner=None): return KEY in owner.table
class C: table, d = {A: 1.0}, Desc()
c, KEY = C(), B
def f(x): return x * 2 if c.d else x * 3
