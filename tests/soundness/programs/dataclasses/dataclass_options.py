# edit: , compare=False =>
# edit: K = 3.0 => K = 4.0
# edit: a: int = 1 => a: int = 7
import dataclasses
@dataclasses.dataclass(order=True)
class C:
    a: int = 1
    b: float = dataclasses.field(default=2.0, compare=False)
    c: list = dataclasses.field(default_factory=lambda: [K])
K = 3.0
P, Q = C(), C(b=9.0)
def f(x):
    n = C(4)
    x = x * 2 if P == Q else x * 3
    x = x + 1 if P < n else x - 1
    return x * n.c[0] + n.b + len(dataclasses.fields(C))
