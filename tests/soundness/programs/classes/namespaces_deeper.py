# edit: a, b = N(m=N(k=2.0)) => a, b = N(m=N(k=3.0))
N = types.SimpleNamespace
torch._dynamo.allow_c_slot(N)
a, b = N(m=N(k=2.0)), N(m=N(k=2.0))
a, b = N(n=a), N(n=b)
def f(x): return x * 2 if a == b else x * 3
