# edit: aten.sin.default => aten.cos.default
# edit: node.target = TARGET => pass
# same: TARGET => INSTEAD
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
TARGET = torch.ops.aten.sin.default
def inner(graph, inputs, **options):
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.asinh.default:
            node.target = TARGET
    graph.recompile()
    return compile_fx_inner(graph, inputs, **options)
def backend(graph, inputs):
    return compile_fx(graph, inputs, inner_compile=inner)
def f(x, w):
    return torch.asinh(x).mm(w)
def results(compile):
    with torch.no_grad():
        return [torch.compile(f, backend=backend)(X, W)]
AGAINST = "cold"
