"""A compile in the making, with its graphs, and what is said of it once it is done."""

from __future__ import annotations

from collections.abc import Mapping

from nbcache.core.model import Level, Outcome
from nbcache.core.reports import Cell, Explanation
from nbcache.kernel.events import AutogradLookup, FrameCompiled, FrameTraced, TraceAdopted, TraceAudited
from nbcache.kernel.reasons import NOT_STORED

__all__ = ["Compile", "Graph", "graph_break_of", "reason_of", "saved_seconds_of", "trace_of"]

_GRAPH_DIFFERS = f"{NOT_STORED}graph: "
"""How a reason begins that tells what came of an edit, and not what was edited."""


class Graph:
    """A graph in the making."""

    def __init__(self, backward: bool) -> None:
        self.backward = backward
        self.key: str | None = None
        self.outcome: Outcome | None = None
        self.reason: str | None = None
        self.level: Level | None = None
        self.source: str | None = None
        self.saved: float | None = None
        self.threads = 0
        self.components = ""
        self.explanation: Explanation | None = None
        self.phases: dict[str, float] = {}
        self.bytes: dict[str, int] = {}
        self.kernels: list[bool | None] = []
        self.names: set[str] = set()
        self.code_path = ""


class Compile:
    """One outermost span: a frame, or a lazy backward of one."""

    def __init__(self, compile_id: str, function: str, began: float, cell: Cell | None) -> None:
        self.compile_id = compile_id
        self.function = function
        self.began = began
        self.cell = cell
        self.graphs: list[Graph] = []
        self.open: Graph | None = None
        self.phases: dict[str, float] = {}
        self.bytes: dict[str, int] = {}
        self.autograd: AutogradLookup | None = None
        self.frame: FrameCompiled | None = None
        self.trace: TraceAdopted | TraceAudited | FrameTraced | None = None
        self.inference = False

    def graph(self, backward: bool) -> Graph:
        """Open a graph, or return the one that is open already."""
        if self.open is None:
            self.open = Graph(backward)
            self.graphs.append(self.open)
        return self.open

    def discard_hits(self) -> None:
        """Forget the graphs that were loaded: none of them runs."""
        for graph in [each for each in self.graphs if each.outcome is Outcome.HIT]:
            self.graphs.remove(graph)
            for phase, seconds in graph.phases.items():
                self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def take_over(self, graph: Graph) -> None:
        """Make one of `graph` and an earlier try of it: a stored one that turned out to be of no use."""
        for earlier in [each for each in self.graphs if each is not graph]:
            if (earlier.key, earlier.backward) == (graph.key, graph.backward):
                self.graphs.remove(earlier)
                for phase, seconds in earlier.phases.items():
                    graph.phases[phase] = graph.phases.get(phase, 0.0) + seconds


def reason_of(compile: Compile, graph: Graph, compiled: int, renamed: bool) -> str | None:
    """Return why a graph did not hit, or what a hit had to do all the same."""
    if graph.outcome is not Outcome.HIT:
        if compile.frame and compile.frame.failure:
            return f"not compiled: {compile.frame.failure}"
        reason, trace = graph.reason or "", compile.trace
        if isinstance(trace, FrameTraced) and trace.names_cause and reason.startswith(_GRAPH_DIFFERS):
            return f"{NOT_STORED}{trace.reason}; {reason.removeprefix(NOT_STORED)}"
        return graph.reason
    notes = []
    if compiled:
        notes.append(f"{compiled} of {len(graph.kernels)} kernels compiled again")
    if compile.autograd and compile.autograd.outvoted:
        notes.append("traced again: another process of this distributed program has no such graph")
    elif compile.autograd and compile.autograd.outcome is Outcome.MISS:
        if renamed:
            notes.append("AOTAutograd ran again: the graph is known, under other names, modes or options")
        else:
            notes.append("traced again: AOTAutograd's entry is not there, or does not fit these inputs")
    elif compile.autograd and compile.autograd.outcome is Outcome.BYPASS:
        notes.append(f"traced again: AOTAutograd bypassed, {compile.autograd.reason}")
    elif graph.backward:
        pass  # it is not traced on its own
    elif isinstance(compile.trace, TraceAudited):
        found = f"differs: {compile.trace.differs}" if compile.trace.differs else "agrees"
        notes.append(f"traced again: its trace was audited, and {found}")
    elif isinstance(compile.trace, FrameTraced):
        notes.append(f"traced again: {compile.trace.reason}")
    elif compile.trace:
        notes.append(f"not traced: {compile.trace.guards:,} guards and {compile.trace.facts:,} facts hold")
    return "; ".join(notes) or None


def trace_of(compile: Compile) -> str | None:
    """Return what became of the stored trace of a function, in a word."""
    if isinstance(compile.trace, TraceAudited):
        return "differs" if compile.trace.differs else "agrees"
    if compile.trace is None:
        return None
    return "adopted" if isinstance(compile.trace, TraceAdopted) else "outdated"


def graph_break_of(compile: Compile) -> str | None:
    """Return why a function ends in a graph break: as torch has told, or its trace."""
    if isinstance(compile.trace, TraceAdopted):
        return compile.trace.graph_break_reason
    return compile.frame.graph_break_reason if compile.frame else None


def saved_seconds_of(compile: Compile, graph: Graph, seconds: Mapping[str, float]) -> float | None:
    """Return what compiling took once less what it took now.

    Tracing by Dynamo counts where it is saved, for the forward graph.
    """
    if graph.outcome is not Outcome.HIT:
        return None
    once = graph.saved
    if compile.autograd and compile.autograd.outcome is Outcome.HIT:
        whole = compile.autograd
        once = (whole.backward_saved_seconds if graph.backward else whole.forward_saved_seconds) or once
    if once is None:
        return None
    now = sum(spent for phase, spent in seconds.items() if phase not in ("trace", "dynamo", "total"))
    saved = max(0.0, once - now)
    if isinstance(compile.trace, TraceAdopted) and not graph.backward:
        saved += max(0.0, compile.trace.once_seconds - seconds.get("trace", 0.0))
    return saved
