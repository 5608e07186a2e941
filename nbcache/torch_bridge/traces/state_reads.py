"""Which functions Dynamo may have called while it traced, so that what they return is told by facts."""

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
from nbcache.torch_bridge.traces.object_digests import Untold, environment

__all__ = [
    "check",
    "check_classes",
    "check_environment",
    "check_module",
    "is_of_environment",
    "is_users",
    "variables",
]

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
_ENVIRON = frozenset({"environ", "environb", "getenv"})
_LOADS_VALUE = frozenset({"LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME"})
_OF_NO_EFFECT = frozenset({"CACHE", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})


def check(value: Any, inlined: Set[int]) -> None:
    """Raise Untold of a function that may return another thing in another process.

    `inlined` are the ids of code that was walked through, as what that reads are values of its own, and of
    functions that do no harm.
    """
    if type(value).__name__ in ("_local", "Random", "Generator"):
        raise Untold(f"it reads a {type(value).__name__}")
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
                    if code is not None and is_users(code):
                        raise Untold(f"it may call {base.__qualname__}.{name}(), which is not traced")
        for each in deciding(cls) if isinstance(cls, ABCMeta) else ():
            hook = vars(each).get("__subclasshook__")
            asked = [getattr(hook, "__func__", hook)]
            asked += (getattr(type(each), name, None) for name in _RUN_OF_METACLASSES)
            codes = (getattr(found, "__code__", None) for found in asked)
            if any(code is not None and is_users(code) for code in codes):
                raise Untold(f"{each.__qualname__} may decide what is an instance, which is not traced")
        for name, found in vars(cls).items():
            held = getattr(found, "__func__", found)
            if isinstance(held, _UNSEEN) and (name.startswith("__") or name in _RUN_OF_CLASSES):
                raise Untold(f"it may call {cls.__qualname__}.{name}(), which is a {type(held).__qualname__}")
            if issubclass(type(found), _PROPERTIES) and _runs_unseen(found) and _is_users(cls):
                raise Untold(f"it may read {cls.__qualname__}.{name}, which no code of yours returns")


def _runs_unseen(made: Any) -> bool:
    """Tell whether what a property returns comes from C, or from the standard library."""
    function = made.func if isinstance(made, functools.cached_property) else made.fget
    if not isinstance(function, types.FunctionType):
        return function is not None
    return bool(module_of_stdlib(function.__code__.co_filename))


def _is_users(cls: type) -> bool:
    """Tell whether a class is of the user's own modules and cells."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None) or getattr(module, "__spec__", None)
    return file is None or (isinstance(file, str) and not is_installed(file))


def check_module(module: types.ModuleType) -> None:
    """Raise Untold of a module of the user's that makes attributes when it is asked for them."""
    ask = module.__dict__.get("__getattr__")
    if isinstance(ask, types.FunctionType) and is_users(ask.__code__):
        raise Untold(f"the module {module.__name__} makes attributes when it is asked for them")
    for base in type(module).__mro__:
        for found in vars(base).values():
            if isinstance(found, types.FunctionType) and is_users(found.__code__):
                raise Untold(f"the module {module.__name__} is of a class of yours")


def is_users(code: types.CodeType) -> bool:
    """Tell whether code is neither the standard library's nor an installed package's."""
    return not is_installed(code.co_filename)


def is_of_environment(value_of: Callable[[Any], Any], source: Any) -> bool:
    """Tell whether a source reads one of the environment's variables; those that code reads are facts."""
    variables = environment()
    while (source := getattr(source, "base", None)) is not None:
        if any(value_of(source) is each for each in variables):
            return True
    return False


def check_environment(source: Any, value: Any) -> None:
    """Raise Untold of the environment where code has it by another name than its own, or as a global."""
    bound = value.__self__ if isinstance(value, types.MethodType) else value
    variables = (*environment(), os.getenv)
    if not any(bound is each for each in variables):
        return
    while source is not None:
        if getattr(source, "member", "") in ("environ", "getenv"):
            return
        if type(source).__name__ == "GlobalSource" and bound is value and bound is not variables[1]:
            return
        source = getattr(source, "base", None)
    raise Untold("it reads the environment by another name")


def variables(code: CodeType, scope: Mapping[str, Any]) -> set[str]:
    """Return the names of the variables that `code` reads; Untold where some are named while it runs."""
    ours = {
        name for name in code.co_names if any(scope.get(name) is each for each in (os.environ, os.getenv))
    }
    names = _ENVIRON | ours
    steps = [step for step in steps_of(code) if step.operation not in _OF_NO_EFFECT]
    found = set()
    for index, step in enumerate(steps):
        if step.operation == "IMPORT_FROM" and step.value in _ENVIRON:
            raise Untold(f"{code.co_qualname}() imports the environment")
        if step.operation in LOADS_ATTRIBUTE | LOADS_GLOBAL and step.value in names:
            name = _constant(steps[index + 1 : index + 5]) or _asked_for(steps, index)
            if name is None:
                raise Untold(
                    f"{code.co_qualname}() reads variables of the environment that it names as it runs"
                )
            found.add(name)
    return found


def _constant(following: list[Step]) -> str | None:
    """Return the text in `environ.get("A")`, `environ["A"]` and `getenv("A")`."""
    if (
        following
        and following[0].operation in LOADS_ATTRIBUTE
        and following[0].value in ("get", "__getitem__")
    ):
        following = following[1:]
    if not following or following[0].operation != "LOAD_CONST" or not isinstance(following[0].value, str):
        return None
    after = [step.operation for step in following[1:3]]
    with_default = len(after) == 2 and after[0] in _LOADS_VALUE and after[1] == "CALL"
    return following[0].value if after[:1] in (["CALL"], ["BINARY_SUBSCR"]) or with_default else None


def _asked_for(steps: list[Step], index: int) -> str | None:
    """Return the text in `"A" in environ`, with the module before it where there is one."""
    if index + 1 < len(steps) and steps[index + 1].operation == "CONTAINS_OP":
        for step in reversed(steps[max(0, index - 2) : index]):
            if step.operation == "LOAD_CONST" and isinstance(step.value, str):
                return step.value
    return None
