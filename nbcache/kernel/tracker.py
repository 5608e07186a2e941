"""Folds compile events into a record for each graph, without I/O, clocks or torch.

torch reports its work as nested spans on a thread, and as single events in between. The outermost span
with a compile id is one *compile* (of a frame, or of a lazy backward); inside it, each span that compiles
or loads an FX graph opens a *graph*. Every moment is charged to the innermost span that has a phase; time
outside any graph (tracing, keys, guards) goes to the first graph of the compile.
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
from nbcache.kernel import events
from nbcache.kernel.reasons import NOT_COMPILED, NOT_STORED

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
"""Graphs that stay when the oldest are dropped, which happens at twice this number."""
_GRAPH_DIFFERS = f"{NOT_STORED}graph: "
"""Prefix of a reason that names the effect of an edit, and not the edit."""
_NO_AUTOGRAD_ENTRY = "AOTAutograd has no entry for these names, modes, options and inputs"
_TORCHS_HELPER = "_flex_attention_hop_wrapper"  # eager flex_attention compiles it without caches
_NO_FRAME = events.FrameCompiled(0.0, 0, None, function="", location="")
_NO_LOOKUP = events.GraphLookup(0.0, 0, None, key="", backward=False, hit=False)
_MOST_NAMED = 3


@dataclass(slots=True)
class _Graph:
    backward: bool
    key: str | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    lookup: events.GraphLookup = _NO_LOOKUP
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    kernels: list[bool | None] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    code_path: str = ""


@dataclass(slots=True)
class _Compile:
    compile_id: str
    function: str
    cell: Cell | None
    began: float
    graphs: list[_Graph] = field(default_factory=list)
    open: _Graph | None = None
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    autograd: events.AutogradLookup | None = None
    frame: events.FrameCompiled | None = None
    trace: events.TraceAdopted | events.TraceAudited | events.FrameTraced | None = None
    inference: bool = False

    def graph(self, backward: bool) -> _Graph:
        """Open a graph, or return the one that is open already."""
        if self.open is None:
            self.open = _Graph(backward)
            self.graphs.append(self.open)
        return self.open

    @property
    def last_graph(self) -> _Graph | None:
        return self.open or (self.graphs[-1] if self.graphs else None)

    @property
    def graph_break_reason(self) -> str | None:
        """The reason of the graph break that ends the function, by the adopted trace or by torch."""
        if isinstance(self.trace, events.TraceAdopted):
            return self.trace.graph_break_reason
        return self.frame.graph_break_reason if self.frame else None

    def merge_earlier_lookups(self, graph: _Graph) -> None:
        """Merge `graph` with its earlier records: torch could not use the stored graphs that it had found."""
        for earlier in [other for other in self.graphs if other is not graph]:
            if (earlier.key, earlier.backward) == (graph.key, graph.backward):
                self.graphs.remove(earlier)
                _add(graph.phases, earlier.phases)


@dataclass(slots=True)
class _Span:
    name: str
    phase: str
    backward: bool
    opened_graph: bool = False


@dataclass(slots=True)
class _Thread:
    stack: list[_Span] = field(default_factory=list)
    compile: _Compile | None = None
    charged_until: float = 0.0


class Tracker:
    """Turns events into `GraphRecord`s, in the order in which compiles end. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._threads: dict[int, _Thread] = {}
        self._frames: dict[str, events.FrameCompiled] = {}
        self._broken: dict[str, str] = {}
        """Function → the reason of a graph break that left nothing to compile before it."""
        self._cell: Cell | None = None
        self._records: list[GraphRecord] = []
        self._cell_start = 0
        self._runs: dict[tuple[str, str], int] = {}
        """Compile id and name of a kernel → the index of the last graph that runs it."""
        self._tuned: dict[int, tuple[GraphRecord, set[str]]] = {}
        """Index → the first record of a hit whose kernels were benchmarked again, and their names."""
        renew_in_children(self)

    def renew(self) -> None:
        """Forget the compiles of other threads, which a forked child lacks."""
        own = threading.get_ident()
        self._threads = {thread: state for thread, state in self._threads.items() if thread == own}

    @property
    def records(self) -> list[GraphRecord]:
        """The graphs so far, oldest first; of very many the last ones."""
        with self._lock:
            return list(self._records)

    def begin_cell(self, cell: Cell) -> None:
        with self._lock:
            self._cell = cell
            if len(self._records) > 2 * _FEWEST_RECORDS:
                self._drop_oldest_records(len(self._records) - _FEWEST_RECORDS)
            self._cell_start = len(self._records)

    def _drop_oldest_records(self, count: int) -> None:
        del self._records[:count]
        self._runs = {run: index - count for run, index in self._runs.items() if index >= count}
        self._tuned = {index - count: tuned for index, tuned in self._tuned.items() if index >= count}
        compile_ids = {record.compile_id for record in self._records}
        self._frames = {key: frame for key, frame in self._frames.items() if key in compile_ids}

    def forget(self, begin: int) -> None:
        """Drop the records from this index on, such as those of the trials of a diagnosis."""
        with self._lock:
            del self._records[begin:]
            self._runs = {run: index for run, index in self._runs.items() if index < begin}
            self._tuned = {index: tuned for index, tuned in self._tuned.items() if index < begin}

    def end_cell(self) -> tuple[GraphRecord, ...]:
        """Return the graphs of the cell that was running; later compiles have no cell."""
        with self._lock:
            of_cell = self._records[self._cell_start :]
            graphs = tuple(record for record in of_cell if record.cell is self._cell)
            self._cell = None
            self._cell_start = len(self._records)
            return graphs

    def function_on(self, thread: int) -> str:
        with self._lock:
            state = self._threads.get(thread)
            return state.compile.function if state and state.compile else ""

    def activity(self, time: float) -> Activity | None:
        with self._lock:
            busy = [
                (state.compile, state) for state in self._threads.values() if state.compile and state.stack
            ]
            if not busy:
                return None
            compile, thread = min(busy, key=lambda pair: pair[0].began)
            return Activity(
                function=compile.function,
                compile_id=compile.compile_id,
                phase=thread.stack[-1].phase,
                seconds=max(0.0, time - compile.began),
                graphs_done=len(self._records) - self._cell_start,
                backward=thread.stack[-1].backward,
            )

    def handle(self, event: events.Event) -> None:
        with self._lock:
            if isinstance(event, events.KernelTuned):
                self._note_tuning(event)
                return
            thread = self._threads.setdefault(event.thread, _Thread())
            if isinstance(event, events.SpanStarted):
                self._start_span(thread, event)
            elif isinstance(event, events.SpanEnded):
                self._end_span(thread, event)
            elif thread.compile is not None:
                self._apply_event(thread, thread.compile, event)
            if not thread.stack:
                del self._threads[event.thread]

    def _start_span(self, thread: _Thread, event: events.SpanStarted) -> None:
        if not thread.stack:
            if event.compile_id is None:  # a worker's own span: the thread that waits for it is charged
                return
            frame = self._frames.get(event.compile_id, _NO_FRAME)
            function = event.function or frame.function
            thread.compile = _Compile(event.compile_id, function, self._cell, event.time)
            thread.charged_until = event.time
        self._push(thread, event.name, event.time)
        if event.name == "inductor_compile" and thread.compile and thread.compile.open is None:
            thread.compile.graph(thread.stack[-1].backward)
            thread.stack[-1].opened_graph = True

    def _push(self, thread: _Thread, name: str, time: float, backward: bool = False) -> None:
        self._charge_phase(thread, time)
        phase = _PHASES.get(name, "dynamo")
        backward = backward or "bw_compiler" in name or name == "entire_backward_compile"
        if thread.stack:
            parent = thread.stack[-1]
            phase = "build" if parent.phase == "build" else _PHASES.get(name, parent.phase)
            backward = backward or parent.backward
        thread.stack.append(_Span(name, phase, backward))

    def _charge_phase(self, thread: _Thread, time: float) -> None:
        if thread.stack and thread.compile:
            target = thread.compile.open or thread.compile
            target.phases[thread.stack[-1].phase] += max(0.0, time - thread.charged_until)
        thread.charged_until = time

    def _end_span(self, thread: _Thread, event: events.SpanEnded) -> None:
        if event.name not in [span.name for span in thread.stack]:  # it began before the tracker
            return
        while thread.stack[-1].name != event.name:  # torch does not end spans that raised
            self._pop(thread, event.time)
        compile = thread.compile
        if compile is not None and event.name == "inductor_compile":
            self._end_inductor(compile, event.attributes)
        elif compile is not None and event.name == "backend_compile":
            compile.inference = event.attributes.get("dispatch_mode") == "inference"
        self._pop(thread, event.time)
        if not thread.stack and compile is not None:
            thread.compile = None
            self._finish(compile)

    def _pop(self, thread: _Thread, time: float) -> str:
        self._charge_phase(thread, time)
        span = thread.stack.pop()
        if span.opened_graph and thread.compile:
            thread.compile.open = None
        return span.name

    @staticmethod
    def _end_inductor(compile: _Compile, attributes: Mapping[str, Any]) -> None:
        graph, state = compile.open, attributes.get("cache_state")
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

    def _apply_event(self, thread: _Thread, compile: _Compile, event: events.Event) -> None:
        match event:
            case events.LookupStarted(key=key, backward=backward):
                opened = compile.open is None
                graph = compile.graph(backward)
                graph.backward, graph.key = backward, key
                compile.merge_earlier_lookups(graph)
                self._push(thread, _LOOKUP, event.time, backward)
                thread.stack[-1].opened_graph = opened
            case events.GraphLookup():
                graph = compile.graph(event.backward)
                graph.key, graph.reason, graph.lookup = event.key, event.reason, event
                graph.outcome = Outcome.HIT if event.hit else Outcome.MISS
                while thread.stack and self._pop(thread, event.time) != _LOOKUP:
                    pass
            case events.AutogradLookup():
                compile.autograd = event
            case events.KernelUsed(name=name):
                target = compile.last_graph
                if target is not None and not (name and name in target.names):
                    target.kernels.append(event.compiled)
                    target.names.add(name)
                    if event.size:
                        target.bytes[event.type] += event.size
            case events.ArtifactSeen(type=type, size=size):
                (compile.open or compile).bytes[type] += size
            case events.CodeLoaded(path=path):
                if (target := compile.last_graph) is not None:
                    target.code_path = path  # its kernels have been loaded before
            case events.FrameCompiled():
                compile.frame = event
            case events.TraceAdopted() | events.TraceAudited() | events.FrameTraced():
                compile.trace = event

    def _note_tuning(self, event: events.KernelTuned) -> None:
        """Note on a hit that a kernel was benchmarked again: no stored configuration fits."""
        index = self._runs.get((event.compile_id or "", event.name))
        if index is None or self._records[index].outcome is not Outcome.HIT:
            return
        hit, names = self._tuned.setdefault(index, (self._records[index], set()))
        names.add(event.name)
        again = "1 kernel was" if len(names) == 1 else f"{len(names)} kernels were"
        listed = ", ".join(sorted(names)[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
        note = f"re-tuned: {again} benchmarked again, since no configuration that fits is stored: {listed}"
        self._records[index] = replace(hit, reason=f"{hit.reason}; {note}" if hit.reason else note)

    def _finish(self, compile: _Compile) -> None:
        if compile.frame is not None:
            self._frames[compile.compile_id] = compile.frame
        frame = self._frames.get(compile.compile_id)
        failure = compile.frame.failure if compile.frame else None
        if isinstance(compile.trace, events.TraceAdopted) and failure:
            return  # torch could not use a stored trace, and traces now
        graphs = [graph for graph in compile.graphs if graph.outcome is not None]
        if not graphs and frame and frame.function == _TORCHS_HELPER:
            return
        if not graphs and compile.frame and compile.frame.operators and not failure:
            empty = bool(compile.graphs) or "inductor" in compile.phases
            reason = "it contains nothing to compile" if empty else "this backend does not use torch's caches"
            graphs = [_Graph(backward=False, outcome=Outcome.BYPASS, reason=reason)]
        if not graphs and (break_reason := compile.graph_break_reason):
            self._broken[bare_name(frame.function if frame else compile.function)] = break_reason
        if graphs:
            _add(graphs[0].phases, compile.phases)
            _add(graphs[0].bytes, compile.bytes)
        for graph in graphs:
            self._runs |= {(compile.compile_id, name): len(self._records) for name in graph.names}
            self._records.append(self._with_forward_reason(self._record(compile, frame, graph)))

    def _with_forward_reason(self, record: GraphRecord) -> GraphRecord:
        """Give a missed backward the reason of its forward, which causes it and says more."""
        if record.direction is not Direction.BACKWARD or not record.explanation:
            return record
        for graph in reversed(self._records):
            if (graph.compile_id, graph.direction) == (record.compile_id, Direction.FORWARD):
                explained = graph if graph.explanation else record
                return replace(record, reason=explained.reason, explanation=explained.explanation)
        return record

    def _record(self, compile: _Compile, frame: events.FrameCompiled | None, graph: _Graph) -> GraphRecord:
        assert graph.outcome is not None
        if graph.backward:
            direction = Direction.BACKWARD
        else:
            direction = Direction.INFERENCE if compile.inference else Direction.FORWARD
        seconds = {phase: spent for phase, spent in graph.phases.items() if spent > 0}
        seconds["total"] = sum(seconds.values())
        missed = graph.outcome is not Outcome.HIT
        compiled = sum(missed if kernel is None else kernel for kernel in graph.kernels)
        shown = frame or replace(_NO_FRAME, function=compile.function)
        forward = _NO_FRAME if graph.backward else frame or _NO_FRAME
        break_reason = None if forward is _NO_FRAME else compile.graph_break_reason
        if forward.function.endswith(RESUMED):  # it may continue a frame that broke without a graph
            earlier = self._broken.pop(bare_name(forward.function), None)
            break_reason = break_reason or earlier
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
            saved_seconds=None if missed else _saved_seconds(compile, graph, seconds),
            operators=forward.operators,
            kernels=len(graph.kernels),
            kernels_compiled=compiled,
            bytes=dict(graph.bytes),
            recompile_reason=forward.recompile_reason,
            graph_break_reason=break_reason,
            threads=graph.lookup.threads,
            trace=None if graph.backward else _fate_of_trace(compile),
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
    """Return the reason that a graph did not hit, or the work that a hit had to repeat."""
    trace, autograd = compile.trace, compile.autograd
    if graph.outcome is not Outcome.HIT:
        if compile.frame and compile.frame.failure:
            return f"{NOT_COMPILED}{compile.frame.failure}"
        reason = graph.reason or ""
        if isinstance(trace, events.FrameTraced) and trace.names_cause and reason.startswith(_GRAPH_DIFFERS):
            return f"{NOT_STORED}{trace.reason}; {reason.removeprefix(NOT_STORED)}"
        return graph.reason
    notes = []
    if compiled:
        notes.append(f"{compiled} of {len(graph.kernels)} kernels compiled again")
    if autograd and autograd.outcome is Outcome.MISS:
        notes.append(f"traced again: {_NO_AUTOGRAD_ENTRY}")
    elif autograd and autograd.outcome is Outcome.BYPASS:
        notes.append(f"traced again: AOTAutograd bypassed, {autograd.reason}")
    elif graph.backward:
        pass  # it is not traced on its own
    elif isinstance(trace, events.TraceAudited):
        verdict = f"differs: {trace.differs}" if trace.differs else "agrees"
        notes.append(f"traced again: its trace was audited, and {verdict}")
    elif isinstance(trace, events.FrameTraced):
        notes.append(f"traced again: {trace.reason}")
    elif trace:
        notes.append(f"not traced: {trace.guards:,} guards and {trace.facts:,} facts hold")
    return "; ".join(notes) or None


def _fate_of_trace(compile: _Compile) -> str | None:
    if isinstance(compile.trace, events.TraceAudited):
        return "differs" if compile.trace.differs else "agrees"
    if compile.trace is None:
        return None
    return "adopted" if isinstance(compile.trace, events.TraceAdopted) else "outdated"


def _saved_seconds(compile: _Compile, graph: _Graph, seconds: Mapping[str, float]) -> float | None:
    """Return the seconds of the first compile, with tracing if that is saved, less those of the hit."""
    once = graph.lookup.saved_seconds
    if (lookup := compile.autograd) and lookup.outcome is Outcome.HIT:
        once = (lookup.backward_saved_seconds if graph.backward else lookup.forward_saved_seconds) or once
    if once is None:
        return None
    spent_again = sum(spent for phase, spent in seconds.items() if phase not in ("trace", "dynamo", "total"))
    saved = max(0.0, once - spent_again)
    if isinstance(compile.trace, events.TraceAdopted) and not graph.backward:
        saved += max(0.0, compile.trace.once_seconds - seconds.get("trace", 0.0))
    return saved
