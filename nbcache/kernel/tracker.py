"""Fold compile events into per-graph status: a reducer without I/O, clocks or torch.

torch reports what it does as nested spans on a thread, and as single facts in between. The
outermost span with a compile id is one *compile* (of a frame, or of a lazy backward); inside it,
each span that compiles or loads an FX graph opens a *graph*. Every moment is charged to the
innermost span that has a phase; what is spent outside any graph (tracing, keys, guards) goes to
the first graph of the compile.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import RESUMED, Activity, Cell, GraphRecord, bare_name
from nbcache.core.threads import ForkSafeLock, renew_in_children
from nbcache.kernel.events import (
    ArtifactSeen,
    AutogradLookup,
    CandidateTimed,
    CodeLoaded,
    Event,
    FrameCompiled,
    FrameTraced,
    GraphLookup,
    KernelTuned,
    KernelUsed,
    LookupStarted,
    SpanEnded,
    SpanStarted,
    TraceAdopted,
    TraceAudited,
)
from nbcache.kernel.reasons import NOT_COMPILED, NOT_STORED

_NO_CACHES = "this backend does not use torch's caches"
_PHASES = {
    "dynamo": "dynamo",
    "entire_frame_compile": "dynamo",
    "build_guards": "dynamo",
    "backend_compile": "aot",
    "create_aot_dispatcher_function": "aot",
    "entire_backward_compile": "aot",
    "inductor_compile": "inductor",
    "async_compile.wait": "build",
    "compile_file": "build",
    "CachingAutotuner.benchmark_all_configs": "build",
    "inductor_codecache_torch_key": "load",
    "AOTAutogradCache.inductor_load": "load",
    "PyCodeCache.load_by_key_path": "load",
    "TritonBundler.read_and_emit": "load",
    "pgo.get_local_code_state": "load",
    "nbcache.restore": "load",
    "nbcache.trace": "trace",
    "nbcache.wait": "wait",
}
_LOOKUP = "nbcache.lookup"
_Amount = TypeVar("_Amount", int, float)
_FEWEST_RECORDS = 1000
"""Graphs that are kept when the oldest are dropped, which happens when there are twice as many."""
_GRAPH_DIFFERS = f"{NOT_STORED}graph: "
"""The beginning of a reason that names the effect of an edit, and not the edit."""
_NO_AUTOGRAD_ENTRY = (
    "AOTAutograd's entry is not there, has other names, modes or options, or does not fit these inputs"
)
_NO_FRAME = FrameCompiled(0.0, 0, None, function="", location="")
_NO_LOOKUP = GraphLookup(0.0, 0, None, key="", backward=False, hit=False)
_MOST_NAMED = 3


@dataclass(slots=True)
class _Graph:
    backward: bool
    key: str | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    lookup: GraphLookup = _NO_LOOKUP
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    kernels: list[bool | None] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    code_path: str = ""


@dataclass(slots=True)
class _Compile:
    compile_id: str
    function: str
    began: float
    cell: Cell | None
    graphs: list[_Graph] = field(default_factory=list)
    open: _Graph | None = None
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    autograd: AutogradLookup | None = None
    frame: FrameCompiled | None = None
    trace: TraceAdopted | TraceAudited | FrameTraced | None = None
    inference: bool = False

    def graph(self, backward: bool) -> _Graph:
        """Open a graph, or return the one that is open already."""
        if self.open is None:
            self.open = _Graph(backward)
            self.graphs.append(self.open)
        return self.open

    def take_over(self, graph: _Graph) -> None:
        """Make one of `graph` and an earlier try of it: a stored one that was useless."""
        for earlier in [each for each in self.graphs if each is not graph]:
            if (earlier.key, earlier.backward) == (graph.key, graph.backward):
                self.graphs.remove(earlier)
                _add(graph.phases, earlier.phases)


@dataclass(slots=True)
class _Span:
    name: str
    phase: str
    backward: bool
    opened_graph: bool = False


class _Thread:
    def __init__(self) -> None:
        self.stack: list[_Span] = []
        self.compile: _Compile | None = None
        self.charged_until = 0.0
        self.candidates = (0, 0)


class Tracker:
    """Turns events into `GraphRecord`s, in the order in which compiles end. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._threads: dict[int, _Thread] = {}
        self._frames: dict[str, FrameCompiled] = {}
        self._broken: dict[str, str] = {}
        """Why functions broke off before there was anything to compile, by their names."""
        self._cell: Cell | None = None
        self._records: list[GraphRecord] = []
        self._cell_start = 0
        self._runs: dict[tuple[str, str], int] = {}
        """By compile id and name of a kernel: the index of the last graph that runs it."""
        self._tuned: dict[int, tuple[GraphRecord, set[str]]] = {}
        """By index: hits whose kernels were benchmarked again, as they were before, and those kernels."""
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child: compiles of other threads end there."""
        here = threading.get_ident()
        self._threads = {thread: state for thread, state in self._threads.items() if thread == here}

    @property
    def records(self) -> list[GraphRecord]:
        """The graphs so far, oldest first; of very many the last ones."""
        with self._lock:
            return list(self._records)

    def begin_cell(self, cell: Cell) -> None:
        with self._lock:
            self._cell = cell
            if len(self._records) > 2 * _FEWEST_RECORDS:
                self._drop_records(len(self._records) - _FEWEST_RECORDS)
            self._cell_start = len(self._records)

    def _drop_records(self, count: int) -> None:
        """Drop the oldest records, with what is known of their compiles."""
        del self._records[:count]
        self._runs = {run: index - count for run, index in self._runs.items() if index >= count}
        self._tuned = {index - count: tuned for index, tuned in self._tuned.items() if index >= count}
        compile_ids = {record.compile_id for record in self._records}
        self._frames = {key: frame for key, frame in self._frames.items() if key in compile_ids}

    def end_cell(self) -> tuple[GraphRecord, ...]:
        """Return the graphs of the cell that was running; what compiles from now on has no cell."""
        with self._lock:
            graphs = tuple(
                record for record in self._records[self._cell_start :] if record.cell is self._cell
            )
            self._cell = None
            self._cell_start = len(self._records)
            return graphs

    def function_on(self, thread: int) -> str:
        with self._lock:
            state = self._threads.get(thread)
            return state.compile.function if state and state.compile else ""

    def activity(self, now: float) -> Activity | None:
        with self._lock:
            busy = [(each.compile, each) for each in self._threads.values() if each.compile and each.stack]
            if not busy:
                return None
            compile, thread = min(busy, key=lambda pair: pair[0].began)
            return Activity(
                function=compile.function,
                compile_id=compile.compile_id,
                phase=thread.stack[-1].phase,
                seconds=max(0.0, now - compile.began),
                graphs_done=len(self._records) - self._cell_start,
                backward=thread.stack[-1].backward,
                candidates=thread.candidates,
            )

    def handle(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, KernelTuned):
                self._kernel_tuned(event)
                return
            thread = self._threads.setdefault(event.thread, _Thread())
            if isinstance(event, SpanStarted):
                self._span_started(thread, event)
            elif isinstance(event, SpanEnded):
                self._span_ended(thread, event)
            elif thread.compile is not None:
                self._fact(thread, thread.compile, event)
            if not thread.stack:
                del self._threads[event.thread]

    def _span_started(self, thread: _Thread, event: SpanStarted) -> None:
        if not thread.stack:
            if event.compile_id is None:  # a worker's own span: the thread that waits for it is charged
                return
            thread.compile = _Compile(event.compile_id, event.function, event.time, self._cell)
            thread.charged_until = event.time
            if not event.function and (frame := self._frames.get(event.compile_id)):
                thread.compile.function = frame.function
        self._push(thread, event.name, event.time)
        if event.name == "inductor_compile" and thread.compile and thread.compile.open is None:
            thread.compile.graph(thread.stack[-1].backward)
            thread.stack[-1].opened_graph = True

    def _push(self, thread: _Thread, name: str, time: float, backward: bool = False) -> None:
        self._charge(thread, time)
        parent = thread.stack[-1] if thread.stack else None
        phase = _PHASES.get(name, parent.phase if parent else "dynamo")
        if parent and parent.phase == "build":
            phase = "build"
        backward = backward or "bw_compiler" in name or name == "entire_backward_compile"
        thread.stack.append(_Span(name, phase, backward or (parent is not None and parent.backward)))

    def _charge(self, thread: _Thread, time: float) -> None:
        """Charge the time since the last event to the innermost span."""
        if thread.stack and thread.compile:
            target = thread.compile.open or thread.compile
            target.phases[thread.stack[-1].phase] += max(0.0, time - thread.charged_until)
        thread.charged_until = time

    def _span_ended(self, thread: _Thread, event: SpanEnded) -> None:
        names = [span.name for span in thread.stack]
        if event.name not in names:  # began before we were watching
            return
        while thread.stack[-1].name != event.name:  # torch drops spans that an exception tore down
            self._pop(thread, event.time)
        compile = thread.compile
        if compile is not None and event.name == "inductor_compile":
            self._inductor_ended(compile, event.attributes)
        elif compile is not None and event.name == "backend_compile":
            compile.inference = event.attributes.get("dispatch_mode") == "inference"
        self._pop(thread, event.time)
        if not thread.stack and compile is not None:
            thread.compile = None
            self._finish(compile)

    def _pop(self, thread: _Thread, time: float) -> str:
        """End the innermost span, and return its name."""
        self._charge(thread, time)
        span = thread.stack.pop()
        if span.opened_graph and thread.compile:
            thread.compile.open = None
        return span.name

    @staticmethod
    def _inductor_ended(compile: _Compile, attributes: Mapping[str, Any]) -> None:
        graph = compile.open
        state = attributes.get("cache_state")
        if graph is None or state is None:  # no state: it raised
            return
        if "is_backward" in attributes:
            graph.backward = bool(attributes["is_backward"])
        if state in ("bypass", "disabled"):
            graph.outcome = Outcome(state)
            graph.reason = attributes.get("cache_bypass_reason") or graph.reason
        elif graph.outcome is None and state in ("hit", "miss"):
            graph.outcome = Outcome(state)
        graph.key = graph.key or attributes.get("key")

    def _fact(self, thread: _Thread, compile: _Compile, event: Event) -> None:
        if isinstance(event, LookupStarted):
            opened = compile.open is None
            graph = compile.graph(event.backward)
            graph.backward, graph.key = event.backward, event.key
            compile.take_over(graph)
            self._push(thread, _LOOKUP, event.time, event.backward)
            thread.stack[-1].opened_graph = opened
        elif isinstance(event, GraphLookup):
            graph = compile.graph(event.backward)
            graph.key = event.key
            graph.outcome = Outcome.HIT if event.hit else Outcome.MISS
            graph.reason, graph.lookup = event.reason, event
            while thread.stack and self._pop(thread, event.time) != _LOOKUP:
                pass
        elif isinstance(event, AutogradLookup):
            compile.autograd = event
        elif isinstance(event, KernelUsed):
            target = compile.open or (compile.graphs[-1] if compile.graphs else None)
            if target is not None and not (event.name and event.name in target.names):
                target.kernels.append(event.compiled)
                target.names.add(event.name)
                if event.size:
                    target.bytes[event.type] += event.size
        elif isinstance(event, CandidateTimed):
            thread.candidates = (event.done, event.all) if event.done < event.all else (0, 0)
        elif isinstance(event, ArtifactSeen):
            (compile.open or compile).bytes[event.type] += event.size
        elif isinstance(event, CodeLoaded):
            if (target := compile.open or (compile.graphs[-1] if compile.graphs else None)) is not None:
                target.code_path = event.path  # what it loads itself, such as kernels, has come before
        elif isinstance(event, FrameCompiled):
            compile.frame = event
        elif isinstance(event, (TraceAdopted, TraceAudited, FrameTraced)):
            compile.trace = event

    def _kernel_tuned(self, event: KernelTuned) -> None:
        """Note on a hit what it did not save: the kernel's best configuration was not there."""
        index = self._runs.get((event.compile_id or "", event.name))
        if index is None or self._records[index].outcome is not Outcome.HIT:
            return
        before, names = self._tuned.setdefault(index, (self._records[index], set()))
        names.add(event.name)
        again = "1 kernel was" if len(names) == 1 else f"{len(names)} kernels were"
        listed = ", ".join(sorted(names)[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
        note = f"re-tuned: {again} benchmarked again, since no configuration that fits is stored: {listed}"
        self._records[index] = replace(before, reason=f"{before.reason}; {note}" if before.reason else note)

    def _finish(self, compile: _Compile) -> None:
        if compile.frame is not None:
            self._frames[compile.compile_id] = compile.frame
        frame = self._frames.get(compile.compile_id)
        failure = compile.frame.failure if compile.frame else None
        if isinstance(compile.trace, TraceAdopted) and failure:
            return  # torch could not go on with a stored trace, and traces now
        graphs = [graph for graph in compile.graphs if graph.outcome is not None]
        if not graphs and compile.frame and compile.frame.operators and not failure:
            empty = bool(compile.graphs) or "inductor" in compile.phases
            reason = "nothing in it is to be compiled" if empty else _NO_CACHES
            graphs = [_Graph(backward=False, outcome=Outcome.BYPASS, reason=reason)]
        if not graphs and (broke := _graph_break_of(compile)):
            self._broken[bare_name(frame.function if frame else compile.function)] = broke
        if graphs:
            _add(graphs[0].phases, compile.phases)
            _add(graphs[0].bytes, compile.bytes)
        for graph in graphs:
            self._runs |= {(compile.compile_id, name): len(self._records) for name in graph.names}
            self._records.append(self._of_its_forward(self._record(compile, frame, graph)))

    def _of_its_forward(self, record: GraphRecord) -> GraphRecord:
        """Return a backward that missed with why its forward did: it is made of that, and says less."""
        forward = (record.compile_id, Direction.FORWARD)
        graphs = (
            graph for graph in reversed(self._records) if (graph.compile_id, graph.direction) == forward
        )
        if record.direction is Direction.BACKWARD and record.explanation and (graph := next(graphs, None)):
            explanation = graph.explanation
            return replace(record, reason=graph.reason, explanation=explanation) if explanation else record
        return record

    def _record(self, compile: _Compile, frame: FrameCompiled | None, graph: _Graph) -> GraphRecord:
        assert graph.outcome is not None
        if graph.backward:
            direction = Direction.BACKWARD
        else:
            direction = Direction.INFERENCE if compile.inference else Direction.FORWARD
        seconds = {phase: spent for phase, spent in graph.phases.items() if spent > 0}
        seconds["total"] = sum(seconds.values())
        compiled = sum(
            graph.outcome is not Outcome.HIT if kernel is None else kernel for kernel in graph.kernels
        )
        shown = frame or replace(_NO_FRAME, function=compile.function)
        forward = _NO_FRAME if graph.backward else frame or _NO_FRAME
        broke = None if forward is _NO_FRAME else _graph_break_of(compile)
        if forward.function.endswith(RESUMED):  # it may go on where a frame without a graph broke
            earlier = self._broken.pop(bare_name(forward.function), None)
            broke = broke or earlier
        return GraphRecord(
            function=shown.function,
            compile_id=compile.compile_id,
            direction=direction,
            outcome=graph.outcome,
            cell=compile.cell,
            function_cell=shown.function_cell,
            location=shown.location,
            level=graph.lookup.level,
            source=graph.lookup.source,
            reason=_reason_of(compile, graph, compiled),
            key=graph.key,
            seconds=seconds,
            saved_seconds=_saved_seconds_of(compile, graph, seconds),
            operators=forward.operators,
            kernels=len(graph.kernels),
            kernels_compiled=compiled,
            bytes=dict(graph.bytes),
            recompile_reason=forward.recompile_reason,
            graph_break_reason=broke,
            threads=graph.lookup.threads,
            trace=None if graph.backward else _trace_of(compile),
            components=graph.lookup.components,
            explanation=graph.lookup.explanation,
            code_path=graph.code_path,
            versions=forward.versions,
            recompile_limit=forward.recompile_limit,
        )


def _add(amounts: dict[str, _Amount], more: Mapping[str, _Amount]) -> None:
    for name, amount in more.items():
        amounts[name] += amount


def _reason_of(compile: _Compile, graph: _Graph, compiled: int) -> str | None:
    """Return why a graph did not hit, or what a hit had to do all the same."""
    if graph.outcome is not Outcome.HIT:
        if compile.frame and compile.frame.failure:
            return f"{NOT_COMPILED}{compile.frame.failure}"
        reason, trace = graph.reason or "", compile.trace
        if isinstance(trace, FrameTraced) and trace.names_cause and reason.startswith(_GRAPH_DIFFERS):
            return f"{NOT_STORED}{trace.reason}; {reason.removeprefix(NOT_STORED)}"
        return graph.reason
    notes = []
    if compiled:
        notes.append(f"{compiled} of {len(graph.kernels)} kernels compiled again")
    if compile.autograd and compile.autograd.outcome is Outcome.MISS:
        notes.append(f"traced again: {_NO_AUTOGRAD_ENTRY}")
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


def _trace_of(compile: _Compile) -> str | None:
    if isinstance(compile.trace, TraceAudited):
        return "differs" if compile.trace.differs else "agrees"
    if compile.trace is None:
        return None
    return "adopted" if isinstance(compile.trace, TraceAdopted) else "outdated"


def _graph_break_of(compile: _Compile) -> str | None:
    """Return why a function ends in a graph break: as torch has told, or its trace."""
    if isinstance(compile.trace, TraceAdopted):
        return compile.trace.graph_break_reason
    return compile.frame.graph_break_reason if compile.frame else None


def _saved_seconds_of(compile: _Compile, graph: _Graph, seconds: Mapping[str, float]) -> float | None:
    """Return what compiling took once, with tracing where that is saved, less what it took now."""
    if graph.outcome is not Outcome.HIT:
        return None
    once = graph.lookup.saved_seconds
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
