"""Attributes of instances and classes, read without running code of their classes."""

from __future__ import annotations

import types
import typing
from _abc import _get_dump  # type: ignore[import-not-found]
from abc import ABC, ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

HEAP_TYPE = 1 << 9
"""Flag in `__flags__`: a heap type, such as every class that is written in Python."""
DESCRIPTIVE = frozenset(
    {
        *("__annotate__", "__annotations__", "__annotations_cache__", "__doc__", "__firstlineno__"),
        *("__static_attributes__", "_abc_impl"),
    }
)
"""Attributes of classes and functions that have no effect unless code reads them."""

protocol_attributes: Callable[[type], Iterable[str]] = getattr(typing, "_get_protocol_attrs", vars)
"""Returns the names of a protocol's methods and annotated attributes."""


def instance_attributes(kind: type, value: Any) -> dict[str, Any]:
    """Return the attributes in an instance's `__dict__` and in its slots."""
    slots: dict[str, Any] = {}
    for base in kind.__mro__:
        for name, slot in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    slots[name] = slot.__get__(value)
                except AttributeError:
                    pass
    return {**slots, **dict_attributes(value)}


def has_dictionary(value: Any) -> bool:
    """Return whether an instance has a `__dict__`."""
    read: Any = native_class(type(value)).__getattribute__
    try:
        return isinstance(read(value, "__dict__"), dict)
    except AttributeError:
        return False


def dict_attributes(value: Any) -> Mapping[str, Any]:
    """Return an instance's `__dict__`, or an empty one where it has none."""
    read: Any = native_class(type(value)).__getattribute__
    attributes: dict[str, Any] = read(value, "__dict__") if has_dictionary(value) else {}
    return attributes


def native_class(kind: type) -> type:
    """Return the base class in C that stores the content of instances of `kind`; `object` stores none."""
    for base in kind.__mro__:
        new = vars(base).get("__new__")
        if isinstance(new, types.BuiltinFunctionType) and new.__self__ is base:
            return base
        if not base.__flags__ & HEAP_TYPE:
            return base
    return object


def is_python_class(cls: type) -> bool:
    """Return whether a class is written in Python rather than C."""
    members = vars(cls)
    return "__slots__" in members or any(
        isinstance(member, types.FunctionType) for member in members.values()
    )


def classes_with_subclasshook(abstract: type) -> Iterator[type]:
    """Yield the subclasses of an abstract class that decide by their own code what their instances are.

    `ABC` and `Protocol` yield nothing: no code checks for their instances.
    """
    if abstract is ABC or abstract is Protocol:
        return
    subclass: type
    for subclass in type.__subclasses__(abstract):
        if "__subclasshook__" in vars(subclass) or type(subclass) is not type(abstract):
            yield subclass
        yield from classes_with_subclasshook(subclass)


def registered_classes(cls: type) -> Iterator[type]:
    """Yield the classes that are registered for an abstract class or for its virtual subclasses."""
    for reference in _get_dump(cls)[0]:
        if (registered := reference()) is not None:
            yield registered
            if issubclass(type(registered), ABCMeta):
                yield from registered_classes(registered)
    subclass: type
    for subclass in type.__subclasses__(cls):
        if issubclass(type(subclass), ABCMeta):
            yield from registered_classes(subclass)
