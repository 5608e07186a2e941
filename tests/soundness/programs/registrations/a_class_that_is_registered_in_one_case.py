# data: [false, true]
# expect: adopted
import abc
class Kind(abc.ABC): pass
class Thing: pass
if DATA: Kind.register(Thing)
thing = Thing()
def f(x): return x * (2 if isinstance(thing, Kind) else 3)
