"""The reducer: events in, graph records out. No torch, no clock."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from nbcache.core.model import Direction, Level, Outcome
from nbcache.core.reports import Cell, Difference, Explanation, GraphRecord
from nbcache.kernel.events import (
    ArtifactSeen,
    AutogradLookup,
    FrameCompiled,
    GraphLookup,
    KernelTuned,
    KernelUsed,
    LookupStarted,
    SpanEnded,
    SpanStarted,
)
from nbcache.kernel.tracker import Tracker


class Script:
    """Feeds a tracker; each event comes one second after the one before."""

    def __init__(self) -> None:
        self.tracker = Tracker()
        self.seconds = itertools.count()
        self.compile_id: str | None = "0/0"
        self.thread = 1

    def _at(self) -> dict[str, Any]:
        return {"time": float(next(self.seconds)), "thread": self.thread, "compile_id": self.compile_id}

    def begin(self, *names: str) -> None:
        for name in names:
            self.tracker.handle(
                SpanStarted(**self._at(), name=name, function="f" if name == "dynamo" else "")
            )

    def end(self, *names: str, **attributes: Any) -> None:
        for name in names:
            self.tracker.handle(SpanEnded(**self._at(), name=name, attributes=attributes))

    def tell(self, kind: type, **fields: Any) -> None:
        self.tracker.handle(kind(**self._at(), **fields))

    @property
    def graph(self) -> GraphRecord:
        """The only graph so far."""
        (graph,) = self.tracker.records
        return graph

    def hit(self, key: str = "k", *, backward: bool = False, **fields: Any) -> None:
        self.tell(LookupStarted, key=key, backward=backward)
        self.tell(GraphLookup, key=key, backward=backward, hit=True, **fields)

    def frame(self, **fields: Any) -> None:
        self.tell(FrameCompiled, **{"function": "f", "location": "In[1]:2", "operators": 3, **fields})

    @contextlib.contextmanager
    def compile(self, *spans: str, mode: str = "", **frame: Any) -> Iterator[None]:
        """Compile a frame; within, its backend runs, in these spans."""
        self.begin("dynamo", "backend_compile", *spans)
        yield
        self.end(*reversed(spans), "backend_compile", **({"dispatch_mode": mode} if mode else {}))
        self.frame(**frame)
        self.end("dynamo")

    def cold_graph(
        self, key: str, *, backward: bool = False, kernels: int = 1, differs: str | None = None
    ) -> None:
        explained = None if differs is None else Explanation("near", (Difference(differs, "1", "2"),))
        self.begin("inductor_compile")
        self.tell(LookupStarted, key=key, backward=backward)
        self.tell(
            GraphLookup,
            key=key,
            backward=backward,
            hit=False,
            reason=differs or "first time",
            explanation=explained,
        )
        for _ in range(kernels):
            self.tell(KernelUsed, compiled=True, size=100)
        self.end("inductor_compile", cache_state="miss", is_backward=backward, key=key)


def test_a_cold_inference_compile_is_one_miss_with_its_seconds_by_phase() -> None:
    script = Script()
    script.tracker.begin_cell(Cell(1, "abc"))
    with script.compile(mode="inference"):
        script.tell(AutogradLookup, outcome=Outcome.MISS, key="a")
        script.cold_graph("k")
        script.tell(ArtifactSeen, type="aot_autograd", size=7)

    (graph,) = script.tracker.end_cell()

    assert (graph.function, graph.compile_id, graph.direction) == ("f", "0/0", Direction.INFERENCE)
    assert (graph.outcome, graph.key, graph.reason, graph.saved_seconds) == (
        Outcome.MISS,
        "k",
        "first time",
        None,
    )
    assert (graph.kernels, graph.kernels_compiled, graph.operators) == (1, 1, 3)
    assert graph.bytes == {"cpp_kernel": 100, "aot_autograd": 7}
    assert graph.cell == Cell(1, "abc")
    assert graph.total_seconds == sum(s for phase, s in graph.seconds.items() if phase != "total") == 11.0
    assert graph.seconds["dynamo"] == 3.0


def test_an_autograd_hit_gives_forward_and_backward_their_own_savings() -> None:
    script = Script()
    script.begin("dynamo", "backend_compile", "AOTAutogradCache.inductor_load")
    for key, backward in (("fw", False), ("bw", True)):
        script.tell(LookupStarted, key=key, backward=backward)
        script.tell(KernelUsed, compiled=False, size=10)
        script.tell(
            GraphLookup,
            key=key,
            backward=backward,
            hit=True,
            saved_seconds=1.0,
            level=Level.L1,
            source="local store",
        )
    script.end("AOTAutogradCache.inductor_load")
    script.tell(AutogradLookup, outcome=Outcome.HIT, forward_saved_seconds=60.0, backward_saved_seconds=30.0)
    script.end("backend_compile", dispatch_mode="autograd")
    script.frame()
    script.end("dynamo")

    forward, backward = script.tracker.records

    assert [g.direction for g in (forward, backward)] == [Direction.FORWARD, Direction.BACKWARD]
    assert [g.outcome for g in (forward, backward)] == [Outcome.HIT, Outcome.HIT]
    assert (forward.level, forward.source, forward.reason) == (Level.L1, "local store", None)
    assert forward.saved_seconds is not None and 50 < forward.saved_seconds < 60
    assert backward.saved_seconds is not None and 25 < backward.saved_seconds < 30
    assert backward.operators is None


@pytest.mark.parametrize(("of_forward", "told"), [("constant lr", "constant lr"), (None, "inputs")])
def test_a_backward_that_missed_is_told_the_cause_of_its_forward(of_forward: str | None, told: str) -> None:
    script = Script()
    with script.compile():
        script.cold_graph("fw", differs=of_forward)
    script.begin("entire_backward_compile")
    script.cold_graph("bw", backward=True, differs="inputs")
    script.end("entire_backward_compile")

    _, backward = script.tracker.records

    assert backward.direction is Direction.BACKWARD
    assert backward.reason == told
    assert backward.explanation is not None and backward.explanation.differences[0].what == told


def test_a_graph_break_before_there_is_anything_to_compile_is_told_with_what_follows() -> None:
    script = Script()
    script.begin("dynamo")
    script.frame(operators=0, graph_break_reason="print (In[1]:2)")
    script.end("dynamo")
    script.compile_id = "1/0"
    with script.compile(function="f (resumed)"):
        script.cold_graph("k")

    graph = script.graph
    assert graph.graph_break_reason == "print (In[1]:2)"


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        ("inductor_compile", "it contains nothing to compile"),
        ("backend_compile", "this backend does not use torch's caches"),
    ],
)
def test_a_graph_that_no_cache_took_tells_an_empty_one_from_another_backend(span: str, reason: str) -> None:
    script = Script()
    script.begin("dynamo", span)
    script.end(span)
    script.frame()
    script.end("dynamo")

    graph = script.graph
    assert (graph.outcome, graph.reason) == (Outcome.BYPASS, reason)


def test_a_lazy_backward_is_a_graph_of_the_cell_that_runs_it() -> None:
    script = Script()
    script.tracker.begin_cell(Cell(1, "one"))
    with script.compile(mode="autograd"):
        script.cold_graph("fw")
    (forward,) = script.tracker.end_cell()
    script.tracker.begin_cell(Cell(2, "two"))
    script.begin("entire_backward_compile", "compile_fx.<locals>.bw_compiler")
    script.cold_graph("bw", backward=True)
    script.end("compile_fx.<locals>.bw_compiler", "entire_backward_compile")
    (backward,) = script.tracker.end_cell()

    assert forward.cell == Cell(1, "one") and backward.cell == Cell(2, "two")
    assert (backward.function, backward.direction) == ("f", Direction.BACKWARD)


@pytest.mark.parametrize("state", ["bypass", "disabled"])
def test_a_graph_that_no_cache_was_asked_for_says_why(state: str) -> None:
    script = Script()
    with script.compile():
        script.begin("inductor_compile")
        script.end("inductor_compile", cache_state=state, cache_bypass_reason="because", is_backward=False)

    graph = script.graph
    assert (graph.outcome, graph.reason) == (Outcome(state), "because")


@pytest.mark.parametrize("frame", [{"operators": 0}, {"operators": None}, {"failure": "unsupported"}])
def test_a_frame_without_a_graph_leaves_no_record(frame: dict[str, Any]) -> None:
    script = Script()
    script.begin("dynamo")
    script.frame(**frame)
    script.end("dynamo")

    assert script.tracker.records == []


def test_a_hit_whose_kernels_were_compiled_again_says_so() -> None:
    script = Script()
    with script.compile("inductor_compile"):
        script.tell(LookupStarted, key="k", backward=False)
        script.tell(KernelUsed, compiled=True)
        script.tell(KernelUsed, compiled=False)
        script.tell(GraphLookup, key="k", backward=False, hit=True, saved_seconds=90.0)

    graph = script.graph
    assert (graph.outcome, graph.kernels, graph.kernels_compiled) == (Outcome.HIT, 2, 1)
    assert graph.reason == "1 of 2 kernels compiled again"


def test_a_graph_that_is_looked_up_again_in_one_compile_counts_once() -> None:
    script = Script()
    with script.compile():
        script.begin("AOTAutogradCache.inductor_load")
        script.tell(LookupStarted, key="k", backward=False)
        script.tell(KernelUsed, compiled=False)
        script.tell(GraphLookup, key="k", backward=False, hit=False, reason="a kernel is missing")
        script.end("AOTAutogradCache.inductor_load")
        script.tell(AutogradLookup, outcome=Outcome.MISS)
        script.cold_graph("k", kernels=2)

    graph = script.graph
    assert (graph.outcome, graph.kernels, graph.kernels_compiled) == (Outcome.MISS, 2, 2)
    assert graph.total_seconds == 16.0


def test_spans_that_an_exception_tore_down_do_not_spoil_the_next_compile() -> None:
    script = Script()
    script.begin("dynamo", "backend_compile", "inductor_compile")
    script.frame(failure="boom")
    script.end("dynamo")
    script.compile_id = "1/0"
    with script.compile(function="g"):
        script.cold_graph("k")

    graph = script.graph
    assert (graph.function, graph.outcome) == ("g", Outcome.MISS)


def test_activity_names_the_function_and_the_innermost_phase() -> None:
    script = Script()
    assert script.tracker.activity(0.0) is None
    script.compile_id = None
    script.begin("compile_file")  # a span of a worker belongs to no compile
    assert script.tracker.activity(9.0) is None
    script.compile_id = "0/0"
    script.begin("dynamo", "backend_compile", "inductor_compile", "async_compile.wait")
    activity = script.tracker.activity(11.0)

    assert activity is not None
    assert (activity.function, activity.compile_id, activity.phase, activity.seconds) == (
        "f",
        "0/0",
        "build",
        10.0,
    )


def test_graphs_outside_any_cell_have_none() -> None:
    script = Script()
    with script.compile():
        script.cold_graph("k")
    script.tracker.begin_cell(Cell(1, "later"))

    assert script.tracker.end_cell() == ()
    assert script.tracker.records[0].cell is None


def hit_with_kernels(script: Script, *names: str, backward: bool = False, hit: bool = True) -> None:
    script.begin("dynamo", "inductor_compile")
    script.tell(LookupStarted, key="k", backward=backward)
    for name in names:
        script.tell(KernelUsed, compiled=None, type="triton", name=name)
    script.tell(GraphLookup, key="k", backward=backward, hit=hit, level=Level.L1, source="local store")
    script.end("inductor_compile", "dynamo")


def test_a_hit_whose_kernels_are_benchmarked_all_the_same_is_re_tuned() -> None:
    script = Script()
    cell = Cell(1, "abc")
    script.tracker.begin_cell(cell)
    hit_with_kernels(script, "a", "b", "a", "b")  # a worker got them before their code was loaded
    script.thread = 2  # it runs on a thread of its own, with nothing being compiled there
    for name in ("a", "a", "b"):
        script.tell(KernelTuned, name=name)

    (graph,) = script.tracker.end_cell()

    assert graph.outcome is Outcome.HIT and graph.cell is cell and graph.kernels == 2
    assert (
        graph.reason
        == "re-tuned: 2 kernels were benchmarked again, since no configuration that fits is stored: a, b"
    )


def test_what_is_tuned_counts_for_the_last_graph_of_its_compile_that_runs_it() -> None:
    script = Script()
    hit_with_kernels(script, "a")
    hit_with_kernels(script, "b", backward=True)
    hit_with_kernels(script, "a")  # compiled again: torch counts anew after a reset
    script.compile_id = "1/0"
    hit_with_kernels(script, "a")
    script.compile_id = "0/0"
    hit_with_kernels(script, "compiled", hit=False)
    for name in ("b", "a", "not seen", "compiled"):
        script.tell(KernelTuned, name=name)
    script.compile_id = None
    script.tell(KernelTuned, name="a")

    note = "re-tuned: 1 kernel was benchmarked again, since no configuration that fits is stored: "
    assert [graph.reason for graph in script.tracker.records] == [None, f"{note}b", f"{note}a", None, None]


def test_tuning_is_told_after_what_else_a_hit_had_to_do() -> None:
    script = Script()
    script.begin("dynamo")
    script.tell(AutogradLookup, outcome=Outcome.MISS)
    hit_with_kernels(script, "a")
    script.end("dynamo")
    script.tell(KernelTuned, name="a")

    graph = script.graph
    assert graph.reason == (
        "traced again: AOTAutograd has no entry for these names, modes, options and inputs; "
        "re-tuned: 1 kernel was benchmarked again, since no configuration that fits is stored: a"
    )
