"""Checks a trace: asks for its facts again, and says which of them does not hold."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from nbcache.artifacts.traces import Trace, names_from
from nbcache.core.fingerprints.code_digest import lines_digest
from nbcache.torch_bridge.traces.facts import (
    Values,
    builtins_of,
    fact_of,
    found_at,
    is_whole,
    names_held,
    names_of,
    same_objects,
    scope_of,
)
from nbcache.torch_bridge.traces.object_digests import (
    ANNOTATIONS,
    IDENTITY,
    LINES,
    REGISTRATIONS,
    Frame,
    Untold,
    module_named,
    objects_for,
    registrations,
)
from nbcache.torch_bridge.traces.trace_rows import ReadTrace

__all__ = ["Checked", "checked", "note_sizes"]

_SHOWN = ("bool ", "int ", "float ", "str ", "NoneType ")
"""How digests begin that show a value."""
_NUMBERS = (int, float)
_OF_VALUES = ("CONSTANT_MATCH", "EQUALS_MATCH")
"""Guards of numbers that Dynamo has looked at."""
_OTHER_TENSOR = "another kind of tensor than before (its shape, type, layout, device or gradient)"


class Checked:
    """A trace all of whose facts hold, with what its sources stand for here."""

    def __init__(self, read: ReadTrace, values: Sequence[Any]) -> None:
        self.read = read
        self.values = values


def checked(torch: ModuleType, read: ReadTrace, frame: Frame, *, thorough: bool = True) -> Checked:
    """Return a trace whose facts hold for this frame; Untold names one that does not.

    If `thorough`, that is the one that tells most; else the first, which takes less time. Nothing is
    imported, nothing is set, and no code of the trace runs.
    """
    import torch._dynamo.guards as guards

    trace, sources = read.trace, read.sources
    for name, module in trace.imports.items():
        found = sys.modules.get(module)
        if found is None:
            raise Untold(f"the module {module} is not imported yet")
        if frame.scope.get(name, found) is not found:
            raise Untold(f"the global {name} is another thing now")
    state = torch._C._dynamo.guards.GlobalStateGuard()
    state.__setstate__(trace.state)
    if not state.check():
        raise Untold(f"torch's global state is another one: {state.reason()}")
    facts = dict(trace.facts)
    identity, registered = facts.pop(IDENTITY, None), facts.pop(REGISTRATIONS, None)
    if (lines := facts.pop(LINES, None)) is not None and lines != lines_digest(frame.code):
        raise Untold("its lines stand elsewhere in the function than before")
    objects = objects_for(torch, annotations=facts.pop(ANNOTATIONS, None) is not None)
    values: list[Any] = []
    changed: list[_Changed] = []
    here = Values(frame.values, _scope(read, frame), guards._get_closure_vars())
    for index, (expression, (_, base, _)) in enumerate(zip(read.expressions, trace.sources, strict=True)):
        # what it is read from comes before it, and is known to be as it was
        values.append(here.read(expression, None if base is None else values[base]))
        if (digest := facts.pop(index, None)) is None:
            continue
        now = fact_of(objects, values[-1], frame.scope, whole=is_whole(digest))
        if now != digest:
            changed.append(_Changed(_words(sources[index]), values[-1], digest, now))
            if not thorough:
                break
    if changed:
        raise max(changed, key=_Changed.tells).untold()
    for place, digest in facts.items():
        if place.startswith("$"):
            if (now := objects.digest(os.environ.get(place[1:]))) != digest:
                raise _Changed(f"the environment variable {place[1:]}", None, digest, now).untold()
        else:
            module, _, name = place.partition(" ")
            value = found_at(module, name)
            if (now := objects.digest(value)) != digest:
                raise _Changed(f"{name} of {module}", value, digest, now).untold()
    if objects.identity != identity:
        raise Untold("some objects are the very same that were not, or the other way round")
    if registrations(torch, objects) != registered:
        raise Untold("other classes are registered than before, for abstract ones or as trees")
    for number, first in enumerate(same_objects(values)):
        if trace.same[number] != first:
            raise Untold(
                f"{_words(sources[number])} is another object than before, or the same as another one"
            )
    _check_names(objects, trace, frame)
    if vary(torch, {source.name: value for source, value in zip(sources, values, strict=True)}, frame):
        raise Untold("its sizes or numbers have varied, and torch makes them dynamic")
    return Checked(read, values)


def _check_names(objects: Any, trace: Trace, frame: Frame) -> None:
    """Raise Untold of a name that means something else to the code than when it was traced."""
    by_module: dict[str, list[list[str]]] = {}
    for module, *row in trace.names:
        by_module.setdefault(module, []).append(row)
    for module, rows in by_module.items():
        scope = scope_of(module, frame.scope)
        if scope is None:
            raise Untold(f"the module {module} is not imported yet")
        for (name, then), (_, now) in zip(
            rows, names_of(objects, scope, [row[0] for row in rows]), strict=True
        ):
            if then != now:
                what = f"the name {name}" + (f" of {module}" if module else "")
                raise _Changed(what, None, then, now).untold()
    asked = names_from(trace.asked)
    for module, names in trace.attributes:
        held: dict[str, Any] = getattr(module_named(module), "__dict__", {})
        had, has = names_from(names), names_held(held, asked)
        if there := sorted(has - had):
            raise Untold(f"{there[0]} of the module {module} was not there before")
        if gone := sorted(had - has):
            raise Untold(f"{gone[0]} of the module {module} is not there any more")


def _words(source: Any) -> str:
    """Return what a person calls the value of a source: `self.blocks[0]`, `the global K`."""
    return str(source.name).replace("L['", "").replace("G['", "the global ").replace("']", "", 1)


@dataclass(frozen=True, slots=True)
class _Changed:
    """A fact that does not hold."""

    what: str
    """What a person calls the value."""
    value: Any
    then: str
    now: str

    def tells(self) -> tuple[bool, bool, int]:
        """Return how much it tells: a value that is shown most, then a function, then what is deep inside."""
        return self._is_plain(), isinstance(self.value, FunctionType), self.what.count(".")

    def untold(self) -> Untold:
        """Return it as the reason why a trace does not fit."""
        is_cause = self._is_plain() or isinstance(self.value, FunctionType)
        return Untold(self._words(), names_cause=is_cause)

    def _words(self) -> str:
        if self._is_plain():
            before, after = (each.partition(" ")[2] for each in (self.then, self.now))
            return f"{self.what}: {before} before, {after} now"
        if "absent" in (self.then, self.now):
            return f"{self.what} was {'not there' if self.then == 'absent' else 'there'} before"
        if isinstance(self.value, FunctionType):
            code = self.value.__code__
            return f"{self.value.__qualname__}(), {code.co_filename}:{code.co_firstlineno}, has changed"
        if isinstance(self.value, BuiltinMethodType) and _is_tensor(self.value.__self__):
            return f"{self.what.rpartition('.')[0]} is {_OTHER_TENSOR}"
        return f"{self.what} is {_OTHER_TENSOR}" if _is_tensor(self.value) else f"{self.what} has changed"

    def _is_plain(self) -> bool:
        return self.then.startswith(_SHOWN) and self.now.startswith(_SHOWN)


def _is_tensor(value: object) -> bool:
    return type(value).__name__ in ("Parameter", "Tensor")


def _scope(read: ReadTrace, frame: Frame) -> dict[str, Any]:
    """Return the function's globals with what the code of the trace would find there."""
    trace, names, scope = read.trace, read.names, dict(frame.scope)
    for name, module in trace.imports.items():
        scope[name] = sys.modules[module]
    for name, kind, place in trace.installed:
        if kind == "builtins":
            scope[names[name]] = builtins_of(scope)
        elif kind == "module":
            scope[names[name]] = sys.modules.get(place)
        elif kind == "object":
            scope[names[name]] = found_at(*place.split(" ", 1))
    return scope


def vary(torch: ModuleType, met: Mapping[str, Any], frame: Frame) -> bool:
    """Return whether torch would now trace the function for sizes or numbers that are dynamic.

    `met` are tensors and numbers by torch's names of them.
    """
    import torch._dynamo.pgo as pgo

    known = pgo.get_code_state().get(pgo.CodeId.make(frame.code, frame.closure))
    if known is None or not torch._dynamo.config.automatic_dynamic_shapes:
        return False
    for name, before in known.automatic_dynamic.items():
        if (entry := _entry(torch, name, met.get(name))) is None:
            continue
        both = copy.copy(before)
        both |= entry
        told = (both.size, both.stride) if isinstance(entry.size, tuple) else ((both.scalar,),)
        if any(each is pgo.auto_dynamic or pgo.auto_dynamic in each for each in told):
            return True
    return False


def note_sizes(torch: ModuleType, read: ReadTrace, values: Sequence[Any], frame: Frame) -> None:
    """Have torch know with which sizes and numbers the function was met, so that others become dynamic."""
    import torch._dynamo.pgo as pgo

    tracer: Any = SimpleNamespace(f_code=frame.code, closure=frame.closure)
    met = {*read.trace.inputs, *(index for index, kind, *_ in read.trace.guards if kind in _OF_VALUES)}
    for index in sorted(met):
        name = read.sources[index].name
        if (entry := _entry(torch, name, values[index])) is not None:
            pgo.update_automatic_dynamic(tracer, name, entry)


def _entry(torch: ModuleType, name: str, value: Any) -> Any:
    """Return what torch's profile holds of a tensor or a number, as Dynamo makes it; None of all else."""
    import torch._dynamo.pgo as pgo
    import torch._dynamo.variables.builder as builder

    if type(value) in _NUMBERS:
        return pgo.FrameStateSizeEntry.make_scalar(value)
    if type(value) is not torch.Tensor:
        return None
    # before the processes of a distributed program have met, torch returns it and puts it nowhere else
    nowhere = SimpleNamespace(all_states=None, local_state=SimpleNamespace(automatic_dynamic={}))
    return builder.record_automatic_dynamic(SimpleNamespace(distributed_state=nowhere), name, value)
