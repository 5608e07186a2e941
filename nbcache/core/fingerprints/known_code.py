"""Which code belongs to packages that count by their names alone: the standard library, torch, Triton."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["CACHED", "DESCRIPTORS", "Known", "contents"]

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
_INSTALLED = re.compile("/(?:dist|site)-packages/")
_NAMEDTUPLE = "namedtuple_"
"""How the name of the scope begins in which `namedtuple` makes a method."""


class Known:
    """The packages that count by their names alone: the standard library, and those in `places`."""

    def __init__(self, places: Sequence[str]) -> None:
        """`places` are folders, and files of modules."""
        paths = map(os.path.abspath, places)
        below = (path if path.endswith(".py") else os.path.join(path, "") for path in paths)
        self._folders = (*below, "<frozen ")
        self._files: dict[str, bool] = {}
        stdlib = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        self._stdlib = tuple(os.path.join(os.path.abspath(folder), "") for folder in stdlib)

    def has_file(self, file: str) -> bool:
        """Tell whether code of this file belongs to a known package."""
        found = self._files.get(file)
        if found is None:
            found = self._files[file] = file.startswith(self._folders) or self._of_stdlib(file)
        return found

    def _of_stdlib(self, file: str) -> bool:
        return file.startswith(self._stdlib) and not ("/site-packages/" in file or "/dist-packages/" in file)

    def has_called(self, frame: types.FrameType | None, through: tuple[str, ...]) -> bool:
        """Tell whether a known package calls, be it through files whose paths begin with `through`.

        The standard library does nothing of its own accord: whoever calls it does.
        """
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith((*through, "<frozen ")) and not self._of_stdlib(file):
                return self.has_file(file)
            frame = frame.f_back
        return False

    def has_module(self, name: str) -> bool:
        """Tell whether a module belongs to a known package.

        One that is not imported does if the standard library has one of its name.
        """
        module = sys.modules.get(name)
        if module is None:
            return name.partition(".")[0] in sys.stdlib_module_names
        if (file := getattr(module, "__file__", None)) is not None:
            return self.has_file(file)
        return name in sys.builtin_module_names or name in sys.stdlib_module_names

    def is_users(self, module: str) -> bool:
        """Tell whether a module is neither known nor installed: the notebook's, or a file's of the user's."""
        if module == "__main__":
            return True
        file = getattr(sys.modules.get(module), "__file__", None) or "<none>"
        return not (file.startswith("<") or self.has_file(file) or _INSTALLED.search(file))

    def has(self, value: Any) -> bool:
        """Tell whether a function or class is what a known package calls by its name."""
        read = type.__getattribute__ if issubclass(type(value), type) else getattr
        module, name = (read(value, name) for name in ("__module__", "__qualname__"))
        if not isinstance(module, str) or not isinstance(name, str) or not self.has_module(module):
            return False
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return found is value and (not issubclass(type(value), type) or self._has_written(value))

    def made(self, value: Any) -> bool:
        """Tell whether known packages alone have written a callable, with all that it is wrapped around."""
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
        """Tell whether any of a class's functions is a known package's, or it has none.

        A class may be called as if it were one: what `types.new_class` makes is.
        """
        attributes = [*type.__getattribute__(cls, "__dict__").values()]
        functions = (getattr(value, "__func__", value) for value in attributes)
        written = [value for value in functions if isinstance(value, types.FunctionType)]
        return not written or any(self.writes(cls, function) for function in written)

    def writes(self, owner: type, function: types.FunctionType) -> bool:
        """Tell whether a function in a class of a known package is that package's, or made for the class."""
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
