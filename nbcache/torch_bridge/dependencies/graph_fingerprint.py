"""The fingerprint of what a graph depends on: packages that cannot be followed count by their files."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from logging import Logger, RootLogger
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from nbcache.core.fingerprints.digests import Fingerprint, Rule, Unknown
from nbcache.core.fingerprints.known_code import KnownPackages
from nbcache.core.installed import is_installed, package_of, version_of

__all__ = ["State", "identity"]

_IDS = frozenset({"_autograd_function_id"})
"""Attributes that number things in the order in which they were made."""
_MOST_VISITED = 3_000
"""So many objects of a package are looked at for code of the user, which takes some 40 ms."""
_LOGGERS = (Logger, RootLogger)
_PLAIN = (BuiltinFunctionType, CodeType, bool, bytes, complex, float, int, str, type(None), *_LOGGERS)
"""Types of values that hold no code of a user; a logger holds all others."""


class State(Fingerprint):
    """A fingerprint that knows whose code it covers."""

    def __init__(self, known: KnownPackages, rules: Sequence[Rule], unfollowed: dict[int, Any]) -> None:
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


def identity(known: KnownPackages, value: Any) -> str:
    """Return module, name and version of a function or class that an installed package defines.

    It is empty for code of the user, and for code that was made at run time and holds other values.
    """
    if not isinstance(value, (FunctionType, type)):
        return ""
    names = []
    for code in known.user_code_in(value):
        if isinstance(code, FunctionType):
            file = code.__code__.co_filename
        else:
            file = getattr(sys.modules.get(code.__module__), "__file__", None) or ""
        is_local = "<locals>" in code.__qualname__ or getattr(code, "__closure__", None)
        version = version_of(file)
        if not version or (is_local and not _is_global(code)) or not _is_whole(known, code, file):
            return ""
        names.append(f"{code.__module__}.{code.__qualname__} {version}")
    return " ".join(names)


def _is_whole(packages: KnownPackages, code: Any, file: str) -> bool:
    """Return whether a function or class of the package that `file` belongs to reaches no code of the user.

    A decorator of a package returns a function of the package that holds one of the user's. A package's
    registry holds what users put into it.
    """
    if isinstance(code, FunctionType):
        home = getattr(sys.modules.get(code.__module__ or ""), "__file__", None) or ""
        if package_of(home) not in (package_of(file), "torch"):
            return False
    return not _reaches_users(packages, code, package_of(file))


def _reaches_users(packages: KnownPackages, value: Any, package: str) -> bool:
    """Return whether a package's function or class reaches code of the user.

    Functions, classes and objects of the package are followed, and collections; the first ones alone, where
    there are very many.
    """
    visited: dict[int, Any] = {}
    queue = deque([value])
    try:
        while queue and len(visited) < _MOST_VISITED:
            value = queue.popleft()
            if id(value) in visited or type(value) in _PLAIN:
                continue
            visited[id(value)] = value
            if _is_users(packages, value) or _is_users(packages, type(value)):
                return True
            queue += _parts(value, package)
    except Exception:  # a proxy raised, or another thread changed a collection
        return True
    return False


def _parts(value: Any, package: str) -> Iterator[Any]:
    """Return the objects that a value refers to, and through which it may call code."""
    if isinstance(value, FunctionType):
        yield from (value.__defaults__, value.__kwdefaults__, vars(value))
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                yield cell.cell_contents
        if package_of(value.__code__.co_filename) == package:
            yield from _globals_of(value, package)
    elif isinstance(value, dict):
        yield from (*dict.keys(value), *dict.values(value))  # a subclass may run code of its own
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        kind: Any = next(base for base in (list, tuple, set, frozenset, deque) if isinstance(value, base))
        yield from tuple(kind.__iter__(value))
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, type):
        if _package_of_module(value.__module__) == package:
            yield from (dict(vars(value)), value.__bases__)
    elif not isinstance(value, ModuleType):
        yield from _attributes(value)
        yield type(value)


def _attributes(value: Any) -> Iterator[Any]:
    """Return what an object's attributes hold, without running code of its class."""
    with suppress(AttributeError):
        yield object.__getattribute__(value, "__dict__")
    for base in type(value).__mro__:
        for slot in vars(base).values():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):  # it is not set
                    yield slot.__get__(value)


def _globals_of(function: FunctionType, package: str) -> Iterator[Any]:
    """Return the globals that a function names, and what it may name of the package's modules."""
    names = {*_names(function.__code__)}
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            yield value
        elif _package_of_module(value.__name__) == package:
            yield from (vars(value)[attribute] for attribute in names & vars(value).keys())


def _package_of_module(name: str) -> str:
    return package_of(getattr(sys.modules.get(name), "__file__", None) or "")


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_users(packages: KnownPackages, value: Any) -> bool:
    """Return whether this is a function, method or class that is not installed."""
    value = value.__func__ if isinstance(value, (MethodType, staticmethod, classmethod)) else value
    if isinstance(value, FunctionType):
        file = value.__code__.co_filename
        return not (is_installed(file) or packages.has_file(file) or _is_from_string(value))
    if not isinstance(value, type):
        return False
    home = getattr(sys.modules.get(value.__module__), "__file__", None)
    if value.__module__ == "__main__":
        return True
    return not (home is None or is_installed(home) or packages.has_file(home))


def _is_from_string(function: FunctionType) -> bool:
    """Return whether an installed package, or a named tuple, generated a function from a string."""
    if not function.__code__.co_filename.startswith("<"):
        return False
    name = str(function.__globals__.get("__name__"))
    home = getattr(sys.modules.get(name), "__file__", None) or ""
    return is_installed(home) or name.startswith("namedtuple_")


def _is_global(code: Any) -> bool:
    """Return whether a module holds this function or class by its name."""
    return getattr(sys.modules.get(code.__module__ or ""), code.__name__, None) is code
