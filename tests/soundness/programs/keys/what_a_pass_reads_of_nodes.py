# edit: BY = 2.0 => BY = 3.0
# edit: self.inner = Inner() => self.inner = Other()
# edit: "target", target) => "target", torch.ops.aten.tan.default)
#  and: inner = Inner() => inner = Other()
# same: return "pass" => return 'pass'  # always
import torch.fx.traceback
from torch._inductor import config
BY = 2.0
torch.fx.Node.become = lambda self, target: setattr(self, "target", target)
class Inner(torch.nn.Module):
    def forward(self, x):
        return x.sin()
class Other(Inner):
    pass
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
    def forward(self, x, w):
        with torch.fx.traceback.annotate({"by": BY}):
            y = torch.asinh(w)
        return self.inner(x) + y
class Pass(torch._inductor.custom_graph_pass.CustomGraphPass):
    def __call__(self, graph):
        for node in graph.nodes:
            if node.target is torch.ops.aten.asinh.default:
                by = node.meta.get("custom", {}).get("by", 7.0)
                node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], by)
            elif node.target is torch.ops.aten.sin.default:
                if "Other" in str(node.meta.get("nn_module_stack")):
                    node.become(torch.ops.aten.cos.default)
    def uuid(self):
        return "pass"
config.post_grad_custom_pre_pass = Pass()
results = infer(Model(), X, W)
MODE = "default"
AGAINST = "cold"
