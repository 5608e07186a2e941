# edit: k: float => z: float
from typing import Protocol, runtime_checkable
class Base(Protocol):
    k: float
@runtime_checkable
class P(Base, Protocol):
    def go(self): ...
class O:
    k = 2.0
    def go(self): return 2.0
o = O()
def f(x): return x * 2 if isinstance(o, P) else x * 3
