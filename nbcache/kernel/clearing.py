"""What of the local store is one notebook's alone: said before it is removed."""

from __future__ import annotations

from dataclasses import dataclass

from nbcache.artifacts.store import ArtifactStore
from nbcache.artifacts.types import type_of
from nbcache.core.model import ArtifactRef

__all__ = ["Clearing", "clearing"]


@dataclass(frozen=True, slots=True)
class Clearing:
    """What goes with a notebook, in all environments, and what stays since others use it as well."""

    notebook: str
    """Its identity; empty for what kernels that cannot tell their notebook have in common."""
    graphs: int
    artifacts: int
    kept: int
    """Artifacts that other notebooks use as well."""
    manifests: tuple[str, ...]
    """Keys of the manifests that go."""
    refs: tuple[tuple[str, ArtifactRef], ...]
    """The references that go, each after the digest of its environment."""


def clearing(artifacts: ArtifactStore, notebook: str) -> Clearing:
    """Return what is to be removed of a notebook; StoreError where the store fails."""
    manifests = artifacts.manifests()
    own = {key: each for key, each in manifests.items() if each.notebook == notebook}
    elsewhere = {
        _slot(each.environment.digest, ref)
        for each in manifests.values()
        if each.notebook != notebook
        for ref in each.artifacts
    }
    refs = {
        (each.environment.digest, *ref.identity): (each.environment.digest, ref)
        for each in own.values()
        for ref in each.artifacts
    }
    going = [pair for pair in refs.values() if _slot(*pair) not in elsewhere]
    graphs = {(each.environment.digest, *graph.identity) for each in own.values() for graph in each.graphs}
    digests = {ref.digest for _, ref in going}
    kept = len(refs) - len(going)
    return Clearing(notebook, len(graphs), len(digests), kept, tuple(own), tuple(going))


def _slot(environment_digest: str, ref: ArtifactRef) -> tuple[str, ...]:
    """Return what two manifests share where they name one artifact, or an earlier state of it."""
    identity = ref.identity[:2] if type_of(ref.type).grows else ref.identity
    return (environment_digest, *identity)
