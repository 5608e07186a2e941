# edit: self.by * 2.0 => self.by * 3.0
# edit: SCALE = Scale(1.0) => SCALE = Scale(1.5)
# edit: BY = 2.0 => BY = 3.0
# edit: ([box.held], None) => ([box.held * 3], None)
# same: BY => FACTOR
import torch.utils._pytree as pytree
from torch._library.opaque_object import register_opaque_type
from torch._opaque_base import OpaqueBase
BY = 2.0
class Scale(OpaqueBase):
    def __init__(self, by): self.by = by
    def scaled(self): return self.by * 2.0
    def __eq__(self, other): return self.by == other.by
    def __hash__(self): return hash(self.by)
    def __fx_repr__(self): return f"Scale({self.by})", {"Scale": Scale}
register_opaque_type(Scale, typ="value")
SCALE = Scale(1.0)
class Box:
    def __init__(self, held): self.held = held
pytree.register_pytree_node(
    Box, lambda box: ([box.held], None), lambda held, _: Box(held[0] * BY), serialized_type_name="Box"
)
@torch.library.custom_op("mylib::op", mutates_args=())
def op(x: Tensor, scale: Scale) -> Tensor:
    return x.clone()
@op.register_fake
def _(x, scale):
    return torch.empty_like(x)
def setup(ctx, inputs, output):
    ctx.scale = inputs[1]
def backward(ctx, g):
    return pytree.tree_map(lambda each: each.sin(), Box(g)).held * ctx.scale.scaled(), None
op.register_autograd(backward, setup_context=setup)
def f(x, w):
    return op(x, SCALE).mm(w)
results = train(f, X, W)
