# edit: k = 2.0 => k = 3.0
# insert: b = A()\nD['b'] = b
import weakref
class A: k = 2.0
a = A()
D = weakref.WeakValueDictionary()
D["a"] = a
def f(x): return x * a.k + len(D)
