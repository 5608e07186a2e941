"""Which numbers and flags a function that is being compiled reads, by the names that its author gave them.

Dynamo makes a guard of each constant that it reads, with the source by which it is reached. The value is read
by that source without running anybody's code: no property, `__getattr__` or `__getitem__` of a user's.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import FrameType, FunctionType
from typing import Any

from nbcache.explain.components import MOST_CONSTANTS
from nbcache.torch_bridge.events import given_to_compile

__all__ = ["constants_read"]

_TYPES = (bool, int, float, complex, type(None))
"""Types of constants that are told; texts are not, which may be nobody else's business."""
_LONGEST = 60
"""Characters of a constant that are kept."""
_DEEP = 80
"""Frames from where torch asks its cache up to where Dynamo begins."""
_GUARDS = frozenset({"BOOL_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH", "NONE_MATCH"})
"""Kinds of guards on constants."""
_MEMBERS = frozenset({"_modules", "_parameters", "_buffers"})
"""Dictionaries of a module whose keys are its attributes."""
_ABSENT = object()


def constants_read(frame: FrameType | None) -> dict[str, str] | None:
    """Return them, with their values as Python writes them; None where they are not known.

    `frame` is where torch asks its cache. They are not known of a backward that is compiled when it first
    runs, and of a function that was not traced.
    """
    given = {name: given_to_compile(frame, name, within=_DEEP) for name in ("locals", "globals")}
    context = sys.modules["torch._guards"].TracingContext.try_get()
    guards = None if context is None else context.guards_context.dynamo_guards
    if not guards or not all(isinstance(scope, Mapping) for scope in given.values()):
        return None
    found: dict[str, str] = {}
    reached: dict[Any, tuple[str, Any]] = {}
    for guard in guards:
        if guard.create_fn_name() not in _GUARDS:
            continue
        name, value = _reached(guard.originating_source, given, reached)
        if type(value) not in _TYPES or not name or name.startswith("__"):
            continue
        if len(text := repr(value)) <= _LONGEST:
            found[name] = text
    kept = sorted(found, key=lambda name: (len(name), name))[:MOST_CONSTANTS]
    return {name: found[name] for name in kept if name.isprintable()}


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
    if kind in ("AttrSource", "GenericAttrSource"):
        return _attribute(name, value, source.member)
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


def _item(name: str, value: Any, index: Any, member: str) -> tuple[str, Any]:
    """Return an item of a list, a tuple or a dictionary; of a module's own dictionaries, by its attribute."""
    owner = name.rpartition(".")[0]
    if type(index) is str and member in _MEMBERS:
        called = f"{owner}.{index}" if index.isidentifier() else f"{owner}[{index}]"
    elif type(index) is int or (type(index) is str and index.isidentifier()):
        called = f"{name}[{index!r}]"
    else:
        return "", _ABSENT  # a key may be anybody's data; one that is a name is code
    try:
        if isinstance(value, dict):
            return called, dict.__getitem__(value, index)
        if isinstance(value, list | tuple) and type(index) is int:
            kind: Any = list if isinstance(value, list) else tuple
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
