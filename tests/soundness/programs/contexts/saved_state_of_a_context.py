# edit: now = 0 => now = 1
# edit: Depth.now += 1 => Depth.now += 2
# insert: D.__enter__()
class Depth:
    now = 0
    def __enter__(s): Depth.now += 1
    def __exit__(s, *a): Depth.now -= 1
D = Depth()
def g(x): return x * (1 + Depth.now)
def f(x):
    with D: y = g(x)
    return y + g(x)
