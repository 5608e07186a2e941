# cases: 1
# expect: adopted
import collections.abc, typing
@typing.runtime_checkable
class Scales(typing.Protocol):
    gain: float
    def scale(self, x): ...
class Values(collections.abc.Sequence):
    gain = 2.0 + CASE
    def __len__(self): return 2
    def __getitem__(self, index): return (3.0, 4.0)[index]
    def scale(self, x): return x * self.gain
values = Values()
kept = [isinstance(values, kind) for kind in (Scales, collections.abc.Sequence, collections.abc.Mapping)]
def f(x):
    if isinstance(values, collections.abc.Mapping): return x
    x = x * values[0] if isinstance(values, collections.abc.Sequence) else x + 1
    return values.scale(x) if isinstance(values, Scales) else x * 3
