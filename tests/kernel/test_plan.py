"""What the next kernel is expected to find, by the notebook's cells, what is at hand, and the history."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nbcache.core.errors import FormatError
from nbcache.core.key import Difference, components
from nbcache.core.model import ArtifactRef, Direction, Environment, GraphSummary, Level, Manifest, Outcome
from nbcache.core.reports import Cell
from nbcache.kernel.explain.plan import NotebookCell, Place, Plan, Unfit, cells_of, make_plan
from nbcache.storage.history import Run
from nbcache.ui.display.stats import plan_parts, render_plan

HERE = Environment(components({"torch.version": "2.13.0"}))
DEFINE = "def f(x):\n    return x + 1"
CALL = "y = torch.compile(f)(x)"
TRAIN = "loss = step(x)\nloss.backward()"


def notebook(*sources: str, counts: tuple[int | None, ...] = ()) -> tuple[NotebookCell, ...]:
    """Return the code cells of a notebook with these sources; its first cell is text."""
    numbers = counts or (None,) * len(sources)
    code = [
        {"cell_type": "code", "source": source.splitlines(keepends=True), "execution_count": number}
        for source, number in zip(sources, numbers, strict=True)
    ]
    return cells_of(json.dumps({"cells": [{"cell_type": "markdown", "source": "# A"}, *code]}).encode())


def digest(source: str) -> str:
    return Cell.of(source, None).digest


def run(source: str, key: str, seconds: float, **changes: Any) -> Run:
    """Return a graph of `f` that the cell compiled for the first time."""
    made = Run(
        time=1000.0,
        kernel="first",
        number=int.from_bytes(key.encode()),
        environment=HERE.digest[:16],
        cell=digest(source),
        function="f",
        direction=Direction.INFERENCE,
        key=key,
        outcome=Outcome.MISS,
        level=None,
        seconds={"inductor": seconds, "total": seconds},
        execution_count=3,
        function_cell=digest(DEFINE),
    )
    return replace(made, **changes)


def hit(of: Run, seconds: float, **changes: Any) -> Run:
    """Return the same graph, as a later kernel has hit it."""
    took = {"load": seconds, "total": seconds}
    changed = {"kernel": "second", "time": of.time + 100, "seconds": took, **changes}
    return replace(of, outcome=Outcome.HIT, level=Level.L1, **changed)


def place(*keys: str, cell: str = CALL, level: Level = Level.L1, gone: tuple[str, ...] = ()) -> Place:
    """Return a place that has the graphs under these keys, and names those that are gone."""
    refs = [ArtifactRef("inductor", key, key * 64, 1, cell=digest(cell)) for key in (*keys, *gone)]
    graphs = [
        GraphSummary(digest(cell), "f", Direction.INFERENCE, Outcome.MISS, key, 5.0) for key in (*keys, *gone)
    ]
    manifest = Manifest(HERE, "n", tuple(refs), tuple(graphs))
    return Place(level, level.name, manifest, {key * 64 for key in keys})


def verdicts(plan: Plan) -> list[list[str]]:
    return [[graph.verdict.value for graph in each.graphs] for each in plan.cells]


def test_a_notebooks_code_cells_are_read_in_order() -> None:
    define, call = notebook(DEFINE, "\n" + CALL, counts=(1, None))
    assert (define.position, define.label, define.title) == (1, "In[1]", "def f(x):")
    assert (call.position, call.label, call.title) == (2, "cell 2", CALL)
    assert define.digest == digest(DEFINE)
    assert {"torch", "compile", "f", "x", "y"} == call.names
    titles = [cell.title for cell in notebook("", "%%compile_cached f\n# why\n@jit\ndef f(): ...", "# only")]
    assert titles == ["", "def f(): ...", "# only"]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"cells": 1}', b'{"cells": [1]}', b'{"cells": [{}]}', b"\xff", b"[" * 10**5]
)
def test_what_is_no_notebook_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        cells_of(data)


def test_sources_of_any_kind_are_no_error() -> None:
    cells = [{"cell_type": "code", "source": source} for source in ("a", ["a"], [1], None, "\ud800")]
    assert len(cells_of(json.dumps({"cells": cells}).encode())) == 5


def test_what_is_there_is_expected_to_hit_and_what_it_takes_is_known() -> None:
    first = run(CALL, "a", 6.0)
    plan = make_plan(notebook(DEFINE, CALL), [place("a")], [first, hit(first, 0.25)], [HERE.digest])

    assert verdicts(plan) == [["hit"]]
    assert (plan.graphs, plan.hits, plan.edited, plan.others) == (1, 1, 0, 1)
    assert (plan.cold_seconds, plan.expected_seconds) == (6.0, 0.25)
    (graph,) = plan.cells[0].graphs
    assert (graph.level, graph.source) == (Level.L1, "L1")


def test_the_nearest_place_counts() -> None:
    places = [place("a"), place("a", "b", level=Level.L2)]
    plan = make_plan(notebook(CALL), places, [])
    assert [graph.level for graph in plan.cells[0].graphs] == [Level.L1, Level.L2]


def test_without_a_history_what_a_hit_saves_is_what_is_known() -> None:
    plan = make_plan(notebook(DEFINE, CALL), [place("a")], [])
    assert verdicts(plan) == [["hit"]]
    assert (plan.cold_seconds, plan.expected_seconds) == (5.0, None)


def test_the_graphs_of_a_cell_are_those_of_the_last_kernel_that_ran_it() -> None:
    before, now = run(CALL, "a", 6.0), run(CALL, "b", 7.0, kernel="second", time=2000.0)
    plan = make_plan(notebook(DEFINE, CALL), [place("a", "b")], [before, now], [HERE.digest])
    assert [graph.key for graph in plan.cells[0].graphs] == ["b"]


def test_after_a_scratch_cell_that_was_deleted_a_graph_is_not_sure_to_hit() -> None:
    history = [run("f(y)", "a", 6.0), run(CALL, "b", 7.0)]
    graphs, environments = [place("a", "b", "c")], [HERE.digest]
    assert verdicts(make_plan(notebook(DEFINE, CALL), graphs, history, environments)) == [["edited"]]
    assert verdicts(make_plan(notebook(DEFINE, "f(y)", CALL), graphs, history, environments)) == [["hit"]] * 2

    # what another kernel compiled without that cell is what the next one will find
    without = run(CALL, "c", 6.0, kernel="zeroth", time=500.0)
    plan = make_plan(notebook(DEFINE, CALL), graphs, [without, *history], environments)
    assert [graph.key for graph in plan.cells[0].graphs] == ["c"]
    assert verdicts(plan) == [["hit"]]


def test_what_is_not_there_any_more_is_compiled_again() -> None:
    history = [run(CALL, "a", 6.0), run(CALL, "b", 2.0)]
    plan = make_plan(notebook(DEFINE, CALL), [place("a", gone=("b",))], history, [HERE.digest])
    assert verdicts(plan) == [["hit", "gone"]]
    assert plan.expected_seconds is None  # a hit of this function was never seen
    assert verdicts(make_plan(notebook(DEFINE, CALL), [], history, [HERE.digest])) == [["gone", "gone"]]


def test_what_missed_in_cells_that_are_the_same_as_last_time_is_named() -> None:
    first = run(CALL, "a", 6.0)
    again = replace(first, kernel="second", key="b", time=2000.0, reason="not stored: threads")
    new = replace(again, cell=digest(TRAIN), number=2)
    plan = make_plan(notebook(DEFINE, CALL), [place("a", "b")], [first, again, new], [HERE.digest])
    assert plan.missed_unchanged == (again,)
    line = "in the last kernel 1 graph missed in cells that are the same as last time: In[3] f inference"
    assert line in render_plan(plan, "n.ipynb").text
    redefined = replace(again, function_cell=digest(DEFINE + " # edited"))
    plan = make_plan(notebook(DEFINE, CALL), [place("a", "b")], [first, redefined], [HERE.digest])
    assert plan.missed_unchanged == ()


def test_what_torch_bypasses_is_compiled_each_time() -> None:
    bypassed = run(CALL, "", 2.0, outcome=Outcome.BYPASS)
    plan = make_plan(notebook(DEFINE, CALL), [], [bypassed], [HERE.digest])
    assert verdicts(plan) == [["bypass"]]
    assert (plan.cold_seconds, plan.expected_seconds) == (2.0, 2.0)


def test_what_ran_in_another_environment_only_is_compiled() -> None:
    there = run(CALL, "a", 6.0, environment="0" * 16)
    assert verdicts(make_plan(notebook(DEFINE, CALL), [], [there], [HERE.digest])) == [["elsewhere"]]
    here = run(CALL, "b", 6.0)
    plan = make_plan(notebook(DEFINE, CALL), [place("b")], [here, there], [HERE.digest])
    assert [graph.key for graph in plan.cells[0].graphs] == ["b"]


def test_only_what_hits_saves_something() -> None:
    history = [run(CALL, "a", 6.0), run(TRAIN, "b", 1.0, function="g", execution_count=4)]
    cells = notebook(DEFINE, CALL + " # edited", TRAIN, counts=(2, 3, 4))
    plan = make_plan(cells, [place("a"), place("b", cell=TRAIN)], history, [HERE.digest])
    (saved,) = [part for part in plan_parts(plan) if part.startswith("saves about")]
    assert saved == "saves about 5.0 s"  # by the manifest, which tells of the compile that is stored
    assert plan.cold_seconds == 7.0

    plan = make_plan(cells, [], history, [HERE.digest])
    assert plan.saved_seconds is None and not any("saves" in part for part in plan_parts(plan))


def test_an_edited_cell_is_known_by_its_number() -> None:
    first = run(CALL, "a", 6.0, execution_count=7)
    cells = notebook(DEFINE, "print(f)", "print(y)", counts=(1, 2, 7))
    plan = make_plan(cells, [place("a")], [first], [HERE.digest])
    (edited,) = plan.cells
    assert edited.is_edited and edited.cell.label == "In[7]"
    assert verdicts(plan) == [["edited"]]
    assert plan.cold_seconds == 6.0
    assert "1 cell was edited since" in plan_parts(plan)


def test_an_edited_cell_is_known_by_where_it_stands_if_the_file_has_no_numbers() -> None:
    cells = notebook("import torch", DEFINE, "f(x + 1)", "print(2)", TRAIN)
    edited = run(CALL, "a", 6.0, function="<lambda>", execution_count=3)
    plan = make_plan(cells, [place("a")], [edited], [HERE.digest])
    assert [each.cell.position for each in plan.cells] == [3]  # all were run in order


def test_an_edited_cell_is_known_by_the_functions_that_it_mentions() -> None:
    cells = notebook(DEFINE, "print('f')", CALL + " # faster")
    plan = make_plan(cells, [place("a")], [run(CALL, "a", 6.0, execution_count=None)], [HERE.digest])
    assert [each.cell.position for each in plan.cells] == [2]  # the first that names it: a guess

    resumed = run(CALL, "a", 6.0, function="train (resumed)")
    plan = make_plan(notebook(DEFINE, "g()", "train()"), [place("a")], [resumed], [HERE.digest])
    assert [each.cell.position for each in plan.cells] == [3]

    module = replace(resumed, function="Model.forward")
    plan = make_plan(notebook("x.forward()", "Model()(x)"), [place("a")], [module], [HERE.digest])
    assert [each.cell.position for each in plan.cells] == [2]


def test_a_cell_that_defines_what_another_calls_was_edited() -> None:
    cells = notebook(DEFINE.replace("1", "2"), CALL)
    plan = make_plan(cells, [place("a")], [run(CALL, "a", 6.0)], [HERE.digest])
    assert verdicts(plan) == [["edited"]]
    assert plan.edited == 0  # of the cells that compile none was


def test_what_a_cell_was_before_its_last_edits_is_not_told() -> None:
    earlier = [run(CALL + f" # {number}", "a", 6.0, time=1000.0 + number) for number in range(3)]
    now = run(CALL, "b", 6.0, time=2000.0)
    plan = make_plan(notebook(DEFINE, CALL, "print(f)"), [place("a", "b")], [*earlier, now], [HERE.digest])
    assert [(each.cell.position, each.is_edited) for each in plan.cells] == [(2, False)]
    assert (plan.edited, plan.gone) == (0, ())

    plan = make_plan(notebook(DEFINE, CALL + " # again"), [place("a", "b")], [*earlier, now], [HERE.digest])
    assert [graph.key for graph in plan.cells[0].graphs] == ["b"]


def test_cells_that_are_gone_are_named_by_what_they_compiled() -> None:
    plan = make_plan(notebook(DEFINE), [place("a")], [run("g()", "a", 6.0, function="g")], [HERE.digest])
    assert (plan.cells, plan.gone) == ((), ("g",))


def test_a_cell_that_stands_twice_is_counted_once() -> None:
    plan = make_plan(notebook(CALL, CALL), [place("a")], [], [])
    assert (plan.graphs, plan.others) == (1, 1)


def test_what_never_compiled_is_no_part_of_it() -> None:
    plan = make_plan(notebook("1 + 1", ""), [], [])
    assert (plan.cells, plan.others, plan.cold_seconds) == ((), 2, None)


def a_plan() -> Plan:
    f, g = run(CALL, "a", 6.0), run(TRAIN, "b", 12.0, function="step" * 30, execution_count=4)
    history = [f, hit(f, 0.25), g, run("h()", "c", 1.0, function="h", execution_count=None)]
    bypassed = run("h2()", "", 1.5, function="h2", outcome=Outcome.BYPASS)
    cells = notebook(DEFINE, CALL, TRAIN + " # edited", "h2()", "1 + 1", counts=(2, 3, 4, 5, None))
    differences = (Difference("torch.version", "2.12.0", "2.13.0"),)
    lines = ("differs        there   here    what to do", "torch.version  2.12.0  2.13.0  install it")
    unfit = [Unfit("local store", 6, lines, differences)]
    return make_plan(cells, [place("a"), place("b", cell=TRAIN)], [*history, bypassed], [HERE.digest], unfit)


def test_it_reads_as_a_table_of_cells() -> None:
    shown = render_plan(replace(a_plan(), notes=("by the file as it was saved 3 s ago",)), "model.ipynb")
    assert max(map(len, shown.text.splitlines())) <= 110
    assert shown.text.replace("–", "").replace("·", "").isascii()
    assert "1 of 1 graph hit" in shown.text and "edited since: step" in shown.text
    assert "1 bypassed" in shown.text and "not used: 6 graphs of local store" in shown.text
    for part in ("<script", "<style", "javascript"):
        assert part not in shown.html
    assert shown.mime == "application/vnd.nbcache.plan+json" and shown.data is not None
    difference = {"label": "torch.version", "there": "2.12.0", "here": "2.13.0"}
    assert shown.data["unfit"][0]["differences"] == [difference]


def test_a_hostile_notebook_steers_nothing() -> None:
    cells = notebook("<script>alert(1)</script>\x1b[31m f", counts=(1,))
    plan = make_plan(cells, [place("a", cell="<script>alert(1)</script>\x1b[31m f")], [])
    shown = render_plan(plan, "<b>.ipynb")
    assert "<script" not in shown.html and "<b>.ipynb" not in shown.html
    assert "\x1b" not in shown.text


def test_why_there_is_no_plan_stands_in_its_place() -> None:
    shown = render_plan(Plan(problem="there is no such file"), "n.ipynb")
    assert shown.text == "nbcache plan · n.ipynb · there is no such file"
