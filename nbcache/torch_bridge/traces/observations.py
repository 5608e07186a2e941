"""Observations of a tracing: Dynamo's variable trackers, the objects behind them, and the traced code."""

from __future__ import annotations

import enum
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from nbcache.core.fingerprints.objects import is_plain
from nbcache.torch_bridge.patches import Patches
from nbcache.torch_bridge.traces.state_reads import TORCH_PACKAGES, ExecutedCode, subclasses_of
from nbcache.torch_bridge.traces.trace_rows import without_skips

_LAZY = frozenset({"LazyConstantVariable", "LazyVariableTracker"})
"""Trackers whose value Dynamo may not have looked at: it replaces them as soon as it does."""
_GLOBALS = vars(types.FunctionType)["__globals__"]
"""Descriptor of a function's globals. Dynamo gives it their source; another tracker represents them."""
_OF_DYNAMO = ("torch._dynamo", "torch._guards", "torch.fx", "traceback")
"""Prefixes of the modules of classes that Dynamo uses internally."""
_ITERATED: Any = ([], (), {}, {}.values(), {}.items(), OrderedDict(), set(), "", b"", range(0))
_ITERATORS: tuple[type, ...] = (
    *(types.FrameType, types.TracebackType, types.GeneratorType, enumerate, map, reversed, zip),
    *(type(iter(iterable)) for iterable in _ITERATED),
    type(reversed([])),
)
"""Types of objects that only iterate over, or point into, another object."""
_CODEC = "it names a codec, which other code may have registered"
_SINGLETONS = {type(None), bool, type(...), type(NotImplemented)}
"""Types whose equal values are one object."""
_EQUAL_VALUES = (bytes, complex, float, frozenset, int, range, slice, str, tuple)
"""Types whose equal values may be one object or two."""
_CONTAINERS = (OrderedDict, dict, frozenset, list, set, tuple)
_MAX_DEPTH = 3
"""Depth of nesting from which a container is an object like any other."""


class Observations:
    """Variable trackers, objects and code that Dynamo used in one tracing."""

    def __init__(self) -> None:
        self.trackers: list[Any] = []
        """Variable trackers in the order in which Dynamo made them, including those of failed attempts."""
        self.hashed: set[int] = set()
        """Ids of lazy trackers whose value Dynamo read without replacing them: keys of dictionaries."""
        self.sourceless: list[Any] = []
        """Objects to which Dynamo could assign no source."""
        self.doubts: set[str] = set()
        """Reasons why the function has no trace, as clauses."""
        self.imported: set[str] = set()
        """Names of the modules that tracing imported."""
        self.executed: list[types.CodeType] = []
        """Code objects that Python ran, and Dynamo didn't trace."""
        self.fault: Exception | None = None
        """An exception in nbcache's own hooks, after which observations are incomplete."""
        self.codes: dict[tuple[int, int], tuple[types.CodeType, dict[str, Any]]] = {}
        """Ids of code and globals → code that Dynamo traced, and its globals."""

    def note_code(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        self.codes.setdefault((id(code), id(scope)), (code, scope))

    def note_comparison(self, left: type | None, right: type | None) -> None:
        """Note an `is` between objects of these types; None is an unknown type.

        Python is free to make one object or two of equal values.
        """
        is_value = left is None or right is None or (left is right and left in _EQUAL_VALUES)
        if is_value and not {left, right} & _SINGLETONS:
            self.doubts.add("it compares numbers, texts or tuples with `is`")

    def note_equation(self, left: type | None, right: type | None) -> None:
        """Note an `==` between objects of these types."""
        if types.CellType in (left, right):
            self.doubts.add("it compares cells of closures")

    def note_printing(self, tracker: Any) -> None:
        """Note that code makes a text of an object. Unless its class has a `__str__`, Python prints it."""
        from torch._dynamo.variables import UserDefinedObjectVariable

        tracker = tracker.unwrap()
        kind: Any = type(tracker.value) if isinstance(tracker, UserDefinedObjectVariable) else None
        if kind is not None and kind.__str__ is object.__str__:
            self.doubts.add(f"it prints a {kind.__qualname__} with everything below it")

    def sources(self, *, lazy: bool) -> Iterator[Any]:
        """Return the sources of trackers, some of them repeatedly.

        With `lazy`, return the sources of values of which Dynamo may know only the type.
        """
        for tracker, fields in self._fields():
            reads_globals = fields.get("descriptor") is _GLOBALS
            is_lazy = (type(tracker).__name__ in _LAZY or reads_globals) and id(tracker) not in self.hashed
            if is_lazy is lazy and fields.get("source") is not None:
                yield without_skips(fields["source"])

    def unguarded_sources(self) -> set[Any]:
        """Return sources that Dynamo does not guard: globals that code of the standard library reads."""
        sources = [source for _, fields in self._fields() if (source := fields.get("source")) is not None]
        return {full for source in sources if (full := without_skips(source)) is not source}

    def _fields(self) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Return the trackers with their attributes, without calling code of the trackers."""
        for tracker in self.trackers:
            yield tracker, object.__getattribute__(tracker, "__dict__")

    def modules_without_source(self) -> Iterator[types.ModuleType]:
        """Return the modules to which Dynamo could assign no source."""
        for tracker, fields in self._fields():
            if type(tracker).__name__ == "PythonModuleVariable" and fields.get("source") is None:
                yield fields["value"]

    def texts(self) -> Iterator[str]:
        """Return the texts in trackers: each of them may have been the name of an attribute."""
        for _, fields in self._fields():
            if issubclass(type(value := fields.get("value")), str):
                yield str.__str__(value)

    def objects(self) -> Iterator[tuple[Any, str]]:
        """Return the objects in trackers, each with the name of its tracker's class."""
        for value in self.sourceless:
            if not issubclass(type(value), _CONTAINERS) or not _is_internal(value):
                yield from ((item, "SourcelessBuilder") for item in _objects_in(value, _MAX_DEPTH))
        for tracker, fields in self._fields():
            kind = type(tracker).__name__
            if kind in _LAZY:
                continue
            is_created = "New" in type(fields.get("mutation_type")).__name__  # created by the traced code
            for name, value in fields.items():
                if name in ("f_globals", "source") or (is_created and name == "value"):
                    continue
                yield from ((item, kind) for item in _objects_in(value))


def _objects_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Return the objects of the process in a value: not Dynamo's own objects, nor constants."""
    kind = type(value)
    if is_plain(value) or issubclass(kind, _ITERATORS) or _is_internal_type(kind):
        return
    if kind.__name__ in ("ImplicitRealizingVariableTrackerMeta", "VariableTrackerMeta"):
        return
    if kind in _CONTAINERS and depth < _MAX_DEPTH:
        if kind is dict and _is_scope(value):
            return
        for item in (*value.keys(), *value.values()) if issubclass(kind, dict) else value:
            yield from _objects_in(item, depth + 1)
        return
    yield value


def _is_internal(container: Any) -> bool:
    """Return whether a container is empty or has only objects that Dynamo uses internally."""
    items = container.values() if isinstance(container, dict) else container
    return all(_is_internal_type(type(item)) for item in items)


def _is_internal_type(kind: type) -> bool:
    return str(vars(kind).get("__module__", kind.__module__)).startswith(_OF_DYNAMO)


def _type_of(tracker: Any) -> type | None:
    """Return the type of the object that a tracker represents; None if it is unknown."""
    try:
        kind: type = tracker.unwrap().python_type()
    except Exception:  # Dynamo does not know it, or not yet
        return None
    return kind


def _is_scope(value: dict[Any, Any]) -> bool:
    """Return whether this is the globals of a module, in which each name that code reads has a tracker."""
    name = value.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is not None and module.__dict__ is value


def _flag_sizes() -> dict[type, int]:
    """Return the number of members of each of the user's flags: `A | B` creates one that stays."""
    libraries = {*TORCH_PACKAGES, *sys.stdlib_module_names}
    return {
        cls: len(vars(cls).get("_value2member_map_", ()))
        for cls in subclasses_of(enum.Flag)
        if cls.__module__.partition(".")[0] not in libraries
    }


@contextmanager
def observe(observations: Observations, executed: ExecutedCode, patches: Patches) -> Iterator[None]:
    """Record what Dynamo does on this thread, and the code that Python executes.

    Dynamo traces on one thread at a time. Hooks belong to `patches`, and are removed afterwards.
    """
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase, compare_op_handlers
    from torch._dynamo.variables import user_defined
    from torch._dynamo.variables.base import VariableTrackerMeta
    from torch._dynamo.variables.builder import SourcelessBuilder
    from torch._dynamo.variables.builtin import BuiltinVariable
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.lazy import LazyVariableTracker

    modules, members, thread = {*sys.modules}, _flag_sizes(), threading.get_ident()

    def is_here() -> bool:
        return threading.get_ident() == thread

    def compile(original: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        executed.end()
        try:
            return original(*args, **kwargs)
        finally:
            executed.begin()

    def is_forbidden(original: Any, context: Any) -> Any:
        __tracebackhide__ = True
        modules_before = {*sys.modules}
        executed.end()
        try:
            return original(context)  # it imports pytest, if that is installed
        finally:
            executed.begin()
            modules.update(sys.modules.keys() - modules_before)

    def make_tracker(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        tracker = original(cls, *args, **kwargs)
        if is_here():
            observations.trackers.append(tracker)
        return tracker

    def trace_code(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if is_here():
            observations.note_code(kwargs["f_code"], kwargs["f_globals"])
        return original(self, *args, **kwargs)

    def make_sourceless(original: Any, tx: Any, value: Any) -> Any:
        __tracebackhide__ = True
        if is_here():
            observations.sourceless.append(value)
        return original(tx, value)

    def observing(note: Callable[[type | None, type | None], None]) -> Callable[..., Any]:
        def operate(original: Any, tx: Any, operands: Any, *more: Any) -> Any:
            __tracebackhide__ = True
            result = original(tx, operands, *more)
            if is_here():
                note(*map(_type_of, operands))
            return result

        return operate

    def original_value(original: Any, self: Any) -> Any:
        __tracebackhide__ = True
        if is_here():
            observations.hashed.add(id(self))
        return original(self)

    def call_method(original: Any, self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if name in ("decode", "encode") and (any(args) or kwargs) and is_here():
            observations.doubts.add(_CODEC)
        return original(self, tx, name, *args, **kwargs)

    def call_builtin(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True
        if self.fn in (str, bytes) and len(args) + len(kwargs) > 1 and is_here():
            observations.doubts.add(_CODEC)
        result = original(self, tx, args, kwargs)
        if self.fn is str and is_here():  # after the call, Dynamo knows the arguments
            for argument in args:
                observations.note_printing(argument)
        return result

    def note_fault(error: Exception) -> None:
        observations.fault = error

    operators = {
        **dict.fromkeys(("is", "is not"), observations.note_comparison),
        **dict.fromkeys(("==", "!="), observations.note_equation),
    }
    comparing = {name: compare_op_handlers[name] for name in operators}
    hooks = (
        (BuiltinVariable, "call_function", call_builtin),
        (ConstantVariable, "call_method", call_method),
        (LazyVariableTracker, "original_value", original_value),
        (OutputGraph, "call_user_compiler", compile),
        (SourcelessBuilder, "create", make_sourceless),
        (VariableTrackerMeta, "__call__", make_tracker),
        (user_defined, "is_forbidden_context_manager", is_forbidden),
        (InstructionTranslatorBase, "__init__", trace_code),
    )
    installed = patches.within(note_fault)
    executed.begin()
    try:
        for owner, name, stand_in in hooks:
            installed.hook(owner, name, stand_in)
        installed.undo(partial(compare_op_handlers.update, comparing))
        for name, note in operators.items():
            compare_op_handlers[name] = installed.wrapped(comparing[name], observing(note))
        yield
    finally:
        installed.restore()
        executed.end()
        observations.executed += executed.codes()
        if _flag_sizes() != members:
            observations.doubts.add("tracing it created a member of a flag")
        observations.imported = {*sys.modules} - modules
