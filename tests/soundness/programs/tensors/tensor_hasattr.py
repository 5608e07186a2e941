# insert: torch.Tensor.nbfoo = 1
def f(x): return x * 2 if hasattr(x, "nbfoo") else x * 3
