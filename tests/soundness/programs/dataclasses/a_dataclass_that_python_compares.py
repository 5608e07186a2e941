# data: [1.0, 2.0]
import dataclasses
@dataclasses.dataclass(frozen=True)
class Inner: k: float
@dataclasses.dataclass(frozen=True)
class Key: inner: Inner
table = {Key(Inner(DATA)): 2.0, Key(Inner(9.0)): 3.0}
one = Key(Inner(1.0))
def f(x): return x * table.get(one, 5.0)
