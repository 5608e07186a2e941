# data: [true, false]
a = [1.0, 2.0]
b = a if DATA else [1.0, 2.0]
def f(x): return x * (2 if a is b else 3)
