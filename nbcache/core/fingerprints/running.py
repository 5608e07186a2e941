"""Tells whether looking something up runs code of somebody's: found without running any."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from nbcache.core.fingerprints.instances import attributes_of

__all__ = ["Running"]

_ABSENT: Any = object()
_BUILT_IN = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
_PLAIN = (
    types.FunctionType,
    staticmethod,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    *_BUILT_IN,
)
"""Types of what classes hold that runs no code of Python's when it is looked up."""
_AROUND = (functools.partial, types.MethodType, staticmethod, classmethod)
"""Types of what calls another function."""


class Running:
    """`is_theirs` tells of a code object whether it counts: that of libraries, say, may run.

    What is found of a class is kept: classes must stay as they are while it is used.
    """

    def __init__(self, is_theirs: Callable[[types.CodeType], bool]) -> None:
        self._is_theirs = is_theirs
        self._attributes: dict[tuple[type, str], bool | None] = {}
        self._elements: dict[type, bool] = {}

    def attribute(self, value: Any, name: str) -> bool:
        """Tell whether `value.name` runs such code."""
        kind = type(value)
        if issubclass(kind, type):  # `isinstance` would ask the value for its class
            return self._of_class(value, name)
        key = kind, name
        if key not in self._attributes:
            self._attributes[key] = self._of_instances(kind, name)
        found = self._attributes[key]
        if found is not None:
            return found
        if name in attributes_of(value):
            return False
        held = _lookup(kind, name)
        return self._asks(kind) if held is _ABSENT else self._gives(held)

    def element(self, value: Any) -> bool:
        """Tell whether `value[…]` runs such code, where what is asked for is there."""
        kind = type(value)
        if kind not in self._elements:
            self._elements[kind] = self._is_run(_lookup(kind, "__getitem__"))
        asks_class = issubclass(kind, type) and _lookup(kind, "__getitem__") is _ABSENT
        return self._elements[kind] or (asks_class and self._gives_element(value))

    def _gives_element(self, cls: type) -> bool:
        held = _lookup(cls, "__class_getitem__")
        return held is not _ABSENT and self._is_run(held)

    @staticmethod
    def missing(value: Any, key: Any) -> bool:
        """Tell whether a dictionary makes what it has not under `key`, whoever has written what makes it."""
        kind = type(value)
        makes = issubclass(kind, dict) and _lookup(kind, "__missing__") is not _ABSENT
        return makes and not dict.__contains__(value, key)

    def _of_instances(self, kind: type, name: str) -> bool | None:
        """Tell it of all instances of a class; None where that depends on what an instance holds."""
        if self._is_run(_lookup(kind, "__getattribute__")):
            return True
        held = _lookup(kind, name)
        if held is not _ABSENT and _is_data(held):
            return self._gives(held)
        if held is _ABSENT:
            return None if self._asks(kind) else False
        return None if self._gives(held) else False

    def _of_class(self, cls: type, name: str) -> bool:
        meta = type(cls)
        if self._is_run(_lookup(meta, "__getattribute__")):
            return True
        of_meta, own = _lookup(meta, name), _lookup(cls, name)
        if of_meta is not _ABSENT and (own is _ABSENT or _is_data(of_meta)):
            return self._gives(of_meta)
        if own is not _ABSENT:
            return type(own) is not property and self._gives(own)  # a class gives its properties themselves
        return self._asks(meta)

    def _asks(self, kind: type) -> bool:
        """Tell it of an attribute that is not there."""
        return self._is_run(_lookup(kind, "__getattr__"))

    def _gives(self, held: Any) -> bool:
        """Tell it of what a class holds under the name that is looked up."""
        kind = type(held)
        if kind in _PLAIN:
            return False
        if issubclass(kind, property):
            return self._is_run(held.fget)
        if issubclass(kind, functools.cached_property):
            return self._is_run(held.func)
        if issubclass(kind, classmethod):
            return self._gives(held.__func__)
        get = _lookup(kind, "__get__")
        return get is not _ABSENT and self._is_run(get)

    def _is_run(self, function: Any) -> bool:
        """Tell whether a function, if it is called, is such code, or may call some."""
        if function is None or function is _ABSENT:
            return False
        while issubclass(kind := type(function), _AROUND):
            function = function.func if issubclass(kind, functools.partial) else function.__func__
        if kind is types.FunctionType:
            return self._is_theirs(function.__code__)
        return kind not in _BUILT_IN


def _lookup(kind: type, name: str) -> Any:
    """Return what a class or a base of it holds under a name, as it is."""
    for base in kind.__mro__:
        members: Mapping[str, Any] = base.__dict__
        if name in members:
            return members[name]
    return _ABSENT


def _is_data(held: Any) -> bool:
    """Tell whether what a class holds comes before what its instances hold."""
    kind = type(held)
    return _lookup(kind, "__set__") is not _ABSENT or _lookup(kind, "__delete__") is not _ABSENT
