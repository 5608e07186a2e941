# cases: 1
import json
DATA = json.loads('[0, 1]')[CASE]
import abc
class Kind(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other): return bool(DATA)
class Thing: pass
thing = Thing()
isinstance(thing, Kind)
def f(x): return x * (2 if isinstance(thing, Kind) else 3)
results = infer(f, X)
