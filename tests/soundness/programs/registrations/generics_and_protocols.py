# edit: class IntBox(Box[int]): k = 3.0 => class IntBox(Box[int]): pass
# edit: def go(self): return 5.0 => def gone(self): return 5.0
# edit: IntBox(4.0) => IntBox(7.0)
import typing
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    k = 2.0
    def __init__(s, v): s.v = v
class IntBox(Box[int]): k = 3.0
@typing.runtime_checkable
class Goes(typing.Protocol):
    def go(self): ...
class G:
    def go(self): return 5.0
box, g = IntBox(4.0), G()
def f(x):
    x = x * box.v * box.k + Box[int](6.0).v
    return x + g.go() if isinstance(g, Goes) else x - 1
