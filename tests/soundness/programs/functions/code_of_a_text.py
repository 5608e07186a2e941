# data: ["def g(x): return x + 1", "def g(x): return x - 1", "g = torch.sin"]
# expect: adopted
exec(DATA)
def f(x): return g(x)  # noqa: F821
