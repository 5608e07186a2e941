"""Dynamo's sources, guards and generated code as rows of a trace, and a trace turned back into them."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import json
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, ModuleType
from typing import Any

from nbcache.core.canonical_json import corrupt
from nbcache.keys.fingerprints.code import code_tree, steps_of, words
from nbcache.traces import facts
from nbcache.traces.facts import Frame, NestedCode, NoTrace
from nbcache.traces.format import RESUME_KINDS, Trace, code_from, code_to, from_bytes, value_from, value_to

_ROOTS = frozenset({"GlobalSource", "GlobalStateSource", "LocalSource", "ShapeEnvSource"})
_CHAINED = words(
    "AttrSource CellContentsSource ClosureSource CodeSource ConstDictKeySource DefaultsSource",
    "DictGetItemSource DictSubclassGetItemSource GenericAttrSource GetItemSource GradSource",
    "ListGetItemSource NNModuleSource ParamBufferSource TypeDictSource TypeMROSource TypeSource",
    "UnspecializedBuiltinNNModuleSource UnspecializedNNModuleSource UnspecializedParamBufferSource",
)
"""Classes of sources with a base source; each of them always finds the same value in its base."""
_WEAK = ["weak"]
"""Row that represents a weak reference to the value of a guard's source."""
GLOBAL_STATE = frozenset({"GlobalStateSource", "ShapeEnvSource"})
"""Classes of sources without a value."""
_NAMES = frozenset({"global_name", "local_name", "member", "freevar_name"})
"""Fields that become part of an expression: only names are allowed."""
_GUARDS = words(
    "AUTOGRAD_SAVED_TENSORS_HOOKS BOOL_MATCH BUILTIN_MATCH CLASS_MATCH CLOSURE_MATCH CONSTANT_MATCH",
    "DEFAULT_DEVICE DETERMINISTIC_ALGORITHMS DICT_CONTAINS DICT_KEYS_MATCH DICT_NOT_CONTAINS DUAL_LEVEL",
    "DUPLICATE_INPUT EMPTY_NN_MODULE_HOOKS_DICT EQUALS_MATCH FSDP_TRAINING_STATE FUNCTION_MATCH",
    "FUNCTORCH_STACK_MATCH GLOBAL_STATE GRAD_MODE HASATTR ID_MATCH MAPPING_KEYS_CHECK MODULE_MATCH",
    "NONE_MATCH NOT_NONE_MATCH NOT_PRESENT_IN_GENERIC_DICT SEQUENCE_LENGTH SET_CONTAINS SET_NOT_CONTAINS",
    "SHAPE_ENV TENSOR_MATCH TORCH_FUNCTION_STATE TYPE_MATCH",
)
"""Kinds of guards that check nothing beyond the facts of their sources."""


def is_storable(source: Any) -> bool:
    return type(_root_of(source)).__name__ in _ROOTS


def _root_of(source: Any) -> Any:
    """Return the first base of a source that is not a known chained source: for known sources, a root."""
    while type(source).__name__ in _CHAINED:
        source = source.base
    return source


def without_skips(source: Any) -> Any:
    """Return a source without the parts with which Dynamo skips guards."""
    base = getattr(source, "base", None)
    if base is None:
        return source
    base_without_skips = without_skips(base)
    if type(source).__name__ == "SkipGuardSource":
        return base_without_skips
    return source if base_without_skips is base else dataclasses.replace(source, base=base_without_skips)


class Sources:
    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.sources: list[Any] = []
        self._indices: dict[Any, int] = {}

    def index(self, source: Any) -> int:
        """Return the index of a source, after adding it and its bases; raise NoTrace if it isn't storable."""
        source = without_skips(source)
        index = self._indices.get(source)
        if index is not None:
            return index
        kind = type(source).__name__
        if not is_storable(source):
            way = type(_root_of(source)).__name__
            raise NoTrace(f"{source.name} has a kind of source that nbcache does not know ({way})")
        base = self.index(source.base) if kind in _CHAINED else None
        self.rows.append([kind, base, self._fields(source)])
        self.sources.append(source)
        self._indices[source] = index = len(self.rows) - 1
        return index

    def _fields(self, source: Any) -> dict[str, Any]:
        arguments = {}
        for field in dataclasses.fields(source):
            if not field.init or field.name == "base":
                continue
            value = getattr(source, field.name)
            if field.name in _NAMES and not _is_name(field.name, value):
                raise NoTrace(f"{value!r} is not a valid attribute name")
            if field.default is dataclasses.MISSING or value != field.default:
                arguments[field.name] = value_to(value, self.row)
        return arguments

    def row(self, value: Any) -> Any:
        """Return an argument of a source or a guard that is not a plain Python value, as a row."""
        kind: Any = type(value)
        if kind.__name__ in _CHAINED | _ROOTS and kind.__module__ == "torch._dynamo.source":
            return ["source", self.index(value)]
        name = getattr(value, "__name__", "") if kind is type else ""
        if name and getattr(builtins, name, None) is value:
            return ["builtin", name]
        if kind.__name__ in ("TensorWeakRef", "ReferenceType"):
            return _WEAK
        raise NoTrace(f"a source or a guard has an argument of the type {kind.__qualname__}")


def read_sources(rows: Iterable[Sequence[Any]], module: ModuleType) -> list[Any]:
    """Return the sources of rows, of classes in torch's `module`; raise CorruptEntry for an invalid row."""
    sources: list[Any] = []

    def read_argument(row: Any) -> Any:
        return _argument_from_row(row, sources)

    for kind, base, fields in rows:
        if not isinstance(fields, Mapping) or kind not in (_ROOTS if base is None else _CHAINED):
            raise corrupt("a source of a trace has an unknown class")
        values = {name: value_from(value, read_argument) for name, value in fields.items()}
        for name in _NAMES & {*values}:
            if not _is_name(name, values[name]):
                raise corrupt("a source of a trace has an invalid name")
        cls = getattr(module, kind)
        if values.get("index_is_slice"):
            values = {**values, "index": slice(*values["index"][1])}
            del values["index_is_slice"]
        sources.append(cls(**values) if base is None else cls(sources[base], **values))
    return sources


def _is_name(field: str, value: object) -> bool:
    """Return whether a text may be part of an expression; torch quotes names of globals and locals."""
    return isinstance(value, str) and (field in ("global_name", "local_name") or value.isidentifier())


def _argument_from_row(row: Any, sources: Sequence[Any], reference: Any = None) -> Any:
    """Return the argument that `Sources.row` wrote; `reference` is the weak reference, if it was one."""
    if row[0] == "source" and len(row) == 2 and type(row[1]) is int and 0 <= row[1] < len(sources):
        return sources[row[1]]
    if row[0] == "builtin" and len(row) == 2 and isinstance(getattr(builtins, row[1], None), type):
        return getattr(builtins, row[1])
    if row[0] == "weak" and reference is not None:
        return reference
    raise corrupt("a value of a trace is invalid")


def guard_row(guard: Any, sources: Sources) -> list[Any]:
    kind = guard.create_fn_name()
    if kind not in _GUARDS:
        raise NoTrace(f"nbcache does not know the guard {kind}")
    create = guard.create_fn
    args, kwargs = getattr(create, "args", ()), getattr(create, "keywords", None) or {}
    return [
        sources.index(guard.originating_source),
        kind,
        [value_to(argument, sources.row) for argument in args],
        {name: value_to(argument, sources.row) for name, argument in kwargs.items()},
    ]


def guard_from_row(row: Sequence[Any], sources: Sequence[Any], builder: Any, weak: Any = None) -> Any:
    """Return the guard of a row; None if it needs a weak reference and `weak(source)` can't create one."""
    index, kind, args, kwargs = row
    if kind not in _GUARDS or not isinstance(args, list) or not isinstance(kwargs, Mapping):
        raise corrupt("a guard of a trace has an unknown kind")
    source, needs_weak = sources[index], _WEAK in (*args, *kwargs.values())
    if needs_weak and weak is None:
        return None

    def read_argument(argument: Any) -> Any:
        return _argument_from_row(argument, sources, weak(source) if argument == _WEAK else None)

    create = getattr(builder, kind)
    if args or kwargs:
        keywords = {name: value_from(argument, read_argument) for name, argument in kwargs.items()}
        create = partial(create, *(value_from(argument, read_argument) for argument in args), **keywords)
    return source.make_guard(create)


class ReadTrace:
    """A trace for one adoption. Its sources and guards are not shared: torch may change them."""

    def __init__(self, trace: Trace) -> None:
        """Raise CorruptEntry for invalid sources, guards or code, and NoTrace for code that sets globals."""
        import torch._dynamo.guards as guards
        import torch._dynamo.source as source_module

        self.trace = trace
        self.names = {name: f"{name}_{os.urandom(8).hex()}" for name, _, _ in trace.installed}
        """Stored name → name here of each global that Dynamo set: several objects may adopt one trace."""
        self.code = with_global_names(code_from(trace.code, facts.constant_from), self.names)
        rows = []
        for kind, base, fields in trace.sources:
            name = fields.get("global_name") if kind == "GlobalSource" else None
            renamed = {"global_name": self.names[name]} if name in self.names else {}
            rows.append([kind, base, {**fields, **renamed} if renamed else fields])
        self.sources = read_sources(rows, source_module)
        self.expressions = [*map(facts.expression_of, self.sources)]
        self._guards = [guard_from_row(row, self.sources, guards.GuardBuilder) for row in trace.guards]
        """Guards; None for guards with a weak reference to a value."""

    def guards(self, values: Mapping[Any, Any]) -> Iterator[Any]:
        import torch._dynamo.guards as guards

        def weak(source: Any) -> Any:
            return guards.TensorWeakRef(values[source])

        for row, guard in zip(self.trace.guards, self._guards, strict=True):
            yield guard or guard_from_row(row, self.sources, guards.GuardBuilder, weak)


def read_trace(content: bytes) -> ReadTrace:
    return ReadTrace(from_bytes(content))


def with_global_names(code: CodeType, names: Mapping[str, str]) -> CodeType:
    """Return code that reads globals under other names; raise NoTrace for code that sets one of them."""
    constants = tuple(
        with_global_names(part, names) if isinstance(part, CodeType) else part for part in code.co_consts
    )
    sets = {step.value for step in steps_of(code) if step.operation in ("STORE_GLOBAL", "IMPORT_NAME")}
    if names.keys() & sets:
        raise NoTrace("its code sets a global that Dynamo sets, too")
    return code.replace(co_names=tuple(names.get(name, name) for name in code.co_names), co_consts=constants)


def code_row(code: CodeType, original: CodeType) -> dict[str, Any]:
    """Return generated code as JSON, with NestedCode for nested code of the original; NoTrace for others."""
    indices = {id(nested): index for index, nested in enumerate(_nested_code(original))}

    def placeholder(value: Any) -> Any:
        if not isinstance(value, CodeType):
            return value
        if id(value) not in indices:
            raise NoTrace(f"it creates {value.co_qualname}(), whose code is not nested in its own")
        return NestedCode(indices[id(value)])

    return code_to(code.replace(co_consts=tuple(map(placeholder, code.co_consts))), facts.constant_to)


def restored_code(code: CodeType, original: CodeType) -> CodeType:
    """Return stored code with the original's file, line and nested code, which alone is allowed."""
    nested = _nested_code(original)

    def original_constant(value: Any) -> Any:
        if isinstance(value, CodeType) or (isinstance(value, NestedCode) and value.index >= len(nested)):
            raise corrupt(
                "a stored trace is damaged: it has code that is not in the function that was traced"
            )
        return nested[value.index] if isinstance(value, NestedCode) else value

    return code.replace(
        co_consts=tuple(map(original_constant, code.co_consts)),
        co_filename=original.co_filename,
        co_firstlineno=original.co_firstlineno,
    )


def _nested_code(code: CodeType) -> Sequence[CodeType]:
    return [*code_tree(code)][1:]


def installed_globals(graph: Any, graphs: Mapping[str, str], frame: Frame) -> Iterator[list[str]]:
    """Return rows [name, kind, place] for the globals that Dynamo has set for its code."""
    for cleanup in graph.cleanups:
        name, value = cleanup.name, cleanup.scope[cleanup.name]
        if name in graphs:
            yield [name, "graph", ""]
        elif name == graph.name_of_builtins_dict_key_in_fglobals:
            yield [name, "builtins", ""]
        elif (code := _resume_code(value, frame)) is not None:
            yield [name, RESUME_KINDS[bool(code.co_freevars)], json.dumps(code_row(code, frame.code))]
        elif isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
            yield [name, "module", value.__name__]
        elif isinstance(value, (types.FunctionType, type)) and (place := facts.place_of(value)) is not None:
            yield [name, "object", " ".join(place)]
        else:
            raise NoTrace(f"its code reads a global {type(value).__qualname__} that Dynamo has set")


def _resume_code(value: Any, frame: Frame) -> CodeType | None:
    """Return the code with which a function, or its factory for a closure, resumes after a graph break."""
    if not isinstance(value, types.FunctionType):
        return None
    code, scope = value.__code__, value.__globals__
    if code.co_name == "_make_fn" and code.co_filename == sys.modules["torch._dynamo.output_graph"].__file__:
        variables = inspect.getclosurevars(value).nonlocals
        code, scope = variables["code"], variables["f_globals"]
    if not code.co_name.startswith("torch_dynamo_resume_in_"):
        return None
    if scope is not frame.scope:
        raise NoTrace("it has a graph break in a function of another module")
    return code
