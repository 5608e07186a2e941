"""Which numbers, flags and tensors a function that is compiled reads, by the names that its author gave them.

Dynamo makes a guard of each constant that it reads, and an input of each tensor, with the source by which it
is reached. The value is read by that source without running anybody's code: no property, `__getattr__` or
`__getitem__` of a user's.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from nbcache.explain.components import MOST_CONSTANTS, Named
from nbcache.torch_bridge import frames

__all__ = ["constants_read", "inputs_read"]

_TYPES = (bool, int, float, complex, type(None))
"""Types of constants that are told; texts are not, which may be nobody else's business."""
_LONGEST = 60
"""Characters of a constant that are kept."""
_LONGEST_NAME = 120
"""Characters of a name; what has a longer one is told by its number."""
_GUARDS = frozenset({"BOOL_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH", "NONE_MATCH"})
"""Kinds of guards on constants."""
_MEMBERS = frozenset({"_modules", "_parameters", "_buffers"})
"""Dictionaries of a module whose keys are its attributes."""
_ABSENT = object()


def constants_read() -> dict[str, str] | None:
    """Return them, with their values as Python writes them; None where they are not known.

    They are not known of a backward that is compiled when it first runs, and of a function that was not
    traced.
    """
    given = _scopes()
    context = sys.modules["torch._guards"].TracingContext.try_get()
    guards = None if context is None else context.guards_context.dynamo_guards
    if not guards or given is None:
        return None
    module = sys.modules["torch.nn.modules.module"].Module
    machinery = {each for each in (*vars(module), *vars(module())) if each.startswith("_")}
    found: dict[str, str] = {}
    reached: dict[Any, tuple[str, Any]] = {}
    for guard in guards:
        if guard.create_fn_name() not in _GUARDS:
            continue
        name, value = _reached(guard.originating_source, given, reached)
        if type(value) not in _TYPES or not name or name.startswith("__"):
            continue
        if name.rpartition(".")[2] in machinery:
            continue
        if len(text := repr(value)) <= _LONGEST:
            found[name] = text
    kept = sorted(found, key=lambda name: (len(name), name))[:MOST_CONSTANTS]
    return {name: found[name] for name in kept if name.isprintable()}


def inputs_read() -> tuple[Named, ...]:
    """Return what people call each input of Dynamo's graph, in order; nothing where that is not known.

    They are not known of a backward that is compiled when it first runs. Whether a tensor requires gradients
    is told, which torch's keys of graphs leave out.
    """
    given, graph = _scopes(), getattr(frames.read(frames.GRAPH), "graph", None)
    if given is None or graph is None:
        return ()
    reached: dict[Any, tuple[str, Any]] = {}
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    return tuple(_named(getattr(node, "_dynamo_source", None), given, reached) for node in nodes)


def _named(source: Any, scopes: Mapping[str, Any], known: dict[Any, tuple[str, Any]]) -> Named:
    name, value = ("", _ABSENT) if source is None else _reached(source, scopes, known)
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        return Named()
    torch = sys.modules["torch"]
    is_parameter = issubclass(type(value), torch.nn.Parameter)
    trains = issubclass(type(value), torch.Tensor) and torch.Tensor.requires_grad.__get__(value)
    if is_parameter:
        return Named("parameter", name, "" if trains else "frozen")
    if type(value) in (int, float):
        return Named("number", name)
    is_buffer = getattr(getattr(source, "base", None), "member", "") == "_buffers"
    return Named("buffer" if is_buffer else "input", name, "requires grad" if trains else "")


def _scopes() -> dict[str, Any] | None:
    """Return the local and the global variables that Dynamo traces with; None where it does not."""
    given = {local.name: frames.read(local) for local in (frames.FRAME_LOCALS, frames.FRAME_GLOBALS)}
    return given if all(isinstance(scope, Mapping) for scope in given.values()) else None


def _reached(source: Any, scopes: Mapping[str, Any], known: dict[Any, tuple[str, Any]]) -> tuple[str, Any]:
    """Return what a person calls a source, and its value; an empty name where it is reached otherwise.

    `known` are those that were reached before.
    """
    if (found := known.get(source)) is None:
        found = known[source] = _reach(source, scopes, known)
    return found


def _reach(source: Any, scopes: Mapping[str, Any], known: dict[Any, tuple[str, Any]]) -> tuple[str, Any]:
    kind = type(source).__name__
    if kind == "LocalSource":
        return source.local_name, scopes["locals"].get(source.local_name, _ABSENT)
    if kind == "GlobalSource":
        return _global(source.global_name), scopes["globals"].get(source.global_name, _ABSENT)
    if kind == "CellContentsSource":
        return _variable(source, scopes, known)
    base = getattr(source, "base", None)
    if base is None:
        return "", _ABSENT
    name, value = _reached(base, scopes, known)
    if not name or value is _ABSENT:
        return "", _ABSENT
    if kind in ("AttrSource", "GenericAttrSource", "ParamBufferSource", "UnspecializedParamBufferSource"):
        return _attribute(name, value, source.member)
    if kind in ("TypeSource", "TypeMROSource", "TypeDictSource"):
        return name, _of_type(kind, value)
    if kind == "DefaultsSource":
        return _default(name, value, source.idx_key, source.is_kw)
    if kind in ("DictGetItemSource", "GetItemSource", "ListGetItemSource"):
        return _item(name, value, source.index, getattr(base, "member", ""))
    if kind == "OptimizerSource" or kind.endswith("NNModuleSource"):
        return name, value
    return "", _ABSENT


def _global(name: str) -> str:
    """Return what a person calls a global: Dynamo imports modules of functions by `__import_a_dot_b`."""
    return name.removeprefix("__import_").replace("_dot_", ".") if name.startswith("__import_") else name


def _attribute(name: str, value: Any, member: str) -> tuple[str, Any]:
    if type(value) is FunctionType:
        return f"{name}.{member}", getattr(value, member, _ABSENT)
    return f"{name}.{member}", inspect.getattr_static(value, member, _ABSENT)


def _of_type(kind: str, value: Any) -> Any:
    """Return the class of a value, or the bases or what stands in the body of a class."""
    if kind == "TypeSource":
        return type(value)
    if not issubclass(type(value), type):
        return _ABSENT
    if kind == "TypeMROSource":
        return _Bases(type.__dict__["__mro__"].__get__(value))
    return _Body(type.__dict__["__dict__"].__get__(value))


class _Bases(tuple[type, ...]):
    """The bases of a class, whose attributes its instances have."""


class _Body(dict[str, Any]):
    """What stands in the body of a class, which its instances have as attributes."""


def _default(name: str, value: Any, key: Any, is_keyword: bool) -> tuple[str, Any]:
    """Return the default of an argument, by the argument's name."""
    if type(value) is not FunctionType:
        return "", _ABSENT
    try:
        if is_keyword:
            return f"{key} of {name}", (value.__kwdefaults__ or {})[key]
        code, defaults = value.__code__, value.__defaults__ or ()
        first = code.co_argcount - len(defaults)
        return f"{code.co_varnames[first + key]} of {name}", defaults[key]
    except LookupError:
        return "", _ABSENT


def _item(name: str, value: Any, index: Any, member: str) -> tuple[str, Any]:
    """Return an item of a list, a tuple or a dictionary; of a module's own dictionaries, by its attribute."""
    owner = name.rpartition(".")[0]
    if type(value) is _Bases and type(index) is int:
        return name, value[index] if index < len(value) else _ABSENT
    if type(value) is _Body:
        return f"{name}.{index}", value.get(index, _ABSENT)
    if type(index) is str and member in _MEMBERS:
        called = f"{owner}.{index}" if index.isidentifier() else f"{owner}[{index}]"
    elif type(index) is int or (type(index) is str and index.isidentifier()):
        called = f"{name}[{index!r}]"
    else:
        return "", _ABSENT  # a key may be anybody's data; one that is a name is code
    try:
        for kind in (dict, list, tuple):
            if issubclass(type(value), kind):  # `isinstance` asks a property of the user's, `__class__`
                return called, kind.__getitem__(value, index)
    except LookupError:
        pass
    return "", _ABSENT


def _variable(source: Any, scopes: Mapping[str, Any], known: dict[Any, tuple[str, Any]]) -> tuple[str, Any]:
    """Return a variable that a function closes over, by the name that the function has for it."""
    item = source.base
    cells: Any = getattr(item, "base", None)
    if type(cells).__name__ not in ("AttrSource", "ClosureSource") or type(index := item.index) is not int:
        return "", _ABSENT
    name, function = _reached(cells.base, scopes, known)
    if not name or type(function) is not FunctionType:
        return "", _ABSENT
    try:
        value = (function.__closure__ or ())[index].cell_contents
        return f"{function.__code__.co_freevars[index]} of {name}", value
    except (IndexError, ValueError):  # it has no such variable, or an empty one
        return "", _ABSENT
