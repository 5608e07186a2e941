"""Refuse functions that read state which no fact covers, such as a clock or the environment."""

from __future__ import annotations

import builtins
import functools
import os
import sys
import types
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Set
from types import CodeType
from typing import Any

from nbcache.core.fingerprints.abstract import deciding
from nbcache.core.fingerprints.instructions import LOADS_ATTRIBUTE, LOADS_GLOBAL, Step, steps_of
from nbcache.core.fingerprints.known_code import CACHED, DESCRIPTORS
from nbcache.core.fingerprints.stdlib import TOGETHER, computes
from nbcache.core.installed import is_installed, module_of_stdlib
from nbcache.torch_bridge.traces.object_digests import NoTrace, environment

__all__ = [
    "check_call",
    "check_classes",
    "check_environment",
    "check_module",
    "environment_variables",
    "is_users_code",
    "reads_environment",
]

_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_CALLABLES = (*(kind for kind in DESCRIPTORS if kind not in _SLOTS), types.FunctionType, types.MethodType)
_UNTRACED_OF_METACLASSES = frozenset({"__instancecheck__", "__subclasscheck__"})
_UNTRACED_OF_CLASSES = frozenset({"_missing_", "__subclasshook__"})
"""Methods that `isinstance`, `issubclass` and enumerations call, and that Python runs untraced."""
_SKIPPING = (CACHED, functools.partial, functools.partialmethod)
"""Types of wrappers that may replace a method and skip its code, such as a cache."""
_PROPERTIES = (functools.cached_property, property, types.DynamicClassAttribute)
_READING_BUILTINS = frozenset(
    {
        *("__build_class__", "__import__", "breakpoint", "compile", "dir", "eval", "exec", "globals", "hash"),
        *("help", "id", "input", "locals", "open", "vars"),
    }
)
"""Built-in functions that read state without a fact."""
_READING_TORCH = frozenset(
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
"""torch functions that read a device or a random generator while Dynamo traces."""
_ENVIRON = frozenset({"environ", "environb", "getenv"})
_LOADS_VALUE = frozenset({"LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME"})
_NO_EFFECT = frozenset({"CACHE", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})


def check_call(value: Any, inlined: Set[int]) -> None:
    """Raise NoTrace for a function whose result may differ in another process.

    `inlined` are the ids of functions that are harmless here, and of traced code, whose reads are values
    themselves.
    """
    if type(value).__name__ in ("_local", "Random", "Generator"):
        raise NoTrace(f"it reads a {type(value).__name__}")
    if isinstance(value, types.MethodType):
        value = value.__func__
    if not isinstance(value, _CALLABLES) or {id(value), id(getattr(value, "__code__", None))} & inlined:
        return
    module = getattr(value, "__module__", None) or getattr(
        getattr(value, "__objclass__", None), "__module__", None
    )
    name = value.__qualname__
    if getattr(value, "_dynamo_marked_constant", False):
        raise NoTrace(f"{name}(), which it calls, is marked as constant")
    bound = getattr(value, "__self__", None)
    if isinstance(bound, type):
        module, name = bound.__module__, f"{bound.__qualname__}.{value.__name__}"
    if not isinstance(module, str):
        return
    package = module.partition(".")[0]
    if package == "builtins":
        refused = name in _READING_BUILTINS and getattr(builtins, name, None) is value
    elif package in sys.stdlib_module_names:
        owner, _, attribute = name.rpartition(".")
        refused = not computes(module, name) or attribute in TOGETHER.get(f"{module}.{owner}", ())
    else:
        refused = package == "torch" and name in _READING_TORCH
    if refused:
        raise NoTrace(f"it calls {name}()" if package == "builtins" else f"it calls {module}.{name}()")


def check_classes(classes: Iterable[type]) -> None:
    """Raise NoTrace for a class with the user's code that Python runs untraced: its reads are unknown."""
    for cls in classes:
        for owner, names in ((type(cls), _UNTRACED_OF_METACLASSES), (cls, _UNTRACED_OF_CLASSES)):
            for base in owner.__mro__:
                for name in names & vars(base).keys():
                    method = vars(base)[name]
                    code = getattr(getattr(method, "__func__", method), "__code__", None)
                    if code is not None and is_users_code(code):
                        raise NoTrace(
                            f"it may call {base.__qualname__}.{name}(), which Dynamo does not trace"
                        )
        for abstract in deciding(cls) if isinstance(cls, ABCMeta) else ():
            hook = vars(abstract).get("__subclasshook__")
            methods = [getattr(hook, "__func__", hook)]
            methods += (getattr(type(abstract), name, None) for name in _UNTRACED_OF_METACLASSES)
            codes = (getattr(method, "__code__", None) for method in methods)
            if any(code is not None and is_users_code(code) for code in codes):
                raise NoTrace(
                    f"{abstract.__qualname__} may decide what is an instance, which Dynamo does not trace"
                )
        for name, attribute in vars(cls).items():
            function = getattr(attribute, "__func__", attribute)
            if isinstance(function, _SKIPPING) and (name.startswith("__") or name in _UNTRACED_OF_CLASSES):
                raise NoTrace(
                    f"it may call {cls.__qualname__}.{name}(), which is a {type(function).__qualname__}"
                )
            if (
                issubclass(type(attribute), _PROPERTIES)
                and _has_untraced_getter(attribute)
                and _is_users_class(cls)
            ):
                raise NoTrace(
                    f"it may read {cls.__qualname__}.{name}, which Python computes without your code"
                )


def _has_untraced_getter(attribute: Any) -> bool:
    """Return whether a property's getter is written in C or belongs to the standard library."""
    function = attribute.func if isinstance(attribute, functools.cached_property) else attribute.fget
    if not isinstance(function, types.FunctionType):
        return function is not None
    return bool(module_of_stdlib(function.__code__.co_filename))


def _is_users_class(cls: type) -> bool:
    """Return whether the user's modules or cells define this class."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None) or getattr(module, "__spec__", None)
    return file is None or (isinstance(file, str) and not is_installed(file))


def check_module(module: types.ModuleType) -> None:
    """Raise NoTrace for a module whose attributes the user's code computes."""
    getter = module.__dict__.get("__getattr__")
    if isinstance(getter, types.FunctionType) and is_users_code(getter.__code__):
        raise NoTrace(f"the module {module.__name__} has a __getattr__() of yours")
    for base in type(module).__mro__:
        for method in vars(base).values():
            if isinstance(method, types.FunctionType) and is_users_code(method.__code__):
                raise NoTrace(f"the module {module.__name__} is an instance of a class of yours")


def is_users_code(code: types.CodeType) -> bool:
    """Return whether code belongs neither to the standard library nor to an installed package."""
    return not is_installed(code.co_filename)


def reads_environment(value_of: Callable[[Any], Any], source: Any) -> bool:
    """Return whether a source reads an environment variable; variables that code names are facts."""
    dictionaries = environment()
    while (source := getattr(source, "base", None)) is not None:
        if any(value_of(source) is dictionary for dictionary in dictionaries):
            return True
    return False


def check_environment(source: Any, value: Any) -> None:
    """Raise NoTrace if code reads the environment by a name other than its usual one."""
    bound = value.__self__ if isinstance(value, types.MethodType) else value
    originals = (*environment(), os.getenv)
    if not any(bound is original for original in originals):
        return
    while source is not None:
        if getattr(source, "member", "") in ("environ", "getenv"):
            return
        if type(source).__name__ == "GlobalSource" and bound is value and bound is not originals[1]:
            return
        source = getattr(source, "base", None)
    raise NoTrace("it reads the environment under another name than os.environ or os.getenv")


def environment_variables(code: CodeType, scope: Mapping[str, Any]) -> set[str]:
    """Return the environment variables that `code` reads; raise NoTrace if it computes a name."""
    aliases = {
        name
        for name in code.co_names
        if any(scope.get(name) is original for original in (os.environ, os.getenv))
    }
    names = _ENVIRON | aliases
    steps = [step for step in steps_of(code) if step.operation not in _NO_EFFECT]
    read = set()
    for index, step in enumerate(steps):
        if step.operation == "IMPORT_FROM" and step.value in _ENVIRON:
            raise NoTrace(f"{code.co_qualname}() imports environ or getenv")
        if step.operation in LOADS_ATTRIBUTE | LOADS_GLOBAL and step.value in names:
            name = _name_in_lookup(steps[index + 1 : index + 5]) or _name_in_test(steps, index)
            if name is None:
                raise NoTrace(f"{code.co_qualname}() computes the name of an environment variable")
            read.add(name)
    return read


def _name_in_lookup(following: list[Step]) -> str | None:
    """Return the constant name in `environ.get(NAME)`, `environ[NAME]` and `getenv(NAME)`; else None."""
    if (
        following
        and following[0].operation in LOADS_ATTRIBUTE
        and following[0].value in ("get", "__getitem__")
    ):
        following = following[1:]
    if not following or following[0].operation != "LOAD_CONST" or not isinstance(following[0].value, str):
        return None
    operations = [step.operation for step in following[1:3]]
    with_default = len(operations) == 2 and operations[0] in _LOADS_VALUE and operations[1] == "CALL"
    return following[0].value if operations[:1] in (["CALL"], ["BINARY_SUBSCR"]) or with_default else None


def _name_in_test(steps: list[Step], index: int) -> str | None:
    """Return the constant name in `NAME in environ` or `NAME in os.environ`; else None."""
    if index + 1 < len(steps) and steps[index + 1].operation == "CONTAINS_OP":
        for step in reversed(steps[max(0, index - 2) : index]):
            if step.operation == "LOAD_CONST" and isinstance(step.value, str):
                return step.value
    return None
