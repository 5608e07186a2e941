# edit: x * i + 0.5 => x * i + 1.5
# edit: x * 2.0 => x * 3.0
# edit: x + 9.0 => x + 8.0
# expect: adopted
def gen(x):
    for i in range(3): yield x * i + 0.5
def rec(x, n): return x if n == 0 else rec(x * 2.0, n - 1)
def f(x):
    try:
        raise ValueError
    except ValueError:
        x = x + 9.0
    def loc(y): return y * 6.0
    return sum(gen(x)) + rec(x, 2) + loc(x)
