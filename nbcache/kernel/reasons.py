"""Reasons of misses, by the graphs that are stored here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nbcache.core import key
from nbcache.core.model import Direction, Environment, GraphSummary, Manifest
from nbcache.core.reports import RESUMED, Cell, Difference, Explanation, GraphRecord, has_own_name
from nbcache.core.text import one_line
from nbcache.kernel.explain.components import Components, explain_miss
from nbcache.storage.compatibility import differences as environment_differences
from nbcache.storage.compatibility import differing_values

FIRST_TIME = "compiled for the first time in this notebook"
NOT_STORED = "not stored: "
"""Prefix of a reason for which a trace may have a better explanation."""
DAMAGED = "the stored graph was damaged, and nbcache removed it"
INCOMPLETE = "stored, but a C++ kernel of it is missing"
NOT_COMPILED = "not compiled: "
"""Prefix of the reason of a graph whose compile was interrupted or failed."""
GONE = "it was stored, and has been evicted or removed since"
LOST = frozenset({DAMAGED, INCOMPLETE, GONE})
"""Reasons of graphs that missed although they were stored."""
_GROUPS = ("torch", "device", "triton", "python", "cpu", "compiler")
"""The parts of an environment, the most telling first."""
_LONGEST = 60
_Graph = TypeVar("_Graph", GraphSummary, GraphRecord)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Graphs of another environment or of an untrusted signer, which cannot be used, and the reason."""

    graphs: tuple[GraphSummary, ...]
    where: str
    """Their place, as part of a sentence: `in model.nbcache`."""
    differences: tuple[Difference, ...] = ()
    """The differences of their environment, the most telling first; empty where it fits."""


def unusable(manifests: Iterable[Manifest], environment: Environment, where: str) -> Iterator[Elsewhere]:
    """Yield those of `manifests` that hold graphs for another environment than this one."""
    for manifest in manifests:
        if manifest.graphs and (differing := environment_differences(manifest, environment)):
            ordered = sorted(differing, key=lambda part: (_order(part.label), part.label))
            yield Elsewhere(manifest.graphs, where, tuple(map(_difference, ordered)))


def _order(label: str) -> int:
    group = label.partition(".")[0]
    return _GROUPS.index(group) if group in _GROUPS else len(_GROUPS)


def _difference(part: key.Difference) -> Difference:
    values = (one_line(value or "", _LONGEST) for value in differing_values(part))
    return Difference(part.label.removesuffix(".version").replace(".", " "), *values)


@dataclass(frozen=True, slots=True)
class Miss:
    """A lookup of a graph that missed."""

    key: str
    function: str
    cell: Cell | None = None
    """The cell that runs."""
    threads: int = 0
    """torch's number of threads; 0 if it is unknown."""
    backward: bool = False
    incomplete: bool = False
    """True if the graph is stored without its C++ kernels."""
    components: Components | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    text: str
    explanation: Explanation | None = None


def why_missed(
    miss: Miss,
    stored: Iterable[GraphSummary],
    earlier: Iterable[GraphRecord],
    elsewhere: Iterable[Elsewhere] = (),
) -> Reason:
    """Return the reason of a miss.

    `stored` are the graphs of the notebook's manifests, `earlier` those that this kernel has compiled,
    `elsewhere` those that cannot be used here. C++ kernels are for one number of threads, even if torch's key
    omits it (until 2.12).
    """
    stored_versions = _versions(miss, stored)
    own_versions = [graph for graph in _versions(miss, earlier) if not _is_another_part(graph, miss)]
    graphs: list[GraphSummary | GraphRecord] = [*reversed(own_versions), *stored_versions]  # newest first
    nearest = _explain_by_nearest(miss, graphs)
    counts = {graph.threads for graph in graphs if graph.threads}
    if miss.threads and counts and miss.threads not in counts:
        listed = " or ".join(map(str, sorted(counts)))
        text = f"not stored for this number of threads: {miss.threads} now, {listed} before"
        cause = Difference("threads", listed, str(miss.threads))
        more = [part for part in nearest.differences if part.what != "threads"] if nearest else []
        return Reason(text, Explanation(nearest.nearest if nearest else graphs[0].key or "", (cause, *more)))
    if miss.incomplete:
        return Reason(INCOMPLETE)
    places = [place for place in elsewhere if _versions(miss, place.graphs)]
    for place in places:
        if not place.differences and any(graph.key == miss.key for graph in place.graphs):
            return Reason(f"not used: it is {place.where}")
    if not graphs:
        return _environment_reason(miss, places) or Reason(FIRST_TIME)
    if any(graph.key == miss.key and not _is_unfinished(graph) for graph in graphs):
        return Reason(GONE)
    if nearest is not None:
        return Reason(f"{NOT_STORED}{nearest.clause()}", nearest)
    if not stored_versions:
        text = "this kernel's graphs of this name have other code, inputs or settings"
    elif miss.cell and any(graph.cell == miss.cell.digest for graph in stored_versions):
        text = "this cell is unchanged, so inputs, settings or code outside it differ"
    else:
        text = "stored graphs of this name have other code, inputs or settings"
    return Reason(f"{NOT_STORED}{text}")


def _environment_reason(miss: Miss, places: Sequence[Elsewhere]) -> Reason | None:
    unfit = [place for place in places if place.differences]
    if not unfit:
        return None
    place = min(unfit, key=lambda place: len(place.differences))
    explanation = Explanation(_versions(miss, place.graphs)[-1].key, place.differences)
    return Reason(f"not stored for this environment: {explanation.clause()} ({place.where})", explanation)


def _versions(miss: Miss, graphs: Iterable[_Graph]) -> list[_Graph]:
    """Return the graphs that may be versions of the one that missed, by their names."""
    name = (miss.function, miss.backward)
    named = [graph for graph in graphs if (graph.function, graph.direction is Direction.BACKWARD) == name]
    if has_own_name(miss.function):
        return named
    digest = miss.cell.digest if miss.cell else ""  # all lambdas share a name
    cells = [graph.cell if isinstance(graph, GraphSummary) else graph.cell_digest for graph in named]
    return [graph for graph, cell in zip(named, cells, strict=True) if cell == digest]


def _is_another_part(graph: GraphRecord, miss: Miss) -> bool:
    """Return whether a graph of this name is another part of its function, or another lambda of its cell."""
    shares_name = graph.function.endswith(RESUMED) or not has_own_name(graph.function)
    return shares_name and miss.cell is not None and graph.cell == miss.cell


def _is_unfinished(graph: GraphSummary | GraphRecord) -> bool:
    """Return whether the compile of a graph was interrupted or failed, so that nothing was stored."""
    return isinstance(graph, GraphRecord) and (graph.reason or "").startswith(NOT_COMPILED)


def _explain_by_nearest(miss: Miss, graphs: Sequence[GraphSummary | GraphRecord]) -> Explanation | None:
    if miss.components is None:
        return None
    candidates = ((graph.key, graph.components) for graph in graphs if graph.key and graph.key != miss.key)
    return explain_miss(miss.components, candidates)
