# edit: k=2.0 => k=4.0
# edit: k=3.0 => k=5.0
# insert: placed.__defaults__ = (9.0,)
# expect: adopted
def named(x, *, k=2.0): return x * k
def placed(x, k=3.0): return x + k
def f(x): return named(x) + placed(x)
