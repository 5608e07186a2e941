"""Reports each question to torch's FX graph cache, and says why it could not answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.explain.components import Components, from_lines, to_text
from nbcache.kernel.events import GraphLookup, LookupStarted
from nbcache.kernel.reasons import Reason
from nbcache.torch_bridge import frames
from nbcache.torch_bridge.events import must_be_stored, stamp, user_line
from nbcache.torch_bridge.sources import constants_read, inputs_read

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches


_FOLLOWING = "following torch's lookups"
_AUTOCAST = (("autocast_cpu_enabled", "autocast_cpu_dtype"), ("autocast_enabled", "autocast_gpu_dtype"))
"""torch's names for the state of autocast."""


def follow_lookups(codecache: ModuleType, context: Context, patches: Patches) -> None:
    """Report each question to the FX graph cache: `FxGraphCache.load_with_key`.

    torch's own instant events leave out the hits under an AOTAutograd hit.
    """
    session = context.session

    def load_with_key(
        original: Any,
        key: str,
        debug_lines: list[str],
        example_inputs: Any,
        local: bool,
        remote_cache: Any,
        is_backward: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        session.attempt(
            _FOLLOWING, lambda: session.emit(LookupStarted(**stamp(), key=key, backward=is_backward))
        )
        graph, info = None, {}
        try:
            graph, info = original(
                key, debug_lines, example_inputs, local, remote_cache, is_backward, *args, **kwargs
            )
        finally:
            report = _hit if graph is not None else partial(_miss, debug_lines)
            session.attempt(_FOLLOWING, partial(report, session, key, is_backward, info))
        if graph is None:
            must_be_stored(key)
        return graph, info

    patches.hook(codecache.FxGraphCache, "load_with_key", load_with_key)


def _hit(session: Session, key: str, backward: bool, info: Mapping[str, Any]) -> None:
    level, source = session.cache.origin_of("inductor", key)
    saved = info.get("time_saved_ns")
    answer = {"hit": True, "saved_seconds": None if saved is None else saved * 1e-9}
    session.emit(_lookup(key, backward, level=level, source=source, **answer))


def _miss(
    debug_lines: list[str], session: Session, key: str, backward: bool, info: Mapping[str, Any]
) -> None:
    began = time.perf_counter()
    components = session.attempt(_FOLLOWING, partial(_components, session, debug_lines, backward))
    threads = sys.modules["torch"].get_num_threads()
    why: Reason | None
    if info.get("cache_status_detailed") == "guard_miss":
        why = Reason("stored for other shapes: a guard of the stored graph does not hold")
    else:
        ask = partial(session.miss_reason, key, threads, backward=backward, components=components)
        why = session.attempt(_FOLLOWING, ask)
    text = "" if components is None else to_text(components)
    session.explaining_seconds += time.perf_counter() - began
    reason = {} if why is None else {"reason": why.text, "explanation": why.explanation}
    session.emit(_lookup(key, backward, hit=False, components=text, **reason))


def _lookup(key: str, backward: bool, **answer: Any) -> GraphLookup:
    threads = sys.modules["torch"].get_num_threads()
    return GraphLookup(**stamp(), key=key, backward=backward, threads=threads, **answer)


def _components(session: Session, debug_lines: list[str], backward: bool) -> Components:
    """Return what a key is made of, what the function reads, and where its nodes stand."""
    config = sys.modules["torch._inductor.config"]
    defaults = {name: str(entry.default) for name, entry in config._config.items()}
    lines = [*debug_lines, f"[] autocast: {_autocast()}", f"[] grad mode: {_grad_mode()}"]
    names = () if backward else inputs_read()
    return from_lines(lines, defaults, constants_read(), _places(session), names)


def _places(session: Session) -> dict[str, str]:
    """Return the user's line of each node of the graph that is being looked up, by the node's name."""
    nodes = getattr(getattr(frames.read(frames.FX_GRAPH), "graph", None), "nodes", ())
    traces = {node.name: node.meta.get("stack_trace") for node in nodes}
    lines: dict[str, str] = {trace: user_line(session, trace) for trace in {*traces.values()} if trace}
    return {name: lines[trace] for name, trace in traces.items() if trace}


def _global_state() -> Mapping[str, Any]:
    """Return torch's modes as they were when Dynamo began."""
    context = sys.modules["torch._guards"].TracingContext.try_get()
    return {} if context is None else context.global_context.global_state


def _grad_mode() -> str:
    return "off" if _global_state().get("grad_enabled", (None, True))[1] is False else "on"


def _autocast() -> str:
    """Return the dtype of autocast as it was when Dynamo began, `off` where it is off."""
    state = _global_state()
    dtypes = [state[dtype][1] for enabled, dtype in _AUTOCAST if enabled in state and state[enabled][1]]
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes) or "off"
