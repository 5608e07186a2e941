"""Say why a graph was not there, or was traced again, by what is known of those that were stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from nbcache.core.model import ArtifactRef, Direction, GraphRecord, GraphSummary

__all__ = ["FIRST_TIME", "NOT_STORED", "names_changed", "why_missed"]

FIRST_TIME = "compiled for the first time in this notebook"
NOT_STORED = "not stored: "
"""How a reason begins that a trace can tell better."""


class _Known(Protocol):
    """What summaries and records of graphs both tell."""

    @property
    def function(self) -> str: ...
    @property
    def threads(self) -> int: ...


def why_missed(
    key: str,
    function: str,
    cell: str,
    threads: int,
    stored: Iterable[GraphSummary],
    earlier: Iterable[GraphRecord],
    *,
    backward: bool = False,
    incomplete: bool = False,
) -> str:
    """Return why torch could hit nothing under `key` for a function that the cell with this digest calls.

    `stored` is what the notebook's manifests tell, `earlier` what this kernel has compiled; `threads` is
    torch's number of threads, 0 where it is not known. `incomplete` says that the graph is there without its
    C++ kernels; they are for one number of threads, also where torch's key leaves it out (until 2.12).
    """
    before = [graph for graph in stored if _is_same(function, cell, graph.function, graph.cell)]
    here = [graph for graph in earlier if _is_same(function, cell, graph.function, _digest(graph))]
    before = [graph for graph in before if (graph.direction is Direction.BACKWARD) == backward]
    here = [graph for graph in here if (graph.direction is Direction.BACKWARD) == backward]
    known: list[_Known] = [*before, *here]
    counts = {graph.threads for graph in known if graph.threads}
    if threads and counts and threads not in counts:
        those = " or ".join(map(str, sorted(counts)))
        return f"not stored for this number of threads: {threads} now, {those} before"
    if incomplete:
        return "stored, but a C++ kernel of it is missing"
    if not known:
        return FIRST_TIME
    if any(graph.key == key for graph in before):
        return "it was stored, and is not there any more: evicted, or removed"
    if not before:
        return f"{NOT_STORED}what this kernel has compiled of this name had other code, inputs or settings"
    if cell and any(graph.cell == cell for graph in before):
        return f"{NOT_STORED}this cell is unchanged, so inputs, settings or code outside it differ"
    return f"{NOT_STORED}what is stored of a function of this name has other code, inputs or settings"


def _is_same(function: str, cell: str, other: str, other_cell: str) -> bool:
    """Tell whether two functions may be versions of one, by their names; lambdas have none of their own."""
    return function == other and (not function.endswith("<lambda>") or cell == other_cell)


def _digest(graph: GraphRecord) -> str:
    return graph.cell.digest if graph.cell else ""


def names_changed(
    key: str, autograd_key: str, stored: Iterable[GraphSummary], refs: Sequence[ArtifactRef]
) -> bool:
    """Tell whether AOTAutograd's entry for the graph under torch's `key` is there, under another key.

    Its key holds the names of arguments and variables, and the graph's does not.
    """
    digests = {digest for graph in stored if graph.key == key for digest in graph.artifacts}
    keys = {ref.key for ref in refs if ref.type == "aot_autograd" and ref.digest in digests}
    return bool(keys) and autograd_key not in keys
