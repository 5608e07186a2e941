"""Report lookups in torch's FX graph cache, with the reasons of misses.

The reasons name constants and tensors as the function's author does: Dynamo makes a guard for each constant,
and an input for each tensor, with its source. nbcache looks up the source's value, and runs no user code.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Mapping
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from nbcache.core.patches import Patches
from nbcache.kernel.events import GraphLookup, LookupStarted
from nbcache.kernel.explain.components import MOST_CONSTANTS, Components, Named, from_lines, to_text
from nbcache.kernel.reasons import Reason
from nbcache.kernel.session import Session
from nbcache.torch_bridge import frames
from nbcache.torch_bridge.events import check_may_compile, stamp, user_line
from nbcache.torch_bridge.hooks import Context

_FOLLOWING = "following torch's lookups"
_AUTOCAST = (("autocast_cpu_enabled", "autocast_cpu_dtype"), ("autocast_enabled", "autocast_gpu_dtype"))
_TYPES = (bool, int, float, complex, type(None))
"""Types of constants in reports. Texts are left out, since they may be private."""
_LONGEST, _LONGEST_NAME = 60, 120
_GUARDS = frozenset({"BOOL_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH", "NONE_MATCH"})
_MEMBERS = frozenset({"_modules", "_parameters", "_buffers"})
"""Dictionaries of a module whose keys are its attributes."""
_ATTRIBUTES = frozenset(
    {"AttrSource", "GenericAttrSource", "ParamBufferSource", "UnspecializedParamBufferSource"}
)
_ITEMS = frozenset({"DictGetItemSource", "GetItemSource", "ListGetItemSource"})
_OF_CLASSES = {"TypeMROSource": "__mro__", "TypeDictSource": "__dict__"}
_ABSENT = object()
_UNKNOWN: tuple[str, Any] = ("", _ABSENT)


def follow_lookups(codecache: ModuleType, context: Context, patches: Patches) -> None:
    """Report all lookups. torch's own events leave out those within an AOTAutograd hit."""
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
            report = _emit_hit if graph is not None else partial(_emit_miss, debug_lines)
            session.attempt(_FOLLOWING, partial(report, session, key, is_backward, info))
        if graph is None:
            check_may_compile(key)
        return graph, info

    patches.hook(codecache.FxGraphCache, "load_with_key", load_with_key)


def _emit_hit(session: Session, key: str, backward: bool, info: Mapping[str, Any]) -> None:
    level, source = session.cache.origin_of("inductor", key)
    saved = info.get("time_saved_ns")
    answer = {"hit": True, "saved_seconds": None if saved is None else saved * 1e-9}
    session.emit(_lookup(key, backward, level=level, source=source, **answer))


def _emit_miss(
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
    config = sys.modules["torch._inductor.config"]
    defaults = {name: str(entry.default) for name, entry in config._config.items()}
    lines = [*debug_lines, *_modes()]
    names = () if backward else inputs_read()
    return from_lines(lines, defaults, constants_read(), _places(session), names)


def _places(session: Session) -> dict[str, str]:
    """Return node → the user's source line, for the nodes of the graph that torch looks up."""
    nodes = getattr(getattr(frames.read(frames.FX_GRAPH), "graph", None), "nodes", ())
    traces = {node.name: node.meta.get("stack_trace") for node in nodes}
    lines: dict[str, str] = {trace: user_line(session, trace) for trace in {*traces.values()} if trace}
    return {name: lines[trace] for name, trace in traces.items() if trace}


def _modes() -> list[str]:
    """Return torch's modes when Dynamo began to compile, in the format of a key's lines."""
    context = sys.modules["torch._guards"].TracingContext.try_get()
    state = {} if context is None else context.global_context.global_state
    dtypes = [state[dtype][1] for enabled, dtype in _AUTOCAST if enabled in state and state[enabled][1]]
    autocast = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes) or "off"
    grad_mode = "off" if state.get("grad_enabled", (None, True))[1] is False else "on"
    return [f"[] autocast: {autocast}", f"[] grad mode: {grad_mode}"]


def constants_read() -> dict[str, str] | None:
    """Return name → constant (its `repr`); None without Dynamo's frame, as for a late backward."""
    values = _Values.from_frame()
    context = sys.modules["torch._guards"].TracingContext.try_get()
    guards = None if context is None else context.guards_context.dynamo_guards
    if not guards or values is None:
        return None
    module = sys.modules["torch.nn.modules.module"].Module
    machinery = {name for name in (*vars(module), *vars(module())) if name.startswith("_")}
    constants: dict[str, str] = {}
    for guard in guards:
        if guard.create_fn_name() not in _GUARDS:
            continue
        name, value = values.resolve(guard.originating_source)
        if type(value) not in _TYPES or not name or name.startswith("__"):
            continue
        if name.rpartition(".")[2] not in machinery and len(text := repr(value)) <= _LONGEST:
            constants[name] = text
    shortest = sorted(constants, key=lambda name: (len(name), name))[:MOST_CONSTANTS]
    return {name: constants[name] for name in shortest if name.isprintable()}


def inputs_read() -> tuple[Named, ...]:
    """Return the inputs of the graph from Dynamo; they state `requires_grad`, which keys leave out."""
    values, graph = _Values.from_frame(), getattr(frames.read(frames.GRAPH), "graph", None)
    if values is None or graph is None:
        return ()
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    return tuple(_input(getattr(node, "_dynamo_source", None), values) for node in nodes)


def _input(source: Any, values: _Values) -> Named:
    name, value = _UNKNOWN if source is None else values.resolve(source)
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        return Named()
    torch = sys.modules["torch"]
    trains = issubclass(type(value), torch.Tensor) and torch.Tensor.requires_grad.__get__(value)
    if issubclass(type(value), torch.nn.Parameter):
        return Named("parameter", name, "" if trains else "frozen")
    if type(value) in (int, float):
        return Named("number", name)
    is_buffer = getattr(getattr(source, "base", None), "member", "") == "_buffers"
    return Named("buffer" if is_buffer else "input", name, "requires grad" if trains else "")


class _Values:
    """Source → name and value; the name is empty if the source is unknown."""

    def __init__(self, local: Mapping[str, Any], globals: Mapping[str, Any]) -> None:
        self._locals, self._globals = local, globals
        self._cache: dict[Any, tuple[str, Any]] = {}

    @classmethod
    def from_frame(cls) -> _Values | None:
        scopes = [frames.read(scope) for scope in (frames.FRAME_LOCALS, frames.FRAME_GLOBALS)]
        return cls(*scopes) if all(isinstance(scope, Mapping) for scope in scopes) else None

    def resolve(self, source: Any) -> tuple[str, Any]:
        if (pair := self._cache.get(source)) is None:
            pair = self._cache[source] = self._resolve_uncached(source)
        return pair

    def _resolve_uncached(self, source: Any) -> tuple[str, Any]:
        kind, base = type(source).__name__, getattr(source, "base", None)
        if kind == "LocalSource":
            return source.local_name, self._locals.get(source.local_name, _ABSENT)
        if kind == "GlobalSource":
            name = source.global_name
            if name.startswith("__import_"):  # Dynamo's name for the module `a.b` is `__import_a_dot_b`
                name = name.removeprefix("__import_").replace("_dot_", ".")
            return name, self._globals.get(source.global_name, _ABSENT)
        if kind == "CellContentsSource":
            return self._variable(base)
        name, value = _UNKNOWN if base is None else self.resolve(base)
        if not name or value is _ABSENT:
            return _UNKNOWN
        if kind in _ATTRIBUTES:
            read = getattr if type(value) is FunctionType else inspect.getattr_static
            return f"{name}.{source.member}", read(value, source.member, _ABSENT)
        if kind == "TypeSource":
            return name, type(value)
        if kind in _OF_CLASSES:
            if not issubclass(type(value), type):
                return name, _ABSENT
            return name, type.__dict__[_OF_CLASSES[kind]].__get__(value)
        if kind == "DefaultsSource":
            return _default(name, value, source.idx_key, source.is_kw)
        if kind in _ITEMS:
            return _item(name, value, source.index, base)
        return (name, value) if kind == "OptimizerSource" or kind.endswith("NNModuleSource") else _UNKNOWN

    def _variable(self, item: Any) -> tuple[str, Any]:
        cells: Any = getattr(item, "base", None)
        if type(cells).__name__ not in ("AttrSource", "ClosureSource") or type(item.index) is not int:
            return _UNKNOWN
        name, function = self.resolve(cells.base)
        if not name or type(function) is not FunctionType:
            return _UNKNOWN
        try:
            value = (function.__closure__ or ())[item.index].cell_contents
            return f"{function.__code__.co_freevars[item.index]} of {name}", value
        except (IndexError, ValueError):  # the variable is missing or empty
            return _UNKNOWN


def _default(name: str, value: Any, key: Any, is_keyword: bool) -> tuple[str, Any]:
    if type(value) is not FunctionType:
        return _UNKNOWN
    try:
        if is_keyword:
            return f"{key} of {name}", (value.__kwdefaults__ or {})[key]
        code, defaults = value.__code__, value.__defaults__ or ()
        return f"{code.co_varnames[code.co_argcount - len(defaults) + key]} of {name}", defaults[key]
    except LookupError:
        return _UNKNOWN


def _item(name: str, value: Any, index: Any, base: Any) -> tuple[str, Any]:
    kind = type(base).__name__
    if kind == "TypeMROSource" and type(index) is int:  # instances have the attributes of all bases
        return name, value[index] if index < len(value) else _ABSENT
    if kind == "TypeDictSource":
        return f"{name}.{index}", value.get(index, _ABSENT)
    if type(index) is str and getattr(base, "member", "") in _MEMBERS:
        owner = name.rpartition(".")[0]
        name = f"{owner}.{index}" if index.isidentifier() else f"{owner}[{index}]"
    elif type(index) is int or (type(index) is str and index.isidentifier()):
        name = f"{name}[{index!r}]"
    else:
        return _UNKNOWN  # other keys may be private data, while an identifier is code
    for container in (dict, list, tuple):
        if issubclass(type(value), container):  # `isinstance` may run a user's property `__class__`
            try:
                return name, container.__getitem__(value, index)
            except LookupError:
                break
    return _UNKNOWN
