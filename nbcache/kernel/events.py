"""Events that the torch bridge sends to a session while a cell compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbcache.core.model import Level, Outcome
from nbcache.core.reports import Cell, Explanation

INTERRUPTED = "interrupted"
"""The `failure` of a frame whose compile an interrupt ended."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that torch did: when (seconds, any steady clock), on which thread, for which compile."""

    time: float
    thread: int
    compile_id: str | None


@dataclass(frozen=True, slots=True)
class SpanStarted(Event):
    name: str
    function: str = ""
    """Name of the function being compiled; only a compile's outermost span knows it."""


@dataclass(frozen=True, slots=True)
class SpanEnded(Event):
    """A phase of a compile ended; `attributes` are torch's notes on it."""

    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LookupStarted(Event):
    key: str
    backward: bool


@dataclass(frozen=True, slots=True)
class GraphLookup(Event):
    key: str
    backward: bool
    hit: bool
    reason: str | None = None
    saved_seconds: float | None = None
    level: Level | None = None
    source: str | None = None
    threads: int = 0
    components: str = ""
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True)
class AutogradLookup(Event):
    """The AOTAutograd cache answered for a whole compile, forward and backward."""

    outcome: Outcome
    key: str | None = None
    reason: str | None = None
    forward_saved_seconds: float | None = None
    backward_saved_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class KernelUsed(Event):
    """A graph loaded a kernel. Without `compiled`, the graph's outcome decides."""

    compiled: bool | None
    type: str = "cpp_kernel"
    size: int = 0
    name: str = ""
    """As in `KernelTuned`; empty for a kernel that is not tuned. The event may be sent twice for one kernel:
    when torch hands it to a worker, and when it loads the graph's code."""


@dataclass(frozen=True, slots=True)
class KernelTuned(Event):
    """Configurations of a kernel are being benchmarked: when its graph runs first, once it is compiled."""

    name: str
    """One kernel may be tuned in more than one way."""


@dataclass(frozen=True, slots=True)
class ArtifactSeen(Event):
    type: str
    size: int


@dataclass(frozen=True, slots=True)
class CodeLoaded(Event):
    """torch loaded the code that it has generated for a graph, now or when the graph was stored."""

    path: str


@dataclass(frozen=True, slots=True)
class FrameCompiled(Event):
    """A frame was compiled; the event is sent just before its outermost span ends."""

    function: str
    location: str
    function_cell: Cell | None = None
    operators: int | None = None
    recompile_reason: str | None = None
    versions: int = 0
    recompile_limit: int = 0
    graph_break_reason: str | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class TraceAdopted(Event):
    """A frame is not traced: a stored trace fits it."""

    guards: int
    facts: int
    once_seconds: float
    graph_break_reason: str | None = None


@dataclass(frozen=True, slots=True)
class FrameTraced(Event):
    """A frame is traced although there is a trace of it: `reason` is a fact that does not hold."""

    reason: str
    names_cause: bool = False


@dataclass(frozen=True, slots=True)
class TraceAudited(Event):
    """A frame was traced although a stored trace fits it; `differs` names what differs, or is empty."""

    differs: str
