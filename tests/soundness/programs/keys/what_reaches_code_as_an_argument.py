# edit: BY = 2.0 => BY = 3.0
# edit: BY = 4.0 => BY = 3.0
# edit: BY = 5.0 => BY = 3.0
# same: of => asked
from torch._inductor import ir, lowering
BY = 2.0
def scaled(self):
    return lowering.lowerings[torch.ops.aten.mul.Tensor](self, BY)
ir.TensorBox.scaled = scaled
Tensor.taken = lambda self: self * BY
torch._dynamo.allow_in_graph(Tensor.taken)
torch.autograd.function.FunctionCtx.by = lambda self: BY
torch.distributions.Normal.BY = 4.0
torch.utils.BY = 5.0
def of(module):
    return module.BY
@torch.library.custom_op("mylib::op", mutates_args=())
def op(x: Tensor) -> Tensor:
    return x * 2.0
op.register_fake(lambda x: torch.empty_like(x))
lowering.register_lowering(torch.ops.mylib.op.default, type_promotion_kind=None)(lambda x: x.scaled())
op.register_autograd(lambda ctx, g: g * ctx.by() * torch.distributions.Normal.BY * of(torch.utils))
def f(x, w):
    return op(x).mm(w) + x.taken()
results = train(f, X, W)
MODE = "default"
AGAINST = "cold"
