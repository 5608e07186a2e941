"""Dynamo's sources, by which a value is reached, and guards' arguments, as rows of a trace."""

from __future__ import annotations

import builtins
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, ModuleType
from typing import Any

from nbcache.artifacts.traces import Trace, code_from, from_bytes, value_from, value_to
from nbcache.core.canonical_json import corrupt
from nbcache.core.fingerprints.instructions import steps_of
from nbcache.torch_bridge.traces.facts import Expression, expression_of
from nbcache.torch_bridge.traces.object_digests import Untold, constant_from

__all__ = [
    "GLOBAL_STATE",
    "ReadTrace",
    "Sources",
    "guard_row",
    "guarded",
    "read",
    "readable",
    "renamed",
]

_ROOTS = frozenset({"GlobalSource", "GlobalStateSource", "LocalSource", "ShapeEnvSource"})
_CHAINED = frozenset(
    {
        *("AttrSource", "CellContentsSource", "ClosureSource", "CodeSource", "ConstDictKeySource"),
        *("DefaultsSource", "DictGetItemSource", "DictSubclassGetItemSource", "GenericAttrSource"),
        *("GetItemSource", "GradSource", "ListGetItemSource", "NNModuleSource", "ParamBufferSource"),
        *("TypeDictSource", "TypeMROSource", "TypeSource", "UnspecializedBuiltinNNModuleSource"),
        *("UnspecializedNNModuleSource", "UnspecializedParamBufferSource"),
    }
)
"""The classes of sources that are known to reach one value, each time the same way."""
_WEAK = ["weak"]
"""A row that stands for a weak reference to what the source of a guard stands for."""
GLOBAL_STATE = frozenset({"GlobalStateSource", "ShapeEnvSource"})
"""Those that stand for no value."""
_NAMES = frozenset({"global_name", "local_name", "member", "freevar_name"})
"""Fields that become part of an expression, so that they may only be names."""
_GUARDS = frozenset(
    {
        *("AUTOGRAD_SAVED_TENSORS_HOOKS", "BOOL_MATCH", "BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH"),
        *("CONSTANT_MATCH", "DEFAULT_DEVICE", "DETERMINISTIC_ALGORITHMS", "DICT_CONTAINS", "DICT_KEYS_MATCH"),
        *("DICT_NOT_CONTAINS", "DUAL_LEVEL", "DUPLICATE_INPUT", "EMPTY_NN_MODULE_HOOKS_DICT", "EQUALS_MATCH"),
        *("FSDP_TRAINING_STATE", "FUNCTION_MATCH", "FUNCTORCH_STACK_MATCH", "GLOBAL_STATE", "GRAD_MODE"),
        *("HASATTR", "ID_MATCH", "MAPPING_KEYS_CHECK", "MODULE_MATCH", "NONE_MATCH", "NOT_NONE_MATCH"),
        *("NOT_PRESENT_IN_GENERIC_DICT", "SEQUENCE_LENGTH", "SHAPE_ENV", "TENSOR_MATCH"),
        *("TORCH_FUNCTION_STATE", "TYPE_MATCH"),
    }
)
"""The kinds of guards that are known to say no more than the facts of their sources."""


def readable(source: Any) -> bool:
    """Tell whether a source, with all that it is read from, is one that a trace can hold."""
    return type(_first_unknown(source)).__name__ in _ROOTS


def _first_unknown(source: Any) -> Any:
    """Return what a source is read from, up to the first that is no known chain; a root where all are."""
    while type(source).__name__ in _CHAINED:
        source = source.base
    return source


def guarded(source: Any) -> Any:
    """Return a source without the parts that tell Dynamo to make no guards."""
    base = getattr(source, "base", None)
    if base is None:
        return source
    found = guarded(base)
    if type(source).__name__ == "SkipGuardSource":
        return found
    return source if found is base else dataclasses.replace(source, base=found)


class Sources:
    """The table of a trace's sources, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.all: list[Any] = []
        self._indices: dict[Any, int] = {}

    def index(self, source: Any) -> int:
        """Return the index of a source, adding it and what it is read from; Untold where it is not known."""
        source = guarded(source)
        found = self._indices.get(source)
        if found is not None:
            return found
        kind = type(source).__name__
        if not readable(source):
            way = type(_first_unknown(source)).__name__
            raise Untold(f"{source.name} is reached in a way that nbcache does not know ({way})")
        base = self.index(source.base) if kind in _CHAINED else None
        self.rows.append([kind, base, self._fields(source)])
        self.all.append(source)
        self._indices[source] = found = len(self.rows) - 1
        return found

    def _fields(self, source: Any) -> dict[str, Any]:
        found = {}
        for each in dataclasses.fields(source):
            if not each.init or each.name == "base":
                continue
            value = getattr(source, each.name)
            if each.name in _NAMES and not _is_name(each.name, value):
                raise Untold(f"{value!r} is no name of an attribute in Python")
            if each.default is dataclasses.MISSING or value != each.default:
                found[each.name] = value_to(value, self.row)
        return found

    def row(self, value: Any) -> Any:
        """Return what a source or a guard holds beside Python's own values, as a row."""
        kind: Any = type(value)
        if kind.__name__ in _CHAINED | _ROOTS and kind.__module__ == "torch._dynamo.source":
            return ["source", self.index(value)]
        name = getattr(value, "__name__", "") if kind is type else ""
        if name and getattr(builtins, name, None) is value:
            return ["builtin", name]
        if kind.__name__ in ("TensorWeakRef", "ReferenceType"):
            return _WEAK
        raise Untold(f"a source or a guard holds a {kind.__qualname__}")


def read_sources(rows: Iterable[Sequence[Any]], module: ModuleType) -> list[Any]:
    """Return the sources that rows stand for, of the classes in torch's `module`; CorruptEntry otherwise."""
    found: list[Any] = []

    def other(row: Any) -> Any:
        return _read(row, found)

    for kind, base, given in rows:
        if not isinstance(given, Mapping) or kind not in (_ROOTS if base is None else _CHAINED):
            raise corrupt("a source of a trace is of no known class")
        values = {name: value_from(value, other) for name, value in given.items()}
        for name in _NAMES & {*values}:
            if not _is_name(name, values[name]):
                raise corrupt("a source of a trace has a name that is none")
        cls = getattr(module, kind)
        if values.get("index_is_slice"):
            values = {**values, "index": slice(*values["index"][1])}
            del values["index_is_slice"]
        found.append(cls(**values) if base is None else cls(found[base], **values))
    return found


def _is_name(field: str, value: object) -> bool:
    """Tell whether a text may stand in an expression; torch quotes the names of globals and locals."""
    return isinstance(value, str) and (field in ("global_name", "local_name") or value.isidentifier())


def _read(row: Any, sources: Sequence[Any], weak: Any = None) -> Any:
    if row[0] == "source" and len(row) == 2 and type(row[1]) is int and 0 <= row[1] < len(sources):
        return sources[row[1]]
    if row[0] == "builtin" and len(row) == 2 and isinstance(getattr(builtins, row[1], None), type):
        return getattr(builtins, row[1])
    if row[0] == "weak" and weak is not None:
        return weak
    raise corrupt("a value of a trace is none")


def guard_row(guard: Any, sources: Sources) -> list[Any]:
    """Return a guard as a row: its source, kind and arguments; Untold of a kind that is not known."""
    kind = guard.create_fn_name()
    if kind not in _GUARDS:
        raise Untold(f"nbcache does not know the guard {kind}")
    made = guard.create_fn
    args, kwargs = getattr(made, "args", ()), getattr(made, "keywords", None) or {}
    return [
        sources.index(guard.originating_source),
        kind,
        [value_to(each, sources.row) for each in args],
        {name: value_to(each, sources.row) for name, each in kwargs.items()},
    ]


def needs_value(row: Sequence[Any]) -> bool:
    """Tell whether the guard that a row stands for holds what its source stands for."""
    _, _, args, kwargs = row
    given = [*args, *kwargs.values()] if isinstance(args, list) and isinstance(kwargs, Mapping) else []
    return _WEAK in given


def made_guard(row: Sequence[Any], sources: Sequence[Any], builder: Any, weak: Any = None) -> Any:
    """Return the guard that a row stands for; `weak(source)` makes the reference that it may need."""
    index, kind, args, kwargs = row
    if kind not in _GUARDS or not isinstance(args, list) or not isinstance(kwargs, Mapping):
        raise corrupt("a guard of a trace is of no known kind")
    source = sources[index]

    def other(each: Any) -> Any:
        return _read(each, sources, weak(source) if each == _WEAK and weak is not None else None)

    create = getattr(builder, kind)
    if args or kwargs:
        keywords = {name: value_from(each, other) for name, each in kwargs.items()}
        create = partial(create, *(value_from(each, other) for each in args), **keywords)
    return source.make_guard(create)


class ReadTrace:
    """A trace for one adoption: its sources and guards belong to whoever adopts it."""

    def __init__(self, trace: Trace) -> None:
        """Raise CorruptEntry of sources, guards and code that are none, Untold of code that sets globals."""
        import torch._dynamo.guards as guards
        import torch._dynamo.source as source_module

        self.trace = trace
        self.names: Mapping[str, str] = {
            name: f"{name}_{os.urandom(8).hex()}" for name, _, _ in trace.installed
        }
        """What globals that Dynamo set are called here: a trace may be adopted for several objects."""
        self.code = renamed(code_from(trace.code, constant_from), self.names)
        """The code that is to run, but for the place where it stands."""
        self.sources: Sequence[Any] = read_sources([*_sources(trace, self.names)], source_module)
        self.expressions: Sequence[Expression | None] = [*map(expression_of, self.sources)]
        """What each source is found by; None of those that stand for no value."""
        self._guards: list[Any] = [
            None if needs_value(row) else made_guard(row, self.sources, guards.GuardBuilder)
            for row in trace.guards
        ]

    def guards(self, values: Mapping[Any, Any]) -> Iterator[Any]:
        """Return the guards, where the sources stand for these `values`."""
        import torch._dynamo.guards as guards

        def weak(source: Any) -> Any:
            return guards.TensorWeakRef(values[source])

        for row, guard in zip(self.trace.guards, self._guards, strict=True):
            yield guard or made_guard(row, self.sources, guards.GuardBuilder, weak)


def read(content: bytes) -> ReadTrace:
    """Return the trace that these bytes hold; raises CorruptEntry, UnsupportedVersion or Untold."""
    return ReadTrace(from_bytes(content))


def renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    """Return code that reads its globals by other names; Untold of code that sets one of them."""
    constants = tuple(renamed(each, names) if isinstance(each, CodeType) else each for each in code.co_consts)
    sets = {step.value for step in steps_of(code) if step.operation in ("STORE_GLOBAL", "IMPORT_NAME")}
    if names.keys() & sets:
        raise Untold("its code sets a global that Dynamo has set")
    return code.replace(co_names=tuple(names.get(name, name) for name in code.co_names), co_consts=constants)


def _sources(trace: Trace, names: Mapping[str, str]) -> Iterator[list[Any]]:
    """Return the rows of the sources of a trace, with other names for the globals that Dynamo set."""
    for kind, base, fields in trace.sources:
        if kind == "GlobalSource" and fields.get("global_name") in names:
            yield [kind, base, {**fields, "global_name": names[fields["global_name"]]}]
        else:
            yield [kind, base, fields]
