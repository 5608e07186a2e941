# insert: torch.Tensor.softmax = lambda s, dim: s * 3
# insert: F._get_softmax_dim = lambda *a: 0
#  and: dim=-1 => dim=None
F = torch.nn.functional
def f(x): return F.softmax(x, dim=-1) + 1
