# edit: make => making_of_more
def make():
    def f(x):
        def inner(y): return y * 2
        return x * len(inner.__qualname__)
    return f
results = infer(make(), X)
