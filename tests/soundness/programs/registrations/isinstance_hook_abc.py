# insert: collections.abc.Mapping.register(Coll)
# insert: Coll.__iter__ = None
import collections.abc
class Coll:
    def __init__(s): s.v = [1.0, 2.0]
    def __iter__(s): return iter(s.v)
c = Coll()
def f(x):
    if isinstance(c, collections.abc.Mapping): return x * 3
    if isinstance(c, collections.abc.Iterable): return x * 2
    return x
