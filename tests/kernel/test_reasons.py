"""Why a graph was not there: each cause has a sentence of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nbcache.core.key import Component
from nbcache.core.model import Direction, Environment, GraphSummary, Manifest, Outcome
from nbcache.core.reports import Cell, GraphRecord
from nbcache.kernel.explain.components import Components, to_text
from nbcache.kernel.reasons import FIRST_TIME, Elsewhere, Miss, unusable, why_missed

CELL = Cell(1, "c1")
MISS = Miss("now", "f", CELL, 2)


def stored(function: str = "f", cell: str = "c1", key: str = "k1", **more: Any) -> GraphSummary:
    return GraphSummary(cell, function, Direction.INFERENCE, Outcome.MISS, key, 1.0, **more)


def compiled(function: str = "f", threads: int = 0) -> GraphRecord:
    return GraphRecord(function, "0/0", Direction.INFERENCE, Outcome.MISS, threads=threads)


INTERRUPTED = replace(compiled(), key="now", reason="not compiled: interrupted")
LAMBDA = Miss("now", "<lambda>", CELL, 2)
OTHER_LAMBDA = replace(LAMBDA, cell=Cell(1, "c2"), threads=4)
LAMBDAS = [stored("<lambda>", cell="c2", threads=4)]
STRANGE = Elsewhere((stored(key="now"),), "in a.nbcache, not signed")
GONE = "it was stored, and has been evicted or removed since"
OTHER_CODE = "this kernel's graphs of this name have other code"
UNCHANGED = "this cell is unchanged, so inputs, settings or code outside it differ"


@pytest.mark.parametrize(
    ("miss", "known", "earlier", "said"),
    [
        (MISS, [], [], FIRST_TIME),
        (MISS, [stored("another")], [], FIRST_TIME),
        (MISS, [stored()], [], UNCHANGED),
        (MISS, [stored(cell="c2")], [], "stored graphs of this name have other code, inputs or settings"),
        (replace(MISS, threads=1), [stored(threads=2)], [], "for this number of threads: 1 now, 2 before"),
        (replace(MISS, threads=1), [stored(threads=2), stored(key="k2", threads=4)], [], "2 or 4 before"),
        (MISS, [stored(threads=2)], [], UNCHANGED),
        (MISS, [stored(key="now")], [], GONE),
        # what this kernel has compiled counts as well, but for a compile that was interrupted
        (MISS, [], [compiled(threads=4)], "2 now, 4 before"),
        (MISS, [], [compiled()], OTHER_CODE),
        (MISS, [], [compiled("g")], FIRST_TIME),
        (MISS, [], [INTERRUPTED], OTHER_CODE),
        (MISS, [], [replace(INTERRUPTED, reason=FIRST_TIME)], GONE),
        # without its C++ kernels, it names the threads where they differ
        (replace(MISS, incomplete=True), [stored(key="now", threads=2)], [], "a C++ kernel of it is missing"),
        (replace(MISS, incomplete=True), [stored(key="now", threads=3)], [], "2 now, 3 before"),
        # a backward does not differ from a forward, and another cell's lambda is another function
        (replace(MISS, backward=True), [stored()], [compiled()], FIRST_TIME),
        (LAMBDA, LAMBDAS, [compiled("<lambda>", 4)], FIRST_TIME),
        (OTHER_LAMBDA, LAMBDAS, [], UNCHANGED),
    ],
)
def test_a_miss_says_what_is_known_of_its_cause(
    miss: Miss, known: list[GraphSummary], earlier: list[GraphRecord], said: str
) -> None:
    assert said in why_missed(miss, known, earlier).text


def test_a_graph_of_a_stranger_is_named_where_it_is_the_same_graph() -> None:
    said = f"not used: it is {STRANGE.where}"
    assert why_missed(MISS, [], [], [STRANGE]).text == said
    assert why_missed(MISS, [stored()], [], [STRANGE]).text == said  # though others are known
    assert why_missed(replace(MISS, key="other"), [], [], [STRANGE]).text == FIRST_TIME


def test_parts_of_one_run_are_no_versions_of_each_other() -> None:
    run = Cell.of("f(x)", 1)

    def why(function: str, cell: Cell) -> str:
        part = replace(compiled(function), cell=cell)
        return why_missed(Miss("now", function, run, 2), [], [part]).text

    assert why("f (resumed)", run) == why("<lambda>", run) == FIRST_TIME
    assert "this kernel's graphs" in why("f", run)
    assert "this kernel's graphs" in why("f (resumed)", Cell.of("f(x)", 2))


def test_of_versions_that_differ_as_much_the_newest_is_compared_with() -> None:
    def components(rate: str) -> Components:
        return Components((), (), {}, {"gm": f"#{rate}"}, {"lr": rate})

    def clause(known: list[GraphSummary], here: list[GraphRecord]) -> str:
        miss = Miss("now", "f", CELL, 0, components=components("9"))
        found = why_missed(miss, known, here).explanation
        assert found is not None
        return found.differences[0].before

    newest_first = [stored(key=rate, components=to_text(components(rate))) for rate in ("2", "1")]
    made = [replace(compiled(), key=rate, components=to_text(components(rate))) for rate in ("3", "4")]
    assert clause(newest_first, []) == "2"
    assert clause(newest_first, made) == "4"


def environment(torch: str) -> Environment:
    return Environment((Component("device", "cpu"), Component("torch.version", torch)))


def test_a_graph_of_another_environment_says_what_differs() -> None:
    manifest = Manifest(environment("2.13.0"), "n.ipynb", (), (stored(),))
    elsewhere = [*unusable([manifest], environment("2.15.0"), "in n.nbcache")]

    why = why_missed(Miss("now", "f", CELL, 2), [], [], elsewhere)

    assert why.text == "not stored for this environment: torch: 2.13.0 before, 2.15.0 now (in n.nbcache)"
    assert why.explanation is not None and why.explanation.nearest == "k1"
    assert why_missed(Miss("now", "g", CELL, 2), [], [], elsewhere).text == FIRST_TIME
    assert "this cell is unchanged" in why_missed(Miss("now", "f", CELL, 2), [stored()], [], elsewhere).text
    assert [*unusable([manifest], environment("2.13.0"), "here")] == []


def test_another_number_of_threads_is_a_difference_and_comes_first() -> None:
    why = why_missed(Miss("now", "f", CELL, 1), [stored(threads=2)], [])
    assert why.explanation is not None
    assert why.explanation.differences[0].words() == "threads: 2 before, 1 now"
