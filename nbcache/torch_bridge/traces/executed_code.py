"""The code that Python, rather than Dynamo, runs during tracing: nothing guards the state that it reads."""

from __future__ import annotations

import cProfile
import os
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nbcache.core import log
from nbcache.core.installed import is_installed, module_of_stdlib, package_of
from nbcache.torch_bridge.traces.facts import object_at
from nbcache.torch_bridge.traces.object_digests import CONFIGS, NoTrace

__all__ = ["TORCH_PACKAGES", "ExecutedCode", "check_executed_code"]

_MONITORING: Any = getattr(sys, "monitoring", None)
"""Reports each function once, at no cost; Python 3.11 has only a profiler."""
_TOOLS = (3, 4)
"""Ids of monitoring tools that Python reserves for nobody."""
_GENERATED = ("<eval_with_key", "<lambdify")
"""Prefixes of the file names of code that torch generates."""
TORCH_PACKAGES = frozenset(
    {
        *("IPython", "comm", "filelock", "fsspec", "functorch", "ipykernel", "jinja2", "jupyter_client"),
        *("markupsafe", "mpmath", "networkx", "numpy", "optree", "psutil", "sympy", "tornado", "torch"),
        *("torchgen", "traitlets", "triton", "typing_extensions", "zmq"),
    }
)
"""Packages whose code torch or the kernel may run at any time."""
_STDLIB_OF_TORCH = frozenset(
    {
        *("_collections_abc", "abc", "copyreg", "enum", "functools", "inspect", "os", "pathlib", "re"),
        *("traceback", "typing", "uuid", "weakref"),
    }
)
"""Standard modules with special methods that torch itself calls while it traces."""
_DATACLASS_METHODS = ("__eq__", "__ge__", "__gt__", "__hash__", "__le__", "__lt__", "__repr__")
"""Methods that `dataclass` generates, and which read an object with everything below it."""
_CONSTRUCTING = frozenset(
    f"__{name}__"
    for name in (
        *("class_getitem", "del", "delattr", "delitem", "enter", "exit", "getnewargs", "init"),
        *("init_subclass", "missing", "new", "post_init", "prepare", "set_name", "setattr", "setitem"),
    )
)
"""Special methods whose results don't depend on the objects below their own."""


class ExecutedCode:
    """Records the code that runs between `begin` and `end`, which may be called several times.

    nbcache's logger calls its handlers only after `end`: they are no part of the tracing.
    """

    def __init__(self, *, notes: bool = True) -> None:
        """Record nothing unless `notes`: on Python 3.11, recording adds half of the tracing time."""
        self._notes = notes
        self._codes: dict[int, types.CodeType] = {}
        """Id → code object. Ids, since two code objects of the same source are equal."""
        self._profile = None if _MONITORING else cProfile.Profile(subcalls=False, builtins=False)
        self._tool = 0

    @staticmethod
    def is_possible() -> bool:
        """Return whether no other profiler prevents recording."""
        if _MONITORING is None:
            return sys.getprofile() is None
        return any(_MONITORING.get_tool(number) is None for number in _TOOLS)

    def begin(self) -> None:
        if not self._notes:
            return
        log.defer()
        if self._profile is not None:
            self._profile.enable()
            return
        thread, codes, disable = threading.get_ident(), self._codes, _MONITORING.DISABLE

        def note_start(code: types.CodeType, offset: int) -> Any:
            if threading.get_ident() != thread:
                return None
            codes[id(code)] = code
            return disable

        self._tool = next(number for number in _TOOLS if _MONITORING.get_tool(number) is None)
        _MONITORING.use_tool_id(self._tool, "nbcache")
        _MONITORING.register_callback(self._tool, _MONITORING.events.PY_START, note_start)
        _MONITORING.set_events(self._tool, _MONITORING.events.PY_START)
        _MONITORING.restart_events()

    def end(self) -> None:
        if not self._notes:
            return
        if self._profile is not None:
            self._profile.disable()
        else:
            _MONITORING.set_events(self._tool, 0)
            _MONITORING.register_callback(self._tool, _MONITORING.events.PY_START, None)
            _MONITORING.free_tool_id(self._tool)
        log.deliver()

    def codes(self) -> Iterator[types.CodeType]:
        """Return the code objects that ran, each once."""
        if self._profile is None:
            return iter(self._codes.values())
        entries = self._profile.getstats()
        return (entry.code for entry in entries if isinstance(entry.code, types.CodeType))


def check_executed_code(
    codes: Iterable[types.CodeType], values: Sequence[Any]
) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """Raise NoTrace for code that may have read state without a fact; yield known methods with their globals.

    Code of torch, and of packages that torch runs, is allowed. `inspect` and imports read attributes of
    modules: methods of finders are allowed, and methods of a module's class unless `values` include such a
    module.
    """
    own_folder = os.path.dirname(os.path.abspath(str(sys.modules["nbcache"].__file__))) + os.sep
    modules = {
        str(object.__getattribute__(module, "__dict__").get("__file__")): name
        for name, module in [*sys.modules.items()]
        if issubclass(type(module), types.ModuleType)
    }
    finders = {type(finder) for finder in sys.meta_path}
    module_kinds = {type(value) for value in values if isinstance(value, types.ModuleType)}
    comparing, tuples = {*map(id, _dataclass_methods())}, {*_namedtuple_constructors()}
    for code in codes:
        package, file = package_of(code.co_filename), code.co_filename
        is_wrapper = code.co_name == "__getattr__" and os.path.join("torch", "distributed", "") in file
        if not is_wrapper and (package in TORCH_PACKAGES or file.startswith((own_folder, *_GENERATED))):
            continue
        if is_wrapper or not package:
            if is_wrapper or id(code) in comparing or _is_users_code(code, tuples) or _reads_objects(code):
                raise NoTrace(f"Python runs {code.co_qualname}() while Dynamo traces")
            continue
        module = modules.get(file, "")
        owner = _owner(code, module)
        if owner in finders:
            continue
        if owner is not None and issubclass(owner, types.ModuleType):
            if not any(issubclass(kind, owner) for kind in module_kinds):
                continue
        elif _is_config_method(code, module):
            yield code, vars(sys.modules[module])
            continue
        raise NoTrace(f"Python runs {code.co_qualname}() of {module or 'a package'} while Dynamo traces")


def _owner(code: types.CodeType, module: str) -> type | None:
    """Return the class that defines this method; None for a function, or if there is no such class."""
    try:
        owner = object_at(module, code.co_qualname.rpartition(".")[0])
    except NoTrace:
        return None
    return owner if isinstance(owner, type) else None


def _is_config_method(code: types.CodeType, module: str) -> bool:
    """Return whether this is the method of a configuration that reads only the configuration itself."""
    cls, _, name = code.co_qualname.rpartition(".")
    is_known = (module, cls) in CONFIGS and name == "__getattribute__"
    return is_known and object_at(module, code.co_qualname).__code__ is code


def _is_users_code(code: types.CodeType, tuples: set[types.CodeType]) -> bool:
    """Return whether the user wrote this code, or generated it from a text.

    Methods that `dataclass` and `namedtuple` generate are not the user's. Nor is the code of `exec`: its
    caller is.
    """
    if code.co_filename != "<string>":
        return not is_installed(code.co_filename)
    is_generated = code.co_name == "<module>" or code.co_qualname.startswith("__create_fn__")
    return not (is_generated or code in tuples)


def _reads_objects(code: types.CodeType) -> bool:
    """Return whether code is a special method of the standard library that compares or reads objects.

    No fact covers the objects below those. Methods that torch itself calls are excluded.
    """
    name, module = code.co_name, module_of_stdlib(code.co_filename)
    if not module or not (name.startswith("__") and name.endswith("__")) or name in _CONSTRUCTING:
        return False
    if name in ("__getattr__", "__getattribute__"):
        return module not in ("enum", "typing")
    return module not in _STDLIB_OF_TORCH


def _dataclass_methods() -> Iterator[types.CodeType]:
    """Return the comparing and printing methods that `dataclass` generated for the user's classes."""
    classes: list[type] = [object]
    seen_classes: set[type] = set()
    libraries = {*TORCH_PACKAGES, *sys.stdlib_module_names, "nbcache"}
    while classes:
        subclasses: set[type] = {*type.__subclasses__(classes.pop())} - seen_classes
        seen_classes |= subclasses
        classes += subclasses
    for cls in seen_classes:
        attributes = vars(cls)
        if "__dataclass_fields__" not in attributes:
            continue
        if str(attributes.get("__module__")).partition(".")[0] in libraries:
            continue
        for method in map(attributes.get, _DATACLASS_METHODS):
            if type(method) is types.FunctionType:
                method = vars(method).get("__wrapped__", method)  # `__repr__` is wrapped
            if type(method) is types.FunctionType and method.__code__.co_filename == "<string>":
                yield method.__code__


def _namedtuple_constructors() -> Iterator[types.CodeType]:
    """Return the constructors that `namedtuple` generated."""
    for cls in tuple.__subclasses__():
        new = getattr(vars(cls).get("__new__"), "__func__", None)
        scope_name = isinstance(new, types.FunctionType) and str(new.__globals__.get("__name__"))
        if new is not None and scope_name and scope_name.startswith("namedtuple_"):
            yield new.__code__
