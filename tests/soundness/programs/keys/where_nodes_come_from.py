# edit: torch.atan(w) => torch.atan(w)  # exact
# edit: torch.asinh(x) => torch.arcsinh(x)
# edit: torch.asinh(x) => x.asinh()
# after: passes
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions

class Pass(Named):
    def __call__(self, graph):
        for node in graph.nodes:
            if node.target is aten.atan.default and "exact" not in (node.stack_trace or ""):
                node.target = aten.sin.default
        for parts in get_source_partitions(graph, [torch.asinh]).values():
            for node in (node for part in parts for node in part.nodes):
                node.target = aten.sin.default

config.post_grad_custom_post_pass = Pass()
def f(x, w):
    y = torch.asinh(x)
    z = torch.atan(w)
    return y.mm(z)
