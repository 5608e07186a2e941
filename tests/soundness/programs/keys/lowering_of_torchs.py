# edit: BY = 2.0 => BY = 3.0
# edit: lowering.lowerings[torch.ops.aten.asinh.default] = lowered =>
# edit: (x, BY) => (x, x)
# same: BY => FACTOR
from torch._inductor import lowering
BY = 2.0
def lowered(x):
    return lowering.lowerings[torch.ops.aten.mul.Tensor](x, BY)
lowering.lowerings[torch.ops.aten.asinh.default] = lowered
def f(x, w):
    return torch.asinh(x).mm(w)
results = infer(f, X, W)
MODE = "default"
AGAINST = "cold"
