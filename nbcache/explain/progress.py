"""How long what is being compiled usually takes, by what the history of the notebook tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nbcache.artifacts.history import Run, expected
from nbcache.core.model import Direction, Environment
from nbcache.core.reports import Activity

__all__ = ["with_estimates"]

_COLD = frozenset({"inductor", "build"})
"""Phases that only a graph that is not there goes through."""


def with_estimates(
    now: Activity,
    history: Sequence[Run],
    cell: str,
    environment: Environment | None = None,
    *,
    stored: bool,
) -> Activity:
    """Return what is being compiled with what it usually takes.

    `history` is oldest first, `cell` the digest of the cell that runs; `stored` tells whether its graphs are
    there, so that they are expected to hit. Where there are runs of this `environment`, others do not count.
    """
    directions = [Direction.BACKWARD] if now.backward else [Direction.FORWARD, Direction.INFERENCE]
    here = "" if environment is None else environment.digest
    usual = [expected(history, cell, now.function, each, environment=here) for each in directions]
    hits = stored and now.phase not in _COLD
    found = [each for one in usual if (each := one.restored if hits else one.cold) is not None]
    seconds = max((each.get("total", 0.0) for each in found), default=0.0)
    return replace(now, usual_seconds=seconds, usual_graphs=_graphs(history, cell))


def _graphs(history: Sequence[Run], cell: str) -> int:
    """Return how many graphs the cell had in the kernel that ran it last."""
    of_cell = [run for run in history if run.cell == cell and cell]
    last = [run for run in of_cell if run.kernel == of_cell[-1].kernel]
    return len({(run.key, run.function, run.direction) for run in last})
