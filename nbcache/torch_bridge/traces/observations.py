"""Notes each object that Dynamo makes a value of while it traces a function, and all code that it traces."""

from __future__ import annotations

import enum
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from nbcache.core.fingerprints.objects import is_plain
from nbcache.torch_bridge.patches import Patches
from nbcache.torch_bridge.traces.executed_code import TORCHS, Executed
from nbcache.torch_bridge.traces.trace_rows import guarded

__all__ = ["Seen", "watching"]

_LAZY = frozenset({"LazyConstantVariable", "LazyVariableTracker"})
"""Values of which Dynamo may have asked for the type; once it looks at one, it makes another."""
_GLOBALS = vars(types.FunctionType)["__globals__"]
"""What reads the globals of a function. Dynamo gives it their source, and another value stands for them."""
_OF_DYNAMO = ("torch._dynamo", "torch._guards", "torch.fx", "traceback")
"""Where the classes are of what Dynamo makes for itself."""
_ITERATED: tuple[Any, ...] = (
    *([], (), {}, {}.values(), {}.items(), OrderedDict(), set(), "", b"", range(0)),
)
_NOT_HELD: tuple[type, ...] = (
    *(types.FrameType, types.TracebackType, types.GeneratorType, enumerate, map, reversed, zip),
    *(type(iter(each)) for each in _ITERATED),
    type(reversed([])),
)
"""Types of what only walks through something else."""
_CODECS = {"UTF-8", "ascii", "latin-1", "strict", "surrogateescape", "utf-8", "utf8"}
"""Codecs and error handlers that are Python's own."""
_SINGLETONS = {type(None), bool, type(...), type(NotImplemented)}
"""Types whose equal values are one object."""
_VALUES = (bytes, complex, float, frozenset, int, range, slice, str, tuple)
"""Types whose equal values may be one object, or two."""
_CONTAINERS = (OrderedDict, dict, frozenset, list, set, tuple)
_AS_IT_IS = 3
"""The depth from which on a container counts by itself."""


class Seen:
    """The values and the code of one tracing."""

    def __init__(self) -> None:
        self.trackers: list[Any] = []
        """Dynamo's values, in the order in which it made them; those of failed attempts as well."""
        self.hashed: set[int] = set()
        """Ids of lazy values that Dynamo has looked at without making another one: keys of dictionaries."""
        self.sourceless: list[Any] = []
        """Objects that Dynamo reached by no source."""
        self.doubts: set[str] = set()
        """Reasons, as clauses, for which the function has no trace."""
        self.imported: set[str] = set()
        """Names of modules that were imported."""
        self.executed: list[types.CodeType] = []
        """Code that Python has run, and Dynamo has not traced."""
        self.fault: Exception | None = None
        """An exception of our own, after which nothing more was seen."""
        self.codes: dict[tuple[int, int], tuple[types.CodeType, dict[str, Any]]] = {}
        """By ids: code that Dynamo has traced, with its globals."""

    def note_code(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        self.codes.setdefault((id(code), id(scope)), (code, scope))

    def note_comparison(self, left: type | None, right: type | None) -> None:
        """Note that code asks whether two objects of these types are one; None is an unknown type.

        Python may make one of two values that are equal, or not.
        """
        is_value = left is None or right is None or (left is right and left in _VALUES)
        if is_value and not {left, right} & _SINGLETONS:
            self.doubts.add("it asks whether two numbers, texts or tuples are one object")

    def note_equation(self, left: type | None, right: type | None) -> None:
        """Note that code asks whether two objects of these types are equal."""
        if types.CellType in (left, right):
            self.doubts.add("it asks whether cells of closures are equal")

    def note_codecs(self, arguments: Iterable[Any]) -> None:
        """Note the arguments with which code encodes or decodes a text."""
        if not {*_constants(arguments)} <= _CODECS:
            self.doubts.add("it encodes or decodes a text by a codec that anybody may have registered")

    def sources(self, *, lazy: bool = False) -> Iterator[Any]:
        """Return by which way each value was reached, where there is one; some more than once.

        With `lazy`, return those of which Dynamo may know the types alone.
        """
        return (guarded(source) for tracker, source in self._given() if self._is_lazy(tracker) is lazy)

    def _is_lazy(self, tracker: Any) -> bool:
        reads_globals = object.__getattribute__(tracker, "__dict__").get("descriptor") is _GLOBALS
        return (type(tracker).__name__ in _LAZY or reads_globals) and id(tracker) not in self.hashed

    def unguarded(self) -> set[Any]:
        """Return the sources that Dynamo does not guard: globals that code of the standard library reads."""
        return {found for _, source in self._given() if (found := guarded(source)) is not source}

    def _given(self) -> Iterator[tuple[Any, Any]]:
        """Return the values that have a source, each with the source that Dynamo gave it."""
        for tracker in self.trackers:
            source = object.__getattribute__(tracker, "__dict__").get("source")
            if source is not None:
                yield tracker, source

    def unreached_modules(self) -> Iterator[types.ModuleType]:
        """Return the modules that were come to by no way that Dynamo could guard."""
        for tracker in self.trackers:
            given = object.__getattribute__(tracker, "__dict__")
            if type(tracker).__name__ == "PythonModuleVariable" and given.get("source") is None:
                yield given["value"]

    def texts(self) -> Iterator[str]:
        """Return the texts that Dynamo has held: each may have been the name of an attribute."""
        for tracker in self.trackers:
            value = object.__getattribute__(tracker, "__dict__").get("value")
            if issubclass(type(value), str):
                yield str.__str__(value)

    def held(self) -> Iterator[tuple[Any, str]]:
        """Return what the values stand for, each with the name of the class of Dynamo's that held it."""
        for value in self.sourceless:
            if not issubclass(type(value), _CONTAINERS) or not _is_dynamos(value):
                yield from ((each, "SourcelessBuilder") for each in _real(value, _AS_IT_IS))
        for tracker in self.trackers:
            kind = type(tracker).__name__
            if kind in _LAZY:
                continue
            given: Mapping[str, Any] = object.__getattribute__(tracker, "__dict__")
            is_new = "New" in type(given.get("mutation_type")).__name__  # made by the traced code
            for name, value in given.items():
                if name in ("f_globals", "source") or (is_new and name == "value"):
                    continue
                for each in _real(value):
                    yield each, kind


def _real(value: Any, depth: int = 0) -> Iterator[Any]:
    """Return what of a value is an object of the process, and not of Dynamo's own or a constant."""
    kind = type(value)
    if is_plain(value) or issubclass(kind, _NOT_HELD) or _is_of_dynamo(kind):
        return
    if kind.__name__ in ("ImplicitRealizingVariableTrackerMeta", "VariableTrackerMeta"):
        return
    if kind in _CONTAINERS and depth < _AS_IT_IS:
        if kind is dict and _is_scope(value):
            return
        for each in (*value.keys(), *value.values()) if issubclass(kind, dict) else value:
            yield from _real(each, depth + 1)
        return
    yield value


def _is_dynamos(container: Any) -> bool:
    """Tell whether a container holds values of Dynamo's own, or nothing."""
    held = container.values() if isinstance(container, dict) else container
    return all(_is_of_dynamo(type(each)) for each in held)


def _is_of_dynamo(kind: type) -> bool:
    return str(vars(kind).get("__module__", kind.__module__)).startswith(_OF_DYNAMO)


def _type_of(tracker: Any) -> type | None:
    """Return the type of what a value of Dynamo's stands for; None where it is not known."""
    try:
        found: type = tracker.unwrap().python_type()
    except Exception:  # it has none, or none yet
        return None
    return found


def _printed(tracker: Any) -> Iterator[str]:
    """Yield the doubt about an object of which `str` makes a text without Dynamo."""
    from torch._dynamo.variables import UserDefinedObjectVariable

    tracker = tracker.unwrap()
    if isinstance(tracker, UserDefinedObjectVariable):
        kind: Any = type(tracker.value)
        if kind.__str__ is object.__str__:
            yield f"it makes a text of a {kind.__qualname__}, with all that it holds"


def _constants(given: Iterable[Any]) -> Iterator[Any]:
    """Return the constants among arguments of Dynamo's, which are lists and dictionaries; None for others."""
    for each in given:
        if isinstance(each, (list, tuple)):
            yield from _constants(each)
        elif isinstance(each, dict):
            yield from _constants(each.values())
        else:
            yield getattr(each, "value", None)


def _is_scope(value: dict[Any, Any]) -> bool:
    """Tell whether it is the globals of a module: those that are read are values of their own."""
    name = value.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is not None and module.__dict__ is value


def _members() -> dict[type, int]:
    """Return how many members the user's flags have: `A | B` makes one that stays."""
    found: dict[type, int] = {}
    classes: list[type] = [enum.Flag]
    while classes:
        cls = classes.pop()
        classes += type.__subclasses__(cls)
        if cls.__module__.partition(".")[0] not in (*TORCHS, *sys.stdlib_module_names):
            found[cls] = len(vars(cls).get("_value2member_map_", ()))
    return found


@contextmanager
def watching(seen: Seen, is_here: Callable[[], bool], executed: Executed, places: Patches) -> Iterator[None]:
    """Note into `seen` what Dynamo makes on the threads where `is_here`, and the code that Python executes.

    Dynamo traces on one thread at a time. `places` are patches of what is replaced meanwhile.
    """
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase, compare_op_handlers
    from torch._dynamo.variables import user_defined
    from torch._dynamo.variables.base import VariableTrackerMeta
    from torch._dynamo.variables.builder import SourcelessBuilder
    from torch._dynamo.variables.builtin import BuiltinVariable
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.lazy import LazyVariableTracker

    modules, members = {*sys.modules}, _members()

    def compile(original: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        executed.end()
        try:
            return original(*args, **kwargs)
        finally:
            executed.begin()

    def is_forbidden(original: Any, context: Any) -> Any:
        __tracebackhide__ = True
        before = {*sys.modules}
        executed.end()
        try:
            return original(context)  # it imports pytest, if that is installed
        finally:
            executed.begin()
            modules.update(sys.modules.keys() - before)

    def make(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        made = original(cls, *args, **kwargs)
        if is_here():
            seen.trackers.append(made)
        return made

    def walk(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if is_here():
            seen.note_code(kwargs["f_code"], kwargs["f_globals"])
        return original(self, *args, **kwargs)

    def make_sourceless(original: Any, tx: Any, value: Any) -> Any:
        __tracebackhide__ = True
        if is_here():
            seen.sourceless.append(value)
        return original(tx, value)

    def noting(note: Callable[[type | None, type | None], None]) -> Callable[..., Any]:
        def noted(original: Any, tx: Any, operands: Any, *more: Any) -> Any:
            __tracebackhide__ = True
            result = original(tx, operands, *more)
            if is_here():
                note(*map(_type_of, operands))
            return result

        return noted

    def original_value(original: Any, self: Any) -> Any:
        __tracebackhide__ = True
        if is_here():
            seen.hashed.add(id(self))
        return original(self)

    def call_method(original: Any, self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if name in ("decode", "encode") and is_here():
            seen.note_codecs((*args, *kwargs.values()))
        return original(self, tx, name, *args, **kwargs)

    def call_builtin(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True
        by_codec = (self.fn is str or self.fn is bytes) and len(args) + len(kwargs) > 1
        try:
            result = original(self, tx, args, kwargs)
        except Exception:
            if by_codec and is_here():  # the code may catch the exception
                seen.note_codecs([None])
            raise
        if by_codec and is_here():
            seen.note_codecs((*args[1:], *kwargs.values()))
        if self.fn is str and is_here():  # by now, Dynamo has looked at the arguments
            seen.doubts.update(doubt for arg in args for doubt in _printed(arg))
        return result

    def note_fault(error: Exception) -> None:
        seen.fault = error

    operators = {
        **dict.fromkeys(("is", "is not"), seen.note_comparison),
        **dict.fromkeys(("==", "!="), seen.note_equation),
    }
    comparing = {name: compare_op_handlers[name] for name in operators}
    hooks = (
        (BuiltinVariable, "call_function", call_builtin),
        (ConstantVariable, "call_method", call_method),
        (LazyVariableTracker, "original_value", original_value),
        (OutputGraph, "call_user_compiler", compile),
        (SourcelessBuilder, "create", make_sourceless),
        (VariableTrackerMeta, "__call__", make),
        (user_defined, "is_forbidden_context_manager", is_forbidden),
        (InstructionTranslatorBase, "__init__", walk),
    )
    patches = places.within(note_fault)
    executed.begin()
    try:
        for owner, name, stand_in in hooks:
            patches.hook(owner, name, stand_in)
        patches.undo(partial(compare_op_handlers.update, comparing))
        for name, note in operators.items():
            compare_op_handlers[name] = patches.wrapped(comparing[name], noting(note))
        yield
    finally:
        patches.restore()
        executed.end()
        seen.executed += executed.codes()
        if _members() != members:
            seen.doubts.add("tracing it has made members of a flag")
        seen.imported = {*sys.modules} - modules
