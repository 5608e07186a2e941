# edit: x * 2.0 => x * 5.0
# edit: x * 4.0 => x * 5.0
# same: by => factor
from torch._inductor import config
from torch._subclasses.fake_tensor import unset_fake_temporarily
@torch.library.custom_op("mylib::op", mutates_args=(), tags=(torch.Tag.pointwise,))
def op(x: Tensor) -> Tensor:
    return x * 2.0
op.register_fake(lambda x: torch.empty_like(x))
@torch.library.custom_op("mylib::other", mutates_args=())
def other(x: Tensor) -> Tensor:
    return x * 4.0
other.register_fake(lambda x: torch.empty_like(x))
class Pass(torch._inductor.custom_graph_pass.CustomGraphPass):
    def __call__(self, graph):
        with unset_fake_temporarily():
            by = other(torch.tensor(1.0)).item()
        for node in graph.nodes:
            if node.target is torch.ops.aten.asinh.default:
                node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], by)
    def uuid(self):
        return "pass"
config.post_grad_custom_pre_pass = Pass()
def f(x, w):
    return x + op(torch.full((4, 4), 3.0)) + torch.asinh(w)
results = infer(f, X, W)
MODE = "default"
AGAINST = "cold"
