# edit: A = 3 => A = 4
# edit: B = 1 => B = 5
# edit: [E.A, E.B, 2] => [E.B, E.A, 2]
import enum
class E(enum.IntEnum):
    A = 3
    B = 1
L = [E.A, E.B, 2]
def f(x): return x * max(L) + min(L) * 5 + sum(L) + sorted(L)[1] + (E.A in L) + L.index(E.B)
