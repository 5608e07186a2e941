# cases: 1
# expect: adopted
import json
DATA = json.loads('[false, true]')[CASE]
import abc
class Kind(abc.ABC): pass
class Thing: pass
if DATA: Kind.register(Thing)
thing = Thing()
def f(x): return x * (2 if isinstance(thing, Kind) else 3)
results = infer(f, X)
