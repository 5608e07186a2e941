"""Known packages, such as torch and the standard library: a fingerprint holds only names of their code."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from nbcache.core.installed import is_in_packages_folder, module_of_stdlib

CACHED = type(functools.lru_cache(maxsize=1)(len))
DESCRIPTORS = (
    *(types.BuiltinFunctionType, types.ClassMethodDescriptorType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, types.MethodDescriptorType, types.MethodWrapperType),
    types.WrapperDescriptorType,
)
"""Types of functions, methods and attributes that are written in C."""
_NAMEDTUPLE = "namedtuple_"
"""Prefix of `__name__` in the globals of a method that `namedtuple` generates."""


class KnownPackages:
    """The standard library and the packages in `places`: a fingerprint holds only names of their code."""

    def __init__(self, places: Sequence[str]) -> None:
        """`places` are folders of packages and files of modules."""
        paths = map(os.path.abspath, places)
        below = (path if path.endswith(".py") else os.path.join(path, "") for path in paths)
        self._folders = tuple(below)
        self._files: dict[str, bool] = {}

    def has_file(self, file: str) -> bool:
        is_known = self._files.get(file)
        if is_known is None:
            is_known = self._files[file] = file.startswith(self._folders) or bool(module_of_stdlib(file))
        return is_known

    def is_caller(self, frame: types.FrameType | None, through: tuple[str, ...]) -> bool:
        """Return whether a known package called, perhaps through the standard library or `through`."""
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith(through) and not module_of_stdlib(file):
                return self.has_file(file)
            frame = frame.f_back
        return False

    def has_module(self, name: str) -> bool:
        """Return whether a module belongs to a known package, imported or not."""
        module = sys.modules.get(name)
        if module is None:
            return name.partition(".")[0] in sys.stdlib_module_names
        if (file := getattr(module, "__file__", None)) is not None:
            return self.has_file(file)
        return name in sys.builtin_module_names or name in sys.stdlib_module_names

    def is_user_module(self, module: str) -> bool:
        """Return whether a module is the notebook or a file of the user, neither known nor installed."""
        if module == "__main__":
            return True
        file = getattr(sys.modules.get(module), "__file__", None)
        return not (file is None or self.has_file(file) or is_in_packages_folder(file))

    def defines(self, value: Any) -> bool:
        """Return whether a known package holds this function or class under its name."""
        read = type.__getattribute__ if issubclass(type(value), type) else getattr
        module, name = (read(value, name) for name in ("__module__", "__qualname__"))
        if not isinstance(module, str) or not isinstance(name, str) or not self.has_module(module):
            return False
        candidate: Any = sys.modules.get(module)
        for part in name.split("."):
            candidate = getattr(candidate, part, None)
        return candidate is value and (not issubclass(type(value), type) or self._has_library_methods(value))

    def is_library_code(self, value: Any) -> bool:
        """Return whether a callable, with everything that it wraps, is code of known packages alone."""
        return next(self.user_code_in(value), None) is None

    def user_code_in(self, value: Any) -> Iterator[Any]:
        """Yield the functions, classes and objects in a callable's wrappers that are no known package's."""
        visited: set[int] = set()
        stack = [value]
        while stack:
            value = stack.pop()
            if id(value) in visited:
                continue
            visited.add(id(value))
            if isinstance(value, types.FunctionType):
                if not self.has_file(value.__code__.co_filename):
                    yield value
                    continue
                if value.__closure__ is not None:
                    stack += cell_contents(value)
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
                # torch generates methods from texts for its own classes.
                if not (from_text and self.defines(type(value.__self__))):
                    stack.append(value.__func__)
            elif isinstance(value, type):
                if not (self.has_module(value.__module__) and self._has_library_methods(value)):
                    yield value
            elif dataclasses.is_dataclass(value) and self.has_module(type(value).__module__):
                stack += (getattr(value, field.name, None) for field in dataclasses.fields(value))
            elif callable(value) and not isinstance(value, DESCRIPTORS):
                if not self.has_module(type(value).__module__):
                    yield value
                    continue
                if (wrapped := getattr(value, "__wrapped__", None)) is not None:
                    stack.append(wrapped)

    def _has_library_methods(self, cls: type) -> bool:
        """Return whether a class has no functions, or one of a known package: `__module__` can be forged."""
        attributes = [*type.__getattribute__(cls, "__dict__").values()]
        members = (getattr(value, "__func__", value) for value in attributes)
        functions = [value for value in members if isinstance(value, types.FunctionType)]
        return not functions or any(self.is_library_method(cls, function) for function in functions)

    def is_library_method(self, owner: type, function: types.FunctionType) -> bool:
        """Return whether a function in a known class is the package's own or generated for the class."""
        if self.has_file(function.__code__.co_filename):
            return True
        wrapped = getattr(function, "__wrapped__", None)
        if function.__code__.co_filename == "<string>" and isinstance(wrapped, types.FunctionType):
            # torch generates wrappers from texts to cache the results of methods.
            return self.is_library_method(owner, wrapped)
        scope, module = function.__globals__, sys.modules.get(owner.__module__)
        # `dataclass` and `namedtuple` generate methods from texts.
        is_generated = module is not None and scope is vars(module)
        is_generated |= scope.get("__name__") == _NAMEDTUPLE + owner.__name__
        return is_generated and function.__code__.co_filename.startswith("<")


def cell_contents(function: types.FunctionType) -> list[Any]:
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            pass
    return contents
