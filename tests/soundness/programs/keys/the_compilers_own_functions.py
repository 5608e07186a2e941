# edit: BY = 2.0 => BY = 3.0
# edit: compile_fx.joint_graph_passes = mine =>
# same: mine => ours
import torch._inductor.compile_fx as compile_fx
BY = 2.0
passes = compile_fx.joint_graph_passes
def mine(graph, *args, **kwargs):
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.asinh.default:
            node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], BY)
    return passes(graph, *args, **kwargs)
compile_fx.joint_graph_passes = mine
def f(x, w):
    return torch.asinh(x) + w
results = infer(f, X, W)
MODE = "default"
AGAINST = "cold"
