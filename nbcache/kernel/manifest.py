"""The graphs of a notebook, as its manifest names them."""

from __future__ import annotations

from collections.abc import Iterable

from nbcache.core.model import ArtifactRef, GraphSummary, Outcome
from nbcache.core.reports import GraphRecord

__all__ = ["summaries"]


def summaries(graphs: Iterable[GraphRecord], refs: Iterable[ArtifactRef]) -> tuple[GraphSummary, ...]:
    """Return what a manifest tells of `graphs`, each with those of `refs` that belong to its function."""
    artifacts: dict[tuple[str, str], dict[str, None]] = {}
    keys: set[str] = set()
    for ref in refs:
        artifacts.setdefault((ref.cell, ref.function), {})[ref.digest] = None
        keys.add(ref.key)
    found = []
    for graph in graphs:
        cell = graph.cell_digest
        if (cell, graph.function) not in artifacts:
            continue  # not cached, not to be saved, or of another environment
        if graph.outcome is Outcome.MISS and graph.key and graph.key not in keys:
            continue  # its compile was interrupted
        found.append(
            GraphSummary(
                cell=cell,
                function=graph.function,
                direction=graph.direction,
                outcome=graph.outcome,
                key=graph.key or "",
                seconds=max(0.0, _compiling(graph)),
                artifacts=tuple(artifacts[cell, graph.function]),
                threads=graph.threads,
                components=graph.components,
            )
        )
    return tuple(found)


def _compiling(graph: GraphRecord) -> float:
    """Return the seconds that a hit saves: all but tracing and loading, which it has itself."""
    if graph.saved_seconds is not None:
        return graph.saved_seconds
    return graph.total_seconds - sum(graph.seconds.get(phase, 0.0) for phase in ("dynamo", "load"))
