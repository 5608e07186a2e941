"""Refuse functions and code that read state which no fact covers, such as a clock or the environment."""

from __future__ import annotations

import builtins
import cProfile
import functools
import os
import sys
import threading
import types
from _abc import _get_dump  # type: ignore[import-not-found]
from abc import ABCMeta, get_cache_token
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import starmap
from types import CodeType
from typing import Any

from nbcache.core import log
from nbcache.core.installed import is_installed, module_of_stdlib, package_of
from nbcache.keys.fingerprints.code import LOADS_ATTRIBUTE, LOADS_GLOBAL, Step, steps_of, words
from nbcache.keys.fingerprints.digests import STATEFUL_ATTRIBUTES, is_pure
from nbcache.keys.fingerprints.known_code import CACHED, DESCRIPTORS
from nbcache.keys.fingerprints.objects import classes_with_subclasshook, protocol_attributes
from nbcache.keys.monkeypatches import subclasses_of
from nbcache.traces.facts import CONFIGS, NoTrace, environment, is_users_code, object_at

_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_CALLABLES = (*(kind for kind in DESCRIPTORS if kind not in _SLOTS), types.FunctionType, types.MethodType)
_UNTRACED_OF_METACLASSES = frozenset({"__instancecheck__", "__subclasscheck__"})
_UNTRACED_OF_CLASSES = frozenset({"_missing_", "__subclasshook__"})
"""Methods that `isinstance`, `issubclass` and enumerations call, and that Python runs untraced."""
_KEPT = frozenset({"__subclasscheck__", "__subclasshook__"})
"""Methods whose answers abstract classes keep, so that these need not run while Dynamo traces."""
_SKIPPING = (CACHED, functools.partial, functools.partialmethod)
"""Types of wrappers that may replace a method and skip its code, such as a cache."""
_PROPERTIES = (functools.cached_property, property, types.DynamicClassAttribute)
_READING_BUILTINS = words(
    "__build_class__ __import__ breakpoint compile dir eval exec globals hash help id input locals open",
    "vars",
)
_READING_TORCH = words(
    "_get_privateuse1_backend_name _is_checkpoint_valid autocast_decrement_nesting",
    "autocast_increment_nesting current_device device_count get_device_capability get_device_properties",
    "get_overwrite_module_params_on_conversion get_rng_state initial_seed mem_get_info seed",
)
"""torch functions that read a device, a random generator or another state while Dynamo traces."""
_GETTERS = ("get", "__getitem__")
ENVIRON = frozenset({"environ", "environb", "getenv"})
_LOADS_VALUE = frozenset({"LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME"})
_NO_EFFECT = frozenset({"CACHE", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})


def check_call(value: Any, inlined: Set[int]) -> None:
    """Raise NoTrace if a function's result may vary; `inlined`: ids of harmless functions and traced code."""
    if type(value).__name__ in ("_local", "Random", "Generator"):
        raise NoTrace(f"it reads a {type(value).__name__}")
    if isinstance(value, types.MethodType):
        value = value.__func__
    if not isinstance(value, _CALLABLES) or {id(value), id(getattr(value, "__code__", None))} & inlined:
        return
    owner = getattr(value, "__objclass__", None)
    module = getattr(value, "__module__", None) or getattr(owner, "__module__", None)
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
        cls, _, attribute = name.rpartition(".")
        refused = not is_pure(module, name) or attribute in STATEFUL_ATTRIBUTES.get(f"{module}.{cls}", ())
    else:
        refused = package == "torch" and name in _READING_TORCH
    if refused:
        raise NoTrace(f"it calls {name}()" if package == "builtins" else f"it calls {module}.{name}()")


def check_classes(classes: Iterable[type]) -> None:
    """Raise NoTrace for a class with code that Python runs untraced: its reads are unknown."""
    for cls in classes:
        for owner, names in ((type(cls), _UNTRACED_OF_METACLASSES), (cls, _UNTRACED_OF_CLASSES)):
            for base in owner.__mro__:
                for name in names & vars(base).keys():
                    if _is_unknown(name, vars(base)[name]):
                        raise NoTrace(f"it may call {base.__qualname__}.{name}() outside Dynamo")
        for abstract in classes_with_subclasshook(cls) if isinstance(cls, ABCMeta) else ():
            checks = {name: getattr(type(abstract), name, None) for name in _UNTRACED_OF_METACLASSES}
            checks["__subclasshook__"] = vars(abstract).get("__subclasshook__")
            if any(starmap(_is_unknown, checks.items())):
                raise NoTrace(f"{abstract.__qualname__} may decide what is an instance, outside Dynamo")
        for name, value in vars(cls).copy().items():
            function = getattr(value, "__func__", value)
            if isinstance(function, _SKIPPING) and (name.startswith("__") or name in _UNTRACED_OF_CLASSES):
                kind = type(function).__qualname__
                raise NoTrace(f"it may call {cls.__qualname__}.{name}(), which is a {kind}")
            if issubclass(type(value), _PROPERTIES) and _has_untraced_getter(value) and _is_users_class(cls):
                raise NoTrace(f"it may read {cls.__qualname__}.{name}, which is computed outside Dynamo")


def _is_unknown(name: str, method: Any) -> bool:
    """Return whether a method is the user's, or a package's whose answers abstract classes keep."""
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    if code is None:
        return False
    if is_users_code(code):
        return True
    package = package_of(code.co_filename)
    return name in _KEPT and bool(package) and package not in TORCH_PACKAGES


def check_kept_answers(classes: Iterable[type]) -> None:
    """Raise NoTrace if `isinstance` would return a kept answer that a change of a class has made wrong."""
    by_id = {id(cls): cls for cls in classes}
    for abstract in [cls for cls in by_id.values() if issubclass(type(cls), ABCMeta)]:
        _, accepted, rejected, version = _get_dump(abstract)
        answers = dict.fromkeys(accepted, True)
        if version == get_cache_token():  # else Python ignores these
            answers |= dict.fromkeys(rejected, False)
        for reference, answer in answers.items():
            cls = by_id.get(id(reference()))
            if cls is not None and _is_subclass(cls, abstract) is not answer:
                raise NoTrace(f"{abstract.__qualname__} keeps a wrong answer on {cls.__qualname__}")


def _is_subclass(cls: type, other: type) -> bool:
    """Return what `issubclass` would return if no class kept answers."""
    if not issubclass(type(other), ABCMeta):
        return other in cls.__mro__
    if vars(other).get("_is_protocol"):  # its hook answers only certain callers
        members = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
        names = protocol_attributes(other)
        answer: Any = all(members.get(name) is not None for name in names) or NotImplemented
    elif _is_unknown("__subclasshook__", hook := other.__subclasshook__):
        raise NoTrace(f"it may call {other.__qualname__}.__subclasshook__() outside Dynamo")
    else:
        try:
            answer = hook(cls)
        except Exception as error:
            raise NoTrace(f"{other.__qualname__} cannot tell whether {cls.__qualname__} is one") from error
    if answer is not NotImplemented:
        return bool(answer)
    if other in cls.__mro__:
        return True
    registered = filter(None, (reference() for reference in _get_dump(other)[0]))
    return any(_is_subclass(cls, part) for part in (*registered, *type.__subclasses__(other)))


def _has_untraced_getter(attribute: Any) -> bool:
    """Return whether a property's getter is written in C or belongs to the standard library."""
    function = attribute.func if isinstance(attribute, functools.cached_property) else attribute.fget
    if not isinstance(function, types.FunctionType):
        return function is not None
    return bool(module_of_stdlib(function.__code__.co_filename))


def _is_users_class(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None) or getattr(module, "__spec__", None)
    return file is None or (isinstance(file, str) and not is_installed(file))


def check_module(module: types.ModuleType) -> None:
    """Raise NoTrace for a module whose attributes the user's code computes."""
    getter = module.__dict__.get("__getattr__")
    if isinstance(getter, types.FunctionType) and is_users_code(getter.__code__):
        raise NoTrace(f"the module {module.__name__} has a __getattr__() of yours")
    if getter is not None and not isinstance(getter, types.FunctionType):
        raise NoTrace(f"the module {module.__name__} has a __getattr__() that may keep values")
    for base in type(module).__mro__:
        for method in vars(base).copy().values():
            if isinstance(method, types.FunctionType) and is_users_code(method.__code__):
                raise NoTrace(f"the module {module.__name__} is an instance of a class of yours")
            if isinstance(method, _SKIPPING):
                raise NoTrace(f"the module {module.__name__} is an instance of a class that may keep values")


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
    originals = (os.environ, os.getenv)
    names = ENVIRON | {name for name in code.co_names if any(scope.get(name) is it for it in originals)}
    steps = [step for step in steps_of(code) if step.operation not in _NO_EFFECT]
    read = set()
    for index, step in enumerate(steps):
        if step.operation in ("IMPORT_FROM", "LOAD_CONST") and step.value in ENVIRON:
            raise NoTrace(f"{code.co_qualname}() imports environ or getenv, or names one in a text")
        if step.operation in LOADS_ATTRIBUTE | LOADS_GLOBAL and step.value in names:
            name = _name_in_lookup(steps[index + 1 : index + 5]) or _name_in_test(steps, index)
            if name is None:
                raise NoTrace(f"{code.co_qualname}() computes the name of an environment variable")
            read.add(name)
    return read


def _name_in_lookup(following: list[Step]) -> str | None:
    """Return the constant name in `environ.get(NAME)`, `environ[NAME]` and `getenv(NAME)`; else None."""
    if following and following[0].operation in LOADS_ATTRIBUTE and following[0].value in _GETTERS:
        following = following[1:]
    if not following or following[0].operation != "LOAD_CONST" or not isinstance(following[0].value, str):
        return None
    arguments = 1
    if len(following) > 2 and following[1].operation in _LOADS_VALUE:  # a default
        following, arguments = [following[0], *following[2:]], 2
    if len(following) < 2:
        return None
    is_subscript = following[1].operation == "BINARY_SUBSCR" and arguments == 1
    is_call = following[1].operation == "CALL" and following[1].number == arguments
    return following[0].value if is_subscript or is_call else None


def _name_in_test(steps: list[Step], index: int) -> str | None:
    """Return the constant name in `NAME in environ` or `NAME in os.environ`; else None."""
    if index + 1 < len(steps) and steps[index + 1].operation == "CONTAINS_OP":
        for step in reversed(steps[max(0, index - 2) : index]):
            if step.operation == "LOAD_CONST" and isinstance(step.value, str):
                return step.value
    return None


_MONITORING: Any = getattr(sys, "monitoring", None)
"""Reports each function once, at no cost; Python 3.11 has only a profiler."""
_TOOLS = (3, 4)
"""Ids of monitoring tools that Python reserves for nobody."""
_GENERATED = ("<eval_with_key", "<lambdify")
TORCH_PACKAGES = words(
    "IPython comm filelock fsspec functorch ipykernel jinja2 jupyter_client markupsafe mpmath networkx",
    "numpy optree psutil sympy tornado torch torchgen traitlets triton typing_extensions zmq",
)
"""Packages whose code torch or the kernel may run at any time."""
_STDLIB_OF_TORCH = words(
    "_collections_abc abc copyreg enum functools inspect os pathlib re traceback typing uuid weakref",
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
    """Records the code that runs between `begin` and `end`. nbcache's log handlers run outside."""

    def __init__(self, *, notes: bool = True) -> None:
        """Record nothing unless `notes`: on Python 3.11, recording adds half of the tracing time."""
        self._notes = notes
        self._codes: dict[int, types.CodeType] = {}
        """Id → code object. Ids, since two code objects of the same source are equal."""
        self._profile = None if _MONITORING else cProfile.Profile(subcalls=False, builtins=False)
        self._tool = 0

    @staticmethod
    def is_possible() -> bool:
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
        if self._profile is None:
            return iter(self._codes.values())
        entries = self._profile.getstats()
        return (entry.code for entry in entries if isinstance(entry.code, types.CodeType))


def check_executed_code(
    codes: Iterable[types.CodeType], values: Sequence[Any]
) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """Raise NoTrace for code that may have read state without a fact; yield known methods with their globals.

    Code of torch, and of packages that torch runs, is allowed. `inspect` and imports read attributes of
    modules: methods of finders are allowed, and those of a module's class if no such module is in `values`.
    """
    own_folder = os.path.dirname(os.path.abspath(str(sys.modules["nbcache"].__file__))) + os.sep
    modules = {
        str(object.__getattribute__(module, "__dict__").get("__file__")): name
        for name, module in sys.modules.copy().items()
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
        cls, _, name = code.co_qualname.rpartition(".")
        owner = _class_by_name(module, cls)
        is_config = name == "__getattribute__" and (module, cls) in CONFIGS
        if owner in finders:
            continue
        if owner is not None and issubclass(owner, types.ModuleType):
            if not any(issubclass(kind, owner) for kind in module_kinds):
                continue
        elif is_config and owner is not None and getattr(vars(owner).get(name), "__code__", None) is code:
            yield code, vars(sys.modules[module])  # it reads only the configuration itself
            continue
        raise NoTrace(f"Python runs {code.co_qualname}() of {module or 'a package'} while Dynamo traces")


def _class_by_name(module: str, name: str) -> type | None:
    try:
        owner = object_at(module, name)
    except NoTrace:
        return None
    return owner if isinstance(owner, type) else None


def _is_users_code(code: types.CodeType, tuples: set[types.CodeType]) -> bool:
    """Return whether the user wrote this code, or generated it from a text by other means than `exec`."""
    if code.co_filename != "<string>":
        return not is_installed(code.co_filename)
    is_generated = code.co_name == "<module>" or code.co_qualname.startswith("__create_fn__")
    return not (is_generated or code in tuples)


def _reads_objects(code: types.CodeType) -> bool:
    """Return whether a standard method that torch does not call reads objects, which have no facts."""
    name, module = code.co_name, module_of_stdlib(code.co_filename)
    if not module or not (name.startswith("__") and name.endswith("__")) or name in _CONSTRUCTING:
        return False
    if name in ("__getattr__", "__getattribute__"):
        return module not in ("enum", "typing")
    return module not in _STDLIB_OF_TORCH


def _dataclass_methods() -> Iterator[types.CodeType]:
    """Return the comparing and printing methods that `dataclass` generated for the user's classes."""
    libraries = {*TORCH_PACKAGES, *sys.stdlib_module_names, "nbcache"}
    for cls in subclasses_of(object):
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
    for cls in tuple.__subclasses__():
        new = getattr(vars(cls).get("__new__"), "__func__", None)
        scope_name = isinstance(new, types.FunctionType) and str(new.__globals__.get("__name__"))
        if new is not None and scope_name and scope_name.startswith("namedtuple_"):
            yield new.__code__
