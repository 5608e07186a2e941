"""Explanations of graphs: the outcome and its reason, the cost, and one next action."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import RESUMED, Difference, Explanation, GraphRecord, bare_name
from nbcache.kernel.explain.guards import recompile_action, tells_more

NOTHING_TO_DO = "nothing: the next kernel finds it in the store"
_UNTRUSTED = "whom you do not trust"
"""The words in the reason of a miss for a stranger's graph."""

_BREAKS = (
    ("[Tt]riton|user.defined kernel", "make it a torch.library.triton_op, and call it by wrap_triton"),
    (r"backward\(\)|Optimizer\.", "compile only the loss: call backward() and the optimizer outside"),
    (r"torch\.nn\.Parameter\(\)", "create the parameter or the optimizer outside the compiled function"),
    ("_local_scalar_dense", "keep it a tensor; draw random numbers by torch.rand in place of NumPy's"),
    (r"aten\.(equal|allclose)\b", "compare tensors by torch.where, or outside the compiled function"),
    ("Dynamic shape", "set torch._dynamo.config.capture_dynamic_output_shape_ops = True, or use torch.where"),
    ("asks for the value of a tensor|[dD]ata.dependent|generic_jump", "use torch.where or torch.cond"),
    (r"tolist\(\) with non-integer", "keep it a tensor"),
    (r"item\(\)|list\(\)|scalar", "keep it a tensor, or set torch._dynamo.config.capture_scalar_outputs"),
    (r"\bprint\b|\blogging\b", "print after the compiled function, or not at all"),
    (r"_warnings\.warn`", "warn outside the compiled function"),
    ("[Cc]ontext manager|with block", "enter the context around the compiled function"),
    (r"autograd\.Function", "give it static methods and setup_context, or use torch.library.custom_op"),
    (r"\bRandom\.\w+", "draw random numbers by torch.rand"),
    (r"copy\.deepcopy", "copy the tensor by clone()"),
    (r"graph_break\(\)", "take the call of graph_break() out"),
    ("[Bb]uilt-?in|C function|skipped|not traceable", "call it outside, or make it a custom operator"),
    (r"\(\S*In\[.*\]:\d+\)$|:\d+\)$", "move it out of the compiled function"),
    ("", "move it out of the compiled function; fullgraph=True shows where it is"),
)
_BREAK_IN_TORCH = re.compile(r"graph_break\(\).*[/\\]torch[/\\]\w+[/\\]")
"""The reason of a graph break that torch has put into its own code, as into its optimizers'."""
_PACKAGES_LINE = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w+)[^()]*:\d+\)$")
_BYPASSES = (
    ("does not use torch's caches", "compile with backend='inductor'"),
    ("cannot tell what this graph depends on", "call plain functions and custom operators only"),
    ("hook", "register the hook outside the compiled function"),
    ("[Tt]riton", "define the kernel in a module, so that its source can be read"),
    ("[Dd]ynamic|[Ss]ymbolic|[Uu]nbacked", "compile for fixed shapes: dynamic=False"),
    ("", "nothing: torch does not cache such a graph"),
)
_MISSES = (
    (
        "^(inputs|another graph)$",
        "nothing, if the model has changed; else check the variables that the function uses",
    ),
    ("^setting|^mode", "use the same mode, options and torch._inductor.config, or keep both: each is stored"),
    ("^(torch|triton|python|device|cpu|compiler)( |$)", "nothing: each environment stores its own graph"),
    ("^threads", "call torch.set_num_threads with the same number, or set OMP_NUM_THREADS for all kernels"),
    ("", NOTHING_TO_DO),
)
"""Advice for a miss, by the label of its first difference."""
_NUMBER = re.compile(r"-?(\d|inf|nan)")
_NO_CONSTANT = "not a constant"
_GRAD = ", requires grad"
_OR_BOTH = "or keep both: each is stored"
_EACH_VALUE = "nothing: each value has its own graph"


def next_action(graph: GraphRecord) -> str:
    """Return one thing to do next about a graph, as a clause, or that there is nothing to do."""
    if graph.graph_break_reason and not _BREAK_IN_TORCH.search(graph.graph_break_reason):
        return break_action(graph.graph_break_reason)
    if graph.recompile_reason and (graph.explanation is None or tells_more(graph.recompile_reason)):
        return recompile_action(graph.recompile_reason)
    if graph.explanation is not None:  # it says more than a guard that one earlier version failed
        return _miss_action(graph.explanation.differences)
    if graph.outcome is Outcome.BYPASS:
        return _first_match(_BYPASSES, graph.reason or "")
    if graph.outcome is Outcome.DISABLED:
        return "turn the cache on: %nbcache config shows the setting"
    if graph.outcome is Outcome.HIT:
        return "nothing: this graph was reused"
    return "trust who signed it: %nbcache trust" if _UNTRUSTED in (graph.reason or "") else NOTHING_TO_DO


def break_action(reason: str) -> str:
    action, package = _first_match(_BREAKS, reason), _PACKAGES_LINE.search(reason)
    return action if package is None or "set torch." in action else f"nothing: the line is in {package[1]}"


def _miss_action(differences: Sequence[Difference]) -> str:
    first = differences[0]
    kind, _, name = first.what.partition(" ")
    if kind == "constant":
        in_graph = any(difference.what == "constant in the graph" for difference in differences)
        return _constant_action(name, first, in_graph)
    if kind in ("parameter", "buffer"):
        return "nothing, if you have changed the model: each version is stored"
    if kind == "input":
        return _input_action(first.before, first.now)
    if first.what == "sizes" and first.now == "dynamic":
        return "nothing: this graph serves several sizes, and the next kernel finds it"
    return _first_match(_MISSES, first.what)


def _constant_action(name: str, first: Difference, in_graph: bool) -> str:
    """Return what to do about a constant; `in_graph`: whether the graph has another one now."""
    if name.endswith(".training"):
        return "nothing: train mode and eval mode have a graph each"
    values = [value for value in (first.before, first.now) if value != _NO_CONSTANT]
    if not values or not all(_NUMBER.match(value) for value in values):
        return _EACH_VALUE  # a flag, say
    if first.now == _NO_CONSTANT and not in_graph:
        return "nothing: it is a variable in this graph, so other values do not compile again"
    if name.endswith("['lr']") and "param_groups" in name:
        return "give it to the optimizer as a tensor: lr=torch.tensor(0.001)"
    if "param_groups" in name:
        return _EACH_VALUE  # as tensors, most make torch leave the step to Python
    if "." in name or "[" in name:
        return f"{_EACH_VALUE}; as a tensor it need not compile again, if the code only computes with it"
    return "make it a tensor, if the code only computes with it: another value then need not compile again"


def _input_action(old: str, new: str) -> str:
    if old.partition(_GRAD)[0] == new.partition(_GRAD)[0]:
        return f"call x.detach(), {_OR_BOTH}"
    if old.partition("[")[0] != new.partition("[")[0]:
        return f"cast it before the call, {_OR_BOTH}"
    if old.partition(" on ")[2] != new.partition(" on ")[2]:
        return f"keep it on one device, {_OR_BOTH}"
    if old.partition("]")[0] == new.partition("]")[0]:
        return f"call it with one memory layout, such as x.contiguous(), {_OR_BOTH}"
    old_sizes, new_sizes = (value.partition("[")[2].partition("]")[0].split(", ") for value in (old, new))
    if len(old_sizes) != len(new_sizes):
        return f"call it with the same number of dimensions each time, {_OR_BOTH}"
    if any(one != two and {one, two} & {"0", "1"} for one, two in zip(old_sizes, new_sizes, strict=True)):
        return "keep both: each is stored; torch compiles sizes 0 and 1 separately, also with dynamic=True"
    return "keep the shapes, or compile with dynamic=True, or call torch._dynamo.mark_dynamic(x, dim)"


def _first_match(table: tuple[tuple[str, str], ...], text: str) -> str:
    return next(action for pattern, action in table if re.search(pattern, text))


@dataclass(frozen=True, slots=True)
class Why:
    graph: GraphRecord
    fell_into: int = 1
    """The graphs of its function, for one call; more than one after graph breaks."""

    @property
    def explanation(self) -> Explanation | None:
        return self.graph.explanation

    @property
    def action(self) -> str:
        return next_action(self.graph)

    @property
    def meter(self) -> str:
        """The versions of its function, and torch's limit; empty if it was not recompiled."""
        most, count = self.graph.recompile_limit, self.graph.versions
        if not self.graph.recompile_reason or not most or not count:
            return ""
        return f"{count} of at most {most} versions; after that, calls that fit none of them run eagerly"

    @property
    def cost(self) -> str:
        """The cost of a graph break; empty without one."""
        if not self.graph.graph_break_reason or self.fell_into < 2:
            return ""
        parts = f"{self.fell_into} graphs, with Python between them"
        return f"{self.graph.function.removesuffix(RESUMED)} fell into {parts}: nothing is fused across"

    def to_json(self) -> dict[str, Any]:
        explanation = self.explanation
        return {
            "graph": self.graph.to_json(),
            "nearest": None if explanation is None else explanation.nearest,
            "differences": [] if explanation is None else [asdict(part) for part in explanation.differences],
            "meter": self.meter or None,
            "fell_into": self.fell_into,
            "cost": self.cost or None,
            "action": self.action,
        }


def explain(graphs: Iterable[GraphRecord], all_graphs: Iterable[GraphRecord]) -> list[Why]:
    """Return explanations of `graphs`; `all_graphs` are those of this kernel."""
    frames: dict[object, set[str]] = defaultdict(set)
    for graph in all_graphs:
        if graph.direction is not Direction.BACKWARD:
            frames[_function_key(graph)].add(graph.compile_id.partition("/")[0])
    return [Why(graph, max(1, len(frames[_function_key(graph)]))) for graph in graphs]


def _function_key(graph: GraphRecord) -> object:
    """Return a key that the parts of one function share, in one run of a cell."""
    return bare_name(graph.function), graph.location.rpartition(":")[0], graph.cell
