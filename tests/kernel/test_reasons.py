"""Why a graph was not there: each cause has a sentence of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nbcache.core.key import Component
from nbcache.core.model import Direction, Environment, GraphSummary, Manifest, Outcome
from nbcache.core.reports import Cell, GraphRecord
from nbcache.explain.components import Components, to_text
from nbcache.kernel.reasons import FIRST_TIME, Elsewhere, Miss, unusable, why_missed

CELL = Cell(1, "c1")


def stored(function: str = "f", cell: str = "c1", key: str = "k1", **more: Any) -> GraphSummary:
    return GraphSummary(cell, function, Direction.INFERENCE, Outcome.MISS, key, 1.0, **more)


def compiled(function: str = "f", threads: int = 0) -> GraphRecord:
    return GraphRecord(function, "0/0", Direction.INFERENCE, Outcome.MISS, threads=threads)


@pytest.mark.parametrize(
    ("known", "threads", "said"),
    [
        ([], 2, FIRST_TIME),
        ([stored("another")], 2, FIRST_TIME),
        ([stored()], 2, "this cell is unchanged, so inputs, settings or code outside it differ"),
        ([stored(cell="c2")], 2, "of a function of this name has other code, inputs or settings"),
        ([stored(threads=2)], 1, "for this number of threads: 1 now, 2 before"),
        ([stored(threads=2), stored(key="k2", threads=4)], 1, "1 now, 2 or 4 before"),
        ([stored(threads=2)], 2, "this cell is unchanged"),
        ([stored(key="now")], 2, "it was stored, and is not there any more"),
    ],
)
def test_a_miss_says_what_is_known_of_its_cause(known: list[GraphSummary], threads: int, said: str) -> None:
    assert said in why_missed(Miss("now", "f", CELL, threads), known, []).text


def test_what_this_kernel_compiled_counts_as_well() -> None:
    assert "2 now, 4 before" in why_missed(Miss("now", "f", CELL, 2), [], [compiled(threads=4)]).text
    why = why_missed(Miss("now", "f", CELL, 2), [], [compiled()]).text
    assert "what this kernel has compiled of this name had other code" in why
    assert why_missed(Miss("now", "f", CELL, 2), [], [compiled("g")]).text == FIRST_TIME


def test_a_graph_whose_compile_was_interrupted_was_never_stored() -> None:
    interrupted = replace(compiled(), key="now", reason="not compiled: interrupted")
    assert "is not there any more" not in why_missed(Miss("now", "f", CELL), [], [interrupted]).text
    finished = replace(interrupted, reason=FIRST_TIME)
    assert "is not there any more" in why_missed(Miss("now", "f", CELL), [], [finished]).text


def test_a_graph_without_its_kernels_names_the_threads_where_they_differ() -> None:
    def why(threads: int) -> str:
        miss = Miss("now", "f", CELL, threads, incomplete=True)
        return why_missed(miss, [stored(key="now", threads=2)], []).text

    assert why(2) == "stored, but a C++ kernel of it is missing"
    assert "3 now, 2 before" in why(3)


def test_a_backward_that_was_never_seen_does_not_differ_from_its_forward() -> None:
    miss = Miss("now", "f", CELL, 2, backward=True)
    assert why_missed(miss, [stored()], [compiled()]).text == FIRST_TIME


def test_another_cells_lambda_is_another_function() -> None:
    lambdas = [stored("<lambda>", cell="c2", threads=4)]
    assert why_missed(Miss("now", "<lambda>", CELL, 2), lambdas, [compiled("<lambda>", 4)]).text == FIRST_TIME
    assert "this cell is unchanged" in why_missed(Miss("now", "<lambda>", Cell(1, "c2"), 4), lambdas, []).text


def test_parts_of_one_run_are_no_versions_of_each_other() -> None:
    run = Cell.of("f(x)", 1)

    def why(function: str, cell: Cell) -> str:
        part = replace(compiled(function), cell=cell)
        return why_missed(Miss("now", function, run, 2), [], [part]).text

    assert why("f (resumed)", run) == why("<lambda>", run) == FIRST_TIME
    assert "this kernel has compiled" in why("f", run)
    assert "this kernel has compiled" in why("f (resumed)", Cell.of("f(x)", 2))


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


def test_a_graph_of_a_stranger_is_named_where_it_is_the_very_one() -> None:
    strange, said = [Elsewhere((stored(key="now"),), "in a.nbcache, not signed")], "in a.nbcache, not signed"
    assert why_missed(Miss("now", "f", CELL), [], [], strange).text == f"not used: it is {said}"
    assert why_missed(Miss("other", "f", CELL), [], [], strange).text == FIRST_TIME
    assert said in why_missed(Miss("now", "f", CELL), [stored()], [], strange).text  # though others are known


def test_another_number_of_threads_is_a_difference_and_comes_first() -> None:
    why = why_missed(Miss("now", "f", CELL, 1), [stored(threads=2)], [])
    assert why.explanation is not None
    assert why.explanation.differences[0].words() == "threads: 2 before, 1 now"
