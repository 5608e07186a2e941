# edit: BY = 2.0 => BY = 3.0
# edit: return x * BY => return x + BY
# edit: = decomposed => = torch.sin
# edit: decompositions[torch.ops.aten.asinh.default] = decomposed =>
# same: BY => FACTOR
# same: decomposed => split
from torch._inductor.decomposition import decompositions
BY = 2.0
def decomposed(x):
    return x * BY
decompositions[torch.ops.aten.asinh.default] = decomposed
def f(x, w):
    return torch.asinh(x).mm(w)
results = infer(f, X, W)
AGAINST = "cold"
