# insert: torch.Tensor.norm = lambda s, *a, **k: s.abs().amax()
# insert: torch.Tensor.clamp_min = lambda s, v: s + 1
F = torch.nn.functional
def f(x): return F.normalize(x)
