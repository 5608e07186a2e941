"""A forecast of hits and seconds for the next run of a notebook's cells. Values in, values out.

Everything here is an estimate: torch decides by the graph that it traces, and nothing is traced here.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nbcache.core.errors import FormatError
from nbcache.core.key import Difference
from nbcache.core.model import Direction, Level, Manifest, Outcome
from nbcache.core.reports import RESUMED, Cell
from nbcache.core.text import one_line
from nbcache.storage.history import Run, missed_unchanged, of_one_kernel, past_influence, usual_of

_NAME = re.compile(r"[^\W\d]\w*")
_GRAPH = "inductor"
"""The artifact that makes a graph a hit; the others make it load faster."""
_NAMELESS = frozenset({"forward", "__call__", "<locals>", "<lambda>", "<module>"})


@dataclass(frozen=True, slots=True)
class NotebookCell:
    position: int
    """Its place among the code cells, from 1 on."""
    digest: str
    execution_count: int | None
    title: str
    """Its first line that is no decorator, comment or magic, or else its first line."""
    names: frozenset[str] = field(repr=False)
    """The names in its source."""

    @property
    def label(self) -> str:
        return f"cell {self.position}" if self.execution_count is None else f"In[{self.execution_count}]"


def cells_of(data: bytes) -> tuple[NotebookCell, ...]:
    """Return the code cells of a notebook in order; FormatError if `data` is no notebook of nbformat 4."""
    try:
        notebook = json.loads(data)
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        return tuple(_cell(cell, position) for position, cell in enumerate(code, 1))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError("this is not a readable notebook", next_step="save the notebook") from error


def _cell(cell: Mapping[str, object], position: int) -> NotebookCell:
    text = cell["source"]
    source = text if isinstance(text, str) else "".join(map(str, text if isinstance(text, list) else ()))
    source = source.encode(errors="replace").decode()
    count = cell.get("execution_count")
    lines = [line for line in source.splitlines() if line.strip()]
    code_lines = (line for line in lines if not line.lstrip().startswith(("@", "#", "%")))
    return NotebookCell(
        position=position,
        digest=Cell.of(source, None).digest,
        execution_count=count if isinstance(count, int) else None,
        title=one_line(next(code_lines, lines[0] if lines else ""), 200),
        names=frozenset(_NAME.findall(source)),
    )


class Verdict(enum.StrEnum):
    """The expectation for a graph."""

    HIT = "hit"
    EDITED = "edited"
    """Its cell, or the one that defines its function, was edited, or a cell that compiled the function before
    is gone. It hits if it is still the same graph."""
    GONE = "gone"
    """It was compiled, and is not stored: not saved, evicted, or removed."""
    ELSEWHERE = "elsewhere"
    BYPASS = "bypass"


@dataclass(frozen=True, slots=True)
class Place:
    """A source of the notebook's graphs that fit here."""

    level: Level
    name: str
    """As reports name it: `local store`, `model.nbcache`."""
    manifest: Manifest
    present: Collection[str]


@dataclass(frozen=True, slots=True)
class Unfit:
    name: str
    graphs: int
    lines: tuple[str, ...]
    differences: tuple[Difference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        differing = [{"label": part.label, "there": part.old, "here": part.new} for part in self.differences]
        return {"name": self.name, "graphs": self.graphs, "why": list(self.lines), "differences": differing}


@dataclass(frozen=True, slots=True)
class GraphPlan:
    function: str
    direction: Direction
    key: str
    """torch's key when it was last compiled or hit; empty if it was bypassed."""
    verdict: Verdict
    level: Level | None
    source: str | None
    cold_seconds: float | None
    """Seconds of compiling it; without a history those that a hit saves, which is a little less."""
    restored_seconds: float | None
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
    """The expectation for a cell that compiled graphs, in its present state or before an edit."""

    cell: NotebookCell
    is_edited: bool
    graphs: tuple[GraphPlan, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(graph.verdict is verdict for graph in self.graphs)

    @property
    def cold_seconds(self) -> float | None:
        """Estimate if nothing is stored; None if unknown."""
        return _sum(graph.cold_seconds for graph in self.graphs)

    @property
    def expected_seconds(self) -> float | None:
        """Estimate for now, if an edited cell compiles all of its graphs; None if unknown."""
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
    """The forecast for the next kernel of a notebook; sums with an unknown part are unknown, too."""

    cells: tuple[CellPlan, ...] = ()
    others: int = 0
    """Code cells that have compiled nothing."""
    gone: tuple[str, ...] = ()
    """Functions that the last kernel compiled, by cells that the notebook no longer has."""
    unfit: tuple[Unfit, ...] = ()
    missed_unchanged: tuple[Run, ...] = ()
    """Graphs that missed in the last kernel, although their cells were the same as the time before."""
    notes: tuple[str, ...] = ()
    problem: str = ""
    """Why there is no plan; empty if there is one."""

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
        return _sum(cell.cold_seconds for cell in self.cells)

    @property
    def expected_seconds(self) -> float | None:
        return _sum(cell.expected_seconds for cell in self.cells)

    @property
    def saved_seconds(self) -> float | None:
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
            "unfit": [unfit.to_json() for unfit in self.unfit],
            "missed_unchanged": [run.summary() for run in self.missed_unchanged],
        }


def make_plan(
    cells: Sequence[NotebookCell],
    places: Sequence[Place],
    history: Sequence[Run],
    environments: Collection[str] = (),
    unfit: Iterable[Unfit] = (),
) -> Plan:
    """Return the forecast for these cells in the next kernel.

    `places` are the sources at hand, nearest first; `history` is oldest first; `environments` are the digests
    of those that fit here, empty if they are unknown.
    """
    present = {cell.digest for cell in cells}
    environments = {digest[:16] for digest in environments}
    influences = past_influence(history, present)
    by_cell = _graphs_by_cell(places, history, environments, present, influences)
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
    plans: dict[int, CellPlan] = {}

    def graph_plan(run: Run, is_edited: bool) -> GraphPlan:
        place = index.get(run.key)
        usual = usual_of(runs.get(run.function, ()), run.cell, run.function, run.direction)
        if run.outcome in (Outcome.BYPASS, Outcome.DISABLED):
            verdict = Verdict.BYPASS
        elif place is None:
            is_here = not run.kernel or not environments or run.environment in environments
            verdict = Verdict.GONE if is_here else Verdict.ELSEWHERE
        else:
            is_redefined = bool(run.function_cell) and run.function_cell not in present
            is_influenced = not influences.get(run.identity, frozenset()) <= edited
            verdict = Verdict.EDITED if is_edited or is_redefined or is_influenced else Verdict.HIT
        saved = saves.get(run.key)
        restored = None if usual.restored is None else usual.restored.get("total")
        cold = saved if usual.cold is None else usual.cold.get("total")
        if saved is None and cold is not None:
            saved = max(0.0, cold - (restored or 0.0))
        return GraphPlan(
            run.function,
            run.direction,
            run.key,
            verdict,
            level=place.level if place else None,
            source=place.name if place else None,
            cold_seconds=cold,
            restored_seconds=restored,
            saves_seconds=saved,
            runs_cold=usual.runs_cold,
            runs_restored=usual.runs_restored,
        )

    def add(cell: NotebookCell, digest: str, *, is_edited: bool) -> None:
        graphs = tuple(graph_plan(run, is_edited) for run in by_cell[digest])
        plans[cell.position] = CellPlan(cell, is_edited, graphs)

    unedited = present & by_cell.keys()
    defining = {run.function_cell for graphs in by_cell.values() for run in graphs}
    free = [cell for cell in cells if cell.digest not in by_cell and cell.digest not in defining]
    covered = {run.function for digest in unedited for run in by_cell[digest]}
    last = history[-1].kernel if history else ""
    gone: dict[str, None] = {}
    for digest in reversed([digest for digest in by_cell if digest not in present]):  # latest first
        functions = {run.function for run in by_cell[digest]} - covered
        if not functions:
            continue  # probably an earlier state of another cell
        of_last = [run for run in by_cell[digest] if run.kernel == last]
        counts = {run.execution_count for run in of_last if run.execution_count is not None}
        if (cell := _find_edited_cell(functions, counts, free)) is None:
            gone |= dict.fromkeys(run.function for run in of_last)
            continue
        free.remove(cell)
        edited.add(digest)
        covered |= functions
        add(cell, digest, is_edited=True)
    first = {cell.digest: cell for cell in reversed(cells)}
    for digest in unedited:
        add(first[digest], digest, is_edited=False)
    rows = tuple(plans[position] for position in sorted(plans))
    missed = missed_unchanged(history, last)
    return Plan(rows, len(cells) - len(rows), tuple(gone), tuple(unfit), missed)


def _graphs_by_cell(
    places: Sequence[Place],
    history: Sequence[Run],
    environments: Collection[str],
    present: Collection[str],
    influences: Collection[tuple[str, int]],
) -> dict[str, list[Run]]:
    """Return cell digest → its graphs; cells that ran last are at the end.

    A cell's graphs are those of one kernel that ran it in one of `environments` (none: in any), else those of
    all manifests in `places`, else those of a kernel in another environment. For the others, see
    `of_one_kernel`.
    """
    runs_of: dict[str, list[Run]] = {}
    for run in history:
        if run.cell:
            runs_of.setdefault(run.cell, []).append(run)
    graphs_of: dict[str, list[Run]] = {}
    for graph in (graph for place in places for graph in place.manifest.graphs if graph.cell):
        cell, key, outcome = graph.cell, graph.key, Outcome.MISS if graph.key else Outcome.BYPASS
        run = Run(0.0, "", 0, "", cell, graph.function, graph.direction, key, outcome, None, {})
        if run not in graphs_of.setdefault(cell, []):
            graphs_of[cell].append(run)
    for cell, runs in sorted(runs_of.items(), key=lambda pair: pair[1][-1].time):
        fits = [run for run in runs if not environments or run.environment in environments]
        if not fits and cell in graphs_of:
            continue
        of_one = of_one_kernel(fits or runs, present, influences)
        graphs_of.pop(cell, None)  # so that the latest is last
        graphs_of[cell] = [*{(run.function, run.direction, run.key): run for run in of_one}.values()]
    return graphs_of


def _find_edited_cell(
    functions: Collection[str], counts: Collection[int], free: Sequence[NotebookCell]
) -> NotebookCell | None:
    """Return the edited cell that has compiled these functions, by its number or names; None if unknown.

    `counts` are its numbers in the last kernel. A file without numbers is treated as run in order.
    """
    for cell in free:
        if (cell.execution_count or cell.position) in counts:
            return cell
    parts = {part for function in functions for part in function.removesuffix(RESUMED).split(".")}
    return next((cell for cell in free if (parts - _NAMELESS) & cell.names), None)


def _sum(seconds: Iterable[float | None]) -> float | None:
    """Return the sum; None for no seconds, or unknown ones."""
    values = list(seconds)
    return sum(value or 0.0 for value in values) if values and None not in values else None
