"""Figures of restoring: used and unused graphs with reasons, and net seconds. Values in, values out."""

from __future__ import annotations

import enum
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from nbcache.core.model import ArtifactRef, Direction, GraphSummary, Level, Outcome
from nbcache.core.reports import Explanation, GraphRecord
from nbcache.core.text import one_line
from nbcache.storage.history import Run

_WEEK = 7 * 86400.0
RETUNED = "re-tuned"
"""The word of docs/json.md in the `reason` of a hit whose kernels were benchmarked again."""
Graph: TypeAlias = GraphRecord | Run


@dataclass(frozen=True, slots=True)
class LevelTally:
    level: Level
    hits: int
    seconds: float
    saved_seconds: float


@dataclass(frozen=True, slots=True)
class ReasonTally:
    reason: str
    graphs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Tally:
    graphs: int
    hits: int
    missed: int
    bypassed: int
    disabled: int
    retuned: int
    seconds: float
    """Seconds of all of them, without waiting for other kernels."""
    waited_seconds: float
    waited_in_vain_seconds: float
    """The part of `waited_seconds` after which the graph was compiled all the same."""
    saved_seconds: float
    """Seconds that hits saved, and torch's own folder would not have."""
    saved_by_torch_seconds: float
    levels: tuple[LevelTally, ...]
    reasons: tuple[ReasonTally, ...]


class Fate(enum.StrEnum):
    """The fate in this kernel of a graph that was stored when it began."""

    USED = "used"
    LOST = "lost"
    """Looked up, but evicted or damaged, so it was compiled again."""
    CHANGED = "changed"
    """Something differs, and a graph was compiled in its place."""
    OTHER = "other"
    """Its function ran, with other versions of it."""
    IDLE = "idle"
    """Its cell ran without looking it up: its function was compiled before, or is not called any longer."""
    UNREACHED = "unreached"
    """Its cell has not run yet, or is not in the notebook any longer."""


@dataclass(frozen=True, slots=True)
class StoredGraph:
    function: str
    direction: Direction
    cell: str
    key: str
    saves_seconds: float
    fate: Fate
    why: str = ""


@dataclass(frozen=True, slots=True)
class TypeTally:
    type: str
    named: int
    """Number of artifacts that the notebook's manifests name."""
    named_bytes: int
    restored: int
    """Number of artifacts that were put where the compiler looks."""
    restored_bytes: int
    """Bytes of those that manifests name; the size of others is unknown."""


@dataclass(frozen=True, slots=True)
class Refusal:
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Lifetime:
    tally: Tally
    kernels: int
    since: float
    """Unix seconds of the oldest run; 0 without a run."""
    is_cut: bool = False
    week_saved_seconds: float = 0.0
    week_kernels: int = 0
    """Kernels of the last seven days in which nbcache, and not torch's own folder, saved time."""

    def to_json(self) -> dict[str, Any]:
        figures = asdict(self)
        return {**figures.pop("tally"), **figures, "since": self.since or None}


@dataclass(frozen=True, slots=True)
class Stats:
    session: Tally
    stored: tuple[StoredGraph, ...]
    """The known graphs that were stored when the kernel began."""
    types: tuple[TypeTally, ...]
    refused: tuple[Refusal, ...]
    overhead_seconds: float
    """Seconds that recording and restoring cost the threads that compile."""
    notebook: Lifetime
    """All kernels of this notebook that are remembered."""
    store: Lifetime
    """All kernels of all notebooks that are remembered, without reasons, which may quote others' code."""
    traces: Mapping[str, int] = field(default_factory=dict)
    """Stored traces by fate: `adopted`, `outdated`; `agrees` or `differs`, if they were audited."""
    missed_unchanged: tuple[Run, ...] = ()
    """Graphs of this kernel that missed, although their cells are the same as last time."""

    @property
    def net_seconds(self) -> float:
        """Seconds saved against plain torch, less the overhead and the time waited in vain."""
        return self.session.saved_seconds - self.overhead_seconds - self.session.waited_in_vain_seconds

    def fates(self) -> Mapping[Fate, int]:
        return Counter(graph.fate for graph in self.stored)

    def to_json(self) -> dict[str, Any]:
        costs = {"overhead_seconds": self.overhead_seconds, "net_seconds": self.net_seconds}
        return {
            "session": asdict(self.session) | costs,
            "stored": [asdict(graph) for graph in self.stored],
            "types": [asdict(row) for row in self.types],
            "traces": dict(self.traces),
            "missed_unchanged": [run.summary() for run in self.missed_unchanged],
            "refused": [asdict(refusal) for refusal in self.refused],
            "notebook": self.notebook.to_json(),
            "store": self.store.to_json(),
        }


def not_hit_because(graph: Graph) -> str:
    return f"{graph.outcome.value}: {one_line(graph.reason or 'no reason known')}"


def tally(graphs: Iterable[Graph]) -> Tally:
    every = list(graphs)
    outcomes = Counter(graph.outcome for graph in every)
    hits = [graph for graph in every if graph.outcome is Outcome.HIT]
    spent: dict[str, list[float]] = defaultdict(list)
    for graph in every:
        if graph.outcome is not Outcome.HIT:
            spent[not_hit_because(graph)].append(graph.seconds.get("total", 0.0))
    reasons = [ReasonTally(reason, len(seconds), sum(seconds)) for reason, seconds in spent.items()]
    waited = [(graph.outcome, graph.seconds.get("wait", 0.0)) for graph in every]
    levels = tuple(
        LevelTally(
            level,
            len(of_level),
            sum(graph.seconds.get("total", 0.0) for graph in of_level),
            sum(graph.saved_seconds or 0.0 for graph in of_level),
        )
        for level in Level
        if (of_level := [graph for graph in hits if graph.level is level])
    )
    return Tally(
        graphs=len(every),
        hits=len(hits),
        missed=outcomes[Outcome.MISS],
        bypassed=outcomes[Outcome.BYPASS],
        disabled=outcomes[Outcome.DISABLED],
        retuned=sum(RETUNED in (graph.reason or "") for graph in hits),
        seconds=sum(graph.seconds.get("total", 0.0) for graph in every) - sum(spent for _, spent in waited),
        waited_seconds=sum(spent for _, spent in waited),
        waited_in_vain_seconds=sum(spent for outcome, spent in waited if outcome is not Outcome.HIT),
        saved_seconds=sum(row.saved_seconds for row in levels if row.level is not Level.L0),
        saved_by_torch_seconds=sum(row.saved_seconds for row in levels if row.level is Level.L0),
        levels=levels,
        reasons=tuple(sorted(reasons, key=lambda row: (-row.seconds, -row.graphs, row.reason))),
    )


def find_fates(
    stored: Iterable[GraphSummary],
    graphs: Sequence[GraphRecord],
    explained: Iterable[Explanation | None],
    *,
    lost: Collection[str] = (),
    ran: Collection[str] = (),
) -> tuple[StoredGraph, ...]:
    """Return the fates in this kernel of the graphs that were stored before.

    `stored` are the graphs of manifests, `graphs` those that this kernel compiled or hit, `explained` the
    differences of missed graphs from the nearest stored one. `lost` are the keys of graphs that missed
    although they were stored, `ran` the digests of the cells that have run.
    """
    hits = {graph.key for graph in graphs if graph.outcome is Outcome.HIT}
    first = {graph.key: graph for graph in reversed(graphs)}
    changes = {explanation.nearest: explanation.clause() for explanation in explained if explanation}
    functions = {(graph.function, graph.direction) for graph in graphs}
    fates: dict[str, StoredGraph] = {}
    for graph in stored:
        record = first.get(graph.key)
        if not graph.key or (record and record.outcome is not Outcome.HIT and graph.key not in lost):
            continue  # torch cannot store it, or this kernel has compiled it
        why = ""
        if graph.key in lost:
            fate, why = Fate.LOST, (record and record.reason) or ""
        elif graph.key in hits:
            fate = Fate.USED
        elif graph.key in changes:
            fate, why = Fate.CHANGED, changes[graph.key]
        elif (graph.function, graph.direction) in functions:
            fate = Fate.OTHER
        else:
            fate = Fate.IDLE if graph.cell in ran else Fate.UNREACHED
        named = (graph.function, graph.direction, graph.cell, graph.key)
        fates[graph.key] = StoredGraph(*named, graph.seconds, fate, why)
    return tuple(fates.values())


def by_type(refs: Iterable[ArtifactRef], restored: Collection[tuple[str, str]]) -> tuple[TypeTally, ...]:
    """Count artifacts by type: those that manifests name, and the `restored` ones, given by type and key."""
    named: dict[str, list[ArtifactRef]] = defaultdict(list)
    for ref in refs:
        named[ref.type].append(ref)
    counts = Counter(type for type, _ in restored)
    rows = []
    for type in sorted({*named, *counts}):
        sizes = {(ref.type, ref.key): ref.size for ref in named[type]}
        used = sum(size for slot, size in sizes.items() if slot in restored)
        size = sum(ref.size for ref in named[type])
        rows.append(TypeTally(type, len(named[type]), size, counts[type], used))
    return tuple(rows)


def lifetime(history: Sequence[Run], *, most: int | None = None, now: float = math.inf) -> Lifetime:
    """Return the figures of a history of `most` runs at most, oldest first, whose last week ends `now`."""
    hits = [run for run in history if run.saved_seconds and run.level is not Level.L0]
    week = [run for run in hits if run.time > now - _WEEK]
    return Lifetime(
        tally(history),
        len({run.kernel for run in history}),
        history[0].time if history else 0.0,
        is_cut=most is not None and len(history) >= most,
        week_saved_seconds=sum(run.saved_seconds or 0.0 for run in week),
        week_kernels=len({run.kernel for run in week}),
    )
