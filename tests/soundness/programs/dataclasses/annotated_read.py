# edit: float, Conf(2) => float, Conf(3)
import dataclasses, typing
@dataclasses.dataclass(frozen=True)
class Conf: v: int = 2
A = typing.Annotated[float, Conf(2)]
def f(x): return x * A.__metadata__[0].v
