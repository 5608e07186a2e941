# data: [2.0, 3.0, 2]
# expect: adopted
def make(k):
    def inner(x): return x * k
    return inner
g = make(DATA)
def f(x): return g(x)
