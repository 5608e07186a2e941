"""Classes that `isinstance` accepts for an abstract class without inheritance."""

from __future__ import annotations

from _abc import _get_dump  # type: ignore[import-not-found]
from abc import ABC, ABCMeta
from collections.abc import Iterator
from typing import Protocol

__all__ = ["classes_with_subclasshook", "registered_classes"]


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
