"""The numbers, flags and tensors that a function reads while it compiles, by the names of its author.

Dynamo makes a guard of each constant that it reads, and an input of each tensor, with the source by which it
is reached. nbcache reads the value by that source without running anybody's code: no property, `__getattr__`
or `__getitem__` of a user's.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from nbcache.explain.components import MOST_CONSTANTS, Named
from nbcache.torch_bridge import frames

_TYPES = (bool, int, float, complex, type(None))
"""Types of constants that are told; texts are not, which may be nobody else's business."""
_LONGEST, _LONGEST_NAME = 60, 120
"""Characters of a constant, and of a name; an input with a longer name has only a number."""
_GUARDS = frozenset({"BOOL_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH", "NONE_MATCH"})
"""Kinds of guards on constants."""
_MEMBERS = frozenset({"_modules", "_parameters", "_buffers"})
"""Dictionaries of a module whose keys are its attributes."""
_ATTRIBUTES = frozenset(
    {"AttrSource", "GenericAttrSource", "ParamBufferSource", "UnspecializedParamBufferSource"}
)
_ITEMS = frozenset({"DictGetItemSource", "GetItemSource", "ListGetItemSource"})
_OF_CLASSES = {"TypeMROSource": "__mro__", "TypeDictSource": "__dict__"}
_ABSENT = object()
_UNKNOWN: tuple[str, Any] = ("", _ABSENT)


def constants_read() -> dict[str, str] | None:
    """Return them, with their values as Python writes them; None where they are not known.

    They are not known of a backward that is compiled when it first runs, and of a function that was not
    traced.
    """
    values = _Values.here()
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
        name, value = values.reach(guard.originating_source)
        if type(value) not in _TYPES or not name or name.startswith("__"):
            continue
        if name.rpartition(".")[2] not in machinery and len(text := repr(value)) <= _LONGEST:
            constants[name] = text
    shortest = sorted(constants, key=lambda name: (len(name), name))[:MOST_CONSTANTS]
    return {name: constants[name] for name in shortest if name.isprintable()}


def inputs_read() -> tuple[Named, ...]:
    """Return the author's name of each input of Dynamo's graph, in order; nothing where that is not known.

    They are not known of a backward that is compiled when it first runs. Whether a tensor requires gradients
    is told, which torch's keys of graphs leave out.
    """
    values, graph = _Values.here(), getattr(frames.read(frames.GRAPH), "graph", None)
    if values is None or graph is None:
        return ()
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    return tuple(_named(getattr(node, "_dynamo_source", None), values) for node in nodes)


def _named(source: Any, values: _Values) -> Named:
    name, value = _UNKNOWN if source is None else values.reach(source)
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
    """Values by their sources, with the names of their author; an empty name where it has none."""

    def __init__(self, local: Mapping[str, Any], globals: Mapping[str, Any]) -> None:
        self._locals, self._globals = local, globals
        self._known: dict[Any, tuple[str, Any]] = {}

    @classmethod
    def here(cls) -> _Values | None:
        """Return those of the variables that Dynamo traces with; None where it does not."""
        scopes = [frames.read(scope) for scope in (frames.FRAME_LOCALS, frames.FRAME_GLOBALS)]
        return cls(*scopes) if all(isinstance(scope, Mapping) for scope in scopes) else None

    def reach(self, source: Any) -> tuple[str, Any]:
        """Return a source's name and value."""
        if (known := self._known.get(source)) is None:
            known = self._known[source] = self._reach(source)
        return known

    def _reach(self, source: Any) -> tuple[str, Any]:
        kind, base = type(source).__name__, getattr(source, "base", None)
        if kind == "LocalSource":
            return source.local_name, self._locals.get(source.local_name, _ABSENT)
        if kind == "GlobalSource":
            name = source.global_name
            if name.startswith("__import_"):  # Dynamo imports modules of functions by `__import_a_dot_b`
                name = name.removeprefix("__import_").replace("_dot_", ".")
            return name, self._globals.get(source.global_name, _ABSENT)
        if kind == "CellContentsSource":
            return self._variable(base)
        name, value = _UNKNOWN if base is None else self.reach(base)
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
        """Return a variable that a function closes over, by the name that the function has for it."""
        cells: Any = getattr(item, "base", None)
        if type(cells).__name__ not in ("AttrSource", "ClosureSource") or type(item.index) is not int:
            return _UNKNOWN
        name, function = self.reach(cells.base)
        if not name or type(function) is not FunctionType:
            return _UNKNOWN
        try:
            value = (function.__closure__ or ())[item.index].cell_contents
            return f"{function.__code__.co_freevars[item.index]} of {name}", value
        except (IndexError, ValueError):  # it has no such variable, or an empty one
            return _UNKNOWN


def _default(name: str, value: Any, key: Any, is_keyword: bool) -> tuple[str, Any]:
    """Return the default of an argument, by the argument's name."""
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
    """Return an item of a list, a tuple or a dictionary; of a module's own dictionaries, by its attribute."""
    kind = type(base).__name__
    if kind == "TypeMROSource" and type(index) is int:  # its instances have the attributes of all bases
        return name, value[index] if index < len(value) else _ABSENT
    if kind == "TypeDictSource":
        return f"{name}.{index}", value.get(index, _ABSENT)
    if type(index) is str and getattr(base, "member", "") in _MEMBERS:
        owner = name.rpartition(".")[0]
        name = f"{owner}.{index}" if index.isidentifier() else f"{owner}[{index}]"
    elif type(index) is int or (type(index) is str and index.isidentifier()):
        name = f"{name}[{index!r}]"
    else:
        return _UNKNOWN  # a key may be anybody's data; one that is a name is code
    for container in (dict, list, tuple):
        if issubclass(type(value), container):  # `isinstance` asks a property of the user's, `__class__`
            try:
                return name, container.__getitem__(value, index)
            except LookupError:
                break
    return _UNKNOWN
