"""Merge and restrict manifests of one environment, with the same result in all kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nbcache.core.key import sha256
from nbcache.core.model import UNSIGNED, ArtifactRef, Environment, GraphSummary, Manifest
from nbcache.storage.types import type_of

MAX_MANIFEST_ARTIFACTS = 10_000


def notebook_digest(notebook: str) -> str:
    """Return the digest of a notebook's path for store keys; the path may hold undecodable bytes."""
    return sha256(notebook.encode(errors="surrogatepass"))


def recency(ref: ArtifactRef) -> tuple[object, ...]:
    """Return a sort key, above all `ref.used`. The order is total, so all kernels agree which is newer."""
    # After equal fields, this user's own artifact is newer than another maker's.
    maker = (ref.provenance is None, ref.provenance or UNSIGNED)
    return (ref.used, ref.created, ref.digest, ref.type, ref.key, ref.size, ref.cell, ref.function, *maker)


def holdings(manifest: Manifest) -> tuple[set[ArtifactRef], set[GraphSummary]]:
    return set(manifest.artifacts), set(manifest.graphs)


def newest_first(manifests: Iterable[Manifest]) -> list[Manifest]:
    return sorted(manifests, key=lambda one: sorted(map(recency, one.artifacts), reverse=True), reverse=True)


def union(environment: Environment, notebook: str, manifests: Iterable[Manifest]) -> Manifest:
    """Merge manifests of one environment.

    Artifacts and graphs keep the order of their first mention. The result has the newest reference of each
    artifact, and each graph's summary with the longest compile, without artifacts beyond the bound.
    """
    newest: dict[tuple[str, ...], ArtifactRef] = {}
    longest: dict[tuple[str, ...], GraphSummary] = {}
    for manifest in manifests:
        for ref in manifest.artifacts:
            newest[slot(ref)] = max(newest.get(slot(ref), ref), ref, key=recency)
        for graph in manifest.graphs:
            other = longest.get(graph.identity, graph)
            components = max(other.components, graph.components)  # a hit's summary has none
            longest[graph.identity] = replace(max(other, graph, key=_by_length), components=components)
    refs = set(sorted(newest.values(), key=recency)[-MAX_MANIFEST_ARTIFACTS:])
    digests = {ref.digest for ref in refs}
    graphs = [
        replace(graph, artifacts=tuple(digest for digest in graph.artifacts if digest in digests))
        for graph in list(longest.values())[:MAX_MANIFEST_ARTIFACTS]
    ]
    return Manifest(
        environment, notebook, tuple(ref for ref in newest.values() if ref in refs), tuple(graphs)
    )


def slot(ref: ArtifactRef) -> tuple[str, ...]:
    """Return the identity of an artifact; all states of one that grows share it."""
    return ref.identity[:2] if type_of(ref.type).grows else ref.identity


def restricted(manifest: Manifest, refs: Iterable[ArtifactRef]) -> Manifest:
    """Return `manifest` with `refs` only, and with the graphs that need only these artifacts."""
    artifacts = tuple(refs)
    digests = {ref.digest for ref in artifacts}
    graphs = tuple(graph for graph in manifest.graphs if digests.issuperset(graph.artifacts))
    return replace(manifest, artifacts=artifacts, graphs=graphs)


def _by_length(graph: GraphSummary) -> tuple[float, int, str, tuple[str, ...], int]:
    """Return a sort key for summaries of one graph; the order is total, so all kernels pick the same one."""
    return (graph.seconds, len(graph.artifacts), graph.outcome, graph.artifacts, graph.threads)


@dataclass(frozen=True, slots=True)
class Clearing:
    """The entries to remove when a notebook is cleared, in all environments."""

    notebook: str
    graphs: int
    artifacts: int
    kept: int
    """The notebook's references that stay, since other notebooks use them."""
    manifests: tuple[str, ...]
    refs: tuple[tuple[str, ArtifactRef], ...]
    """Environment digests with references."""


def clearing(manifests: Mapping[str, Manifest], notebook: str) -> Clearing:
    """Return the entries that `notebook` alone uses; `manifests` are those of all notebooks, by key."""
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
    unused = [
        (environment, ref) for environment, ref in refs.values() if (environment, *slot(ref)) not in elsewhere
    ]
    digests = {ref.digest for _, ref in unused}
    return Clearing(notebook, len(graphs), len(digests), len(refs) - len(unused), tuple(own), tuple(unused))
