# edit: P(0.0, 1) => P(-0.0, 1)
# edit: (0.0,)} => (-0.0,)}
# edit: [0.0] => [-0.0]
import collections
P = collections.namedtuple("P", "a b")
T, D, L, S = P(0.0, 1), {"k": (0.0,)}, [0.0], slice(0, 0.0)
def f(x): return x * math.copysign(2.0, T.a) + math.copysign(3.0, D["k"][0]) * math.copysign(5.0, L[0])
