"""Code that Python runs, or may run, while Dynamo traces: no fact covers the state that it reads.

`Executed` notes the code that runs. `check` and its like refuse what may run unnoticed: functions of C, and
code that Python calls only where it has no answer yet.
"""

from __future__ import annotations

import builtins
import cProfile
import functools
import os
import sys
import threading
import types
from abc import ABCMeta
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from nbcache.core import log
from nbcache.core.fingerprints.objects import deciding
from nbcache.core.fingerprints.reads import TOGETHER, computes
from nbcache.core.installed import (
    CACHED,
    DESCRIPTORS,
    PYTHON,
    is_installed,
    is_users_module,
    module_of_stdlib,
    owner_of,
)
from nbcache.torch_bridge.traces.facts import CONFIGS, Untold, found_at

__all__ = [
    "TORCHS",
    "Executed",
    "check",
    "check_classes",
    "check_executed",
    "check_module",
]

_MONITORING: Any = getattr(sys, "monitoring", None)
"""Reports each function once, at no cost; Python 3.11 has only a profiler."""
_TOOLS = (3, 4)
"""Numbers of monitoring tools that nobody has reserved."""
_GENERATED = ("<eval_with_key", "<lambdify")
"""Files of code that torch generates."""
TORCHS = frozenset(
    {
        *("IPython", "comm", "filelock", "fsspec", "functorch", "ipykernel", "jinja2", "jupyter_client"),
        *("markupsafe", "mpmath", "nbcache", "networkx", "numpy", "optree", "psutil", "sympy", "tornado"),
        *("torch", "torchgen", "traitlets", "triton", "typing_extensions", "zmq"),
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
_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_CALLABLES = (*(each for each in DESCRIPTORS if each not in _SLOTS), types.FunctionType, types.MethodType)
_RUN_OF_METACLASSES = frozenset({"__instancecheck__", "__subclasscheck__"})
_RUN_OF_CLASSES = frozenset({"_missing_", "__subclasshook__"})
"""Methods that `isinstance`, `issubclass` and enumerations call, which Dynamo has Python do."""
_UNSEEN = (CACHED, functools.partial, functools.partialmethod)
"""Types of what may stand in place of a method, and which Python calls without running its code anew."""
_PROPERTIES = (functools.cached_property, property, types.DynamicClassAttribute)
_READ_MORE = frozenset(
    {
        *("__build_class__", "__import__", "breakpoint", "compile", "dir", "eval", "exec", "globals", "hash"),
        *("help", "id", "input", "locals", "open", "vars"),
    }
)
"""Of Python's own functions, those that read what no fact tells."""
_ASK_THE_PROCESS = frozenset(
    {
        *(
            "current_device",
            "device_count",
            "get_device_capability",
            "get_device_properties",
            "get_rng_state",
        ),
        *("initial_seed", "mem_get_info", "seed"),
    }
)
"""Functions of torch's that ask a device, or a generator, while they are traced."""


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
    modules = {
        str(object.__getattribute__(module, "__dict__").get("__file__")): name
        for name, module in [*sys.modules.items()]
        if issubclass(type(module), types.ModuleType)
    }
    finders = {type(finder) for finder in sys.meta_path}
    module_kinds = {type(value) for value in values if isinstance(value, types.ModuleType)}
    comparing = {*map(id, _of_dataclasses())}
    for code in codes:
        file = code.co_filename
        owner_name = owner_of(file)
        is_wrapper = code.co_name == "__getattr__" and os.path.join("torch", "distributed", "") in file
        if not is_wrapper and (owner_name in TORCHS or file.startswith(_GENERATED)):
            continue
        if is_wrapper or owner_name in ("", PYTHON):
            if is_wrapper or id(code) in comparing or _is_users(code) or _reads_objects(code):
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


def _is_users(code: types.CodeType) -> bool:
    """Return whether the user has written some code, or made it of a text.

    The code that runs a text counts instead of the text. `dataclass` and `namedtuple` make methods of texts.
    """
    if code.co_filename != "<string>":
        return not is_installed(code.co_filename)
    is_made = code.co_name == "<module>" or code.co_qualname.startswith("__create_fn__")
    return not (is_made or code.co_names == ("_tuple_new",))


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
    known = {*TORCHS, *sys.stdlib_module_names}
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


def check(value: Any, inlined: Set[int]) -> None:
    """Raise Untold of a function that may return another thing in another process.

    `inlined` are the ids of code that was walked through, as what that reads are values of its own, and of
    functions that do no harm.
    """
    if type(value).__name__ in ("_local", "Random", "Generator"):
        raise Untold(f"it reads a {type(value).__name__}")
    if value is os.environ or value is os.environ._data:  # type: ignore[attr-defined]
        raise Untold("it reads variables of the environment")
    if isinstance(value, types.MethodType):
        value = value.__func__
    if not isinstance(value, _CALLABLES) or {id(value), id(getattr(value, "__code__", None))} & inlined:
        return
    module = getattr(value, "__module__", None) or getattr(
        getattr(value, "__objclass__", None), "__module__", None
    )
    name = value.__qualname__
    if getattr(value, "_dynamo_marked_constant", False):
        raise Untold(f"{name}() is called while it is traced, and counts as constant")
    bound = getattr(value, "__self__", None)
    if isinstance(bound, type):
        module, name = bound.__module__, f"{bound.__qualname__}.{value.__name__}"
    if not isinstance(module, str):
        return
    package = module.partition(".")[0]
    if package == "builtins":
        refused = name in _READ_MORE and getattr(builtins, name, None) is value
    elif package in sys.stdlib_module_names:
        of, _, attribute = name.rpartition(".")
        refused = not computes(module, name) or attribute in TOGETHER.get(f"{module}.{of}", ())
    else:
        refused = package == "torch" and name in _ASK_THE_PROCESS
    if refused:
        raise Untold(f"it calls {name}()" if package == "builtins" else f"it calls {module}.{name}()")


def check_classes(classes: Iterable[type]) -> None:
    """Raise Untold of a class with code that Dynamo runs as it is: what that reads is not known."""
    for cls in classes:
        for owner, names in ((type(cls), _RUN_OF_METACLASSES), (cls, _RUN_OF_CLASSES)):
            for base in owner.__mro__:
                for name in names & vars(base).keys():
                    found = vars(base)[name]
                    code = getattr(getattr(found, "__func__", found), "__code__", None)
                    if _is_own(code):
                        raise Untold(f"it may call {base.__qualname__}.{name}(), which is not traced")
        for each in deciding(cls) if isinstance(cls, ABCMeta) else ():
            hook = vars(each).get("__subclasshook__")
            asked = [getattr(hook, "__func__", hook)]
            asked += (getattr(type(each), name, None) for name in _RUN_OF_METACLASSES)
            codes = (getattr(found, "__code__", None) for found in asked)
            if any(_is_own(code) for code in codes):
                raise Untold(f"{each.__qualname__} may decide what is an instance, which is not traced")
        for name, found in vars(cls).items():
            held = getattr(found, "__func__", found)
            if isinstance(held, _UNSEEN) and (name.startswith("__") or name in _RUN_OF_CLASSES):
                raise Untold(f"it may call {cls.__qualname__}.{name}(), which is a {type(held).__qualname__}")
            is_property = issubclass(type(found), _PROPERTIES) and _runs_unseen(found)
            if is_property and is_users_module(cls.__module__):
                raise Untold(f"it may read {cls.__qualname__}.{name}, which no code of yours returns")


def _runs_unseen(made: Any) -> bool:
    """Tell whether what a property returns comes from C, or from the standard library."""
    function = made.func if isinstance(made, functools.cached_property) else made.fget
    if not isinstance(function, types.FunctionType):
        return function is not None
    return bool(module_of_stdlib(function.__code__.co_filename))


def check_module(module: types.ModuleType) -> None:
    """Raise Untold of a module of the user's that makes attributes when it is asked for them."""
    ask = module.__dict__.get("__getattr__")
    if isinstance(ask, types.FunctionType) and not is_installed(ask.__code__.co_filename):
        raise Untold(f"the module {module.__name__} makes attributes when it is asked for them")
    for base in type(module).__mro__:
        for found in vars(base).values():
            if isinstance(found, types.FunctionType) and not is_installed(found.__code__.co_filename):
                raise Untold(f"the module {module.__name__} is of a class of yours")


def _is_own(code: Any) -> bool:
    """Return whether this is code, and the user's."""
    return code is not None and not is_installed(code.co_filename)
