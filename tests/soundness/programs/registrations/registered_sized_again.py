# insert: collections.abc.Mapping.register(Other)\nOther.register(Th)
# insert: collections.abc.Mapping.register(Other)\nSub.register(Th)
# insert: collections.abc.MutableMapping.register(Other)\nOther.register(Th)
import abc, collections.abc
class Other(abc.ABC): pass
class Sub(Other): pass
class Th: pass
th = Th()
def f(x):
    x = x * 2 if isinstance(th, collections.abc.Mapping) else x * 3
    return x + 1 if issubclass(Th, collections.abc.Hashable) else x
