# edit: A = 0.1 + 0.2 => A = 0.3
# edit: float("inf") => float("-inf")
# edit: float("inf") => 1e308
A = 0.1 + 0.2
INF = float("inf")
def f(x):
    x = x * 2 if A == 0.3 else x * 3
    x = x + 1 if math.isinf(INF) and INF > 0 else x - 1
    return x * len(f"{A:.20f}".rstrip("0")) + len(repr(A))
