"""Which classes count as subclasses of an abstract one, for all that they do not inherit from it."""

from __future__ import annotations

from _abc import _get_dump  # type: ignore[import-not-found]
from abc import ABC, ABCMeta
from collections.abc import Iterator
from typing import Protocol

__all__ = ["deciding", "registered"]


def deciding(abstract: type) -> Iterator[type]:
    """Return the classes below an abstract one that have code of their own for what counts as an instance.

    Of `ABC` and `Protocol` there are none: classes inherit from them, and nobody asks for their instances.
    """
    if abstract is ABC or abstract is Protocol:
        return
    below: type
    for below in type.__subclasses__(abstract):
        if "__subclasshook__" in vars(below) or type(below) is not type(abstract):
            yield below
        yield from deciding(below)


def registered(cls: type) -> Iterator[type]:
    """Return the classes that were registered for an abstract class, or for any that counts as one of it."""
    for reference in _get_dump(cls)[0]:
        if (found := reference()) is not None:
            yield found
            if issubclass(type(found), ABCMeta):
                yield from registered(found)
    below: type
    for below in type.__subclasses__(cls):
        if issubclass(type(below), ABCMeta):
            yield from registered(below)
