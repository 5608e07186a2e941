"""What an instance holds: found without running code of its class."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["attributes_of", "has_dictionary", "has_python", "held", "native_class", "protocol_attributes"]

_HEAP = 1 << 9
"""Of `__flags__`: a class that was made while the process ran, as all that are written in Python."""

protocol_attributes: Callable[[type], Iterable[str]] = getattr(typing, "_get_protocol_attrs", vars)
"""Returns the names that instances of a protocol have, of methods and of annotations."""


def held(kind: type, value: Any) -> dict[str, Any]:
    """Return the attributes that an instance itself holds, in its dictionary and in slots."""
    state: dict[str, Any] = {}
    for base in kind.__mro__:
        for name, slot in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    state[name] = slot.__get__(value)
                except AttributeError:
                    pass
    return {**state, **attributes_of(value)}


def has_dictionary(value: Any) -> bool:
    """Tell whether an instance holds attributes in a dictionary."""
    read: Any = native_class(type(value)).__getattribute__
    try:
        return isinstance(read(value, "__dict__"), dict)
    except AttributeError:
        return False


def attributes_of(value: Any) -> Mapping[str, Any]:
    """Return the attributes that an instance has in its dictionary, itself; none where it has none."""
    read: Any = native_class(type(value)).__getattribute__
    found: dict[str, Any] = read(value, "__dict__") if has_dictionary(value) else {}
    return found


def native_class(kind: type) -> type:
    """Return the class written in C that an instance of `kind` has its content from; `object` has none."""
    for base in kind.__mro__:
        new = vars(base).get("__new__")
        if isinstance(new, types.BuiltinFunctionType) and new.__self__ is base:
            return base
        if not base.__flags__ & _HEAP:
            return base
    return object


def has_python(cls: type) -> bool:
    """Tell whether a class is written in Python, and not in C."""
    members = vars(cls)
    return "__slots__" in members or any(isinstance(each, types.FunctionType) for each in members.values())
