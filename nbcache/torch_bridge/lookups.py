"""Reports each question to torch's FX graph cache, and says why it could not answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.explain.components import Components, from_lines, to_text
from nbcache.kernel.events import GraphLookup, LookupStarted
from nbcache.torch_bridge.events import given_to_compile, must_be_stored, stamp

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.patches import Patches

__all__ = ["being_looked_up", "follow_lookups"]

_FOLLOWING = "following torch's lookups"
_CONSTANTS = (bool, int, float, complex, type(None))
"""Types of arguments that are told by their values; texts are not, which may be nobody else's business."""
_LONGEST = 60
"""Characters of a constant that are kept."""
_AUTOCAST = (("autocast_cpu_enabled", "autocast_cpu_dtype"), ("autocast_enabled", "autocast_gpu_dtype"))
"""What torch calls the state of autocast."""
_DEEP = 80
"""Frames from where torch asks its cache up to where Dynamo begins."""
being_looked_up = threading.local()
"""`key`: that of the FX graph which the cache is being asked for on this thread, or None."""


def follow_lookups(codecache: ModuleType, session: Session, patches: Patches) -> None:
    """Report each question to the FX graph cache: `FxGraphCache.load_with_key`.

    torch's own instant events leave out the hits under an AOTAutograd hit.
    """

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
        being_looked_up.key = key
        try:
            graph, info = original(
                key, debug_lines, example_inputs, local, remote_cache, is_backward, *args, **kwargs
            )
        finally:
            being_looked_up.key = None
            session.attempt(
                _FOLLOWING, partial(_looked_up, session, key, is_backward, graph, info, debug_lines)
            )
        if graph is None:
            must_be_stored(key)
        return graph, info

    takes = "key debug_lines example_inputs local remote_cache is_backward"
    patches.hook(codecache.FxGraphCache, "load_with_key", load_with_key, takes=takes)


def _looked_up(
    session: Session, key: str, backward: bool, graph: Any, info: Mapping[str, Any], debug_lines: list[str]
) -> None:
    hit = graph is not None
    components = None if hit else session.attempt(_FOLLOWING, partial(_components, debug_lines))
    level, source = session.cache.origin_of("inductor", key) if hit else (None, None)
    threads, saved = sys.modules["torch"].get_num_threads(), info.get("time_saved_ns")
    session.emit(
        GraphLookup(
            **stamp(),
            key=key,
            backward=backward,
            hit=hit,
            reason=None if hit else _miss_reason(session, key, info, threads, backward, components),
            saved_seconds=None if saved is None else saved * 1e-9,
            level=level,
            source=source,
            threads=threads,
            components="" if components is None else to_text(components),
        )
    )


def _miss_reason(
    session: Session,
    key: str,
    info: Mapping[str, Any],
    threads: int,
    backward: bool,
    components: Components | None,
) -> str:
    if info.get("cache_status_detailed") == "guard_miss":
        return "stored for other shapes: a guard of the stored graph does not hold"
    return session.miss_reason(key, threads, backward=backward, components=components)


def _components(debug_lines: list[str]) -> Components:
    """Return what a key is made of, and with which constants the function was called."""
    config = sys.modules["torch._inductor.config"]
    defaults = {name: str(entry.default) for name, entry in config._config.items()}
    given = given_to_compile(sys._getframe(), "locals", within=_DEEP)
    arguments = {
        name: text
        for name, value in (given.items() if isinstance(given, dict) else ())
        if type(value) in _CONSTANTS and len(text := repr(value)) <= _LONGEST and text.isprintable()
    }
    return from_lines([*debug_lines, f"[] autocast: {_autocast()}"], defaults, arguments)


def _autocast() -> str:
    """Return the dtype of autocast as it was when Dynamo began, `off` where it is off."""
    context = sys.modules["torch._guards"].TracingContext.try_get()
    state = {} if context is None else context.global_context.global_state
    found = [
        str(state[dtype][1]).removeprefix("torch.")
        for enabled, dtype in _AUTOCAST
        if enabled in state and state[enabled][1]
    ]
    return ", ".join(found) or "off"
