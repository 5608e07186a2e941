"""The fingerprint of a graph's dependencies; code of packages is identified by their files if need be."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from logging import Logger, RootLogger
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from nbcache.core.installed import is_installed, package_of, version_of
from nbcache.keys.fingerprints.code import code_tree
from nbcache.keys.fingerprints.digests import Fingerprint, Rule, name_of
from nbcache.keys.fingerprints.known_code import KnownPackages, cell_contents
from nbcache.keys.fingerprints.objects import Unknown

_SERIAL_NUMBERS = frozenset({"_autograd_function_id"})
"""Attributes that hold serial numbers of objects in a process."""
_MOST_VISITED = 3_000
"""Objects of a package that are searched for user code, which takes about 40 ms."""
_LOGGERS = (Logger, RootLogger)
_PLAIN = (BuiltinFunctionType, CodeType, bool, bytes, complex, float, int, str, type(None), *_LOGGERS)
"""Types of values that hold no user code; a logger refers to all other loggers."""


class GraphFingerprint(Fingerprint):
    """A fingerprint that records whether it covers code of the user, of packages, or of graph passes."""

    def __init__(self, known: KnownPackages, rules: Sequence[Rule], unfollowed: dict[int, Any]) -> None:
        """`unfollowed` maps ids to code of packages that raised Unknown before; it is shared and grows."""
        super().__init__(known, rules, _SERIAL_NUMBERS)
        self._unfollowed = unfollowed
        self.user_code = ""
        """For messages: the first code that is neither torch's nor an installed package's; may be empty."""
        self.has_package_code = False
        """True if some of the code is an installed package's and is identified by its files."""
        self.has_graph_passes = False

    @property
    def has_code(self) -> bool:
        """True if code or values were added, not only notes."""
        return self.has_package_code or self._count > 0

    def add_code(self, value: Any, words: str = "") -> None:
        """Add third-party code, or its package identity if it is installed and its behaviour is unknown."""
        name = package_identity(self.known, value)
        if not name:
            self.user_code = self.user_code or self.location(words, name_of(value)) or "an object"
        if name and not self._can_follow(value):
            self.add_identity(name)
        else:
            self.add(value, words)

    def add_identity(self, name: str) -> None:
        self.has_package_code = True
        self.note("package", name)

    def _can_follow(self, value: Any) -> bool:
        if id(value) in self._unfollowed:
            return False
        try:
            Fingerprint(self.known, self._rules, _SERIAL_NUMBERS).add(value)
        except Unknown:
            self._unfollowed[id(value)] = value
            return False
        return True


def package_identity(known: KnownPackages, value: Any) -> str:
    """Return name and version of an installed package's code; empty for code that may hold user code."""
    if not isinstance(value, (FunctionType, type)):
        return ""
    names = []
    for code in known.user_code_in(value):
        is_function = isinstance(code, FunctionType)
        module = sys.modules.get(code.__module__ or "")
        home = _file_of_module(code.__module__ or "")
        file = code.__code__.co_filename if is_function else home
        version, package = version_of(file), package_of(file)
        is_local = "<locals>" in code.__qualname__ or getattr(code, "__closure__", None)
        if not version or (is_local and getattr(module, code.__name__, None) is not code):
            return ""
        # A decorator's wrapper or a registry of the package may hold user code.
        if (is_function and package_of(home) not in (package, "torch")) or _reaches_user_code(
            known, code, package
        ):
            return ""
        names.append(f"{code.__module__}.{code.__qualname__} {version}")
    return " ".join(names)


def _reaches_user_code(known: KnownPackages, value: Any, package: str) -> bool:
    """Return whether one of the nearest `_MOST_VISITED` objects of a package is user code."""
    visited: dict[int, Any] = {}
    queue = deque([value])
    try:
        while queue and len(visited) < _MOST_VISITED:
            value = queue.popleft()
            if id(value) in visited or type(value) in _PLAIN:
                continue
            visited[id(value)] = value
            if _is_user_code(known, value) or _is_user_code(known, type(value)):
                return True
            queue += _parts(value, package)
    except Exception:  # a proxy raised, or another thread changed a collection
        return True
    return False


def _parts(value: Any, package: str) -> Iterator[Any]:
    """Yield the objects that a value refers to and through which it may call code. No code runs."""
    if isinstance(value, FunctionType):
        yield from (value.__defaults__, value.__kwdefaults__, vars(value))
        yield from cell_contents(value)
        if package_of(value.__code__.co_filename) == package:
            yield from _globals_of(value, package)
    elif isinstance(value, type):
        if package_of(_file_of_module(value.__module__)) == package:
            yield from (dict(vars(value)), value.__bases__)
    elif not isinstance(value, ModuleType):
        yield from gc.get_referents(value)
        yield type(value)


def _globals_of(function: FunctionType, package: str) -> Iterator[Any]:
    """Yield the globals that a function names, and attributes of the package's modules that it may read."""
    names = {name for code in code_tree(function.__code__) for name in code.co_names}
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            yield value
        elif package_of(_file_of_module(value.__name__)) == package:
            yield from (vars(value)[attribute] for attribute in names & vars(value).keys())


def _file_of_module(name: str) -> str:
    return getattr(sys.modules.get(name), "__file__", None) or ""


def _is_user_code(known: KnownPackages, value: Any) -> bool:
    """Return whether a value is a function, method or class outside of installed packages."""
    value = value.__func__ if isinstance(value, (MethodType, staticmethod, classmethod)) else value
    if isinstance(value, FunctionType):
        file = value.__code__.co_filename
        if file.startswith("<"):  # an installed package, or a named tuple, generated it from a string
            name = str(value.__globals__.get("__name__"))
            return not (name.startswith("namedtuple_") or is_installed(_file_of_module(name) or file))
        return not (is_installed(file) or known.has_file(file))
    return isinstance(value, type) and known.is_user_module(value.__module__)
