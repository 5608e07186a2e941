# edit: Out(In(2)), Out(In(2)) => Out(In(2)), Out(In(3))
# edit: frozen=True => frozen=True, eq=False
import dataclasses
@dataclasses.dataclass(frozen=True)
class In: v: int = 2
@dataclasses.dataclass(frozen=True)
class Out: i: In = In(2)
A, B = Out(In(2)), Out(In(2))
def f(x): return x * 2 if A == B else x * 3
