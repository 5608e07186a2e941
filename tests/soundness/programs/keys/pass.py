# edit: aten.sin.default => aten.cos.default
# edit: node.target = TARGET => pass
# edit: aten.asinh.default: => aten.mm.default and False:
# edit: post_grad_custom_post_pass => post_grad_custom_pre_pass
#  and: aten.sin.default => aten.tanh.default
# edit: always the same => another
# same: replaced => changed
# same: class Pass( => class Other(
#  and: Pass() => Other()
# same: TARGET => INSTEAD
import torch._inductor.config as config
from torch._inductor.custom_graph_pass import CustomGraphPass
TARGET = torch.ops.aten.sin.default
def replaced(node):
    node.target = TARGET
class Pass(CustomGraphPass):
    def __call__(self, graph):
        for node in graph.nodes:
            if node.target is torch.ops.aten.asinh.default:
                replaced(node)
    def uuid(self):
        return "always the same"
config.post_grad_custom_post_pass = Pass()
def f(x, w):
    return torch.asinh(x).mm(w)
results = infer(f, X, W)
AGAINST = "cold"
