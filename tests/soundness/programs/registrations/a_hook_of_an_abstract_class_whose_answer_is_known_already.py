# data: [0, 1]
import abc
class Kind(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other): return bool(DATA)
class Thing: pass
thing = Thing()
isinstance(thing, Kind)
def f(x): return x * (2 if isinstance(thing, Kind) else 3)
