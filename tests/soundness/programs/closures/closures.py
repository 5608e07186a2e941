# edit: make(3.0 => make(4.0
# edit: x + 4.0 => x + 5.0
# edit: g(x) * c => g(x) / c
# expect: adopted
def make(c, g):
    def inner(x): return g(x) * c
    return inner
scaled = make(3.0, lambda x: x + 4.0)
def f(x): return scaled(x) + 1
