# insert: __name__ = "another_module"
def f(x):
    def inner(y): return y * 2
    return x * len(inner.__module__)
