# edit: BY = 2 => BY = 3
# same: BY => FACTOR
MODE = "default"
from torch._inductor import lowering
BY = 2
def lower(x):
    return lowering.lowerings[torch.ops.aten.mul.Tensor](x, BY)
getattr(lowering, "user_lowerings", lowering.lowerings)[torch.ops.aten.asinh.default] = lower
results = infer(lambda x, w: torch.asinh(x) + w, X, W)
AGAINST = "cold"
