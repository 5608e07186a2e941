"""Observe a tracing, and make a trace of it: generated code, guards, and the facts on which they depend.

`observe` records Dynamo's variable trackers, the objects behind them, and the code that Python runs.
"""

from __future__ import annotations

import dis
import enum
import inspect
import operator
import os
import re
import sys
import threading
import types
from abc import ABC
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from types import CodeType, ModuleType
from typing import Any, Protocol

from nbcache.core.patches import Patches
from nbcache.keys.fingerprints.code import LOADS_GLOBAL, code_tree, lines_digest, steps_of
from nbcache.keys.fingerprints.known_code import DESCRIPTORS, cell_contents
from nbcache.keys.fingerprints.objects import HEAP_TYPE, Objects, is_constant, protocol_attributes
from nbcache.keys.monkeypatches import subclasses_of
from nbcache.traces import facts, state_reads, trace_rows
from nbcache.traces.facts import ABSENT, NEEDS_USER_CODE, Frame, NoTrace
from nbcache.traces.format import RESUME_KINDS, Trace, names_to, value_to
from nbcache.traces.state_reads import TORCH_PACKAGES, ExecutedCode
from nbcache.traces.trace_rows import Sources

_LAZY = frozenset({"LazyConstantVariable", "LazyVariableTracker"})
"""Trackers whose value Dynamo may not have looked at: it replaces them as soon as it does."""
_GLOBALS = vars(types.FunctionType)["__globals__"]
"""Descriptor of a function's globals. Dynamo gives it their source; another tracker represents them."""
_OF_DYNAMO = ("torch._dynamo", "torch._guards", "torch.fx", "traceback")
_ITERATED: Any = ([], (), {}, {}.values(), {}.items(), OrderedDict(), set(), "", b"", range(0))
_ITERATORS: tuple[type, ...] = (
    *(types.FrameType, types.TracebackType, types.GeneratorType, enumerate, map, reversed, zip),
    *(type(iter(iterable)) for iterable in _ITERATED),
    type(reversed([])),
)
"""Types of objects that only iterate over, or point into, another object."""
_CODECS = {"UTF-8", "ascii", "latin-1", "strict", "surrogateescape", "utf-8", "utf8"}
"""Codecs and error handlers of Python itself; `os.environ` uses some."""
_SINGLETONS = {type(None), bool, type(...), type(NotImplemented)}
_EQUAL_VALUES = (bytes, complex, float, frozenset, int, range, slice, str, tuple)
"""Types whose equal values may be one object or two."""
_CONTAINERS = (OrderedDict, dict, frozenset, list, set, tuple)
_MADE_BY_DYNAMO = frozenset({"fake_cross_entropy_loss"})
"""Names of functions that Dynamo makes while it traces, which depend on nothing but their closures."""
_MAX_DEPTH = 3
"""Depth of nesting from which a container is an object like any other."""
_UNCOVERED = frozenset(
    {
        *("__annotations__", "__doc__", "__file__", "__firstlineno__", "__hash__", "__static_attributes__"),
        *("__subclasses__", "__type_params__", "_abc_impl", "co_filename", "co_firstlineno", "co_lines"),
        *("_torchdynamo_wrapper_id", "f_back", *facts.TENSOR_MARKS),
        *("__traceback__", "co_positions", "exc_info", "f_code", "f_globals", "f_lineno", "f_locals"),
        *("get_annotations", "get_type_hints", "getsource", "tb_frame", "tb_lasti", "tb_lineno", "tb_next"),
    }
)
"""Names of attributes whose values no fact covers."""
_OF_INSPECT = re.compile(r"(?:dict\()?G\['(?:__import_inspect'\]|__builtins_dict__)")
"""Beginning of the names that `inspect` gives sources: its own globals, and built-in names."""
_FORMATS = re.compile(r"\{[^{}:!]*[.\[][^{}]*\}")
"""A text for `str.format` that reads attributes or elements."""
_EPHEMERAL = frozenset({"EphemeralSource", "SyntheticLocalSource", "TempLocalSource", "BackwardStateSource"})

_REPLACED = ("torch._dynamo.mutation_guard", "unpatched_nn_module_init")
"""Place of the method of `nn.Module` that Dynamo has replaced."""


class Observations:
    """Variable trackers, objects and code that Dynamo used in one tracing."""

    def __init__(self) -> None:
        self.trackers: list[Any] = []
        """Variable trackers in the order in which Dynamo made them, including those of failed attempts."""
        self.hashed: set[int] = set()
        """Ids of lazy trackers whose value Dynamo read without replacing them: keys of dictionaries."""
        self.sourceless: list[Any] = []
        self.doubts: set[str] = set()
        """Reasons why the function has no trace, as clauses."""
        self.imported: set[str] = set()
        self.executed: list[types.CodeType] = []
        """Code objects that Python ran, and Dynamo didn't trace."""
        self.fault: Exception | None = None
        """An exception in nbcache's own hooks, after which observations are incomplete."""
        self.codes: dict[tuple[int, int], tuple[types.CodeType, dict[str, Any]]] = {}
        """Ids of code and globals → code that Dynamo traced, and its globals."""

    def note_code(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        self.codes.setdefault((id(code), id(scope)), (code, scope))

    def note_comparison(self, result: Any, tx: Any, operands: Any, *more: Any) -> None:
        """Note an `is`: Python is free to make one object or two of equal values."""
        left, right = map(_type_of, operands)
        is_value = left is None or right is None or (left is right and left in _EQUAL_VALUES)
        if is_value and not {left, right} & _SINGLETONS:
            self.doubts.add("it compares numbers, texts or tuples with `is`")

    def note_equality(self, result: Any, tx: Any, operands: Any, *more: Any) -> None:
        if types.CellType in map(_type_of, operands):
            self.doubts.add("it compares cells of closures")

    def note_call(self, builtin: Any, tx: Any, args: Any, kwargs: Any) -> None:
        if builtin.fn in (str, bytes) and len(args) + len(kwargs) > 1:
            self._note_codecs((*args[1:], *kwargs.values()))

    def note_method(self, tracker: Any, tx: Any, name: str, args: Any, kwargs: Any) -> None:
        if name in ("decode", "encode"):
            self._note_codecs((*args, *kwargs.values()))

    def _note_codecs(self, arguments: Iterable[Any]) -> None:
        values = [getattr(argument, "value", None) for argument in arguments]
        if not all(type(value) is str and value in _CODECS for value in values):
            self.doubts.add("it uses a codec that other code may have registered")

    def note_printing(self, result: Any, builtin: Any, tx: Any, args: Any, kwargs: Any) -> None:
        """Note a call of `str`: Python itself prints an object whose class has no `__str__`."""
        from torch._dynamo.variables import UserDefinedObjectVariable

        for tracker in (argument.unwrap() for argument in args if builtin.fn is str):
            kind: Any = type(tracker.value) if isinstance(tracker, UserDefinedObjectVariable) else None
            if kind is not None and kind.__str__ is object.__str__:
                self.doubts.add(f"it prints a {kind.__qualname__} with everything below it")

    def sources(self, *, lazy: bool) -> Iterator[Any]:
        """Return sources of trackers; if `lazy`, of values of which Dynamo may know only the type."""
        for tracker, fields in self.fields():
            reads_globals = fields.get("descriptor") is _GLOBALS
            is_lazy = (type(tracker).__name__ in _LAZY or reads_globals) and id(tracker) not in self.hashed
            if is_lazy is lazy and fields.get("source") is not None:
                yield trace_rows.without_skips(fields["source"])

    def unguarded_sources(self) -> set[Any]:
        """Return sources that Dynamo does not guard: globals that code of the standard library reads."""
        sources = [source for _, fields in self.fields() if (source := fields.get("source")) is not None]
        return {full for source in sources if (full := trace_rows.without_skips(source)) is not source}

    def fields(self) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Return the trackers with their attributes, without calling code of the trackers."""
        for tracker in self.trackers:
            yield tracker, object.__getattribute__(tracker, "__dict__")

    def texts(self, *, stored: bool = False) -> Iterator[str]:
        """Return the texts in trackers, or those that objects store: each may be the name of an attribute."""
        for _, fields in self.fields():
            is_stored = fields.get("source") is not None
            if is_stored >= stored and issubclass(type(value := fields.get("value")), str):
                yield str.__str__(value)

    def objects(self) -> Iterator[tuple[Any, str]]:
        """Yield the process's objects that trackers hold, each with the class name of its tracker."""
        for value in self.sourceless:
            kind: Any = type(value)
            is_container = issubclass(kind, _CONTAINERS)
            items = dict.values(value) if issubclass(kind, dict) else value
            if not (is_container and all(_is_internal_type(type(item)) for item in items)):
                yield from ((item, "SourcelessBuilder") for item in _objects_in(value, _MAX_DEPTH))
        for tracker, fields in self.fields():
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
    if is_constant(value) or issubclass(kind, _ITERATORS) or _is_internal_type(kind):
        return
    if kind.__name__ in ("ImplicitRealizingVariableTrackerMeta", "VariableTrackerMeta"):
        return
    if kind in _CONTAINERS and depth < _MAX_DEPTH:
        if kind is dict and facts.scope_name(value):  # of a module: each name that code reads has a tracker
            return
        for item in (*value.keys(), *value.values()) if issubclass(kind, dict) else value:
            yield from _objects_in(item, depth + 1)
        return
    if kind is types.FunctionType and value.__name__ in _MADE_BY_DYNAMO and _is_torch_code(value.__code__):
        yield from _objects_in(cell_contents(value), depth)
        return
    yield value


def _is_internal_type(kind: type) -> bool:
    return str(vars(kind).get("__module__", kind.__module__)).startswith(_OF_DYNAMO)


def _type_of(tracker: Any) -> type | None:
    try:
        kind: type = tracker.unwrap().python_type()
    except Exception:  # Dynamo does not know it, or not yet
        return None
    return kind


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
    """Record what Dynamo does on this thread, and the code that Python runs there."""
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase, compare_op_handlers
    from torch._dynamo.variables import user_defined
    from torch._dynamo.variables.base import VariableTrackerMeta
    from torch._dynamo.variables.builder import SourcelessBuilder
    from torch._dynamo.variables.builtin import BuiltinVariable
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.lazy import LazyVariableTracker

    modules, members, thread = {*sys.modules}, _flag_sizes(), threading.get_ident()

    def noting(note: Callable[..., object], *, with_result: bool = False) -> Callable[..., Any]:
        """Return a hook that calls `note` with the arguments of a call, or after it `with_result`, too."""

        def stand_in(original: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            is_here = threading.get_ident() == thread
            if is_here and not with_result:
                note(*args, **kwargs)
            result = original(*args, **kwargs)
            if is_here and with_result:
                note(result, *args, **kwargs)
            return result

        return stand_in

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

    def note_tracker(tracker: Any, *args: Any, **kwargs: Any) -> None:
        observations.trackers.append(tracker)

    def note_code(translator: Any, *args: Any, **kwargs: Any) -> None:
        observations.note_code(kwargs["f_code"], kwargs["f_globals"])

    def note_fault(error: Exception) -> None:
        observations.fault = error

    operators = {
        **dict.fromkeys(("is", "is not"), observations.note_comparison),
        **dict.fromkeys(("==", "!="), observations.note_equality),
    }
    comparing = {name: compare_op_handlers[name] for name in operators}
    hooks = (
        (BuiltinVariable, "call_function", noting(observations.note_call)),
        (BuiltinVariable, "call_function", noting(observations.note_printing, with_result=True)),
        (ConstantVariable, "call_method", noting(observations.note_method)),
        (LazyVariableTracker, "original_value", noting(lambda tracker: observations.hashed.add(id(tracker)))),
        (OutputGraph, "call_user_compiler", compile),
        (SourcelessBuilder, "create", noting(lambda tx, value: observations.sourceless.append(value))),
        (VariableTrackerMeta, "__call__", noting(note_tracker, with_result=True)),
        (user_defined, "is_forbidden_context_manager", is_forbidden),
        (InstructionTranslatorBase, "__init__", noting(note_code)),
    )
    installed = patches.within(note_fault)
    executed.begin()
    try:
        for owner, name, stand_in in hooks:
            installed.hook(owner, name, stand_in)
        installed.undo(partial(compare_op_handlers.update, comparing))
        for name, note in operators.items():
            compare_op_handlers[name] = installed.wrapped(comparing[name], noting(note, with_result=True))
        yield
    finally:
        installed.restore()
        executed.end()
        observations.executed += executed.codes()
        if _flag_sizes() != members:
            observations.doubts.add("tracing it created a member of a flag")
        observations.imported = {*sys.modules} - modules


# --- making a trace --------------------------------------------------------------------------------


def make_trace(
    torch: ModuleType,
    key: str,
    frame: Frame,
    output: Any,
    observations: Observations,
    graphs: Mapping[str, str],
    inputs: Sequence[Any],
) -> Trace:
    """Return the trace of a frame that Dynamo has just traced; raise NoTrace if it has none.

    `graphs`: compiled function → AOTAutograd's key of its graph; `inputs`: sources of the last graph's.
    """
    import torch._dynamo.guards as guards_module

    graph = output.tracer_output.output_graph
    _check_graph(graph, graphs)
    if observations.doubts:
        raise NoTrace(min(observations.doubts))
    sources = Sources()
    guards = [trace_rows.guard_row(guard, sources) for guard in graph.guards]
    for source in observations.sources(lazy=False):
        if type(source).__name__ not in _EPHEMERAL and trace_rows.is_storable(source):
            sources.index(source)
    ordered = sorted(graph.guard_on_key_order, key=lambda source: source.name)
    ordered_keys = [sources.index(source) for source in ordered if trace_rows.without_skips(source) is source]
    shapes = [
        [sources.index(source), *(value_to(_fixed_sizes(info[name])) for name in ("size", "stride"))]
        for source, info in graph.input_source_to_sizes_strides.items()
    ]
    input_indices = [sources.index(source) for source in inputs]
    full_count = len(sources.rows)
    source_values = facts.SourceValues(frame.values, frame.scope, guards_module._get_closure_vars())
    for source in observations.sources(lazy=True):
        is_ephemeral = type(source).__name__ in _EPHEMERAL
        if is_ephemeral or state_reads.reads_environment(source_values.get, source):
            continue
        if trace_rows.is_storable(source):
            sources.index(source)
    values = [source_values.get(source) for source in sources.sources]
    needed = {*ordered_keys, *input_indices, *(row[0] for row in guards), *(row[0] for row in shapes)}
    if any(values[index] is NEEDS_USER_CODE for index in needed):
        raise NoTrace("torch guards a value that your code returns")
    observed = [*observations.objects()]
    all_objects = [*values, *(value for value, _ in observed)]
    for code, scope in state_reads.check_executed_code(observations.executed, all_objects):
        observations.note_code(code, scope)
    if imported := observations.imported & {
        str(step.value)
        for code, _ in observations.codes.values()
        for part in code_tree(code)
        for step in steps_of(part)
        if step.operation == "IMPORT_NAME"
    }:
        raise NoTrace(f"tracing it has imported {', '.join(sorted(imported))}")
    annotations = _check_code(observations)
    objects, unguarded = facts.TorchObjects(torch, annotations=annotations), observations.unguarded_sources()
    inlined = {id(code) for code, _ in observations.codes.values()}
    inlined |= {id(function) for function in _uses_of_unwrap(observations, sources, values)}
    fact_rows: list[list[Any]] = [[facts.ANNOTATIONS, "count"]] if annotations else []
    if any(value is operator.is_ or value is operator.is_not for value in values):
        raise NoTrace("it calls operator.is_ or operator.is_not")
    for (kind, *_), value in zip(sources.rows, values, strict=True):
        if kind != "TypeMROSource" and (value is ABC or value is Protocol):  # see `classes_with_subclasshook`
            raise NoTrace(f"it reads {value.__name__} by its name")
    for index, value in enumerate(values):
        if sources.rows[index][0] in trace_rows.GLOBAL_STATE:
            continue
        is_complete = index < full_count or facts.is_config(type(value))
        fact_rows.append([index, facts.fact_of(objects, value, frame.scope, complete=is_complete)])
        if index < full_count and value is not facts.builtins_of(frame.scope):
            state_reads.check_environment(sources.sources[index], value)
            _check_value(objects, value, inlined, in_order=sources.sources[index] not in unguarded)
    attribute_names = _attribute_names(observations, [*objects.classes(), *all_objects])
    places = _places_of_objects(torch, objects, observed, values, inlined)
    for module, name in chain(places, _places_in_modules(observations, attribute_names)):
        fact_rows.append([f"{module} {name}", objects.digest(facts.object_at(module, name))])
    reads = (state_reads.environment_variables(code, scope) for code, scope in observations.codes.values())
    for name in sorted(set().union(*reads)):
        fact_rows.append([f"${name}", objects.digest(os.environ.get(name))])
    installed = [*trace_rows.installed_globals(graph, graphs, frame)]
    installed_names, builtin_names = {name for name, _, _ in installed}, facts.builtins_of(frame.scope)
    for (kind, _, fields), value in zip(sources.rows, values, strict=True):
        name = fields.get("global_name")
        if kind == "GlobalSource" and value is builtin_names and name not in installed_names:
            installed.append([name, "builtins", ""])  # an earlier attempt to trace has set it
    for place in {place: None for _, kind, place in installed if kind == "object"}:
        if all(place != fact_key for fact_key, _ in fact_rows):
            fact_rows.append([place, objects.digest(facts.object_at(*place.split(" ", 1)))])
    if any(kind in RESUME_KINDS for _, kind, _ in installed):
        fact_rows.append([facts.LINES, lines_digest(frame.code)])
    state_reads.check_classes(objects.classes())
    state_reads.check_kept_answers(objects.classes())
    fact_rows.append([facts.IDENTITY, objects.identity])
    fact_rows.append([facts.REGISTRATIONS, facts.registrations(torch, objects)])
    return Trace(
        key=key,
        function=frame.code.co_qualname,
        code=trace_rows.code_row(output.bytecode, frame.code),
        sources=sources.rows,
        same=facts.same_objects(values),
        facts=fact_rows,
        names=[*_name_rows(objects, frame, observations)],
        asked=names_to(attribute_names),
        attributes=[*_module_rows(all_objects, attribute_names)],
        guards=guards,
        key_order=ordered_keys,
        shapes=shapes,
        inputs=input_indices,
        installed=installed,
        imports=dict(graph.import_sources),
        autograd_key=next(iter(graphs.values()), ""),
        state=graph.global_state_guard.__getstate__(),
        replayed=[*graph.get_replayed_side_effect_source_refs()],
        operators=graph.count_calls(),
        has_outputs=int(bool(graph.has_outputs())),
    )


def _check_graph(graph: Any, graphs: Mapping[str, str]) -> None:
    """Raise NoTrace for a graph that depends on more than the facts of its inputs."""
    shapes = graph.shape_env
    if len(graphs) > 1 or (not graphs and not graph.is_empty_graph()):
        raise NoTrace("its graph was not compiled through AOTAutograd's cache")
    # a symbol without a guard that is not in the graph's key is unused: see `TracedGraph.shapes`
    if shapes.guards or shapes.deferred_runtime_asserts or (shapes.var_to_range and not graphs):
        raise NoTrace("some of its sizes are dynamic")
    if graph.torch_function_mode_stack or graph.functorch_layers or graph.dual_level != -1:
        raise NoTrace("it runs within a torch mode or a torch.func transform")
    if getattr(graph, "random_calls", None) or getattr(graph, "backward_state", None):
        raise NoTrace("it draws random numbers from Python, or has hooks in its graph")
    if graph.has_user_defined_allowed_in_graph:
        raise NoTrace("a function that Dynamo does not trace is in its graph")
    if graph._aotautograd_guards:
        raise NoTrace("AOTAutograd has added guards")


def _check_code(observations: Observations) -> bool:
    """Raise NoTrace for code that reads state without a fact; return whether `inspect` reads annotations."""
    reads_annotations = False
    texts = {*observations.texts()}
    if state_reads.ENVIRON & {*observations.texts(stored=True)}:
        raise NoTrace("it reads the environment by the name of an attribute")
    if any(map(_FORMATS.search, texts)):
        raise NoTrace("it formats attributes of an argument with str.format")
    if facts.COUNTERS & texts:
        raise NoTrace("it reads the number of hooks")
    if any(" at 0x" in text for text in texts):
        raise NoTrace("it reads the address of an object")
    if any("<module '" in text for text in texts):
        raise NoTrace("it prints a module with its file")
    for code, _ in observations.codes.values():
        for part in code_tree(code):
            if facts.COUNTERS & {*part.co_names}:
                raise NoTrace(f"{code.co_qualname}() reads the number of hooks")
            mentioned = {*part.co_names, *(text for text in part.co_consts if isinstance(text, str))}
            read = _UNCOVERED & mentioned
            if code.co_filename == inspect.__file__:
                reads_annotations |= bool(read)
            elif read and not _is_torch_code(code):
                raise NoTrace(f"{code.co_qualname}() reads {', '.join(sorted(read))}")
            if _iterates_over_set(part):
                raise NoTrace(f"{code.co_qualname}() may depend on the order of a set, which varies")
            if not facts.is_users_code(code):
                texts -= mentioned
    if named := _UNCOVERED & texts - {"__traceback__"}:  # Dynamo itself uses this name when it raises
        raise NoTrace(f"it reads {', '.join(sorted(named))} by name")
    return reads_annotations


def _uses_of_unwrap(observations: Observations, sources: Sources, values: Sequence[Any]) -> Iterator[Any]:
    """Yield functions that only `inspect.unwrap` calls, which uses them to detect cycles."""
    for function in (id, sys.getrecursionlimit):
        callers = [code for code, _ in observations.codes.values() if function.__name__ in code.co_names]
        names = [
            source.name for source, value in zip(sources.sources, values, strict=True) if value is function
        ]
        if not all(map(_OF_INSPECT.match, names)):
            continue
        if callers and all(code.co_filename == inspect.__file__ for code in callers):
            yield function


def _iterates_over_set(code: CodeType) -> bool:
    """Return whether code uses a literal set for anything but `in`."""
    steps = steps_of(code)
    return any(
        step.opcode in dis.hasconst
        and isinstance(step.value, frozenset)
        and len(step.value) > 1
        and following.operation != "CONTAINS_OP"
        for step, following in pairwise(steps)
    )


def _is_torch_code(code: CodeType) -> bool:
    return code.co_filename.startswith(os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep)


def _fixed_sizes(values: Any) -> Any:
    if any(type(value) is not int for value in values or ()):
        raise NoTrace("some of its sizes are dynamic")
    return None if values is None else tuple(values)


def _check_value(objects: Objects, value: Any, inlined: Set[int], *, in_order: bool) -> None:
    """Raise NoTrace for a value that no fact covers; `in_order`: code may iterate over a set."""
    if value is ABSENT or value is NEEDS_USER_CODE or is_constant(value):  # Dynamo traces code that runs
        return
    if not objects.covers(value):
        raise NoTrace(f"a {type(value).__qualname__} is not covered by any fact")
    if id(value) in objects.unordered and in_order:
        raise NoTrace("it may depend on the order of a set, which differs between processes")
    state_reads.check_call(value, inlined)


def _places_of_objects(
    torch: ModuleType,
    objects: Objects,
    observed: Sequence[tuple[Any, str]],
    values: Sequence[Any],
    inlined: Set[int],
) -> Iterator[tuple[str, str]]:
    """Return the places (module, name) of the functions and classes that Dynamo used without a source."""
    visited: set[int] = set()
    reached = {*map(id, values)}
    kinds = (*facts.value_types(torch), *DESCRIPTORS)
    for value, kind in observed:
        if id(value) in visited:
            continue
        visited.add(id(value))
        if id(value) not in reached:
            state_reads.check_environment(None, value)
        if isinstance(value, type) and not value.__flags__ & HEAP_TYPE:
            continue
        if isinstance(value, types.CodeType):
            continue  # code of a function or nested in other code
        if isinstance(value, types.ModuleType):
            if id(value) not in reached and value.__name__.partition(".")[0] != "torch":
                raise NoTrace(f"it uses the module {value.__name__} without a name for it")
            continue
        is_member = isinstance(value, enum.Enum) and not objects.covers(value)
        if is_member and (place := facts.place_of(type(value))):
            yield place  # the class holds it
        if objects.covers(value) or isinstance(value, kinds) or _is_polyfill(value):
            state_reads.check_call(value, inlined)
        elif isinstance(value, (types.FunctionType, type)):
            place = facts.place_of(value)
            if vars(sys.modules[_REPLACED[0]]).get(_REPLACED[1]) is value:
                place = _REPLACED
            if place is None:
                raise NoTrace(f"{value.__qualname__} has no name under which another kernel can find it")
            state_reads.check_call(value, inlined)
            yield place
        else:
            raise NoTrace(f"another kernel cannot find a {type(value).__qualname__} (in a {kind}) by a name")
        if id(value) in objects.unordered:
            raise NoTrace("it may depend on the order of a set, which differs between processes")


def _is_polyfill(value: Any) -> bool:
    import torch._dynamo.polyfills as polyfills

    code, folder = getattr(value, "__code__", None), os.path.dirname(str(polyfills.__file__))
    return code is not None and code.co_filename.startswith(folder + os.sep)


def _module_of(scope: dict[str, Any], frame: Frame) -> str:
    """Return the name of the module with these globals; empty for the traced function's module."""
    if scope is frame.scope:
        return ""
    if name := facts.scope_name(scope):
        return name
    for imported_name, module in sys.modules.copy().items():
        if getattr(module, "__dict__", None) is scope:
            return imported_name
    raise NoTrace(f"it calls code of {scope.get('__name__')}, which is not an imported module")


def _name_rows(objects: Objects, frame: Frame, observations: Observations) -> Iterator[list[Any]]:
    read: dict[str, tuple[dict[str, Any], set[str]]] = {}
    for code, scope in observations.codes.values():
        module = _module_of(scope, frame)
        for part in code_tree(code):
            names = {str(step.value) for step in steps_of(part) if step.operation in LOADS_GLOBAL}
            read.setdefault(module, (scope, set()))[1].update(names)
    for module, (scope, names_read) in sorted(read.items(), key=lambda item: item[0]):
        yield from ([module, *row] for row in facts.name_rows(objects, scope, sorted(names_read)))


def _attribute_names(observations: Observations, values: Iterable[Any]) -> set[str]:
    """Return the names of module attributes that code, or `isinstance` with a protocol, may have read."""
    names = {*observations.texts()}
    for value in values:
        if issubclass(type(value), type) and vars(value).get("_is_protocol"):
            names.update(protocol_attributes(value), vars(value).get("__protocol_attrs__", ()))
    for code, _ in observations.codes.values():
        for part in () if _is_torch_code(code) else code_tree(code):
            names.update(part.co_names)
            names.update(text for text in part.co_consts if isinstance(text, str) and text.isidentifier())
    return names


def _places_in_modules(observations: Observations, names: Set[str]) -> Iterator[tuple[str, str]]:
    """Return the places (module, name) that code may have read in modules without a source."""
    modules: dict[str, ModuleType] = {}
    for tracker, fields in observations.fields():
        if type(tracker).__name__ == "PythonModuleVariable" and fields.get("source") is None:
            modules[_name_of_module(fields["value"])] = fields["value"]
    for name, module in sorted(modules.items()):
        yield from ((name, attribute) for attribute in sorted(names & module.__dict__.keys()))


def _module_rows(values: Sequence[Any], names: Set[str]) -> Iterator[list[str]]:
    modules = {id(value): value for value in values if isinstance(value, ModuleType)}
    for module in sorted(modules.values(), key=lambda item: item.__name__):
        state_reads.check_module(module)
        yield [_name_of_module(module), names_to(facts.present_names(module.__dict__, names))]


def _name_of_module(module: ModuleType) -> str:
    if name := facts.module_name(module):
        return name
    raise NoTrace(f"another kernel cannot find the module {module.__name__} by a name")
