# cases: 2
# expect: adopted
import collections.abc
class Pair:
    def __len__(self): return 2
    def __getitem__(self, key): return {0: 2.0, 1: 3.0, "k": 4.0}[key]
    def get(self, key, default=None): return self[key]
    def keys(self): return ["k"]
pair = Pair()
if CASE: (collections.abc.Sequence, collections.abc.Mapping)[CASE - 1].register(Pair)
def f(x): return x * (2 if Pair.__flags__ & 32 else 3) + (4 if Pair.__flags__ & 64 else 5)
