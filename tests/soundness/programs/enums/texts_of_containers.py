# edit: 2.5] => 2.55]
# edit: A = 1 => A = 111
# edit: "k": (1 => "kk": (1
import collections, enum
class E(enum.Enum): A = 1
P = collections.namedtuple("P", "a b")
L, D, O = [1, "a", None, 2.5], {"k": (1, [E.A])}, collections.OrderedDict(a=P(1, 2))
def f(x): return x * len(str(L)) + len(repr(D)) * 3 + len(f"{L!r:>40}") + len(str(E.A))
