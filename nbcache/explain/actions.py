"""What a person can do about a graph that did not hit, was compiled again, or broke off: one next action."""

from __future__ import annotations

import re

from nbcache.core.model import Outcome
from nbcache.core.reports import GraphRecord

__all__ = ["NOTHING_TO_DO", "next_action"]

NOTHING_TO_DO = "nothing: it is stored now, and the next kernel finds it"
_STRANGER = "whom you do not trust"
"""What the reason of a miss says where somebody else's graph is not used."""

_BREAKS = (
    (
        r"backward\(\)|Optimizer\.",
        "compile what computes the loss, and call backward() and the optimizer outside",
    ),
    (
        "asks for the value of a tensor|[dD]ata.dependent|generic_jump",
        "use torch.where or torch.cond",
    ),
    (
        r"item\(\)|tolist\(\)|Tensor\.item|scalar",
        "keep it a tensor, or set torch._dynamo.config.capture_scalar_outputs",
    ),
    ("print|logging|warnings", "print after the compiled function, or not at all"),
    ("[Cc]ontext manager|with block", "enter the context around the compiled function"),
    (r"autograd\.Function", "give it static methods and setup_context, or use torch.library.custom_op"),
    (
        "[Bb]uilt-?in|C function|skipped|not traceable",
        "call it outside, or make it a custom operator",
    ),
    ("", "move it out of the compiled function; fullgraph=True shows where it is"),
)
"""What to do about a graph break, by its reason."""
_BYPASSES = (
    ("does not use torch's caches", "compile with backend='inductor'"),
    ("cannot tell what this graph depends on", "call plain functions and custom operators only"),
    ("hook", "register the hook outside of what is compiled"),
    ("[Tt]riton", "define the kernel in a module, so that its source can be read"),
    ("[Dd]ynamic|[Ss]ymbolic|[Uu]nbacked", "compile for fixed shapes: dynamic=False"),
    ("", "nothing: torch does not cache such a graph"),
)
"""What to do about a bypass, by its reason."""
_RECOMPILES = (
    (
        r"size mismatch|stride mismatch|\.size\(\)|shape",
        "compile with dynamic=True, or call torch._dynamo.mark_dynamic(x, dim), or keep the shape",
    ),
    ("dtype mismatch|dtype", "cast the input before the call"),
    ("check_obj_id|check_type_id|is not|type mismatch", "pass the same object or type each time"),
    ("grad_mode|GLOBAL_STATE|[Gg]lobal state", "call it in the same mode: gradients, autocast, threads"),
    ("==|!=", "pass the value as a tensor, so that another one need not compile again"),
    ("", "keep what the guard asks for as it is between calls"),
)
"""What to do about a recompile, by the guard that failed."""

_MISSES = (
    ("^constant .*param_groups", "give it to the optimizer as a tensor, such as lr=torch.tensor(0.001)"),
    (r"^constant \w+$", "pass it as a tensor, and another value need not compile again"),
    ("^constant", "make it a tensor, and another value need not compile again"),
    ("^inputs", "nothing, if the model has changed; else see what the function closes over"),
    ("^sizes", "nothing: it is for more sizes than one now, and the next kernel finds it"),
    ("^input", "keep the shapes, or compile with dynamic=True, or call torch._dynamo.mark_dynamic(x, dim)"),
    ("^setting|^mode", "use the same mode, options and torch._inductor.config, or keep both: each is stored"),
    (
        "^(torch|triton|python|device|cpu|compiler)( |$)",
        "nothing: each environment has its own, stored now",
    ),
    ("^threads", "call torch.set_num_threads with the same number, or set OMP_NUM_THREADS for all kernels"),
    ("", NOTHING_TO_DO),
)
"""What to do about a miss, by what differs first."""


def next_action(graph: GraphRecord) -> str:
    """Return one thing to do next about a graph; a clause that begins with a verb."""
    if graph.graph_break_reason:
        return _first(_BREAKS, graph.graph_break_reason)
    if graph.explanation is not None:  # which tells more than the guard of the version that came last
        return _first(_MISSES, graph.explanation.differences[0].what)
    if graph.recompile_reason:
        return _first(_RECOMPILES, graph.recompile_reason)
    if graph.outcome is Outcome.BYPASS:
        return _first(_BYPASSES, graph.reason or "")
    if graph.outcome is Outcome.DISABLED:
        return "switch the cache on: %nbcache config shows which setting it is"
    if graph.outcome is Outcome.HIT:
        return "nothing: it was there"
    return "trust who signed it: %nbcache trust" if _STRANGER in (graph.reason or "") else NOTHING_TO_DO


def _first(table: tuple[tuple[str, str], ...], text: str) -> str:
    return next(action for pattern, action in table if re.search(pattern, text))
