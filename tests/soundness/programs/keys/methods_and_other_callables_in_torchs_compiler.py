# edit: BY, WITH, SCALE = 2.0, 2.0 => BY, WITH, SCALE = 3.0, 2.0
# edit: BY, WITH, SCALE = 2.0, 2.0 => BY, WITH, SCALE = 2.0, 3.0
# edit: 2.0, 2.0, 2.0 => 2.0, 2.0, 3.0
# edit: Pass(2.0) => Pass(3.0)
# same: scaled => multiplied
MODE = "default"
import functools
import torch._inductor.config as config
from torch._inductor import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.graph import GraphLowering
config.fallback_by_default = True
BY, WITH, SCALE = 2.0, 2.0, 2.0
method, joint, post = (
    GraphLowering.run, compile_fx.joint_graph_passes, compile_fx._recursive_post_grad_passes
)

def scaled(graph, target, by):
    for node in graph.nodes:
        if node.target is target:
            node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], by)

def run(self, *args):
    scaled(self.module.graph, torch.ops.aten.asinh.default, BY)
    return method(self, *args)

def joined(by, module, *args, **kwargs):
    scaled(module.graph, torch.ops.aten.acosh.default, by)
    return joint(module, *args, **kwargs)

class Mine:
    def __call__(self, module, *args, **kwargs):
        scaled(module.graph, torch.ops.aten.atanh.default, SCALE)
        return post(module, *args, **kwargs)

class Pass(CustomGraphPass):
    def __init__(self, by):
        self.by = by
    def __call__(self, graph):
        scaled(graph, torch.ops.aten.cosh.default, self.by)
    def uuid(self):
        return "always the same"

GraphLowering.run = run
compile_fx.joint_graph_passes = functools.partial(joined, WITH)
compile_fx._recursive_post_grad_passes = Mine()
config.post_grad_custom_post_pass = Pass(2.0)
results = infer(
    lambda x, w: torch.asinh(x) + torch.acosh(x + 9) + torch.atanh(x / 9) + torch.cosh(w), X, W
)
AGAINST = "cold"
