"""What the compiler is given beyond its own caches: read ahead from the store, or brought from elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from nbcache.artifacts.encoding import unpack
from nbcache.artifacts.manifests import union
from nbcache.core.errors import FormatError
from nbcache.core.model import Artifact, ArtifactRef, GraphSummary, Manifest, Source
from nbcache.core.threads import ForkSafeLock, renew_in_children, start_thread

_AHEAD_BYTES = 256 * 2**20
"""Artifacts read ahead are held in memory until they are asked for, up to this much."""
_READERS = 4
"""Threads that read ahead: reading, hashing and decompressing leave Python's lock to others."""


class Prefetcher:
    """Artifacts for one environment. Methods are safe to call from any thread."""

    def __init__(
        self, find: Callable[[str, str], list[Artifact]], on_damage: Callable[[FormatError], None]
    ) -> None:
        """`find` returns what the store has; `on_damage` hears of what a snapshot holds and is damaged."""
        self._find = find
        self._on_damage = on_damage
        self._lock = ForkSafeLock()
        self._known = threading.Event()
        self._refs: tuple[ArtifactRef, ...] = ()
        self._graphs: tuple[GraphSummary, ...] = ()
        self._brought: list[Manifest] = []
        self._packed: dict[tuple[str, str], dict[str, tuple[ArtifactRef, bytes, Source]]] = {}
        """What was brought, by type and key, then digest: compressed, and where from."""
        self._sources: dict[tuple[str, str], Source] = {}
        self._taken: set[tuple[str, str]] = set()
        self._ahead: dict[tuple[str, str], list[Artifact]] = {}
        self._held = 0
        self._reading = object()
        """Stands for what is being read ahead; another one says that it is of no use any more."""
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, where nothing is being read ahead: the rest is read when asked for."""
        self._known = threading.Event()
        self._known.set()
        self._reading = object()

    def bring(self, manifest: Manifest, packed: Mapping[str, bytes], source: Source) -> bool:
        """Take in what `source` has for this environment, `packed` by digest.

        Returns whether it is new: a snapshot is brought whenever reading ahead begins.
        """
        with self._lock:
            if manifest in self._brought:
                return False
            for ref in manifest.artifacts:
                brought = self._packed.setdefault((ref.type, ref.key), {})
                brought[ref.digest] = (ref, packed[ref.digest], source)
            self._brought.append(manifest)
            return True

    def begin(self, manifest: Manifest | None) -> None:
        """Read ahead what `manifest` and what was brought name, most wanted first; on threads of its own.

        None where nothing is to be read ahead.
        """
        with self._lock:
            self._reading = object()
            self._taken.clear()
            self._ahead.clear()
            self._held = 0
            if manifest is not None:
                known = [*self._brought, manifest]
                whole = union(manifest.environment, manifest.notebook, known)
                self._refs, self._graphs = whole.artifacts, whole.graphs
            self._known.set()
        wanted = iter(dict.fromkeys((ref.type, ref.key) for ref in self._refs))
        for _ in range(_READERS if self._refs else 0):  # without threads, all is read when it is asked for
            start_thread(partial(self._read, wanted, self._reading), "prefetch")

    def stop(self) -> None:
        with self._lock:
            self._reading = object()
            self._ahead.clear()
            self._packed.clear()
            self._held = 0
            self._known.set()

    def refs(self, timeout: float = 0.0) -> tuple[ArtifactRef, ...]:
        self._known.wait(timeout)
        return self._refs

    def graphs(self) -> tuple[GraphSummary, ...]:
        return self._graphs

    def at_hand(self, type: str) -> list[Artifact]:
        with self._lock:
            return [each for slot, found in self._ahead.items() if slot[0] == type for each in found]

    def pop(self, type: str, key: str) -> list[Artifact]:
        """Return the artifacts under a type and key, from wherever they are; nothing is held any more."""
        with self._lock:
            self._taken.add((type, key))
            found = self._ahead.pop((type, key), None)
            self._held -= _bytes_of(found or ())
        return self._look(type, key) if found is None else found

    def source(self, type: str, key: str) -> Source | None:
        return self._sources.get((type, key))

    def release(self, refs: Iterable[ArtifactRef]) -> None:
        """Release the bytes of artifacts that were brought, and that the local store has by now."""
        with self._lock:
            for ref in refs:
                self._packed.get((ref.type, ref.key), {}).pop(ref.digest, None)

    def came_from(self, type: str, key: str, source: Source) -> None:
        """Note that the local store has this only since `source` brought it."""
        self._sources[(type, key)] = source

    def _look(self, type: str, key: str) -> list[Artifact]:
        found = self._find(type, key)
        known = {artifact.digest for artifact in found}
        with self._lock:
            brought = dict(self._packed.get((type, key), {}))
        for digest, (ref, packed, source) in brought.items():
            if digest not in known:
                try:
                    found.append(Artifact(type, key, unpack(packed, size=ref.size, digest=digest)))
                    self.came_from(type, key, source)
                except FormatError as error:
                    self._on_damage(error)
        return found

    def _read(self, wanted: Iterator[tuple[str, str]], reading: object) -> None:
        """Read what is `wanted` next, until all is read or held in memory; for several threads at once."""
        while True:
            with self._lock:
                slot = next(wanted, None)
                if slot is None or reading is not self._reading:
                    return
                if slot in self._taken:
                    continue
                if self._held > _AHEAD_BYTES:
                    return
            found = self._look(*slot)
            with self._lock:
                if reading is not self._reading:
                    return
                if found and slot not in self._taken:
                    self._ahead[slot] = found
                    self._held += _bytes_of(found)


def _bytes_of(artifacts: Iterable[Artifact]) -> int:
    return sum(len(artifact.content) for artifact in artifacts)
