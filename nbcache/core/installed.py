"""Owners of code: Python, an installed package, or the user, by the file that code is in.

torch, Triton and nbcache are packages even where they are installed in place, as editable. Other code outside
of installed folders is the user's own, and so is code that was made of a text.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import sys
import time
import types
from collections.abc import Collection, Iterator
from functools import cache, lru_cache
from typing import Any

from nbcache.core.key import sha256

__all__ = [
    "CACHED",
    "DESCRIPTORS",
    "PYTHON",
    "Known",
    "contents",
    "is_installed",
    "is_users_module",
    "module_of_stdlib",
    "owner_of",
    "version_of",
]

PYTHON = "Python"
"""The owner of the standard library."""
CACHED = type(functools.lru_cache(maxsize=1)(len))
"""The type of what `functools.lru_cache` returns."""
DESCRIPTORS = (
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)
"""Types of what is written in C and called: functions, methods and attributes."""
_NAMEDTUPLE = "namedtuple_"
"""The beginning of the name of the scope in which `namedtuple` makes a method."""
_IN_PLACE = ("nbcache", "torch", "triton")
"""Packages that are installed wherever they are imported from."""

_MARGIN_SECONDS = 1.0
"""Within so long after its start, a process imports no package that is replaced meanwhile."""
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_PLACE = re.compile(r"(?P<folder>.*/(?:site|dist)-packages)/(?P<top>[^/]+)")
"""A path of an installed file: the folder of packages, and the name of the package or module there."""


@lru_cache(maxsize=4096)
def owner_of(file: str) -> str:
    """Return who has written the code of a file: `PYTHON`, the name of a package, or nothing for the user."""
    if place := _PLACE.match(file):
        return place["top"].removesuffix(".py")
    if file.startswith((_STDLIB, "<frozen ")):
        return PYTHON
    for name in _IN_PLACE:
        path = getattr(sys.modules.get(name), "__file__", None)
        if path and file.startswith(os.path.join(os.path.dirname(os.path.abspath(path)), "")):
            return name
    return ""


def is_installed(file: str) -> bool:
    """Return whether a file is the standard library's or an installed package's."""
    return bool(owner_of(file))


def is_users_module(name: str) -> bool:
    """Return whether a module is the notebook's or a file's of the user's, or was made at run time."""
    if name == "__main__":
        return True
    for module in (sys.modules.get(name), sys.modules.get(name.partition(".")[0])):
        if type(file := getattr(module, "__file__", None)) is str:
            return not is_installed(file)
        if getattr(module, "__spec__", None) is not None:
            return False  # it is written in C
    return True


def module_of_stdlib(file: str) -> str:
    """Return the top-level name of the module of the standard library that a file belongs to; else empty."""
    if owner_of(file) != PYTHON:
        return ""
    if file.startswith("<frozen "):
        return file.removeprefix("<frozen ").rstrip(">").partition(".")[0]
    return file.removeprefix(_STDLIB).partition(os.sep)[0].removesuffix(".py")


def version_of(file: str) -> str:
    """Return distribution, version and digests of an installed file; empty where none is installed there.

    The digests are those of the file, and of the list of the distribution's files with theirs.
    """
    place = _PLACE.match(file)
    # A file that was written later may not be the one that was imported.
    if place and os.path.exists(file) and os.stat(file).st_mtime > _began() + _MARGIN_SECONDS:
        return ""
    version = _distribution(place["folder"], place["top"].removesuffix(".py")) if place else ""
    try:
        status = os.stat(file)
        return version and f"{version} {_digest(file, status.st_mtime_ns, status.st_size)}"
    except OSError:
        return ""


@cache
def _began() -> float:
    """Return the time (Unix seconds) at which this process began; infinity where the system can't tell."""
    try:
        with open("/proc/self/stat") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
    except OSError:
        return math.inf
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


@lru_cache(maxsize=1024)
def _digest(file: str, modified_ns: int, size: int) -> str:
    with open(file, "rb") as opened:
        return sha256(opened.read())


@lru_cache(maxsize=1024)
def _distribution(folder: str, top: str) -> str:
    """Return name, version and digest of the distribution that has installed a package into a folder."""
    from importlib.metadata import distributions

    installed = [*distributions(path=[folder])]
    name = re.sub("[-_.]+", "_", top).lower()
    # A distribution has the package's name as a rule, and else lists its files.
    installed.sort(key=lambda one: re.sub("[-_.]+", "_", one.metadata["Name"] or "").lower() != name)
    for distribution in installed:
        files = distribution.read_text("RECORD") or ""
        if f"\n{top}/" in f"\n{files}" or f"\n{top}.py," in f"\n{files}":
            return f"{distribution.metadata['Name']} {distribution.version} {sha256(files.encode())}"
    return ""


class Known:
    """The packages whose code counts by its name alone: the standard library, and those of some names."""

    def __init__(self, packages: Collection[str]) -> None:
        """`packages` are names as `owner_of` returns them."""
        self._owners = frozenset({PYTHON, *packages})

    def has_file(self, file: str) -> bool:
        """Return whether code of this file belongs to a known package."""
        return owner_of(file) in self._owners

    def has_called(self, frame: types.FrameType | None, through: tuple[str, ...]) -> bool:
        """Return whether a known package calls, be it through files whose paths begin with `through`.

        The standard library does nothing of its own accord: whoever calls it does.
        """
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith(through) and owner_of(file) != PYTHON:
                return self.has_file(file)
            frame = frame.f_back
        return False

    def has_module(self, name: str) -> bool:
        """Return whether a module belongs to a known package.

        One that is not imported does if the standard library has one of its name.
        """
        module = sys.modules.get(name)
        if module is None:
            return name.partition(".")[0] in sys.stdlib_module_names
        if (file := getattr(module, "__file__", None)) is not None:
            return self.has_file(file)
        return name in sys.builtin_module_names or name in sys.stdlib_module_names

    def has(self, value: Any) -> bool:
        """Return whether a function or class is what a known package calls by its name."""
        read = type.__getattribute__ if issubclass(type(value), type) else getattr
        module, name = (read(value, name) for name in ("__module__", "__qualname__"))
        if not isinstance(module, str) or not isinstance(name, str) or not self.has_module(module):
            return False
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return found is value and (not issubclass(type(value), type) or self._has_written(value))

    def made(self, value: Any) -> bool:
        """Return whether known packages alone have written a callable, with all that it is wrapped around."""
        return next(self.foreign(value), None) is None

    def foreign(self, value: Any) -> Iterator[Any]:
        """Return what others have written of a callable, and of all that it is wrapped around."""
        seen: set[int] = set()
        stack = [value]
        while stack:
            value = stack.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, types.FunctionType):
                if not self.has_file(value.__code__.co_filename):
                    yield value
                    continue
                if value.__closure__ is not None:
                    stack += contents(value)
                stack += value.__defaults__ or ()
                stack += (value.__kwdefaults__ or {}).values()
            elif isinstance(value, (list, tuple, set, frozenset)):
                stack += value
            elif isinstance(value, functools.partial):
                stack += (value.func, value.args, *value.keywords.values())
            elif isinstance(value, types.MethodType):
                stack.append(value.__self__)
                code = getattr(value.__func__, "__code__", None)
                from_text = code is not None and code.co_filename == "<string>"
                if not (from_text and self.has(type(value.__self__))):  # as torch makes those of its classes
                    stack.append(value.__func__)
            elif isinstance(value, type):
                if not (self.has_module(value.__module__) and self._has_written(value)):
                    yield value
            elif dataclasses.is_dataclass(value) and self.has_module(type(value).__module__):
                stack += (getattr(value, field.name, None) for field in dataclasses.fields(value))
            elif callable(value) and not isinstance(value, DESCRIPTORS):
                if not self.has_module(type(value).__module__):
                    yield value
                    continue
                if (wrapped := getattr(value, "__wrapped__", None)) is not None:
                    stack.append(wrapped)

    def _has_written(self, cls: type) -> bool:
        """Return whether any of a class's functions is a known package's, or it has none.

        A class may be called as if it were one: what `types.new_class` makes is.
        """
        attributes = [*type.__getattribute__(cls, "__dict__").values()]
        functions = (getattr(value, "__func__", value) for value in attributes)
        written = [value for value in functions if isinstance(value, types.FunctionType)]
        return not written or any(self.writes(cls, function) for function in written)

    def writes(self, owner: type, function: types.FunctionType) -> bool:
        """Return whether a known package wrote a function in a class of its own, or made it for the class."""
        if self.has_file(function.__code__.co_filename):
            return True
        around = getattr(function, "__wrapped__", None)
        if function.__code__.co_filename == "<string>" and isinstance(around, types.FunctionType):
            return self.writes(owner, around)  # as torch makes what keeps the answer of a method
        scope, module = function.__globals__, sys.modules.get(owner.__module__)
        own = scope is vars(module) if module is not None else False  # as `dataclass` makes them
        own |= scope.get("__name__") == _NAMEDTUPLE + owner.__name__
        return own and function.__code__.co_filename.startswith("<")


def contents(function: types.FunctionType) -> list[Any]:
    """Return what the closure of a function holds, without the cells that are empty."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            pass
    return found
