"""The history: what kernels write and read at once, files that are damaged, and estimates."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nbcache.core.key import components
from nbcache.core.model import ArtifactRef, Direction, Environment, GraphSummary, Level, Manifest, Outcome
from nbcache.core.reports import Cell, GraphRecord
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.history import MAX_RUNS, HistoryStore, Run, asked_for, merged, run_of, usual_of
from nbcache.storage.store import ArtifactStore

NOTEBOOK = "/work/model.ipynb"
MISS = Run(
    time=1700000000.5,
    kernel="00112233445566aa",
    number=0,
    environment="fedcba9876543210",
    cell="0123456789abcdef",
    function="Modèle.forward",
    direction=Direction.FORWARD,
    key="fabc",
    outcome=Outcome.MISS,
    level=None,
    seconds={"dynamo": 0.25, "inductor": 6.0, "total": 6.25},
    reason="not stored: threads: 2 before, 1 now",
    execution_count=3,
    function_cell="aaaabbbbccccdddd",
)
HIT = replace(
    MISS,
    time=1700000100.0,
    kernel="8899aabbccddeeff",
    outcome=Outcome.HIT,
    level=Level.L1,
    seconds={"load": 0.125, "total": 0.125},
    saved_seconds=5.875,
    reason="",
    execution_count=None,
    function_cell="",
)


@pytest.fixture
def history(tmp_path: Path) -> HistoryStore:
    return HistoryStore(tmp_path)


def took(*seconds: float, run: Run = MISS) -> list[Run]:
    """Return a run of each length, one after another."""
    return [
        replace(run, number=number, time=run.time + number, seconds={"inductor": each, "total": each})
        for number, each in enumerate(seconds)
    ]


# --- the store ----------------------------------------------------------------------------------


def test_the_columns_are_those_of_version_1(tmp_path: Path, history: HistoryStore) -> None:
    assert history.write(NOTEBOOK, [HIT])
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
        columns = database.execute("SELECT name FROM pragma_table_info('run')").fetchall()
    assert " ".join(name for (name,) in columns) == (
        "notebook time kernel number environment cell function direction key outcome level seconds"
        " saved_seconds reason execution_count function_cell unfinished"
    )


def test_what_is_kept_of_a_graph_can_be_written(history: HistoryStore) -> None:
    graph = GraphRecord(
        function="f\ud800" + "x" * 1000,
        compile_id="0/0",
        direction=Direction.INFERENCE,
        outcome=Outcome.BYPASS,
        cell=Cell.of("f()", 1),
        function_cell=Cell.of("def f(): ...", 0),
        seconds={"dynamo": 0.123456, "total": 0.2},
        saved_seconds=-0.1,
        reason="because\nof " + "this " * 1000,
    )
    run = run_of(graph, time=1.0, kernel="k", number=3, environment="e" * 64)

    assert history.write("\ud800", [run])
    assert history.read("\ud800") == (run,)
    assert (run.cell, run.key, run.environment) == (Cell.of("f()", None).digest, "", "e" * 16)
    assert (run.execution_count, run.function_cell) == (1, Cell.of("def f(): ...", None).digest)
    assert run.seconds == {"dynamo": 0.1235, "total": 0.2}
    assert run.saved_seconds == 0.0
    assert len(run.function) == len(run.reason) == 200


def test_what_kernels_write_is_read_together_oldest_first(history: HistoryStore, tmp_path: Path) -> None:
    other = replace(MISS, kernel="another", function="other", unfinished=True)
    assert history.write(NOTEBOOK, [HIT])
    assert HistoryStore(tmp_path).write(NOTEBOOK, [MISS])
    assert history.write(NOTEBOOK, [MISS])  # once more, as where its answer was lost
    assert history.write("/work/other.ipynb", [other])

    assert history.read(NOTEBOOK) == (MISS, HIT)
    assert history.read("/work/unknown.ipynb") == ()
    assert history.everything() == (MISS, other, HIT)
    history.clear(NOTEBOOK)
    assert history.everything() == (other,)


def test_the_newest_runs_are_kept(history: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [replace(MISS, number=number, time=MISS.time + number) for number in range(MAX_RUNS + 50)]
    assert history.write(NOTEBOOK, runs)
    assert list(history.read(NOTEBOOK)) == runs[50:]
    last = replace(HIT, time=runs[-1].time + 1)
    assert list(merged([last, *runs, *runs])) == [*runs[51:], last]

    monkeypatch.setattr("nbcache.storage.history._MAX_RUNS_IN_ALL", 10)
    assert history.write("/work/other.ipynb", [last])
    assert list(history.everything()) == [*runs[-9:], last]


@pytest.mark.parametrize("damage", ["no database", "other columns", "truncated"])
def test_a_damaged_file_is_replaced(tmp_path: Path, history: HistoryStore, damage: str) -> None:
    file = tmp_path / "history.sqlite"
    if damage == "no database":
        file.write_bytes(b"junk" * 1000)
    elif damage == "other columns":
        with closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE run (x)")
            database.execute("PRAGMA user_version = 1")
    else:
        assert history.write(NOTEBOOK, [replace(MISS, number=number) for number in range(500)])
        os.truncate(file, file.stat().st_size // 2)
    assert history.read(NOTEBOOK) == ()
    assert history.write(NOTEBOOK, [HIT])
    assert history.read(NOTEBOOK) == (HIT,)


def test_a_file_of_a_newer_nbcache_is_left_alone(tmp_path: Path, history: HistoryStore) -> None:
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as database:
        database.execute("PRAGMA user_version = 2")
    before = (tmp_path / "history.sqlite").read_bytes()
    assert not history.write(NOTEBOOK, [HIT])
    assert history.read(NOTEBOOK) == ()
    history.clear()
    assert (tmp_path / "history.sqlite").read_bytes() == before


def test_a_row_that_cannot_be_read_costs_no_other(tmp_path: Path, history: HistoryStore) -> None:
    for column, value in (
        ("seconds", "[]"),
        ("outcome", "maybe"),
        ("time", "late"),
        ("seconds", b"\xff"),
        ("environment", None),
        ("number", "first"),
    ):
        history.clear()
        assert history.write(NOTEBOOK, [MISS, HIT])
        with closing(sqlite3.connect(tmp_path / "history.sqlite")) as database, database:
            database.execute(f"UPDATE run SET {column} = ? WHERE kernel = ?", (value, MISS.kernel))
        assert history.read(NOTEBOOK) == (HIT,)


def test_where_nothing_can_be_kept_nothing_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for history in (
        HistoryStore(None),
        HistoryStore(tmp_path / "file"),
        ArtifactStore(MemoryStore()).history,
    ):
        assert not history.write(NOTEBOOK, [HIT])
        assert history.read(NOTEBOOK) == history.everything() == ()
        history.clear()


def test_it_lies_in_the_private_folder_of_the_store_and_is_cleared_with_it(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    artifacts = ArtifactStore(store)
    assert artifacts.history.write(NOTEBOOK, [HIT])
    assert (tmp_path / "v2" / "history.sqlite").exists()
    artifacts.evict(1 << 20)
    assert list(store.keys()) == []
    assert artifacts.history.read(NOTEBOOK) == (HIT,)
    assert artifacts.clear() == 0
    assert artifacts.history.read(NOTEBOOK) == ()


# --- estimates ----------------------------------------------------------------------------------


def usual(runs: list[Run], *, cell: str = MISS.cell, function: str = MISS.function, **more: str) -> Any:
    return usual_of(runs, cell, function, Direction.FORWARD, **more)


def test_cold_and_restored_runs_have_an_estimate_each() -> None:
    assert usual([]) == usual_of([MISS, HIT], MISS.cell, MISS.function, Direction.BACKWARD)
    assert (usual([]).cold, usual([]).restored, usual([]).runs_cold) == (None, None, 0)
    assert usual([MISS], function="other").cold is None
    found = usual([MISS, HIT])
    assert (found.cold, found.restored) == (MISS.seconds, HIT.seconds)
    assert (found.runs_cold, found.runs_restored) == (1, 1)
    assert (usual([MISS]).cold, usual([MISS]).restored) == (MISS.seconds, None)


def test_it_is_the_median_of_the_last_five_and_its_phases_add_up() -> None:
    runs = took(100.0, 100.0, 1.0, 9.0, 2.0, 3.0, 50.0)
    assert usual(runs).cold == {"inductor": 3.0, "total": 3.0}
    assert usual(runs).runs_cold == 5
    assert usual(took(4.0, 2.0)).cold == {"inductor": 2.0, "total": 2.0}


def test_where_the_cell_was_edited_the_function_counts() -> None:
    assert usual(took(3.0), cell="edited").cold == {"inductor": 3.0, "total": 3.0}
    other_cell = replace(MISS, cell="elsewhere", seconds={"total": 9.0})
    assert usual([other_cell, MISS]).cold == MISS.seconds


def test_a_lambda_of_another_cell_is_another_function() -> None:
    run = replace(MISS, function="<lambda>")
    assert usual([run], function="<lambda>").cold == MISS.seconds
    assert usual([run], function="<lambda>", cell="edited").cold is None


def test_the_same_environment_counts_where_it_is_known() -> None:
    there = replace(MISS, environment="0" * 16, seconds={"total": 1.0})
    assert usual([MISS, there], environment=MISS.environment + "0" * 48).cold == MISS.seconds
    assert usual([there], environment=MISS.environment + "0" * 48).cold == there.seconds


HERE = Environment(components({"torch.version": "2.13.0"}))


def graph(cell: str, key: str, function: str = "f", artifacts: str = "") -> GraphSummary:
    digests = tuple(digest * 64 for digest in artifacts or key)
    return GraphSummary(cell, function, Direction.FORWARD, Outcome.MISS, key, 1.0, digests)


def ran(cell: str, key: str, kernel: str, function: str = "f", function_cell: str = "") -> Run:
    environment = HERE.digest[:16]
    return replace(
        MISS,
        cell=cell,
        key=key,
        kernel=kernel,
        function=function,
        function_cell=function_cell,
        environment=environment,
    )


def keys(graphs: tuple[GraphSummary, ...], cells: set[str], *runs: Run) -> str:
    refs = tuple(
        ArtifactRef("inductor", graph.key, graph.artifacts[0], 1, 0.0, 0.0, graph.cell, graph.function)
        for graph in graphs
    )
    manifest = asked_for(Manifest(HERE, "", refs, graphs), cells, runs)
    assert {ref.key for ref in manifest.artifacts} == {graph.key for graph in manifest.graphs}
    return "".join(graph.key for graph in manifest.graphs)


def test_the_present_cells_ask_for_what_they_compiled_and_for_nothing_of_others() -> None:
    graphs = (graph("old", "a"), graph("now", "b"), graph("", "c"))
    assert keys(graphs, {"now", "another"}) == "bc"
    assert keys(graphs, {"elsewhere"}) == "c"
    assert keys(graphs, set()) == "c"


def test_of_a_cell_that_ran_in_several_kernels_the_last_one_counts() -> None:
    graphs = (graph("now", "a"), graph("now", "b"), graph("now", "d", "g"))
    first, second, third = ran("now", "a", "one"), ran("now", "b", "two"), ran("now", "d", "one", "g")
    assert keys(graphs, {"now"}) == "abd"  # no history
    assert keys(graphs, {"now"}, first, third, second) == "bd"
    assert keys(graphs, {"now"}, first, replace(second, kernel="one")) == "abd"
    assert keys(graphs, {"now"}, first, replace(second, environment="0" * 16)) == "ad"
    assert keys(graphs, {"now"}, first, ran("old", "b", "two")) == "ad"


def test_a_cell_that_raised_drops_no_graph_of_its_earlier_runs() -> None:
    graphs = tuple(graph("now", key) for key in "abcd")
    first, second, third, fourth = (
        ran("now", "a", "one"),
        ran("now", "b", "one"),
        replace(ran("now", "c", "two"), unfinished=True),
        ran("now", "d", "two"),
    )
    assert keys(graphs, {"now"}, first, second, third) == "abc"
    assert keys(graphs, {"now"}, first, second, third, fourth) == "cd"  # the cell ran again, to its end
    assert keys(graphs, {"now"}, third, first, second) == "ab"


def test_what_a_definition_of_before_has_compiled_is_asked_for_no_longer() -> None:
    graphs = (graph("now", "a"), graph("now", "b"))
    first, second = (ran("now", key, "one", function_cell=cell) for key, cell in (("a", "v1"), ("b", "v2")))
    assert keys(graphs, {"now", "v2"}, first, second) == "b"
    assert keys(graphs, {"now", "v3"}, first, second) == "ab"  # it was edited, and has not run since


def test_artifacts_that_several_graphs_need_stay() -> None:
    graphs = (graph("old", "a", artifacts="ae"), graph("now", "b", artifacts="be"))
    refs = tuple(
        ArtifactRef(type, key, key * 64, 1, 0.0, 0.0, cell, "f")
        for type, key, cell in (
            ("inductor", "a", "old"),
            ("inductor", "b", "now"),
            ("cpp_kernel", "e", "old"),
            ("cpp_kernel", "d", "old"),
            ("probe", "c", ""),
        )
    )
    manifest = asked_for(Manifest(HERE, "", refs, graphs), {"now"}, ())
    assert [ref.key for ref in manifest.artifacts] == ["b", "e", "c"]
