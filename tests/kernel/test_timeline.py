"""Where the seconds of cells went, cold beside restored, and how the kernels of a notebook followed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import Activity, Cell, CellReport, GraphRecord
from nbcache.kernel.explain.timeline import timeline, with_estimates
from nbcache.storage.history import Run
from nbcache.ui.display.stats import render_timeline

CELL = Cell.of("step(x)", 3)
COLD = {"dynamo": 1.0, "inductor": 4.0, "build": 5.0, "total": 10.0}
WARM = {"dynamo": 1.0, "load": 0.5, "total": 1.5}


def graph(outcome: Outcome = Outcome.HIT, seconds: Any = WARM) -> GraphRecord:
    return GraphRecord("step", "0/0", Direction.FORWARD, outcome, cell=CELL, seconds=seconds)


def run(
    kernel: str, time: float, outcome: Outcome = Outcome.HIT, seconds: Any = WARM, reason: str = ""
) -> Run:
    key, digest = f"key {kernel}", CELL.digest
    direction = Direction.FORWARD
    return Run(time, kernel, 0, "e", digest, "step", direction, key, outcome, None, seconds, reason=reason)


EARLIER = run("k1", 100.0, Outcome.MISS, COLD, "compiled for the first time in this notebook")


def test_a_restored_cell_stands_beside_what_compiling_it_takes() -> None:
    report = CellReport(CELL, (graph(),), 2.0)

    found = timeline([report, CellReport(CELL, (), 9.0)], [EARLIER, run("k2", 200.0)], "k2")

    (cell,) = found.cells
    assert cell.label == "In[3]" and cell.functions == ("step",) and cell.is_restored
    assert cell.bars() == [
        ("cold", {"dynamo": 1.0, "inductor": 4.0, "build": 5.0, "outside": 0.5}),
        ("now", {"dynamo": 1.0, "load": 0.5, "outside": 0.5}),
    ]


def test_a_compiled_cell_stands_beside_what_restoring_it_takes_where_that_is_known() -> None:
    report = CellReport(CELL, (graph(Outcome.MISS, COLD),), 12.0)
    (cell,) = timeline([report], [run("k1", 100.0), EARLIER], "k1").cells
    assert [label for label, _ in cell.bars()] == ["now", "restored"]
    (cell,) = timeline([report], [], "k1").cells
    assert [label for label, _ in cell.bars()] == ["now"]


def test_what_was_lost_and_the_kernels_come_from_the_history() -> None:
    again = replace(EARLIER, kernel="k2", time=200.0, reason="not stored: constant lr: 0.1 before, 0.2 now")
    found = timeline([], [EARLIER, again, run("k3", 300.0)], "k3")
    assert [(each.reason.partition(":")[2][:11], each.seconds) for each in found.lost] == [
        (" compiled f", 10.0),
        (" not stored", 10.0),
    ]
    assert [(each.is_now, each.hits, each.graphs) for each in found.kernels] == [
        (True, 1, 1),
        (False, 0, 1),
        (False, 0, 1),
    ]


def test_bars_are_on_one_scale_and_colour_is_not_the_only_sign() -> None:
    report = CellReport(CELL, (graph(),), 2.0)
    shown = render_timeline(timeline([report], [EARLIER, run("k2", 200.0)], "k2"), "n.ipynb", at=260.0)
    lines = shown.text.splitlines()
    assert lines[0] == "nbcache timeline · n.ipynb"
    assert f"    cold      {'D' * 5}{'I' * 19}{'B' * 24}..  ~10.5 s" in lines
    assert "    now       DDDDDll...  2.0 s" in lines
    assert "D Dynamo  A" not in shown.text and "B kernel build" in shown.text
    assert "this one" in shown.text and "1 of 1 graph" in shown.text
    assert all(len(line) <= 110 for line in lines)
    assert 'title="Inductor 4.0 s"' in shown.html and "<script" not in shown.html
    assert render_timeline(timeline([], [], "k")).text == "nbcache timeline · nothing has compiled yet"


COMPILED = Run(1.0, "k1", 0, "e", "c1", "f", Direction.FORWARD, "key", Outcome.MISS, None, {"total": 14.0})
RESTORED = replace(COMPILED, kernel="k2", time=2.0, outcome=Outcome.HIT, seconds={"total": 0.5})
OF_BACKWARD = replace(COMPILED, number=1, direction=Direction.BACKWARD, seconds={"total": 4.0})
NOW = Activity("f", "0/0", "dynamo", 1.0, 0)


def test_a_compile_usually_takes_what_it_took() -> None:
    history = [COMPILED, OF_BACKWARD, RESTORED]
    assert with_estimates(NOW, history, "c1", stored=False).usual_seconds == 14.0
    assert with_estimates(NOW, history, "c1", stored=True).usual_seconds == 0.5
    assert with_estimates(replace(NOW, backward=True), history, "c1", stored=False).usual_seconds == 4.0
    assert with_estimates(replace(NOW, phase="build"), history, "c1", stored=True).usual_seconds == 14.0
    assert with_estimates(NOW, [], "c1", stored=False) == NOW


def test_graphs_are_those_of_the_kernel_that_ran_the_cell_last() -> None:
    assert with_estimates(NOW, [COMPILED, OF_BACKWARD], "c1", stored=False).usual_graphs == 2
    assert with_estimates(NOW, [COMPILED, OF_BACKWARD, RESTORED], "c1", stored=False).usual_graphs == 1
    assert with_estimates(NOW, [COMPILED], "c2", stored=False).usual_graphs == 0
