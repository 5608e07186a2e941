"""Check whether the facts of a stored trace hold in this kernel, and find words for one that does not."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from nbcache.artifacts.traces import Trace, names_from
from nbcache.core.fingerprints.code import lines_digest
from nbcache.torch_bridge.traces.facts import (
    ANNOTATIONS,
    IDENTITY,
    LINES,
    REGISTRATIONS,
    Frame,
    NoTrace,
    SourceValues,
    TorchObjects,
    builtins_of,
    covers_value,
    fact_of,
    module_by_name,
    names_of,
    object_at,
    present_names,
    registrations,
    same_objects,
)
from nbcache.torch_bridge.traces.trace_rows import ReadTrace

_SHOWN_DIGESTS = ("bool ", "int ", "float ", "str ", "NoneType ")
"""Prefixes of the digests that contain the value itself."""
_NUMBERS = (int, float)
_VALUE_GUARDS = ("CONSTANT_MATCH", "EQUALS_MATCH")
"""Kinds of guards for numbers that Dynamo has specialised on."""
_OTHER_TENSOR = "another kind of tensor than before (its shape, type, layout, device or gradient)"


def check_facts(torch: ModuleType, read: ReadTrace, frame: Frame, *, thorough: bool) -> Sequence[Any]:
    """Return the values of a trace's sources if its facts hold; otherwise raise NoTrace, which names one.

    If `thorough`, it names the most informative of them, else the first, which is faster. A check imports
    and changes nothing, and runs no code of the trace.
    """
    import torch._dynamo.guards as guards

    trace, sources = read.trace, read.sources
    for name, module in trace.imports.items():
        loaded = sys.modules.get(module)
        if loaded is None:
            raise NoTrace(f"the module {module} is not imported yet")
        if frame.scope.get(name, loaded) is not loaded:
            raise NoTrace(f"the global {name} has changed")
    state = torch._C._dynamo.guards.GlobalStateGuard()
    state.__setstate__(trace.state)
    if not state.check():
        raise NoTrace(f"torch's global state has changed: {state.reason()}")
    facts = dict(trace.facts)
    identity, registered = facts.pop(IDENTITY, None), facts.pop(REGISTRATIONS, None)
    if (lines := facts.pop(LINES, None)) is not None and lines != lines_digest(frame.code):
        raise NoTrace("line numbers within the function have changed")
    objects = TorchObjects(torch, annotations=facts.pop(ANNOTATIONS, None) is not None)
    values: list[Any] = []
    changed: list[_Changed] = []
    source_values = SourceValues(frame.values, _globals_of_trace(read, frame), guards._get_closure_vars())
    for index, (expression, (_, base, _)) in enumerate(zip(read.expressions, trace.sources, strict=True)):
        # its base source comes first, and has been checked
        values.append(source_values.read(expression, None if base is None else values[base]))
        if (digest := facts.pop(index, None)) is None:
            continue
        current = fact_of(objects, values[-1], frame.scope, complete=covers_value(digest))
        if current != digest:
            changed.append(_Changed(_name_in_words(sources[index]), values[-1], digest, current))
            if not thorough:
                break
    if changed:
        raise max(changed, key=_Changed.rank).reason()
    for place, digest in facts.items():
        if place.startswith("$"):
            subject, value = f"the environment variable {place[1:]}", os.environ.get(place[1:])
        else:
            module, _, name = place.partition(" ")
            subject, value = f"{name} of {module}", object_at(module, name)
        if (current := objects.digest(value)) != digest:
            raise _Changed(subject, value, digest, current).reason()
    if objects.identity != identity:
        raise NoTrace("two names that referred to one object now refer to two, or the reverse")
    if registrations(torch, objects) != registered:
        raise NoTrace("the registrations of abstract classes or pytree nodes have changed")
    for number, first in enumerate(same_objects(values)):
        if trace.same[number] != first:
            name = _name_in_words(sources[number])
            raise NoTrace(f"{name} shares its object with another name, or no longer does")
    _check_names(objects, trace, frame)
    values_by_name = {source.name: value for source, value in zip(sources, values, strict=True)}
    if _would_be_dynamic(torch, values_by_name, frame):
        raise NoTrace("its sizes or numbers have varied: torch would make them dynamic")
    return values


def _check_names(objects: Any, trace: Trace, frame: Frame) -> None:
    """Raise NoTrace for a name whose meaning has changed, or for attributes that a module has got or lost."""
    by_module: dict[str, list[list[str]]] = {}
    for module, *row in trace.names:
        by_module.setdefault(module, []).append(row)
    for module, rows in by_module.items():
        scope = getattr(module_by_name(module), "__dict__", None) if module else frame.scope
        if scope is None:
            raise NoTrace(f"the module {module} is not imported yet")
        current_rows = names_of(objects, scope, [name for name, _ in rows])
        for (name, stored), (_, current) in zip(rows, current_rows, strict=True):
            if stored != current:
                subject = f"the name {name}" + (f" of {module}" if module else "")
                raise _Changed(subject, None, stored, current).reason()
    attribute_names = names_from(trace.asked)
    for module, names in trace.attributes:
        scope_here: dict[str, Any] = getattr(module_by_name(module), "__dict__", {})
        had, has = names_from(names), present_names(scope_here, attribute_names)
        if added := sorted(has - had):
            raise NoTrace(f"{added[0]} of the module {module} is new")
        if removed := sorted(had - has):
            raise NoTrace(f"{removed[0]} of the module {module} is gone")


def _name_in_words(source: Any) -> str:
    """Return a source as Python code for the user: `self.blocks[0]`, `the global K`."""
    return str(source.name).replace("L['", "").replace("G['", "the global ").replace("']", "", 1)


@dataclass(frozen=True, slots=True)
class _Changed:
    """A fact that does not hold."""

    subject: str
    """Name of the value, for the user."""
    value: Any
    stored: str
    current: str

    def rank(self) -> tuple[bool, bool, int]:
        """Return the rank of this fact as an explanation: a shown value, then a function, then a deep one."""
        return self._is_plain(), isinstance(self.value, FunctionType), self.subject.count(".")

    def reason(self) -> NoTrace:
        """Return the reason why the trace does not fit."""
        is_cause = self._is_plain() or isinstance(self.value, FunctionType)
        return NoTrace(self._description(), names_cause=is_cause)

    def _description(self) -> str:
        if self._is_plain():
            old, new = (digest.partition(" ")[2] for digest in (self.stored, self.current))
            return f"{self.subject}: {old} before, {new} now"
        if "absent" in (self.stored, self.current):
            return f"{self.subject} {'did not exist' if self.stored == 'absent' else 'existed'} before"
        if isinstance(self.value, FunctionType):
            code = self.value.__code__
            return f"{self.value.__qualname__}(), {code.co_filename}:{code.co_firstlineno}, has changed"
        if isinstance(self.value, BuiltinMethodType) and _is_tensor(self.value.__self__):
            return f"{self.subject.rpartition('.')[0]} is {_OTHER_TENSOR}"
        change = f"is {_OTHER_TENSOR}" if _is_tensor(self.value) else "has changed"
        return f"{self.subject} {change}"

    def _is_plain(self) -> bool:
        return self.stored.startswith(_SHOWN_DIGESTS) and self.current.startswith(_SHOWN_DIGESTS)


def _is_tensor(value: object) -> bool:
    return type(value).__name__ in ("Parameter", "Tensor")


def _globals_of_trace(read: ReadTrace, frame: Frame) -> dict[str, Any]:
    """Return the function's globals with those that Dynamo's code adds."""
    trace, names, scope = read.trace, read.names, dict(frame.scope)
    for name, module in trace.imports.items():
        scope[name] = sys.modules[module]
    for name, kind, place in trace.installed:
        if kind == "builtins":
            scope[names[name]] = builtins_of(scope)
        elif kind == "module":
            scope[names[name]] = sys.modules.get(place)
        elif kind == "object":
            scope[names[name]] = object_at(*place.split(" ", 1))
    return scope


def _would_be_dynamic(torch: ModuleType, values: Mapping[str, Any], frame: Frame) -> bool:
    """Return whether torch would now trace the function with dynamic sizes or numbers.

    `values` maps torch's names of tensors and numbers to their values.
    """
    import torch._dynamo.pgo as pgo

    profile = pgo.get_code_state().get(pgo.CodeId.make(frame.code, frame.closure))
    if profile is None or not torch._dynamo.config.automatic_dynamic_shapes:
        return False
    for name, recorded in profile.automatic_dynamic.items():
        if (entry := _entry(torch, name, values.get(name))) is None:
            continue
        both = copy.copy(recorded)
        both |= entry
        fields = (both.size, both.stride) if isinstance(entry.size, tuple) else ((both.scalar,),)
        if any(field is pgo.auto_dynamic or pgo.auto_dynamic in field for field in fields):
            return True
    return False


def note_sizes(torch: ModuleType, read: ReadTrace, values: Sequence[Any], frame: Frame) -> None:
    """Record sizes and numbers in torch's profile, as tracing does, so that torch makes others dynamic."""
    import torch._dynamo.pgo as pgo

    tracer: Any = SimpleNamespace(f_code=frame.code, closure=frame.closure)
    indices = {*read.trace.inputs, *(index for index, kind, *_ in read.trace.guards if kind in _VALUE_GUARDS)}
    for index in sorted(indices):
        name = read.sources[index].name
        if (entry := _entry(torch, name, values[index])) is not None:
            pgo.update_automatic_dynamic(tracer, name, entry)


def _entry(torch: ModuleType, name: str, value: Any) -> Any:
    """Return the entry that Dynamo would add to torch's profile for a tensor or a number; None for others."""
    import torch._dynamo.pgo as pgo
    import torch._dynamo.variables.builder as builder

    if type(value) in _NUMBERS:
        return pgo.FrameStateSizeEntry.make_scalar(value)
    if type(value) is not torch.Tensor:
        return None
    # with this state, torch returns the entry and stores it nowhere
    nowhere = SimpleNamespace(all_states=None, local_state=SimpleNamespace(automatic_dynamic={}))
    return builder.record_automatic_dynamic(SimpleNamespace(distributed_state=nowhere), name, value)
