# edit: V(2.0), 1 => V(2.0), 3
# edit: return 5.0 => return 5.5
# edit: return 6.0 => return 6.5
class V:
    def __init__(s, v): s.v = v
    def __float__(s): return s.v
    def __int__(s): return 7
    def __bool__(s): return s.v > LIMIT
    def __abs__(s): return 5.0
    def __neg__(s): return 6.0
    def __round__(s, n=0): return 8.0
v, LIMIT = V(2.0), 1
def f(x): return (x * abs(v) + -v) * (2 if v else 3)
