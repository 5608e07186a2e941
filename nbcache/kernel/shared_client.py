"""A kernel's use of the shared level: lookups, waiting for other kernels, publishing, reading ahead."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from nbcache.core.errors import FormatError
from nbcache.core.model import UNSIGNED, Artifact, ArtifactRef, Environment, GraphSummary, Level, Manifest
from nbcache.core.threads import countdown
from nbcache.sharing.live.level import Publication, SharedLevel
from nbcache.sharing.live.signing import VerifiedEntry
from nbcache.sharing.provenance import with_makers
from nbcache.storage.compatibility import fitting
from nbcache.storage.manifests import restricted, union
from nbcache.storage.types import type_of

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

_MOST_AHEAD = 256 << 20
_GRAPH = "inductor"


class SharedClient:
    """Methods are safe to call from any thread."""

    def __init__(self, level: SharedLevel, session: Session) -> None:
        self.level = level
        self.source = (Level.L3, level.name)
        self._session = session
        self._cache = session.cache
        self._claims: dict[int, list[tuple[Environment, str]]] = {}
        """Thread → the graphs that it compiles while other kernels wait for them."""
        self._seconds: dict[str, float] = {}
        """Function → seconds that compiling its longest graph took, here or elsewhere."""

    def flush(self, timeout: float | None) -> bool:
        left = countdown(timeout)
        return self._cache.finish_reading(timeout) and self.level.flush(left())

    def close(self, timeout: float) -> None:
        left = countdown(timeout)
        self._cache.finish_reading(timeout)
        self.level.close(left() or 0.0)

    # --- while torch waits ----------------------------------------------------------------------

    def find(self, environment: Environment, type: str, key: str) -> Sequence[Artifact]:
        if not type_of(type).is_shared:
            return ()
        return self._unpack(environment, self.level.find(environment, type, key))

    def wait_for_other_kernel(
        self, environment: Environment, key: str, function: str, tried: Collection[str]
    ) -> Sequence[Artifact]:
        """Return the graph that another kernel is compiling; wait at most as long as that usually takes."""
        expected = self._expected_seconds(function)
        entries = self.level.wait_for_other_kernel(environment, _GRAPH, key, expected, tried)
        if not entries:
            self._claims.setdefault(threading.get_ident(), []).append((environment, key))
        return self._unpack(environment, entries)

    def finish_compile(self, thread: int) -> None:
        """Let other kernels continue that wait for a thread's graphs, once these are published."""
        for environment, key in self._claims.pop(thread, []):
            self._cache.submit(partial(self.level.finish_compile, environment, _GRAPH, key))

    def _expected_seconds(self, function: str) -> float:
        timings = self.level.timings
        seconds = self._seconds.get(function, timings.usually_expected)
        return min(max(timings.least_expected, seconds), timings.most_expected)

    def _unpack(self, environment: Environment, entries: Iterable[VerifiedEntry]) -> list[Artifact]:
        artifacts = []
        for entry in entries:
            ref = entry.ref
            try:
                artifacts.append(Artifact(ref.type, ref.key, entry.unpack()))
            except FormatError as error:
                self._session.notice(f"{self.level.name}: an entry was refused: {error}", "refused")
                continue
            self._cache.store_hit(environment, ref, entry.packed, self.source)
        return artifacts

    # --- in the background ----------------------------------------------------------------------

    def publish(self, environment: Environment, ref: ArtifactRef, packed: bytes | None = None) -> None:
        """Publish a stored artifact; without `packed`, read its content from the local store."""
        if not type_of(ref.type).is_shared or not self.level.lacks(environment, ref):
            return
        if (content := packed or self._cache.packed_content(ref)) is not None:
            self.level.publish(environment, ref, content)

    def withdraw(self, environment: Environment, type: str, key: str, digest: str) -> None:
        """Remove a wrong artifact from the shared level, after pending writes to the local store."""
        self._cache.submit(partial(self.level.withdraw, environment, type, key, digest))

    def publish_manifest(self, manifest: Manifest) -> None:
        """Publish a notebook's manifest under the name of its file, with the makers of its artifacts."""
        self._learn(manifest.graphs)
        signed = [ref for ref in manifest.artifacts if ref.provenance != UNSIGNED]
        manifest = with_makers(restricted(manifest, signed))
        refs = tuple(replace(ref, provenance=None) for ref in manifest.artifacts)
        name = os.path.basename(manifest.notebook)
        self.level.publish_manifest(replace(manifest, notebook=name, artifacts=refs))

    def begin(self, environment: Environment) -> None:
        """Read ahead artifacts that others have for this notebook, and publish those that they lack."""
        self._cache.refs(timeout=self.level.timings.least_expected)  # local artifacts need no download
        self._read_ahead(environment)
        if (manifest := self._cache.stored_manifest()) is not None and manifest.artifacts:
            # In the manifest's own environment: the kernel's may have changed since this began.
            for ref in self.level.absent(manifest.environment, manifest.artifacts):
                self.publish(manifest.environment, ref)
            self.publish_manifest(manifest)

    def publications(self) -> list[Publication]:
        return self.level.publications(os.path.basename(self._session.notebook(timeout=2.0)))

    def _read_ahead(self, environment: Environment) -> None:
        """Read the artifacts that others have published for this notebook and that are not stored here."""
        if not self._session.settings.prefetch or environment != self._cache.environment:
            return
        publications = self.publications()
        for publication in publications:
            publisher = self.level.introduce(publication.found.signer, publication.user, publication.host)
            self._cache.note_elsewhere(f"published by {publisher}", [publication.manifest])
        fits = (fitting([publication.manifest], environment) for publication in publications)
        merged = union(environment, "", filter(None, fits))
        self._learn(merged.graphs)
        local = {ref.identity for ref in self._cache.refs(timeout=0.0)}
        wanted = [ref for ref in merged.artifacts if ref.identity not in local]
        listed = self.level.find_many(environment, wanted, most_bytes=_MOST_AHEAD)
        entries = {entry.statement.ref.identity: entry for entry in listed}
        pairs = [(ref, entries[ref.identity]) for ref in wanted if ref.identity in entries]
        if pairs:
            refs = tuple(replace(ref, provenance=entry.provenance) for ref, entry in pairs)
            packed = {ref.digest: entry.packed for ref, entry in pairs}
            self._cache.adopt(environment, replace(merged, artifacts=refs), packed, self.source)

    def _learn(self, graphs: Iterable[GraphSummary]) -> None:
        for graph in graphs:
            self._seconds[graph.function] = max(graph.seconds, self._seconds.get(graph.function, 0.0))
