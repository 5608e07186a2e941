# insert: OUT = "(Tensor x, *, Tensor(a!) out) -> Tensor(a!)"\ntorch.library.define("nbcache7::one.out", OUT)
torch.library.define("nbcache7::one", "(Tensor x) -> Tensor")
op = torch.ops.nbcache7.one
def f(x): return x * 2 if hasattr(op, "out") else x * 3
