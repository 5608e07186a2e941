"""The history: golden bytes, what readers do with bytes that are wrong, and estimates that rest on it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nbcache.artifacts.encoding import encode_entry
from nbcache.artifacts.history import (
    MAX_RUNS,
    HistoryStore,
    Run,
    asked_for,
    decode_history,
    encode_history,
    expected,
    merged,
    run_of,
)
from nbcache.artifacts.store import ArtifactStore
from nbcache.core.errors import CorruptEntry, FormatError, UnsupportedVersion
from nbcache.core.key import components
from nbcache.core.model import ArtifactRef, Direction, Environment, GraphSummary, Level, Manifest, Outcome
from nbcache.core.reports import Cell, GraphRecord
from nbcache.stores.base import Store
from nbcache.stores.directory import DirectoryStore
from nbcache.stores.memory import MemoryStore

GOLDEN = (Path(__file__).parents[1] / "golden" / "history-1.json").read_bytes()
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


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return DirectoryStore(tmp_path) if request.param == "directory" else MemoryStore()


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(GOLDEN), **fields}).encode()


def changed_run(**fields: Any) -> bytes:
    first, *more = json.loads(GOLDEN)["runs"]
    return changed(runs=[{**first, **fields}, *more])


def took(*seconds: float, run: Run = MISS) -> list[Run]:
    """Return a run of each length, one after another."""
    return [
        replace(run, number=number, time=run.time + number, seconds={"inductor": each, "total": each})
        for number, each in enumerate(seconds)
    ]


# --- the format ---------------------------------------------------------------------------------


def test_golden_bytes_are_read_and_written_as_ever() -> None:
    assert decode_history(GOLDEN, NOTEBOOK) == [MISS, HIT]
    assert encode_history(NOTEBOOK, [MISS, HIT]) == GOLDEN


def test_a_run_of_a_cell_that_raised_is_marked() -> None:
    runs = [replace(MISS, unfinished=True), HIT]
    assert decode_history(encode_history(NOTEBOOK, runs), NOTEBOOK) == runs


def test_fields_that_are_not_known_are_ignored() -> None:
    assert decode_history(changed_run(novelty=1), NOTEBOOK) == [MISS, HIT]
    assert decode_history(changed(novelty=1), NOTEBOOK) == [MISS, HIT]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"\xff", changed(format="nbcache.ref"), changed(runs={}), changed(runs=[1])),
        *(changed(version=0), changed(notebook="/work/other.ipynb"), changed_run(cell=1)),
        *(changed_run(direction="up"), changed_run(outcome="maybe"), changed_run(level="L9")),
        *(changed_run(time=-1), changed_run(number=-1), changed_run(number=0.5), changed_run(kernel=None)),
        *(changed_run(seconds=[]), changed_run(seconds={"total": "1"}), changed_run(seconds={"total": -1})),
        *(changed_run(saved_seconds="much"), changed_run(reason=1), changed_run(function_cell=[])),
        *(changed_run(execution_count=-1), changed_run(execution_count="3")),
    ],
)
def test_what_is_wrong_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptEntry):
        decode_history(content, NOTEBOOK)


def test_a_later_version_is_told_apart() -> None:
    with pytest.raises(UnsupportedVersion):
        decode_history(changed(version=2), NOTEBOOK)


def test_texts_and_rows_that_are_read_have_an_end() -> None:
    (first, _) = decode_history(changed_run(function="f" * 10**6, reason="a\n\x1b[31mb"), NOTEBOOK)
    assert len(first.function) == 200
    assert first.reason == "a ?[31mb"
    phases = {f"phase {number}": 1.0 for number in range(1000)}
    assert len(decode_history(changed_run(seconds=phases), NOTEBOOK)[0].seconds) == 16
    assert len(decode_history(changed(runs=json.loads(GOLDEN)["runs"] * MAX_RUNS), NOTEBOOK)) == MAX_RUNS


def test_what_is_kept_of_a_graph_can_be_written() -> None:
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

    assert decode_history(encode_history("\ud800", [run]), "\ud800") == [run]
    assert (run.cell, run.key, run.environment) == (Cell.of("f()", None).digest, "", "e" * 16)
    assert (run.execution_count, run.function_cell) == (1, Cell.of("def f(): ...", None).digest)
    assert run.seconds == {"dynamo": 0.1235, "total": 0.2}
    assert run.saved_seconds == 0.0
    assert len(run.function) == len(run.reason) == 200


def test_a_text_that_is_none_is_refused_when_it_is_written() -> None:
    with pytest.raises(FormatError):
        encode_history(NOTEBOOK, [replace(MISS, function="\ud800")])


# --- the store ----------------------------------------------------------------------------------


def test_what_kernels_write_is_read_together_oldest_first(store: Store) -> None:
    history = HistoryStore(store)
    history.write(NOTEBOOK, HIT.kernel, [HIT])
    history.write(NOTEBOOK, MISS.kernel, [MISS])
    history.write("/work/other.ipynb", MISS.kernel, [replace(MISS, function="other")])

    assert history.read(NOTEBOOK) == (MISS, HIT)
    assert history.read("/work/unknown.ipynb") == ()


def test_a_kernel_replaces_its_own_and_nobody_elses(store: Store) -> None:
    history = HistoryStore(store)
    history.write(NOTEBOOK, HIT.kernel, [HIT])
    again = replace(MISS, number=1, time=MISS.time + 1)
    history.write(NOTEBOOK, MISS.kernel, [MISS])
    history.write(NOTEBOOK, MISS.kernel, [MISS, again])

    assert history.read(NOTEBOOK) == (MISS, again, HIT)


def test_many_entries_are_made_one_and_nothing_is_lost(store: Store) -> None:
    history = HistoryStore(store)
    runs = [replace(MISS, kernel=f"{number:016x}", time=MISS.time + number) for number in range(40)]
    for run in runs:
        history.tidy(NOTEBOOK)
        history.write(NOTEBOOK, run.kernel, [run])
    assert len(history.keys(NOTEBOOK)) < 20
    assert list(history.read(NOTEBOOK)) == runs

    # a kernel whose entry was made one with others writes all of its own again
    history.write(NOTEBOOK, runs[0].kernel, [runs[0], replace(runs[0], number=1)])
    assert len(history.read(NOTEBOOK)) == 41


def test_two_kernels_that_tidy_at_once_lose_nothing(store: Store) -> None:
    history = HistoryStore(store)
    runs = [replace(MISS, kernel=f"{number:016x}", time=MISS.time + number) for number in range(40)]
    for run in runs[:20]:
        history.write(NOTEBOOK, run.kernel, [run])
    before = {key: store.get(key) for key in history.keys(NOTEBOOK)}
    history.tidy(NOTEBOOK)
    for run in runs[20:]:
        history.write(NOTEBOOK, run.kernel, [run])
    for key, entry in before.items():  # as a kernel sees it that listed them before
        assert entry is not None
        store.put(key, entry)
    history.tidy(NOTEBOOK)

    assert list(history.read(NOTEBOOK)) == runs


def test_the_newest_runs_are_kept(store: Store) -> None:
    history = HistoryStore(store)
    runs = [replace(MISS, number=number, time=MISS.time + number) for number in range(MAX_RUNS + 50)]
    history.write(NOTEBOOK, MISS.kernel, runs)

    assert list(history.read(NOTEBOOK)) == runs[50:]
    last = replace(HIT, time=runs[-1].time + 1)
    assert list(merged([last, *runs, *runs])) == [*runs[51:], last]


def test_what_cannot_be_read_is_dropped_and_the_rest_is_there(store: Store) -> None:
    history = HistoryStore(store)
    history.write(NOTEBOOK, HIT.kernel, [HIT])
    (whole,) = history.keys(NOTEBOOK)
    folder = whole.rpartition("/")[0]
    store.put(f"{folder}/damaged", b"not an entry")
    store.put(f"{folder}/foreign", encode_entry(encode_history("/work/other.ipynb", [MISS])))
    store.put(f"{folder}/newer", encode_entry(changed(version=2)))

    assert history.read(NOTEBOOK) == (HIT,)
    assert set(history.keys(NOTEBOOK)) == {whole, f"{folder}/newer"}


def test_clearing_the_store_takes_it_along(store: Store) -> None:
    artifacts = ArtifactStore(store)
    artifacts.history.write(NOTEBOOK, HIT.kernel, [HIT])
    assert artifacts.clear() == 1
    assert artifacts.history.read(NOTEBOOK) == ()


def test_the_store_is_bounded(tmp_path: Path) -> None:
    artifacts = ArtifactStore(DirectoryStore(tmp_path))
    for number in range(50):
        artifacts.history.write(f"/work/{number}.ipynb", MISS.kernel, [MISS])
    artifacts.evict(16 * 4000)
    assert sum(len(artifacts.history.read(f"/work/{number}.ipynb")) for number in range(50)) < 20


# --- estimates ----------------------------------------------------------------------------------


def usual(runs: list[Run], *, cell: str = MISS.cell, function: str = MISS.function, **more: str) -> Any:
    return expected(runs, cell, function, Direction.FORWARD, **more)


def test_nothing_is_expected_of_what_never_ran() -> None:
    assert usual([]) == expected([MISS, HIT], MISS.cell, MISS.function, Direction.BACKWARD)
    assert (usual([]).cold, usual([]).restored, usual([]).runs_cold) == (None, None, 0)
    assert usual([MISS], function="other").cold is None
    assert (usual([MISS]).cold, usual([MISS]).restored) == (MISS.seconds, None)


def test_cold_and_restored_are_told_apart() -> None:
    found = usual([MISS, HIT])
    assert (found.cold, found.restored) == (MISS.seconds, HIT.seconds)
    assert (found.runs_cold, found.runs_restored) == (1, 1)


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
