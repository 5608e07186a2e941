# insert: ~P.R
import enum
class P(enum.Flag):
    R = 1
    W = 2
    X = 4
def f(x):
    n = len(P._value2member_map_)
    y = ~P.R
    return x * n + y.value
