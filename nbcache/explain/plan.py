"""What the next run of a notebook's cells will find, and what it will take. Values in, values out.

All of it is an estimate: torch decides by the graph that it traces, and nothing is traced here.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbcache.artifacts.history import Run, Usual, expected, influences_of, missed_unchanged, of_one_kernel
from nbcache.core.key import Difference
from nbcache.core.model import Direction, Level, Manifest, Outcome
from nbcache.core.reports import RESUMED
from nbcache.explain.notebook import NotebookCell

__all__ = ["CellPlan", "GraphPlan", "Place", "Plan", "Unfit", "Verdict", "planned"]

_GRAPH = "inductor"
"""The artifact that makes a graph a hit; the others make it load faster."""
_NAMELESS = frozenset({"forward", "__call__", "<locals>", "<lambda>", "<module>"})
"""Parts of functions' names that tell nothing."""


class Verdict(enum.StrEnum):
    """What is expected of a graph."""

    HIT = "hit"
    EDITED = "edited"
    """Its cell, or the one that defines its function, was edited, or a cell that compiled the function before
    is gone: it hits if it is the same graph still."""
    GONE = "gone"
    """It was compiled, and is nowhere now: not saved, evicted, or removed."""
    ELSEWHERE = "elsewhere"
    """It was compiled in another environment only."""
    BYPASS = "bypass"
    """torch's caches did not take it."""


@dataclass(frozen=True, slots=True)
class Place:
    """What is at hand of the notebook, and fits here."""

    level: Level
    name: str
    """As reports name it: `local store`, `model.nbcache`."""
    manifest: Manifest
    present: Collection[str]
    """Digests of those of its artifacts that are there."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """What is at hand of the notebook, and cannot be used here."""

    name: str
    graphs: int
    lines: tuple[str, ...]
    """Why, and what to do."""
    differences: tuple[Difference, ...] = ()
    """How its environment differs from the one here."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, by the names that docs/json.md documents."""
        return {
            "name": self.name,
            "graphs": self.graphs,
            "why": list(self.lines),
            "differences": [
                {"label": each.label, "there": each.old, "here": each.new} for each in self.differences
            ],
        }


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """What is expected of one graph."""

    function: str
    direction: Direction
    key: str
    """torch's key when it was last compiled or hit; empty where it was bypassed."""
    verdict: Verdict
    level: Level | None
    """Where it is found; None where it is not."""
    source: str | None
    """The same in words."""
    usual: Usual
    """What it took in earlier kernels."""
    saves_seconds: float | None = None
    """What a hit saves, by the manifest; None where no manifest tells of it."""

    @property
    def cold_seconds(self) -> float | None:
        """What compiling it takes; without a history what a hit saves, which is a little less."""
        return self.saves_seconds if self.usual.cold is None else self.usual.cold.get("total")

    @property
    def hit_saves(self) -> float | None:
        """What a hit saves, by the manifest, else by the history."""
        if self.saves_seconds is not None or self.cold_seconds is None:
            return self.saves_seconds
        return max(0.0, self.cold_seconds - (self.restored_seconds or 0.0))

    @property
    def restored_seconds(self) -> float | None:
        """What a hit takes; None where none is known."""
        return None if self.usual.restored is None else self.usual.restored.get("total")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, by the names that docs/json.md documents."""
        return {
            "function": self.function,
            "direction": self.direction.value,
            "key": self.key or None,
            "expected": self.verdict.value,
            "level": self.level and self.level.value,
            "source": self.source,
            "cold_seconds": self.cold_seconds,
            "restored_seconds": self.restored_seconds,
            "runs_cold": self.usual.runs_cold,
            "runs_restored": self.usual.runs_restored,
        }


@dataclass(frozen=True, slots=True)
class CellPlan:
    """What is expected of a cell that has compiled something, as it is now or as it was."""

    cell: NotebookCell
    is_edited: bool
    """Whether the cell is not as it was when its graphs were compiled."""
    graphs: tuple[GraphPlan, ...]

    def count(self, verdict: Verdict) -> int:
        """Return how many graphs this is expected of."""
        return sum(graph.verdict is verdict for graph in self.graphs)

    @property
    def cold_seconds(self) -> float | None:
        """Estimate of what it takes where nothing is stored; None where nothing tells."""
        return _sum(graph.cold_seconds for graph in self.graphs)

    @property
    def expected_seconds(self) -> float | None:
        """Estimate of what it takes now, what was edited counted as if it had to be compiled."""
        return _sum(
            graph.restored_seconds if graph.verdict is Verdict.HIT else graph.cold_seconds
            for graph in self.graphs
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, by the names that docs/json.md documents."""
        return {
            "cell": {"execution_count": self.cell.execution_count, "digest": self.cell.digest},
            "position": self.cell.position,
            "title": self.cell.title,
            "edited": self.is_edited,
            "graphs": [graph.to_json() for graph in self.graphs],
            "cold_seconds": self.cold_seconds,
            "expected_seconds": self.expected_seconds,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next kernel will find of a notebook."""

    cells: tuple[CellPlan, ...]
    """Those that have compiled something, in the notebook's order."""
    others: int
    """Code cells of which nothing is known."""
    gone: tuple[str, ...] = ()
    """Functions that the last kernel compiled, by cells that are not in the notebook any more."""
    unfit: tuple[Unfit, ...] = ()
    missed_unchanged: tuple[Run, ...] = ()
    """Graphs that missed in the last kernel, although their cells were the same as the time before."""

    @property
    def graphs(self) -> int:
        return sum(len(each.graphs) for each in self.cells)

    @property
    def hits(self) -> int:
        return sum(each.count(Verdict.HIT) for each in self.cells)

    @property
    def edited(self) -> int:
        """Cells that were edited since."""
        return sum(each.is_edited for each in self.cells)

    @property
    def cold_seconds(self) -> float | None:
        """Estimate for all cells where nothing is stored; None where nothing tells."""
        return _sum(each.cold_seconds for each in self.cells)

    @property
    def expected_seconds(self) -> float | None:
        """Estimate for all cells as it is; None where it is not known of all of them."""
        return _sum(each.expected_seconds for each in self.cells)

    @property
    def saved_seconds(self) -> float | None:
        """Estimate of what those graphs save that are expected to hit; None where nothing tells."""
        hits = (graph for each in self.cells for graph in each.graphs if graph.verdict is Verdict.HIT)
        return _sum(graph.hit_saves for graph in hits)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, by the names that docs/json.md documents."""
        return {
            "graphs": self.graphs,
            "hits": self.hits,
            "edited": self.edited,
            "cold_seconds": self.cold_seconds,
            "expected_seconds": self.expected_seconds,
            "cells": [each.to_json() for each in self.cells],
            "others": self.others,
            "gone": list(self.gone),
            "unfit": [each.to_json() for each in self.unfit],
            "missed_unchanged": [run.summary() for run in self.missed_unchanged],
        }


def planned(
    cells: Sequence[NotebookCell],
    places: Sequence[Place],
    history: Sequence[Run],
    environments: Collection[str] = (),
    unfit: Iterable[Unfit] = (),
) -> Plan:
    """Return what the next kernel is expected to find of these cells.

    `places` are what is at hand, nearest first; `history` is oldest first; `environments` are the digests of
    those that fit here, empty where that is not known.
    """
    here = {cell.digest for cell in cells}
    known = _known(places, history, {each[:16] for each in environments}, here)
    index = {key: place for place in reversed(places) for key in _keys_of(place)}
    saves = {graph.key: graph.seconds for place in places for graph in place.manifest.graphs if graph.key}

    runs: dict[str, list[Run]] = {}
    for run in history:
        runs.setdefault(run.function, []).append(run)

    def plans(digest: str, *, is_edited: bool) -> tuple[GraphPlan, ...]:
        return tuple(
            _graph(
                graph,
                is_edited or graph.is_redefined(here) or not graph.influences <= edited,
                index.get(graph.key),
                expected(runs.get(graph.function, ()), digest, graph.function, graph.direction),
                saves.get(graph.key),
            )
            for graph in known[digest]
        )

    found: dict[int, CellPlan] = {}
    edited: set[str] = set()
    """Digests of edited cells, as they were."""
    seen = here & known.keys()
    defining = {graph.function_cell for graphs in known.values() for graph in graphs}
    free = [cell for cell in cells if cell.digest not in known and cell.digest not in defining]
    covered = {graph.function for digest in seen for graph in known[digest]}
    last = history[-1].kernel if history else ""
    gone: dict[str, None] = {}
    for digest in reversed([each for each in known if each not in here]):  # what ran last, first
        functions = {graph.function for graph in known[digest]} - covered
        of_last = [graph for graph in known[digest] if graph.kernel == last]
        counts = {graph.execution_count for graph in of_last if graph.execution_count is not None}
        positions = _positions(cells, known, last)
        if functions:
            cell_now = _edited(functions, counts, positions, free)
        elif (cell_now := _enclosed(counts, positions, free)) is None:
            continue  # an earlier state of what another cell compiles now, as far as can be told
        if cell_now is None:
            gone |= dict.fromkeys(graph.function for graph in of_last)
            continue
        free.remove(cell_now)
        edited.add(digest)
        covered |= functions
        graphs = plans(digest, is_edited=True)
        found[cell_now.position] = CellPlan(cell_now, is_edited=True, graphs=graphs)
    first = {cell.digest: cell for cell in reversed(cells)}
    for digest in seen:
        graphs = plans(digest, is_edited=False)
        found[first[digest].position] = CellPlan(first[digest], is_edited=False, graphs=graphs)
    rows = tuple(found[position] for position in sorted(found))
    missed = missed_unchanged(history, last)
    return Plan(rows, len(cells) - len(rows), tuple(gone), tuple(unfit), missed)


@dataclass(frozen=True, slots=True)
class _Known:
    """A graph that a cell has compiled or hit."""

    function: str
    direction: Direction
    key: str
    function_cell: str = ""
    kernel: str = ""
    execution_count: int | None = None
    is_bypassed: bool = False
    is_elsewhere: bool = False
    influences: frozenset[str] = frozenset()
    """Digests of removed cells that compiled the same function before it."""

    def is_redefined(self, cells: Collection[str]) -> bool:
        """Tell whether the cell that defines its function is none of these any more."""
        return bool(self.function_cell) and self.function_cell not in cells


def _known(
    places: Sequence[Place], history: Sequence[Run], environments: Collection[str], digests: Collection[str]
) -> dict[str, list[_Known]]:
    """Return the graphs of each cell, by its digest, those that ran last at the end.

    A cell's graphs are those of one kernel that ran it here (`of_one_kernel`); else, those of all
    manifests that fit; else those of a kernel elsewhere. `digests` are those of the notebook's cells.
    """
    influences = influences_of(history, digests)
    by_cell: dict[str, list[Run]] = {}
    for run in history:
        if run.cell:
            by_cell.setdefault(run.cell, []).append(run)
    known: dict[str, list[_Known]] = {}
    for place in places:
        for graph in place.manifest.graphs:
            if graph.cell:
                row = _Known(graph.function, graph.direction, graph.key, is_bypassed=not graph.key)
                if row not in known.setdefault(graph.cell, []):
                    known[graph.cell].append(row)
    for cell, runs in sorted(by_cell.items(), key=lambda pair: pair[1][-1].time):
        fits = [run for run in runs if not environments or run.environment in environments]
        if not fits and cell in known:
            continue
        rows = {}
        for run in of_one_kernel(fits or runs, digests, influences):
            rows[run.function, run.direction, run.key] = _of(
                run, influences.get(run.identity, frozenset()), is_elsewhere=not fits
            )
        known.pop(cell, None)  # so that what ran last stands last
        known[cell] = list(rows.values())
    return known


def _of(run: Run, influences: frozenset[str], *, is_elsewhere: bool) -> _Known:
    return _Known(
        run.function,
        run.direction,
        run.key,
        run.function_cell,
        run.kernel,
        run.execution_count,
        is_bypassed=run.outcome in (Outcome.BYPASS, Outcome.DISABLED),
        is_elsewhere=is_elsewhere,
        influences=influences,
    )


def _keys_of(place: Place) -> Iterator[str]:
    """Yield the keys of the graphs that are there."""
    return (ref.key for ref in place.manifest.artifacts if ref.type == _GRAPH and ref.digest in place.present)


def _graph(
    graph: _Known, is_edited: bool, place: Place | None, usual: Usual, saves: float | None
) -> GraphPlan:
    if graph.is_bypassed:
        verdict = Verdict.BYPASS
    elif place is None:
        verdict = Verdict.ELSEWHERE if graph.is_elsewhere else Verdict.GONE
    else:
        verdict = Verdict.EDITED if is_edited else Verdict.HIT
    return GraphPlan(
        graph.function,
        graph.direction,
        graph.key,
        verdict,
        place.level if place else None,
        place.name if place else None,
        usual,
        saves,
    )


def _positions(
    cells: Sequence[NotebookCell], known: Mapping[str, Sequence[_Known]], kernel: str
) -> dict[int, int]:
    """Return where the cells stand that a kernel has run as they are, by their numbers in it."""
    return {
        graph.execution_count: cell.position
        for cell in cells
        for graph in known.get(cell.digest, ())
        if graph.kernel == kernel and graph.execution_count is not None
    }


def _enclosed(
    counts: Collection[int], positions: Mapping[int, int], free: Sequence[NotebookCell]
) -> NotebookCell | None:
    """Return the cell that stands alone between two that are as they were, and ran before and after `counts`.

    It was run in between, whatever else has compiled the same functions.
    """
    for count in counts:
        before, after = positions.get(count - 1), positions.get(count + 1)
        for cell in free:
            if before == cell.position - 1 and after == cell.position + 1:
                return cell
    return None


def _edited(
    functions: Collection[str],
    counts: Collection[int],
    positions: Mapping[int, int],
    free: Sequence[NotebookCell],
) -> NotebookCell | None:
    """Return the cell that has compiled these functions, and was edited; None where nothing tells.

    By its number, if the file has it; by its distance from cells that are as they were, since most people
    run them in order; or by the functions that it mentions. `counts` are its numbers in the last kernel.
    """
    for cell in free:
        if cell.execution_count in counts:
            return cell
    for count in counts:
        nearest = min(positions, key=lambda each: abs(each - count), default=0)
        place = positions.get(nearest, 0) + count - nearest
        for cell in free:
            if cell.position == place and cell.execution_count is None:
                return cell
    names = {name for function in functions for name in _names(function)}
    return next((cell for cell in free if names & cell.names), None)


def _names(function: str) -> Iterator[str]:
    """Yield the names by which a cell may mention a function."""
    for name in function.removesuffix(RESUMED).split("."):
        if name not in _NAMELESS:
            yield name


def _sum(seconds: Iterable[float | None]) -> float | None:
    """Return the sum; None where one of them is not known, or there is none."""
    every = list(seconds)
    return sum(each or 0.0 for each in every) if every and None not in every else None
