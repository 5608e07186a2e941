# insert: torch.Tensor.__matmul__ = lambda s, o: s * o
# insert: torch.Tensor.__add__ = lambda s, o: s * o
# insert: torch.Tensor.__rmul__ = lambda s, o: s.sin()
def f(x, w): return (x + w) @ w - 2 * x
