"""Manifests of one environment: merged and cut, so that all kernels agree on what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nbcache.core.key import sha256
from nbcache.core.model import UNSIGNED, ArtifactRef, Environment, GraphSummary, Manifest
from nbcache.storage.types import type_of

MAX_MANIFEST_ARTIFACTS = 10_000


def notebook_digest(notebook: str) -> str:
    """Return a notebook's name in keys of a store; a path in no encoding is no error."""
    return sha256(notebook.encode(errors="surrogatepass"))


def recency(ref: ArtifactRef) -> tuple[object, ...]:
    """Order references by use. It is total, so that all kernels agree which of two is newer."""
    # An artifact that was compiled here is newer than one from elsewhere.
    whose = (ref.provenance is None, ref.provenance or UNSIGNED)
    return (ref.used, ref.created, ref.digest, ref.type, ref.key, ref.size, ref.cell, ref.function, *whose)


def holdings(manifest: Manifest) -> tuple[set[ArtifactRef], set[GraphSummary]]:
    return set(manifest.artifacts), set(manifest.graphs)


def newest_first(manifests: Iterable[Manifest]) -> list[Manifest]:
    return sorted(manifests, key=lambda one: sorted(map(recency, one.artifacts), reverse=True), reverse=True)


def union(environment: Environment, notebook: str, manifests: Iterable[Manifest]) -> Manifest:
    """Merge manifests of one environment.

    Artifacts and graphs keep the order of their first mention. Of an artifact the newest reference counts,
    and of a graph the summary with the longest compile, with those of its artifacts that are kept.
    """
    newest: dict[tuple[str, ...], ArtifactRef] = {}
    longest: dict[tuple[str, ...], GraphSummary] = {}
    for manifest in manifests:
        for ref in manifest.artifacts:
            name = slot(ref)
            newest[name] = max(newest.get(name, ref), ref, key=recency)
        for graph in manifest.graphs:
            other = longest.get(graph.identity, graph)
            components = max(other.components, graph.components)  # which a hit does not tell
            longest[graph.identity] = replace(max(other, graph, key=_length), components=components)
    kept = set(sorted(newest.values(), key=recency)[-MAX_MANIFEST_ARTIFACTS:])
    digests = {ref.digest for ref in kept}
    graphs = [
        replace(graph, artifacts=tuple(digest for digest in graph.artifacts if digest in digests))
        for graph in list(longest.values())[:MAX_MANIFEST_ARTIFACTS]
    ]
    return Manifest(
        environment, notebook, tuple(ref for ref in newest.values() if ref in kept), tuple(graphs)
    )


def slot(ref: ArtifactRef) -> tuple[str, ...]:
    """Return what two references share that name one artifact, or an earlier state of it."""
    return ref.identity[:2] if type_of(ref.type).grows else ref.identity


def restricted(manifest: Manifest, refs: Iterable[ArtifactRef]) -> Manifest:
    """Return `manifest` with these of its artifacts, and the graphs that need no others."""
    kept = tuple(refs)
    digests = {ref.digest for ref in kept}
    graphs = tuple(graph for graph in manifest.graphs if digests.issuperset(graph.artifacts))
    return replace(manifest, artifacts=kept, graphs=graphs)


def _length(graph: GraphSummary) -> tuple[float, int, str, tuple[str, ...], int]:
    """Order summaries of one graph; total, so that all kernels agree which of two counts."""
    return (graph.seconds, len(graph.artifacts), graph.outcome, graph.artifacts, graph.threads)


@dataclass(frozen=True, slots=True)
class Clearing:
    """The entries that go with a notebook, in all environments, and those that other notebooks use."""

    notebook: str
    graphs: int
    artifacts: int
    kept: int
    manifests: tuple[str, ...]
    refs: tuple[tuple[str, ArtifactRef], ...]


def clearing(manifests: Mapping[str, Manifest], notebook: str) -> Clearing:
    """Return what of the `manifests` of all notebooks, by key, is one notebook's alone."""
    own: list[str] = []
    elsewhere: set[tuple[str, ...]] = set()
    refs: dict[tuple[str, ...], tuple[str, ArtifactRef]] = {}
    graphs: set[tuple[str, ...]] = set()
    for key, manifest in manifests.items():
        environment = manifest.environment.digest
        if manifest.notebook != notebook:
            elsewhere |= {(environment, *slot(ref)) for ref in manifest.artifacts}
            continue
        own.append(key)
        refs |= {(environment, *ref.identity): (environment, ref) for ref in manifest.artifacts}
        graphs |= {(environment, *graph.identity) for graph in manifest.graphs}
    going = [
        (environment, ref) for environment, ref in refs.values() if (environment, *slot(ref)) not in elsewhere
    ]
    digests = {ref.digest for _, ref in going}
    return Clearing(notebook, len(graphs), len(digests), len(refs) - len(going), tuple(own), tuple(going))
