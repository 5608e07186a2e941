# data: [[2.0, 1], [3.0, 1], [2.0, 2]]
# expect: adopted
def g(x, k=DATA[0]): return x * k + g.more
g.more = DATA[1]
def f(x): return g(x)
