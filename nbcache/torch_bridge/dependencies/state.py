"""The fingerprint of what a graph depends on: packages that cannot be followed count by their files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

from nbcache.core.fingerprints.digests import Fingerprint, Rule, Unknown
from nbcache.core.fingerprints.known_code import Known
from nbcache.core.installed import is_installed, package_of, version_of

__all__ = ["State", "identity"]

_IDS = frozenset({"_autograd_function_id"})
"""Attributes that number things in the order in which they were made."""


class State(Fingerprint):
    """A fingerprint that knows whose code it covers."""

    def __init__(self, known: Known, rules: Sequence[Rule], unfollowed: dict[int, Any]) -> None:
        """`unfollowed` holds, by id, the code of packages that could not be followed before."""
        super().__init__(known, rules, _IDS)
        self._unfollowed = unfollowed
        self.of_users = False
        """True where some of the code is neither torch's nor an installed package's."""
        self.of_packages = False
        """True where some of the code is an installed package's and counts by its files."""
        self.gets_graphs = False
        """True where some of the code is given graphs."""

    @property
    def has_code(self) -> bool:
        """True where more was added than notes."""
        return self.of_packages or self._count > 0

    def add_code(self, value: Any, words: str = "") -> None:
        """Add code of others; of an installed package that cannot be followed, its identity."""
        name = identity(self.known, value)
        self.of_users |= not name
        if name and not self._can_follow(value):
            self.add_identity(name)
        else:
            self.add(value, words)

    def add_identity(self, name: str) -> None:
        """Add code of an installed package by its `identity`."""
        self.of_packages = True
        self.note("package", name)

    def _can_follow(self, value: Any) -> bool:
        if id(value) in self._unfollowed:
            return False
        try:
            Fingerprint(self.known, self._rules, _IDS).add(value)
        except Unknown:
            self._unfollowed[id(value)] = value
            return False
        return True


def identity(known: Known, value: Any) -> str:
    """Return module, name and version of a function or class that an installed package defines.

    It is empty for code of the user, and for code that was made at run time and holds other values.
    """
    if not isinstance(value, (FunctionType, type)):
        return ""
    names = []
    for code in known.foreign(value):
        if isinstance(code, FunctionType):
            file = code.__code__.co_filename
        else:
            file = getattr(sys.modules.get(code.__module__), "__file__", None) or ""
        is_local = "<locals>" in code.__qualname__ or getattr(code, "__closure__", None)
        version = version_of(file)
        if not version or (is_local and not _is_global(code)) or not _is_whole(code, file):
            return ""
        names.append(f"{code.__module__}.{code.__qualname__} {version}")
    return " ".join(names)


def _is_whole(code: Any, file: str) -> bool:
    """Return whether a function of the package that `file` belongs to holds and names no code of the user.

    A decorator of a package returns a function of the package that holds one of the user's.
    """
    if not isinstance(code, FunctionType):
        return True
    if _names_users(code):
        return False
    home = getattr(sys.modules.get(code.__module__ or ""), "__file__", None) or ""
    parts = [*(code.__defaults__ or ()), *(code.__kwdefaults__ or {}).values(), *vars(code).values()]
    for cell in code.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            parts.append(cell.cell_contents)
    return package_of(home) in (package_of(file), "torch") and not any(map(_is_users, parts))


def _names_users(function: FunctionType) -> bool:
    """Return whether a package's function names code of the user, or a collection that holds some."""
    for name in _names(function.__code__):
        part = function.__globals__.get(name)
        parts = list(part.values()) if isinstance(part, dict) else [part]
        if isinstance(part, (list, set, tuple)):
            parts = [*part]
        if any(map(_is_users, parts)):
            return True
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_users(value: Any) -> bool:
    """Return whether this is a function, method or class that is not installed."""
    value = getattr(value, "__func__", value)
    if isinstance(value, FunctionType):
        return not is_installed(value.__code__.co_filename)
    if not isinstance(value, type):
        return False
    file = getattr(sys.modules.get(value.__module__), "__file__", None)
    return value.__module__ == "__main__" or (file is not None and not is_installed(file))


def _is_global(code: Any) -> bool:
    """Return whether a module holds this function or class by its name."""
    return getattr(sys.modules.get(code.__module__ or ""), code.__name__, None) is code
