"""Tells whether a stored trace is what torch traces now: its code, its guards and its graph."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nbcache.artifacts.traces import REST, Trace
from nbcache.core.key import sha256

__all__ = ["difference", "is_alike"]

_PLACES = frozenset({"co_filename", "co_firstlineno", "co_linetable"})
"""Fields of code that say where it stands."""
_LINE = re.compile(r"(?<=torch_dynamo_resume_in_)(\w+?)_at_\d+")
"""Line number in the name of a function that goes on after a graph break."""


def difference(stored: Trace, now: Trace) -> str:
    """Return what differs between two traces of a function, as a plural; nothing where they do the same.

    Names that Dynamo makes up for globals, places in files, and the order of guards do not count, nor do
    facts: those of `stored` hold.
    """
    for (what, one), (_, other) in zip(_told(stored), _told(now), strict=True):
        if one != other:
            return what
    return ""


def is_alike(stored: Trace, now: Trace) -> bool:
    """Return whether two traces of a function do the same on the same facts."""
    facts = [(trace.facts, trace.names, trace.asked, trace.attributes) for trace in (stored, now)]
    return facts[0] == facts[1] and not difference(stored, now)


def _told(trace: Trace) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a trace, each with what it is called, so that they can be compared."""
    names = {name: f"<{number}>" for number, (name, _, _) in enumerate(trace.installed)}
    sources: list[str] = []
    for kind, base, fields in trace.sources:
        row = [kind, None if base is None else sources[base], _without(fields, names, sources)]
        sources.append(sha256(_text(row).encode("utf-8", "surrogatepass")))
    yield "its instructions", _text(_without(trace.code, names))
    yield (
        "the globals that its code reads",
        [[kind, _place(kind, place)] for _, kind, place in trace.installed],
    )
    yield "the modules that its code reads", trace.imports
    yield "the keys of its graph", trace.autograd_key
    yield "the inputs of its graph", [sources[index] for index in trace.inputs]
    yield (
        "its guards",
        sorted(
            _text([sources[index], kind, _without(more, names, sources)])
            for index, kind, *more in trace.guards
        ),
    )
    yield "the sizes that it guards", sorted(_text([sources[index], *row]) for index, *row in trace.shapes)
    yield "the keys that it guards in order", sorted(sources[index] for index in trace.key_order)
    yield "its side effects", trace.replayed
    yield "torch's global settings", trace.state
    yield "its outputs", trace.has_outputs


def _without(value: Any, names: Mapping[str, str], sources: Sequence[str] = ()) -> Any:
    """Return JSON without places in files, with other names, and with sources in place of their indices."""
    if isinstance(value, Mapping):
        return {name: _without(each, names, sources) for name, each in value.items() if name not in _PLACES}
    if isinstance(value, list):
        if len(value) == 2 and value[0] == "source" and type(value[1]) is int:
            return ["source", sources[value[1]]]
        return [_without(each, names, sources) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def _place(kind: str, place: str) -> Any:
    """Return what a global is: of code that goes on after a graph break, without where it stands."""
    return _without(json.loads(_LINE.sub(r"\1", place)), {}) if kind in REST else place


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
