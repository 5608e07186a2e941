# edit: BY = 2.0 => BY = 3.0
#  and: return x * 2 => return x * 3
# edit: BY = 2.0 => BY = 2.0\nlib = torch.library.Library('mylib', 'FRAGMENT')
#  and: (x, BY) => (x, -BY)
#  and: return x * 2 => return x * -2
# edit: (x, BY) => (x, x)
#  and: return x * 2 => return x * x
# same: BY => FACTOR
# same: def lowered(x): => def lowered(x):  # twice\n
# after: operator
from torch._inductor import lowering
from torch._inductor.lowering import register_lowering
BY = 2.0
@register_lowering(torch.ops.mylib.op.default, type_promotion_kind=None)
def lowered(x):
    return lowering.lowerings[torch.ops.aten.mul.Tensor](x, BY)
def f(x, w):
    return op(x).mm(w)
results = infer(f, X, W)
MODE = "default"
