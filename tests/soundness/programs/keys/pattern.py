# edit: BY = 2.0 => BY = 3.0
# edit: aten.mul.Tensor => aten.add.Tensor
# edit: return True => return False
# edit: aten.asinh.default, Arg => aten.atanh.default, Arg
# same: BY => FACTOR
# same: applies => fits
from torch._inductor.fx_passes.post_grad import pass_patterns
from torch._inductor.pattern_matcher import Arg, CallFunction, register_graph_pattern
BY = 2.0
def handled(match, x):
    with match.graph.inserting_before(match.output_node()):
        made = match.graph.call_function(torch.ops.aten.mul.Tensor, (x, BY))
        made.meta["val"] = match.output_node().meta["val"]
        match.output_node().replace_all_uses_with(made)
        match.erase_nodes()
def applies(match):
    return True
register_graph_pattern(
    CallFunction(torch.ops.aten.asinh.default, Arg()), pass_dict=pass_patterns[1], extra_check=applies
)(handled)
def f(x, w):
    return torch.asinh(x).mm(w)
results = infer(f, X, W)
MODE = "default"
AGAINST = "cold"
