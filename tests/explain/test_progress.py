"""How long a compile usually takes, and of how many graphs a cell usually consists."""

from __future__ import annotations

from dataclasses import replace

from nbcache.artifacts.history import Run
from nbcache.core.model import Direction, Outcome
from nbcache.core.reports import Activity
from nbcache.explain.timeline import with_estimates

MISS = Run(1.0, "k1", 0, "e", "c1", "f", Direction.FORWARD, "key", Outcome.MISS, None, {"total": 14.0})
HIT = replace(MISS, kernel="k2", time=2.0, outcome=Outcome.HIT, seconds={"total": 0.5})
BACKWARD = replace(MISS, number=1, direction=Direction.BACKWARD, seconds={"total": 4.0})
NOW = Activity("f", "0/0", "dynamo", 1.0, 0)


def test_a_compile_usually_takes_what_it_took() -> None:
    history = [MISS, BACKWARD, HIT]
    assert with_estimates(NOW, history, "c1", stored=False).usual_seconds == 14.0
    assert with_estimates(NOW, history, "c1", stored=True).usual_seconds == 0.5
    assert with_estimates(replace(NOW, backward=True), history, "c1", stored=False).usual_seconds == 4.0
    assert with_estimates(NOW, [], "c1", stored=False) == NOW


def test_what_is_compiled_although_it_is_stored_takes_what_compiling_takes() -> None:
    assert with_estimates(replace(NOW, phase="build"), [MISS, HIT], "c1", stored=True).usual_seconds == 14.0


def test_graphs_are_those_of_the_kernel_that_ran_the_cell_last() -> None:
    assert with_estimates(NOW, [MISS, BACKWARD], "c1", stored=False).usual_graphs == 2
    assert with_estimates(NOW, [MISS, BACKWARD, HIT], "c1", stored=False).usual_graphs == 1
    assert with_estimates(NOW, [MISS], "c2", stored=False).usual_graphs == 0
