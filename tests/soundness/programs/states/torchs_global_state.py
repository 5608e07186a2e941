# data: ["float32", "float64"]
# expect: adopted
torch.set_default_dtype(getattr(torch, DATA))
def f(x): return x + torch.ones(4)
