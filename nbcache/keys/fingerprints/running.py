"""Answers whether a lookup of an attribute or element may run user code, without running any."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from nbcache.keys.fingerprints.objects import dictionary_of

_ABSENT: Any = object()
_BUILT_IN = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
_PLAIN = (
    types.FunctionType,
    staticmethod,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    *_BUILT_IN,
)
"""Types of class attributes whose lookup runs no Python code."""
_READING_SLOTS = ("__class_getitem__", "__get__", "__getattribute__", "__getitem__")
_READING_METHODS = (dict.get, dict.__getitem__, list.__getitem__)
"""Functions in C that only read; others may change their object, such as `list.pop`."""
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_WRAPPERS = (functools.partial, types.MethodType, staticmethod, classmethod)


class Running:
    """Answers which lookups may run code objects for which `is_user_code` returns True.

    A lookup that calls a function in C may run user code, too, except for a few functions that only read.
    Answers about classes are cached, so classes must not change while an instance is used.
    """

    def __init__(self, is_user_code: Callable[[types.CodeType], bool]) -> None:
        self._is_user_code = is_user_code
        self._attributes: dict[tuple[type, str], bool | None] = {}
        """Class and attribute → result of `_attribute_of_instances`."""
        self._elements: dict[type, bool] = {}
        """Class → whether its `__getitem__` runs user code."""

    def attribute(self, value: Any, name: str) -> bool:
        """Return whether `value.name` runs user code."""
        kind = type(value)
        if kind in _PROXIES:
            return True
        if issubclass(kind, type):  # `isinstance` would read `value.__class__`
            return self._attribute_of_class(value, name)
        key = kind, name
        if key not in self._attributes:
            self._attributes[key] = self._attribute_of_instances(kind, name)
        answer = self._attributes[key]
        if answer is not None:
            return answer
        attributes = dictionary_of(value)
        if attributes is not None and dict.__contains__(attributes, name):
            return False
        raw = _lookup(kind, name)
        return self._runs_getattr(kind) if raw is _ABSENT else self._runs_getter(raw)

    def element(self, value: Any) -> bool:
        """Return whether `value[…]` runs user code if the element exists."""
        kind = type(value)
        if kind not in self._elements:
            self._elements[kind] = self._runs_code(_lookup(kind, "__getitem__"))
        is_class = issubclass(kind, type) and _lookup(kind, "__getitem__") is _ABSENT
        return self._elements[kind] or (is_class and self._runs_code(_lookup(value, "__class_getitem__")))

    @staticmethod
    def missing(value: Any, key: Any) -> bool:
        """Return whether `value[key]` calls a dictionary's `__missing__`."""
        kind = type(value)
        makes = issubclass(kind, dict) and _lookup(kind, "__missing__") is not _ABSENT
        return makes and not dict.__contains__(value, key)

    def _attribute_of_instances(self, kind: type, name: str) -> bool | None:
        """Return whether `.name` runs user code for all instances; None if it depends on the instance."""
        if self._runs_code(_lookup(kind, "__getattribute__")):
            return True
        raw = _lookup(kind, name)
        if raw is not _ABSENT and _is_data(raw):
            return self._runs_getter(raw)
        if raw is _ABSENT:
            return None if self._runs_getattr(kind) else False
        return None if self._runs_getter(raw) else False

    def _attribute_of_class(self, cls: type, name: str) -> bool:
        meta = type(cls)
        if self._runs_code(_lookup(meta, "__getattribute__")):
            return True
        of_meta, own = _lookup(meta, name), _lookup(cls, name)
        if of_meta is not _ABSENT and (own is _ABSENT or _is_data(of_meta)):
            return self._runs_getter(of_meta)
        if own is not _ABSENT:
            return type(own) is not property and self._runs_getter(own)  # a class returns the property itself
        return self._runs_getattr(meta)

    def _runs_getattr(self, kind: type) -> bool:
        get = _lookup(kind, "__getattr__")
        return get is not _ABSENT and (self._runs_code(get) or self._runs_code(_lookup(kind, "__missing__")))

    def _runs_getter(self, raw: Any) -> bool:
        """Return whether the lookup of a class attribute runs user code."""
        kind = type(raw)
        if kind in _PLAIN:
            return False
        if issubclass(kind, property):
            return self._runs_code(raw.fget)
        if issubclass(kind, functools.cached_property):
            return self._runs_code(raw.func)
        if issubclass(kind, classmethod):
            return self._runs_getter(raw.__func__)
        get = _lookup(kind, "__get__")
        return get is not _ABSENT and self._runs_code(get)

    def _runs_code(self, function: Any) -> bool:
        if function is None or function is _ABSENT:
            return False
        while issubclass(kind := type(function), _WRAPPERS):
            function = function.func if issubclass(kind, functools.partial) else function.__func__
        if kind is types.FunctionType:
            return self._is_user_code(function.__code__)
        if kind is types.MethodDescriptorType:
            return all(function is not method for method in _READING_METHODS)
        return kind not in _BUILT_IN or function.__name__ not in _READING_SLOTS


def holds_attribute(value: Any, name: str) -> bool:
    """Return whether `value.name` is in the object's own dictionary or slot, so that no code can run."""
    kind = type(value)
    reads = _lookup(kind, "__getattribute__")
    if reads is not object.__getattribute__ and reads is not types.ModuleType.__getattribute__:
        return False
    raw = _lookup(kind, name)
    if raw is not _ABSENT and _is_data(raw):
        return type(raw) is types.MemberDescriptorType or kind in (types.FunctionType, types.CellType)
    attributes = dictionary_of(value)
    return attributes is not None and dict.__contains__(attributes, name)


def _lookup(kind: type, name: str) -> Any:
    """Return the raw attribute of a class or its bases, without its `__get__`."""
    for base in kind.__mro__:
        members: Mapping[str, Any] = base.__dict__
        if name in members:
            return members[name]
    return _ABSENT


def _is_data(raw: Any) -> bool:
    """Return whether a class attribute is a data descriptor, which overrides instance attributes."""
    kind = type(raw)
    return _lookup(kind, "__set__") is not _ABSENT or _lookup(kind, "__delete__") is not _ABSENT
