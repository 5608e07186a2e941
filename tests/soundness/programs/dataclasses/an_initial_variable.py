# cases: 1
# expect: adopted
import dataclasses
T = dataclasses if CASE else types.SimpleNamespace(InitVar=dataclasses.InitVar)
@dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)
class Settings: k: "T.InitVar[float]" = 2.0
settings = Settings()
def f(x):
    for field in dataclasses.fields(settings): x = x * getattr(settings, field.name)
    return x + 1
