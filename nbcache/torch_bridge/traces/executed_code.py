"""Notes the code that Python, rather than Dynamo, runs during tracing: nothing guards the state it reads."""

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
from nbcache.torch_bridge.traces.facts import found_at
from nbcache.torch_bridge.traces.object_digests import CONFIGS, Untold

__all__ = ["TORCHS", "Executed", "check_executed"]

_MONITORING: Any = getattr(sys, "monitoring", None)
"""Reports each function once, at no cost; Python 3.11 has only a profiler."""
_TOOLS = (3, 4)
"""Numbers of monitoring tools that nobody has reserved."""
_GENERATED = ("<eval_with_key", "<lambdify")
"""Files of code that torch generates."""
TORCHS = frozenset(
    {
        *("IPython", "comm", "filelock", "fsspec", "functorch", "ipykernel", "jinja2", "jupyter_client"),
        *("markupsafe", "mpmath", "networkx", "numpy", "optree", "psutil", "sympy", "tornado", "torch"),
        *("torchgen", "traitlets", "triton", "typing_extensions", "zmq"),
    }
)
"""Packages that torch and a kernel run of their own accord."""
_STDLIB_METHODS_OF_TORCH = frozenset(
    {
        *("_collections_abc", "abc", "copyreg", "enum", "functools", "inspect", "os", "pathlib", "re"),
        *("traceback", "typing", "uuid", "weakref"),
    }
)
"""Modules of Python with methods that torch itself calls while it traces."""
_COMPARE = ("__eq__", "__ge__", "__gt__", "__hash__", "__le__", "__lt__", "__repr__")
"""Methods that `dataclass` makes, which read an object with everything below it."""
_MAKE = frozenset(
    f"__{name}__"
    for name in (
        *("class_getitem", "del", "delattr", "delitem", "enter", "exit", "getnewargs", "init"),
        *("init_subclass", "missing", "new", "post_init", "prepare", "set_name", "setattr", "setitem"),
    )
)
"""Methods whose results don't depend on the objects below theirs."""


class Executed:
    """Notes code that runs between `begin` and `end`, as often as they are called.

    nbcache's logger calls its handlers only after `end`, so that they are no part of the tracing.
    """

    def __init__(self, *, notes: bool = True) -> None:
        """Unless it `notes`, it does nothing: on Python 3.11, noting adds half of the time of tracing."""
        self._notes = notes
        self._codes: dict[int, types.CodeType] = {}
        """By id: two code objects of the same text are equal."""
        self._profile = None if _MONITORING else cProfile.Profile(subcalls=False, builtins=False)
        self._tool = 0

    @staticmethod
    def is_possible() -> bool:
        """Return whether no other profiler is in the way."""
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
        here, codes, disable = threading.get_ident(), self._codes, _MONITORING.DISABLE

        def started(code: types.CodeType, offset: int) -> Any:
            if threading.get_ident() != here:
                return None
            codes[id(code)] = code
            return disable

        self._tool = next(number for number in _TOOLS if _MONITORING.get_tool(number) is None)
        _MONITORING.use_tool_id(self._tool, "nbcache")
        _MONITORING.register_callback(self._tool, _MONITORING.events.PY_START, started)
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
        """Return the code that ran, each once."""
        if self._profile is None:
            return iter(self._codes.values())
        entries = self._profile.getstats()
        return (entry.code for entry in entries if isinstance(entry.code, types.CodeType))


def check_executed(
    codes: Iterable[types.CodeType], values: Sequence[Any]
) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """Raise Untold of code that may have read state no fact covers; yield known methods with their globals.

    torch's own code, and that of packages that torch runs, may run. `inspect` and imports ask modules, so
    methods of finders may run, and those of a module's class unless `values` hold such a module.
    """
    ours = os.path.dirname(os.path.abspath(str(sys.modules["nbcache"].__file__))) + os.sep
    modules = {
        str(object.__getattribute__(module, "__dict__").get("__file__")): name
        for name, module in [*sys.modules.items()]
        if issubclass(type(module), types.ModuleType)
    }
    finders = {type(finder) for finder in sys.meta_path}
    module_kinds = {type(value) for value in values if isinstance(value, types.ModuleType)}
    comparing, tuples = {*map(id, _of_dataclasses())}, {*_of_namedtuples()}
    for code in codes:
        package, file = package_of(code.co_filename), code.co_filename
        is_wrapper = code.co_name == "__getattr__" and os.path.join("torch", "distributed", "") in file
        if not is_wrapper and (package in TORCHS or file.startswith((ours, *_GENERATED))):
            continue
        if is_wrapper or not package:
            if is_wrapper or id(code) in comparing or _is_users(code, tuples) or _reads_objects(code):
                raise Untold(f"Python runs {code.co_qualname}() while it is traced")
            continue
        module = modules.get(file, "")
        owner = _owner(code, module)
        if owner in finders:
            continue
        if owner is not None and issubclass(owner, types.ModuleType):
            if not any(issubclass(kind, owner) for kind in module_kinds):
                continue
        elif _is_of_config(code, module):
            yield code, vars(sys.modules[module])
            continue
        raise Untold(f"Python runs {code.co_qualname}() of {module or 'a package'} while it is traced")


def _owner(code: types.CodeType, module: str) -> type | None:
    """Return the class whose method this code is; None for a function, or if there is no such class."""
    try:
        owner = found_at(module, code.co_qualname.rpartition(".")[0])
    except Untold:
        return None
    return owner if isinstance(owner, type) else None


def _is_of_config(code: types.CodeType, module: str) -> bool:
    """Return whether a method reads nothing but a configuration, which counts with all that it holds."""
    cls, _, name = code.co_qualname.rpartition(".")
    is_known = (module, cls) in CONFIGS and name == "__getattribute__"
    return is_known and found_at(module, code.co_qualname).__code__ is code


def _is_users(code: types.CodeType, tuples: set[types.CodeType]) -> bool:
    """Return whether the user has written some code, or made it of a text.

    The code that runs a text counts instead of the text. `dataclass` and `namedtuple` make methods of texts.
    """
    if code.co_filename != "<string>":
        return not is_installed(code.co_filename)
    is_made = code.co_name == "<module>" or code.co_qualname.startswith("__create_fn__")
    return not (is_made or code in tuples)


def _reads_objects(code: types.CodeType) -> bool:
    """Return whether code is a method of the standard library that compares or reads objects.

    No fact covers the objects below those. Methods that torch itself calls don't count.
    """
    name, module = code.co_name, module_of_stdlib(code.co_filename)
    if not module or not (name.startswith("__") and name.endswith("__")) or name in _MAKE:
        return False
    if name in ("__getattr__", "__getattribute__"):
        return module not in ("enum", "typing")
    return module not in _STDLIB_METHODS_OF_TORCH


def _of_dataclasses() -> Iterator[types.CodeType]:
    """Return the code that `dataclass` has made for the user's classes, to compare and print objects."""
    classes: list[type] = [object]
    met: set[type] = set()
    known = {*TORCHS, *sys.stdlib_module_names, "nbcache"}
    while classes:
        new: set[type] = {*type.__subclasses__(classes.pop())} - met
        met |= new
        classes += new
    for cls in met:
        attributes = vars(cls)
        if "__dataclass_fields__" not in attributes:
            continue
        if str(attributes.get("__module__")).partition(".")[0] in known:
            continue
        for method in map(attributes.get, _COMPARE):
            if type(method) is types.FunctionType:
                method = vars(method).get("__wrapped__", method)  # of `__repr__`
            if type(method) is types.FunctionType and method.__code__.co_filename == "<string>":
                yield method.__code__


def _of_namedtuples() -> Iterator[types.CodeType]:
    """Return the code that `namedtuple` has made."""
    for cls in tuple.__subclasses__():
        new = getattr(vars(cls).get("__new__"), "__func__", None)
        is_made = isinstance(new, types.FunctionType) and str(new.__globals__.get("__name__"))
        if new is not None and is_made and is_made.startswith("namedtuple_"):
            yield new.__code__
