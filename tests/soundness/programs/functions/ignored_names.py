# insert: g._torchdynamo_orig_callable = lambda x: x * 5
def g(x): return x + 1
def f(x): return getattr(g, "_torchdynamo_orig_callable", g)(x)
