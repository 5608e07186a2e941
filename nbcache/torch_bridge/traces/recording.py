"""Makes a trace of what Dynamo has just traced: its code and guards, and the facts that they were made on."""

from __future__ import annotations

import dis
import inspect
import operator
import os
import re
import sys
import types
from abc import ABC
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from itertools import chain, pairwise
from types import CodeType, ModuleType
from typing import Any, Protocol

from nbcache.artifacts.traces import REST, Trace, names_to, value_to
from nbcache.core.fingerprints.code_digest import lines_digest
from nbcache.core.fingerprints.instances import protocol_attributes
from nbcache.core.fingerprints.instructions import LOADS_GLOBAL, steps_of
from nbcache.core.fingerprints.known_code import DESCRIPTORS
from nbcache.core.fingerprints.objects import Objects, is_plain
from nbcache.torch_bridge.traces import state_reads
from nbcache.torch_bridge.traces.executed_code import check_executed
from nbcache.torch_bridge.traces.facts import (
    ABSENT,
    RUNS,
    Values,
    builtins_of,
    fact_of,
    found_at,
    names_held,
    names_of,
    place_of,
    same_objects,
)
from nbcache.torch_bridge.traces.generated_code import code_row, installed_by, set_by_attempts, within
from nbcache.torch_bridge.traces.object_digests import (
    ANNOTATIONS,
    COUNTERS,
    IDENTITY,
    LINES,
    REGISTRATIONS,
    TENSOR_MARKS,
    Frame,
    Untold,
    is_config,
    name_of,
    objects_for,
    registrations,
    scope_name,
    value_types,
)
from nbcache.torch_bridge.traces.observations import Seen
from nbcache.torch_bridge.traces.trace_rows import GLOBAL_STATE, Sources, guard_row, guarded, readable

__all__ = ["recorded"]

_UNTOLD = frozenset(
    {
        *("__annotations__", "__doc__", "__file__", "__firstlineno__", "__hash__", "__static_attributes__"),
        *("__subclasses__", "__type_params__", "_abc_impl", "co_filename", "co_firstlineno", "co_lines"),
        *("_torchdynamo_wrapper_id", "f_back", *TENSOR_MARKS),
        *("__traceback__", "co_positions", "exc_info", "f_code", "f_globals", "f_lineno", "f_locals"),
        *("get_annotations", "get_type_hints", "getsource", "tb_frame", "tb_lasti", "tb_lineno", "tb_next"),
    }
)
"""Attributes that tell what no fact does."""
_HEAP = 1 << 9
"""Of `__flags__`: a class that was made while the process ran; others are what their names say."""
_FORMATS = re.compile(r"\{[^{}:!]*[.\[][^{}]*\}")
"""A text for `str.format` that reads attributes or elements."""
_EPHEMERAL = frozenset({"EphemeralSource", "SyntheticLocalSource", "TempLocalSource", "BackwardStateSource"})
"""Sources of what the traced code has made."""


def recorded(
    torch: ModuleType,
    key: str,
    frame: Frame,
    output: Any,
    seen: Seen,
    graphs: Mapping[str, str],
    inputs: Sequence[Any],
) -> Trace:
    """Return the trace of a frame that was traced and has not run yet; Untold where there can be none.

    It is to be stored under `key`. `output` is what Dynamo has made; `graphs` are AOTAutograd's keys of the
    graphs, by the names under which their code was installed, and `inputs` the sources of what the last one
    is called with.
    """
    import torch._dynamo.guards as guards_module

    graph = output.tracer_output.output_graph
    _refuse_what_varies(graph, graphs)
    for doubt in sorted(seen.doubts):
        raise Untold(doubt)
    sources = Sources()
    guards = [guard_row(each, sources) for each in graph.guards]
    for source in seen.sources():
        if type(source).__name__ not in _EPHEMERAL and readable(source):
            sources.index(source)
    ordered = sorted(graph.guard_on_key_order, key=lambda each: each.name)
    order = [sources.index(each) for each in ordered if guarded(each) is each]
    shapes = [
        [sources.index(source), *(value_to(_numbers(info[name])) for name in ("size", "stride"))]
        for source, info in graph.input_source_to_sizes_strides.items()
    ]
    given = [sources.index(each) for each in inputs]
    told = len(sources.rows)
    here = Values(frame.values, frame.scope, guards_module._get_closure_vars())
    for source in seen.sources(lazy=True):
        told_apart = type(source).__name__ in _EPHEMERAL or state_reads.is_of_environment(here.of, source)
        if readable(source) and not told_apart:
            sources.index(source)
    values = [here.of(each) for each in sources.all]
    needed = {*order, *given, *(row[0] for row in guards), *(row[0] for row in shapes)}
    if any(values[index] is RUNS for index in needed):
        raise Untold("torch guards what code of yours returns")
    held = [*seen.held()]
    everything = [*values, *(value for value, _ in held)]
    for code, scope in check_executed(seen.executed, everything):
        seen.note_code(code, scope)
    if imported := seen.imported & {
        str(step.value)
        for code, _ in seen.codes.values()
        for each in within(code)
        for step in steps_of(each)
        if step.operation == "IMPORT_NAME"
    }:
        raise Untold(f"tracing it has imported {', '.join(sorted(imported))}")
    annotations = _check_code(seen)
    objects, unguarded = objects_for(torch, annotations=annotations), seen.unguarded()
    inlined = {id(code) for code, _ in seen.codes.values()}
    inlined |= {id(each) for each in _harmless(seen, sources, values)}
    facts: list[list[Any]] = [[ANNOTATIONS, "count"]] if annotations else []
    if any(value is operator.is_ or value is operator.is_not for value in values):
        raise Untold("it asks whether two objects are one")
    _refuse_bases(sources, values)
    for index, value in enumerate(values):
        if sources.rows[index][0] in GLOBAL_STATE:
            continue
        is_whole = index < told or is_config(type(value))
        facts.append([index, fact_of(objects, value, frame.scope, whole=is_whole)])
        if index < told and value is not builtins_of(frame.scope):
            state_reads.check_environment(sources.all[index], value)
            _refuse(objects, value, inlined, in_order=sources.all[index] not in unguarded)
    asked = _asked(seen, [*objects.classes(), *everything])
    places = _places(torch, objects, held, values, inlined)
    for module, name in chain(places, _of_unreached(seen, asked)):
        facts.append([f"{module} {name}", objects.digest(found_at(module, name))])
    for name in sorted(_variables(seen)):
        facts.append([f"${name}", objects.digest(os.environ.get(name))])
    installed = [*installed_by(graph, graphs, frame)]
    installed += set_by_attempts(sources, values, frame, {name for name, _, _ in installed})
    for place in {place: None for _, kind, place in installed if kind == "object"}:
        if all(place != known for known, _ in facts):
            facts.append([place, objects.digest(found_at(*place.split(" ", 1)))])
    if any(kind in REST for _, kind, _ in installed):
        facts.append([LINES, lines_digest(frame.code)])
    state_reads.check_classes(objects.classes())
    facts.append([IDENTITY, objects.identity])
    facts.append([REGISTRATIONS, registrations(torch, objects)])
    return Trace(
        key=key,
        function=frame.code.co_qualname,
        code=code_row(output.bytecode, frame.code),
        sources=sources.rows,
        same=same_objects(values),
        facts=facts,
        names=[*_names(objects, frame, seen)],
        asked=names_to(asked),
        attributes=[*_attributes(everything, asked)],
        guards=guards,
        key_order=order,
        shapes=shapes,
        inputs=given,
        installed=installed,
        imports=dict(graph.import_sources),
        autograd_key=next(iter(graphs.values()), ""),
        state=graph.global_state_guard.__getstate__(),
        replayed=[*graph.get_replayed_side_effect_source_refs()],
        operators=graph.count_calls(),
        has_outputs=int(bool(graph.has_outputs())),
    )


def _refuse_what_varies(graph: Any, graphs: Mapping[str, str]) -> None:
    """Raise Untold of a graph that depends on more than values that are the same again."""
    shapes = graph.shape_env
    if len(graphs) > 1 or (not graphs and not graph.is_empty_graph()):
        raise Untold("its graph was not compiled by way of AOTAutograd's cache")
    # numbers that its key tells nothing of are those that nothing was asked of: see `dependencies.shapes`
    if shapes.guards or shapes.deferred_runtime_asserts or (shapes.var_to_range and not graphs):
        raise Untold("some of its sizes are dynamic")
    if graph.torch_function_mode_stack or graph.functorch_layers or graph.dual_level != -1:
        raise Untold("it runs within a mode of torch's, or a transform")
    if getattr(graph, "random_calls", None) or getattr(graph, "backward_state", None):
        raise Untold("it draws random numbers of Python's, or has hooks in its graph")
    if graph.has_user_defined_allowed_in_graph:
        raise Untold("a function that Dynamo does not trace is in its graph")
    if graph._aotautograd_guards:
        raise Untold("AOTAutograd has added guards")


def _check_code(seen: Seen) -> bool:
    """Raise Untold of code that reads what no fact tells; tell whether `inspect` reads annotations."""
    found = False
    texts = {*seen.texts()}
    if any(map(_FORMATS.search, texts)):
        raise Untold("it formats attributes of what it is given, by a text")
    if COUNTERS & texts:
        raise Untold("it reads how many hooks there are")
    if any(" at 0x" in text for text in texts):
        raise Untold("it reads the address of an object")
    if any("<module '" in text for text in texts):
        raise Untold("it makes a text of a module, which tells its file")
    for code, _ in seen.codes.values():
        for each in within(code):
            if COUNTERS & {*each.co_names}:
                raise Untold(f"{code.co_qualname}() reads how many hooks there are")
            read = _UNTOLD & {*each.co_names, *(text for text in each.co_consts if isinstance(text, str))}
            if code.co_filename == inspect.__file__:
                found |= bool(read)
            elif read and not _is_torchs(code):
                raise Untold(f"{code.co_qualname}() reads {', '.join(sorted(read))}")
            if _goes_through_set(each):
                raise Untold(f"{code.co_qualname}() may depend on the order of a set, which varies")
            if not state_reads.is_users(code):
                texts -= {*each.co_names, *(text for text in each.co_consts if isinstance(text, str))}
    if named := _UNTOLD & texts - {"__traceback__"}:  # which Dynamo itself names where it raises
        raise Untold(f"it reads {', '.join(sorted(named))} by name")
    return found


def _harmless(seen: Seen, sources: Sources, values: Sequence[Any]) -> Iterator[Any]:
    """Return what `inspect.unwrap` calls to see whether it runs in a circle, if nobody else calls it."""
    for asked in (id, sys.getrecursionlimit):
        naming = [code for code, _ in seen.codes.values() if asked.__name__ in code.co_names]
        ways = [source.name for source, value in zip(sources.all, values, strict=True) if value is asked]
        of_inspect = all(code.co_filename == inspect.__file__ for code in naming)
        if naming and of_inspect and all("inspect" in way or "__builtins_dict__" in way for way in ways):
            yield asked


def _refuse_bases(sources: Sources, values: Sequence[Any]) -> None:
    """Raise Untold of code that may ask for instances of what classes only inherit from: see `deciding`."""
    for (kind, *_), value in zip(sources.rows, values, strict=True):
        if kind != "TypeMROSource" and (value is ABC or value is Protocol):
            raise Untold(f"it reads {value.__name__} by a name")


def _goes_through_set(code: CodeType) -> bool:
    """Tell whether code uses a set that it writes out for anything but `in`."""
    steps = steps_of(code)
    return any(
        step.opcode in dis.hasconst
        and isinstance(step.value, frozenset)
        and len(step.value) > 1
        and following.operation != "CONTAINS_OP"
        for step, following in pairwise(steps)
    )


def _is_torchs(code: CodeType) -> bool:
    return code.co_filename.startswith(os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep)


def _numbers(values: Any) -> Any:
    if any(type(each) is not int for each in values or ()):
        raise Untold("some of its sizes are dynamic")
    return None if values is None else tuple(values)


def _refuse(objects: Objects, value: Any, inlined: Set[int], *, in_order: bool) -> None:
    """Raise Untold of a value that Dynamo has held, and no fact tells of.

    `in_order` says whether code may go through a set in its order.
    """
    if value is ABSENT or value is RUNS or is_plain(value):  # code that runs is walked through
        return
    if not objects.covers(value):
        raise Untold(f"a {type(value).__qualname__} is not told by any fact")
    if id(value) in objects.unordered and in_order:
        raise Untold("it may depend on the order of a set, which differs between processes")
    state_reads.check(value, inlined)


def _variables(seen: Seen) -> set[str]:
    """Return the variables of the environment that was walked through code reads."""
    found: set[str] = set()
    for code, scope in seen.codes.values():
        found |= state_reads.variables(code, scope)
    return found


def _places(
    torch: ModuleType,
    objects: Objects,
    held: Sequence[tuple[Any, str]],
    values: Sequence[Any],
    inlined: Set[int],
) -> Iterator[tuple[str, str]]:
    """Return where functions and classes are that Dynamo has held, and no source leads to."""
    met: set[int] = set()
    reached = {*map(id, values)}
    kinds = (*value_types(torch), *DESCRIPTORS)
    for value, kind in held:
        if id(value) in met:
            continue
        met.add(id(value))
        if id(value) not in reached:
            state_reads.check_environment(None, value)
        if isinstance(value, type) and not value.__flags__ & _HEAP:
            continue
        if isinstance(value, types.CodeType):
            continue  # a part of other code
        if isinstance(value, types.ModuleType):
            if id(value) not in reached and value.__name__.partition(".")[0] != "torch":
                raise Untold(f"it comes to the module {value.__name__} by no name")
            continue
        if isinstance(value, Enum) and not objects.covers(value) and (place := place_of(type(value))):
            yield place  # the class holds it
        if objects.covers(value) or isinstance(value, kinds) or _is_polyfill(value):
            state_reads.check(value, inlined)
        elif isinstance(value, (types.FunctionType, type)):
            found = place_of(value) or _kept_by_dynamo(value)
            if found is None:
                raise Untold(f"{value.__qualname__} cannot be found again")
            state_reads.check(value, inlined)
            yield found
        else:
            raise Untold(f"a {type(value).__qualname__} (in a {kind}) cannot be found again")
        if id(value) in objects.unordered:
            raise Untold("it may depend on the order of a set, which differs between processes")


def _kept_by_dynamo(value: Any) -> tuple[str, str] | None:
    """Return where Dynamo keeps the method of `nn.Module` that it has replaced; None of anything else."""
    module, name = "torch._dynamo.mutation_guard", "unpatched_nn_module_init"
    return (module, name) if vars(sys.modules[module]).get(name) is value else None


def _is_polyfill(value: Any) -> bool:
    """Tell whether it is what torch has written in place of a function of Python's."""
    import torch._dynamo.polyfills as polyfills

    code, folder = getattr(value, "__code__", None), os.path.dirname(str(polyfills.__file__))
    return code is not None and code.co_filename.startswith(folder + os.sep)


def _module_of(scope: dict[str, Any], frame: Frame) -> str:
    """Return the name of the module whose globals these are; empty for the function's own."""
    if scope is frame.scope:
        return ""
    if found := scope_name(scope):
        return found
    for known, module in [*sys.modules.items()]:
        if getattr(module, "__dict__", None) is scope:
            return known
    raise Untold(f"it calls code of {scope.get('__name__')}, which is no module that is imported")


def _names(objects: Objects, frame: Frame, seen: Seen) -> Iterator[list[Any]]:
    """Return what names mean to the code that was walked through, by module."""
    read: dict[str, tuple[dict[str, Any], set[str]]] = {}
    for code, scope in seen.codes.values():
        module = _module_of(scope, frame)
        for each in within(code):
            names = {str(step.value) for step in steps_of(each) if step.operation in LOADS_GLOBAL}
            read.setdefault(module, (scope, set()))[1].update(names)
    for module, (scope, found) in sorted(read.items(), key=lambda item: item[0]):
        yield from ([module, *row] for row in names_of(objects, scope, sorted(found)))


def _asked(seen: Seen, values: Iterable[Any]) -> set[str]:
    """Return the names by which a module may have been asked for something.

    Code does that, and so does `isinstance` for a protocol, if there is one among `values`.
    """
    asked = {*seen.texts()}
    for value in values:
        if issubclass(type(value), type) and vars(value).get("_is_protocol"):
            asked.update(protocol_attributes(value), vars(value).get("__protocol_attrs__", ()))
    for code, _ in seen.codes.values():
        for each in () if _is_torchs(code) else within(code):
            asked.update(each.co_names)
            asked.update(text for text in each.co_consts if isinstance(text, str) and text.isidentifier())
    return asked


def _of_unreached(seen: Seen, asked: Set[str]) -> Iterator[tuple[str, str]]:
    """Return what code may have read of modules that it came to by no name, such as those of defaults."""
    modules = {name_of(module): module for module in seen.unreached_modules()}
    if "" in modules:
        raise Untold(f"the module {modules[''].__name__} cannot be found again")
    for name, module in sorted(modules.items()):
        yield from ((name, each) for each in sorted(asked & module.__dict__.keys()))


def _attributes(values: Sequence[Any], asked: Set[str]) -> Iterator[list[str]]:
    """Return which of the names that are asked for each module among values has."""
    modules = {id(value): value for value in values if isinstance(value, ModuleType)}
    for module in sorted(modules.values(), key=lambda each: each.__name__):
        name = name_of(module)
        if not name:
            raise Untold(f"the module {module.__name__} cannot be found again")
        state_reads.check_module(module)
        yield [name, names_to(names_held(module.__dict__, asked))]
