"""What a panel shows: values of the session, gathered at two paces, and what of them its user looks at."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nbcache.core.model import Environment, Manifest, Outcome
from nbcache.core.reports import Activity, GraphRecord
from nbcache.core.text import one_line
from nbcache.explain.plan import Plan
from nbcache.explain.timeline import Timeline
from nbcache.ui.display.rows import SettingRow, StoreFigures
from nbcache.ui.display.words import short_location

__all__ = [
    "PAGE",
    "Facts",
    "GraphPage",
    "Now",
    "Order",
    "Space",
    "Stranger",
    "graph_page",
    "machine_parts",
    "spaces",
]

PAGE = 10
"""Graphs on one page."""


class Order(enum.StrEnum):
    """How graphs are sorted."""

    NEWEST = "newest cell first"
    SLOWEST = "slowest first"
    SAVED = "most saved first"
    FUNCTION = "by function"


@dataclass(frozen=True, slots=True)
class Now:
    """The values that change while a cell runs. They are cheap to read."""

    graphs: Sequence[GraphRecord] = ()
    """Every graph of this kernel, in the order in which they were done."""
    activity: Activity | None = None
    """The running compile."""
    running: str = ""
    """The cell that runs, `In[3]`; empty where none does."""
    running_seconds: float = 0.0
    shared: Sequence[str] = ()
    """The shared store and what was exchanged with it, in words; empty where this kernel is not connected."""


@dataclass(frozen=True, slots=True)
class Space:
    """The contents of the local store that belong to one notebook."""

    notebook: str
    """Its identity; empty for what kernels that cannot tell their notebook have in common."""
    graphs: int
    artifacts: int
    bytes: int
    """Of content, uncompressed; what several notebooks use counts for each."""
    used: float
    """Unix seconds at which a kernel last made or hit something of it."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody who signed or compiled what came along, and is not trusted."""

    fingerprint: str
    """The whole of it, in groups."""
    name: str
    """The name that they chose."""
    what: str
    """The snapshot that they have to do with."""
    fit: str = ""
    """A sentence on whether it fits here."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The values that come from disks and from other machines, gathered while no cell runs."""

    notebook: str = ""
    """Name of its file; empty where this kernel cannot tell."""
    identity: str = ""
    """Its identity: other notebooks may have the same name."""
    machine: Sequence[str] = ()
    plan: Plan = field(default_factory=lambda: Plan((), 0))
    plan_notes: Sequence[str] = ()
    plan_problem: str = ""
    """Why there is no plan; empty where there is one."""
    people: Sequence[str] = ()
    """Who has published what of this notebook, a line each."""
    strangers: Sequence[Stranger] = ()
    snapshots: Sequence[str] = ()
    """The snapshot beside the notebook and those that came along, a line each."""
    paste: Sequence[str] = ()
    """What a colleague pastes to have the snapshot, a line each; empty where there is none."""
    timeline: Timeline = field(default_factory=lambda: Timeline((), (), ()))
    settings: Sequence[SettingRow] = ()
    torch_settings: Sequence[SettingRow] = ()
    store: StoreFigures | None = None
    """The local store; None where it cannot be read."""
    spaces: Sequence[Space] = ()
    """Largest first."""
    time: float = 0.0
    """Unix seconds at which all this was so."""
    is_read: bool = True
    """False as long as nothing of it is known."""


@dataclass(frozen=True, slots=True)
class GraphPage:
    """The graphs that are looked at."""

    rows: Sequence[tuple[int, GraphRecord]]
    """Each after its place among all graphs of this kernel, by which it is known again."""
    page: int
    """From 0."""
    pages: int
    """At least 1."""
    found: int
    """Graphs that pass the filter, on all pages."""
    order: Order = Order.NEWEST


def graph_page(
    graphs: Sequence[GraphRecord],
    outcome: Outcome | None = None,
    order: Order = Order.NEWEST,
    page: int = 0,
    size: int = PAGE,
) -> GraphPage:
    """Return a page of those graphs that have this outcome; without one, of all.

    A page that is not there becomes the nearest one that is.
    """
    found = [(i, graph) for i, graph in enumerate(graphs) if outcome is None or graph.outcome is outcome]
    if order is Order.NEWEST:
        found = _by_cell(found)
    elif order is Order.SLOWEST:
        found.sort(key=lambda pair: -pair[1].total_seconds)
    elif order is Order.SAVED:
        found.sort(key=lambda pair: -(pair[1].saved_seconds or 0.0))
    else:
        found.sort(key=lambda pair: (pair[1].function, short_location(pair[1])))
    pages = max(1, -(-len(found) // size))
    page = min(max(page, 0), pages - 1)
    return GraphPage(found[page * size : (page + 1) * size], page, pages, len(found), order)


def _by_cell(found: Iterable[tuple[int, GraphRecord]]) -> list[tuple[int, GraphRecord]]:
    """Return the runs of cells, the last one first; the graphs of each as they compiled."""
    runs: list[list[tuple[int, GraphRecord]]] = []
    for pair in found:
        if runs and runs[-1][-1][1].cell == pair[1].cell:
            runs[-1].append(pair)
        else:
            runs.append([pair])
    return [pair for run in reversed(runs) for pair in run]


def spaces(manifests: Iterable[Manifest]) -> list[Space]:
    """Return what is kept of each notebook, largest first."""
    by_notebook: dict[str, list[Manifest]] = {}
    for manifest in manifests:
        by_notebook.setdefault(manifest.notebook, []).append(manifest)
    found = []
    for notebook, each in by_notebook.items():
        refs = {(one.environment.digest, *ref.identity): ref for one in each for ref in one.artifacts}
        graphs = {(one.environment.digest, *graph.identity) for one in each for graph in one.graphs}
        found.append(
            Space(
                notebook,
                len(graphs),
                len({ref.digest for ref in refs.values()}),
                sum({ref.digest: ref.size for ref in refs.values()}.values()),
                max((ref.used for ref in refs.values()), default=0.0),
            )
        )
    return sorted(found, key=lambda space: (-space.bytes, space.notebook))


def machine_parts(environment: Environment | None, graphs: Sequence[GraphRecord]) -> list[str]:
    """Return what a compile depends on here, in words: torch, processor or GPU, threads."""
    values = {} if environment is None else environment.values
    parts = [f"torch {values['torch.version']}"] if "torch.version" in values else []
    if values.get("device", "cpu") not in ("cpu", "none", ""):
        parts.append(one_line(values["device"], 40))
    if capability := values.get("cpu.capability", ""):
        parts.append(f"CPU {capability}")
    if threads := next((graph.threads for graph in reversed(graphs) if graph.threads), 0):
        parts.append("1 thread" if threads == 1 else f"{threads} threads")
    return parts
