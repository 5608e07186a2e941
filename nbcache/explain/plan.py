"""What the next run of a notebook's cells will find, and what it will take. Values in, values out.

All of it is an estimate: torch decides by the graph that it traces, and nothing is traced here.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nbcache.artifacts.history import Run, expected, influences_of, missed_unchanged, of_one_kernel
from nbcache.core.errors import FormatError
from nbcache.core.key import Difference
from nbcache.core.model import Direction, GraphSummary, Level, Manifest, Outcome
from nbcache.core.reports import RESUMED, Cell
from nbcache.core.text import one_line

_NAME = re.compile(r"[^\W\d]\w*")
_GRAPH = "inductor"
"""The artifact that makes a graph a hit; the others make it load faster."""
_NAMELESS = frozenset({"forward", "__call__", "<locals>", "<lambda>", "<module>"})
"""Parts of functions' names that tell nothing."""


@dataclass(frozen=True, slots=True)
class NotebookCell:
    """A code cell as the file has it."""

    position: int
    """Its place among the code cells, from 1 on."""
    digest: str
    """As `Cell.digest`."""
    execution_count: int | None
    """Its number when it ran last; None where it has none."""
    title: str
    """Its first line that tells something: no decorator, comment or magic if there is another."""
    names: frozenset[str] = field(repr=False)

    @property
    def label(self) -> str:
        """Its name for people: `In[3]`, or by its place where it has no number."""
        return f"cell {self.position}" if self.execution_count is None else f"In[{self.execution_count}]"


def cells_of(data: bytes) -> tuple[NotebookCell, ...]:
    """Return the code cells of a notebook in order; FormatError where `data` is no notebook of nbformat 4."""
    try:
        notebook = json.loads(data)
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        return tuple(_cell(cell, position) for position, cell in enumerate(code, 1))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError("this is no notebook that can be read", next_step="save the notebook") from error


def _cell(cell: Mapping[str, object], position: int) -> NotebookCell:
    lines = cell["source"]
    source = lines if isinstance(lines, str) else "".join(map(str, lines if isinstance(lines, list) else ()))
    source = source.encode(errors="replace").decode()
    count = cell.get("execution_count")
    return NotebookCell(
        position=position,
        digest=Cell.of(source, None).digest,
        execution_count=count if isinstance(count, int) else None,
        title=one_line(_title(source), 200),
        names=frozenset(_NAME.findall(source)),
    )


def _title(source: str) -> str:
    lines = [line for line in source.splitlines() if line.strip()]
    telling = (line for line in lines if not line.lstrip().startswith(("@", "#", "%")))
    return next(telling, lines[0] if lines else "")


class Verdict(enum.StrEnum):
    """The expectation for a graph."""

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
    """A source of the notebook's graphs that fit here."""

    level: Level
    name: str
    """As reports name it: `local store`, `model.nbcache`."""
    manifest: Manifest
    present: Collection[str]
    """Digests of those of its artifacts that are there."""


@dataclass(frozen=True, slots=True)
class Unfit:
    name: str
    graphs: int
    lines: tuple[str, ...]
    """Why, and what to do."""
    differences: tuple[Difference, ...] = ()
    """The differences of its environment from the one here."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "graphs": self.graphs,
            "why": list(self.lines),
            "differences": [{"label": d.label, "there": d.old, "here": d.new} for d in self.differences],
        }


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The expectation for one graph."""

    function: str
    direction: Direction
    key: str
    """torch's key when it was last compiled or hit; empty where it was bypassed."""
    verdict: Verdict
    level: Level | None
    """The level that has it; None where none has."""
    source: str | None
    """The same in words."""
    cold_seconds: float | None
    """Seconds of compiling it; without a history those that a hit saves, which is a little less."""
    restored_seconds: float | None
    """Seconds of a hit; None where none is known."""
    saves_seconds: float | None
    """Seconds that a hit saves, by the manifest, else by the history."""
    runs_cold: int
    runs_restored: int

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        verdict = values.pop("verdict")
        del values["saves_seconds"]
        return {**values, "key": self.key or None, "expected": verdict}


@dataclass(frozen=True, slots=True)
class CellPlan:
    """The expectation for a cell that has compiled something, as it is now or as it was."""

    cell: NotebookCell
    is_edited: bool
    """True if the cell was edited since its graphs were compiled."""
    graphs: tuple[GraphPlan, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(graph.verdict is verdict for graph in self.graphs)

    @property
    def cold_seconds(self) -> float | None:
        """Estimate of what it takes where nothing is stored; None if unknown."""
        return _sum(graph.cold_seconds for graph in self.graphs)

    @property
    def expected_seconds(self) -> float | None:
        """Estimate of what it takes now, what was edited counted as if it had to be compiled."""
        return _sum(
            graph.restored_seconds if graph.verdict is Verdict.HIT else graph.cold_seconds
            for graph in self.graphs
        )

    def to_json(self) -> dict[str, Any]:
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
    """The forecast for the next kernel of a notebook."""

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
        return sum(len(cell.graphs) for cell in self.cells)

    @property
    def hits(self) -> int:
        return sum(cell.count(Verdict.HIT) for cell in self.cells)

    @property
    def edited(self) -> int:
        return sum(cell.is_edited for cell in self.cells)

    @property
    def cold_seconds(self) -> float | None:
        """Estimate for all cells where nothing is stored; None if unknown."""
        return _sum(cell.cold_seconds for cell in self.cells)

    @property
    def expected_seconds(self) -> float | None:
        """Estimate for all cells as it is; None where it is not known of all of them."""
        return _sum(cell.expected_seconds for cell in self.cells)

    @property
    def saved_seconds(self) -> float | None:
        """Estimate of what those graphs save that are expected to hit; None if unknown."""
        hits = (graph for cell in self.cells for graph in cell.graphs if graph.verdict is Verdict.HIT)
        return _sum(graph.saves_seconds for graph in hits)

    def to_json(self) -> dict[str, Any]:
        return {
            "graphs": self.graphs,
            "hits": self.hits,
            "edited": self.edited,
            "cold_seconds": self.cold_seconds,
            "expected_seconds": self.expected_seconds,
            "cells": [cell.to_json() for cell in self.cells],
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
    environments = {digest[:16] for digest in environments}
    influences = influences_of(history, here)
    known = _known(places, history, environments, here, influences)
    index = {
        ref.key: place
        for place in reversed(places)
        for ref in place.manifest.artifacts
        if ref.type == _GRAPH and ref.digest in place.present
    }
    saves = {graph.key: graph.seconds for place in places for graph in place.manifest.graphs if graph.key}

    runs: dict[str, list[Run]] = {}
    for run in history:
        runs.setdefault(run.function, []).append(run)
    edited: set[str] = set()
    """Digests of edited cells, as they were."""

    def graph_plan(run: Run, is_edited: bool) -> GraphPlan:
        place = index.get(run.key)
        usual = expected(runs.get(run.function, ()), run.cell, run.function, run.direction)
        if run.outcome in (Outcome.BYPASS, Outcome.DISABLED):
            verdict = Verdict.BYPASS
        elif place is None:
            is_here = not run.kernel or not environments or run.environment in environments
            verdict = Verdict.GONE if is_here else Verdict.ELSEWHERE
        else:
            is_redefined = bool(run.function_cell) and run.function_cell not in here
            is_influenced = not influences.get(run.identity, frozenset()) <= edited
            verdict = Verdict.EDITED if is_edited or is_redefined or is_influenced else Verdict.HIT
        by_manifest = saves.get(run.key)
        restored = None if usual.restored is None else usual.restored.get("total")
        cold = by_manifest if usual.cold is None else usual.cold.get("total")
        by_history = None if cold is None else max(0.0, cold - (restored or 0.0))
        return GraphPlan(
            run.function,
            run.direction,
            run.key,
            verdict,
            place.level if place else None,
            place.name if place else None,
            cold_seconds=cold,
            restored_seconds=restored,
            saves_seconds=by_history if by_manifest is None else by_manifest,
            runs_cold=usual.runs_cold,
            runs_restored=usual.runs_restored,
        )

    plans: dict[int, CellPlan] = {}

    def add(cell: NotebookCell, digest: str, *, is_edited: bool) -> None:
        graphs = tuple(graph_plan(run, is_edited) for run in known[digest])
        plans[cell.position] = CellPlan(cell, is_edited, graphs)

    seen = here & known.keys()
    defining = {run.function_cell for graphs in known.values() for run in graphs}
    free = [cell for cell in cells if cell.digest not in known and cell.digest not in defining]
    covered = {run.function for digest in seen for run in known[digest]}
    last = history[-1].kernel if history else ""
    gone: dict[str, None] = {}
    for digest in reversed([digest for digest in known if digest not in here]):  # what ran last, first
        functions = {run.function for run in known[digest]} - covered
        if not functions:
            continue  # an earlier state of what another cell compiles now, as far as can be told
        of_last = [run for run in known[digest] if run.kernel == last]
        counts = {run.execution_count for run in of_last if run.execution_count is not None}
        if (cell := _find_edited(functions, counts, _positions(cells, known, last), free)) is None:
            gone |= dict.fromkeys(run.function for run in of_last)
            continue
        free.remove(cell)
        edited.add(digest)
        covered |= functions
        add(cell, digest, is_edited=True)
    first = {cell.digest: cell for cell in reversed(cells)}
    for digest in seen:
        add(first[digest], digest, is_edited=False)
    rows = tuple(plans[position] for position in sorted(plans))
    missed = missed_unchanged(history, last)
    return Plan(rows, len(cells) - len(rows), tuple(gone), tuple(unfit), missed)


def _known(
    places: Sequence[Place],
    history: Sequence[Run],
    environments: Collection[str],
    digests: Collection[str],
    influences: Collection[tuple[str, int]],
) -> dict[str, list[Run]]:
    """Return the graphs of each cell, by its digest, those that ran last at the end.

    A cell's graphs are those of one kernel that ran it here (`of_one_kernel`); else, those of all
    manifests that fit; else those of a kernel elsewhere. `digests` are those of the notebook's cells.
    """
    by_cell: dict[str, list[Run]] = {}
    for run in history:
        if run.cell:
            by_cell.setdefault(run.cell, []).append(run)
    known: dict[str, list[Run]] = {}
    for place in places:
        for graph in place.manifest.graphs:
            if graph.cell and (run := _run_of(graph)) not in known.setdefault(graph.cell, []):
                known[graph.cell].append(run)
    for cell, runs in sorted(by_cell.items(), key=lambda pair: pair[1][-1].time):
        fits = [run for run in runs if not environments or run.environment in environments]
        if not fits and cell in known:
            continue
        of_one = of_one_kernel(fits or runs, digests, influences)
        known.pop(cell, None)  # so that what ran last stands last
        known[cell] = [*{(run.function, run.direction, run.key): run for run in of_one}.values()]
    return known


def _run_of(graph: GraphSummary) -> Run:
    """Return a manifest's graph as a run of no kernel."""
    outcome = Outcome.MISS if graph.key else Outcome.BYPASS
    return Run(0.0, "", 0, "", graph.cell, graph.function, graph.direction, graph.key, outcome, None, {})


def _positions(
    cells: Sequence[NotebookCell], known: Mapping[str, Sequence[Run]], kernel: str
) -> dict[int, int]:
    """Return where the cells stand that a kernel has run as they are, by their numbers in it."""
    ran = ((run, cell) for cell in cells for run in known.get(cell.digest, ()) if run.kernel == kernel)
    return {run.execution_count: cell.position for run, cell in ran if run.execution_count is not None}


def _find_edited(
    functions: Collection[str],
    counts: Collection[int],
    positions: Mapping[int, int],
    free: Sequence[NotebookCell],
) -> NotebookCell | None:
    """Return the cell that has compiled these functions, and was edited; None if unknown.

    By its number, if the file has it; by its distance from cells that are as they were, since most people
    run them in order; or by the functions that it mentions. `counts` are its numbers in the last kernel.
    """
    for cell in free:
        if cell.execution_count in counts:
            return cell
    for count in counts:
        nearest = min(positions, key=lambda number: abs(number - count), default=0)
        place = positions.get(nearest, 0) + count - nearest
        for cell in free:
            if cell.position == place and cell.execution_count is None:
                return cell
    parts = {part for function in functions for part in function.removesuffix(RESUMED).split(".")}
    return next((cell for cell in free if (parts - _NAMELESS) & cell.names), None)


def _sum(seconds: Iterable[float | None]) -> float | None:
    """Return the sum; None for no seconds, or unknown ones."""
    every = list(seconds)
    return sum(each or 0.0 for each in every) if every and None not in every else None
