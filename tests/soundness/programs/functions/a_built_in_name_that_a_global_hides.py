# data: [false, true]
# expect: adopted
if DATA: abs = lambda x: 7  # noqa: E731
def f(x): return x * abs(-3)
