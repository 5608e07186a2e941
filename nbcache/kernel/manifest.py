"""What a kernel holds of its notebook: what it has used, and what was brought to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nbcache.artifacts.types import type_of
from nbcache.core.model import ArtifactRef, Environment, GraphSummary, Manifest, Outcome, Source
from nbcache.core.reports import GraphRecord
from nbcache.core.threads import ForkSafeLock

__all__ = ["ManifestBuilder", "PendingImport", "summaries"]


@dataclass(frozen=True, slots=True)
class PendingImport:
    """What came from elsewhere and is to be stored here."""

    manifest: Manifest
    packed: Mapping[str, bytes] = field(repr=False)
    """Compressed contents by digest."""
    source: Source


class ManifestBuilder:
    """Collects what the manifest is to name. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._brought: list[PendingImport] = []
        self._used: dict[tuple[str, str, str], ArtifactRef] = {}
        self._due = False

    def bring(self, brought: PendingImport) -> None:
        """Keep what was brought until it is stored: storing can wait, and the compiler cannot."""
        with self._lock:
            self._brought.append(brought)

    def take_brought(self) -> list[PendingImport]:
        """Return what was brought since this was last asked."""
        with self._lock:
            brought, self._brought = self._brought, []
            return brought

    def use(self, ref: ArtifactRef) -> None:
        """Note that the compiler has made or hit an artifact, so that the manifest names it."""
        with self._lock:
            if type_of(ref.type).grows:
                for identity in [i for i, each in self._used.items() if i[:2] == ref.identity[:2]]:
                    del self._used[identity]
            self._used.setdefault(ref.identity, ref)
            self._due = True

    def manifest(
        self,
        environment: Environment,
        notebook: str,
        earlier: Iterable[ArtifactRef],
        graphs: Sequence[GraphRecord],
    ) -> Manifest | None:
        """Return what the manifest is to say, with what it named `earlier`; None where nothing is new."""
        with self._lock:
            if not self._due:
                return None
            self._due = False
            used = dict(self._used)
        refs = (*used.values(), *(ref for ref in earlier if ref.identity not in used))
        return Manifest(environment, notebook, refs, summaries(graphs, refs))

    def not_saved(self) -> None:
        """Have the manifest written again: it could not be."""
        self._due = True

    def forget(self) -> None:
        """Forget what was used, but not what was brought."""
        with self._lock:
            self._used.clear()
            self._due = False


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
