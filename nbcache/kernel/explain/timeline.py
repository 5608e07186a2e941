"""The seconds of cells by phase, cold and restored, and the kernels of a notebook in order.

Values in, values out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nbcache.core.model import Direction, Environment, Outcome
from nbcache.core.reports import PHASES, Activity, CellReport
from nbcache.kernel.explain.stats import not_hit_because
from nbcache.storage.history import Run, usual_of

_COLD = frozenset({"inductor", "build"})
"""Phases that only a graph that misses goes through."""
OUTSIDE = "outside"
_MOST_KERNELS = 20


@dataclass(frozen=True, slots=True)
class CellTimes:
    """The seconds of one cell, now and otherwise."""

    label: str
    functions: tuple[str, ...]
    now: Mapping[str, float]
    """Seconds by phase in this kernel, and `outside` of all phases."""
    cold: Mapping[str, float] | None
    """Seconds by phase if nothing is stored, by the history; None if it lacks one of the graphs."""
    restored: Mapping[str, float] | None
    is_restored: bool

    def bars(self) -> list[tuple[str, Mapping[str, float]]]:
        """Return the bars to compare, as (label, seconds by phase)."""
        if self.is_restored:
            return [*([("cold", self.cold)] if self.cold else []), ("now", self.now)]
        return [("now", self.now), *([("restored", self.restored)] if self.restored else [])]


@dataclass(frozen=True, slots=True)
class Lost:
    """The compiles of a function for one reason, in all kernels of the history."""

    function: str
    reason: str
    graphs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class KernelRun:
    time: float
    """Unix seconds at which its last cell with a graph ended."""
    graphs: int
    hits: int
    seconds: float
    is_now: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    cells: tuple[CellTimes, ...]
    lost: tuple[Lost, ...]
    kernels: tuple[KernelRun, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def timeline(
    reports: Iterable[CellReport], history: Sequence[Run], kernel: str, environment: Environment | None = None
) -> Timeline:
    """Return the timeline of a kernel, which the history calls `kernel`; `history` is oldest first."""
    digest = "" if environment is None else environment.digest
    cells = [_cell(report, history, digest) for report in reports if report.graphs]
    return Timeline(tuple(cells), _lost(history), _kernels(history, kernel))


def _cell(report: CellReport, history: Sequence[Run], environment: str) -> CellTimes:
    usual = [
        usual_of(history, graph.cell_digest, graph.function, graph.direction, environment=environment)
        for graph in report.graphs
    ]
    spent = _sum([graph.seconds for graph in report.graphs])
    outside = {OUTSIDE: max(0.0, report.seconds - sum(spent.values()))}  # the same in every bar

    def total(estimates: list[Mapping[str, float] | None]) -> dict[str, float] | None:
        sums = [seconds for seconds in estimates if seconds is not None]
        return _sum(sums) | outside if len(sums) == len(estimates) else None

    return CellTimes(
        label=report.cell.label if report.cell else "outside any cell",
        functions=tuple(dict.fromkeys(graph.function for graph in report.graphs)),
        now=spent | outside,
        cold=total([estimate.cold for estimate in usual]),
        restored=total([estimate.restored for estimate in usual]),
        is_restored=all(graph.outcome is Outcome.HIT for graph in report.graphs),
    )


def _sum(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums by phase, in the order in which a compile goes through them."""
    sums = {phase: sum(by_phase.get(phase, 0.0) for by_phase in seconds) for phase in PHASES}
    return {phase: total for phase, total in sums.items() if total}


def _lost(history: Sequence[Run]) -> tuple[Lost, ...]:
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in history:
        if run.outcome is not Outcome.HIT:
            spent[run.function, not_hit_because(run)].append(run.total_seconds)
    rows = [Lost(*cause, len(seconds), sum(seconds)) for cause, seconds in spent.items()]
    return tuple(sorted(rows, key=lambda row: (-row.seconds, row.function, row.reason)))


def _kernels(history: Sequence[Run], kernel: str) -> tuple[KernelRun, ...]:
    by_kernel: dict[str, list[Run]] = defaultdict(list)
    for run in history:
        by_kernel[run.kernel].append(run)
    rows = [
        KernelRun(
            time=max(run.time for run in runs),
            graphs=len(runs),
            hits=sum(run.outcome is Outcome.HIT for run in runs),
            seconds=sum(run.total_seconds for run in runs),
            is_now=name == kernel,
        )
        for name, runs in by_kernel.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.time)[:_MOST_KERNELS])


def with_estimates(
    live: Activity, history: Sequence[Run], cell: str, environment: Environment | None = None, *, stored: bool
) -> Activity:
    """Return the running compile with its usual seconds and graphs.

    `history` is oldest first, `cell` the digest of the cell that runs; `stored` says that its graphs are
    expected to hit. If there are runs of this `environment`, others are ignored.
    """
    digest = "" if environment is None else environment.digest
    hits = stored and live.phase not in _COLD
    usual_seconds = 0.0
    for direction in [Direction.BACKWARD] if live.backward else [Direction.FORWARD, Direction.INFERENCE]:
        estimate = usual_of(history, cell, live.function, direction, environment=digest)
        seconds = estimate.restored if hits else estimate.cold
        usual_seconds = max(usual_seconds, (seconds or {}).get("total", 0.0))
    of_cell = [run for run in history if run.cell == cell and cell]
    last = {(run.key, run.function, run.direction) for run in of_cell if run.kernel == of_cell[-1].kernel}
    return replace(live, usual_seconds=usual_seconds, usual_graphs=len(last))
