# data: [1.0, 2.0]
# expect: adopted
import dataclasses
@dataclasses.dataclass
class Inner: k: float
@dataclasses.dataclass
class Config: inner: Inner; sizes: list
config, other = Config(Inner(1.0), [1]), Config(Inner(DATA), [1])
def f(x): return x * (2 if config == other else 3)
