# insert: torch._C._nn.silu = lambda s: s * 3
# insert: torch.Tensor.tanh = lambda s: s * 3
# insert: torch.Tensor.abs = lambda s: s * 3
F = torch.nn.functional
def f(x): return F.silu(x) + F.tanhshrink(x) + F.softsign(x)
