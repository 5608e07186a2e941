# edit: "w": 5.0 => "w": 6.0
# edit: i: float = 3.0 => i: float = 4.0
# edit: i: float => z: float
import dataclasses
@dataclasses.dataclass
class Out:
    i: float = 3.0
    k: float = dataclasses.field(default=2.0, metadata={"w": 5.0})
A = Out()
def f(x):
    for each in dataclasses.fields(A): x = x * 2 + getattr(A, each.name) * each.metadata.get("w", 1.0)
    return x
