"""What one kernel takes from the shared level, and gives to it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from nbcache.artifacts.compatibility import fitting
from nbcache.artifacts.manifests import restricted, union
from nbcache.artifacts.provenance import with_makers
from nbcache.artifacts.types import type_of
from nbcache.core.errors import FormatError
from nbcache.core.model import (
    UNSIGNED,
    Artifact,
    ArtifactRef,
    Environment,
    GraphSummary,
    Level,
    Manifest,
    Source,
)
from nbcache.core.threads import renew_in_children
from nbcache.shared.level import SharedLevel
from nbcache.shared.publications import Publication
from nbcache.shared.signing import VerifiedEntry
from nbcache.shared.single_flight import Holder

__all__ = ["Cache", "Kernel", "SharedClient"]

_MOST_AHEAD = 256 << 20
"""Bytes that are read ahead for a notebook; the session holds them."""
_GRAPH = "inductor"


class Kernel(Protocol):
    """What is needed of the kernel's session."""

    def notebook(self, timeout: float) -> str: ...

    def notice(self, text: str) -> None: ...


class Cache(Protocol):
    """What is needed of what is stored here."""

    @property
    def environment(self) -> Environment | None: ...

    def refs(self, timeout: float) -> tuple[ArtifactRef, ...]:
        """Return what is here of this notebook."""

    def stored(self) -> Manifest | None:
        """Return what is stored here of this notebook, without waiting for what is still to be stored."""

    def packed(self, ref: ArtifactRef) -> bytes | None:
        """Return an artifact that is stored here, as `pack` makes it."""

    def store_fetched(
        self, environment: Environment, ref: ArtifactRef, packed: bytes, source: Source
    ) -> None:
        """Have an artifact of `environment` stored that the compiler asks for now, and note its source."""

    def adopt(
        self, environment: Environment, manifest: Manifest, packed: Mapping[str, bytes], source: Source
    ) -> None:
        """Provide what `source` brought before anybody asks for it."""

    def finish_reading(self, timeout: float | None) -> bool:
        """Wait for what reads ahead and calls `begin`; False after `timeout` seconds."""

    def note_elsewhere(self, where: str, manifests: Iterable[Manifest]) -> None:
        """Take note of what is not stored here, such as `published by a@b`, in whatever environment."""

    def submit(self, task: Callable[[], object]) -> None:
        """Have `task` done after what is still to be stored."""


class SharedClient:
    """Looks up, waits, publishes and reads ahead. Methods are safe to call from any thread."""

    def __init__(
        self, level: SharedLevel, cache: Cache, kernel: Kernel, prefetch: Callable[[], bool]
    ) -> None:
        self.level = level
        self._cache = cache
        self._kernel = kernel
        self._prefetch = prefetch
        self._holder: Holder | None = None
        self._claims: dict[int, list[tuple[Environment, str]]] = {}
        """By thread, the graphs that it compiles while other kernels wait for them."""
        self._seconds: dict[str, float] = {}
        """By function, what compiling its longest graph took, here or elsewhere."""
        self._reading = threading.Lock()
        self._read_for: Environment | None = None
        self._asked_for: set[tuple[str, str, str]] = set()
        """What was to be read ahead in that environment, by identity: others name it again and again."""
        self._ahead = 0
        """Bytes of it that were there."""
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, which waits for nobody, and for which nobody waits."""
        self._reading = threading.Lock()
        self._holder = None
        self._claims = {}

    @property
    def holder(self) -> Holder | None:
        """The kernel that this one waits for."""
        return self._holder

    @property
    def why_off(self) -> str:
        """Why the shared level is not asked for now; empty where it is."""
        return self.level.failure.what if self.level.failure else ""

    @property
    def source(self) -> Source:
        """How reports name what comes from there."""
        return (Level.L3, self.level.name)

    def flush(self, timeout: float | None) -> bool:
        """Wait until all is published, also after connecting; False after `timeout` seconds."""
        began = time.monotonic()
        if not self._cache.finish_reading(timeout):
            return False
        spent = time.monotonic() - began
        return self.level.flush(None if timeout is None else max(0.0, timeout - spent))

    def close(self, timeout: float) -> None:
        """Leave the shared level, once all is published or `timeout` seconds have passed."""
        began = time.monotonic()
        self._cache.finish_reading(timeout)
        self.level.close(max(0.0, timeout - (time.monotonic() - began)))

    # --- while torch waits ----------------------------------------------------------------------

    def find(self, environment: Environment, type: str, key: str) -> Sequence[Artifact]:
        """Return what the shared level holds under torch's `key`, newest first."""
        if not type_of(type).is_shared:
            return ()
        return self._unpacked(environment, self.level.find(environment, type, key))

    def wait_for_other_kernel(
        self, environment: Environment, key: str, function: str, tried: Collection[str]
    ) -> Sequence[Artifact]:
        """Return the graph that another kernel compiles now; nothing where this one is to compile it.

        Waits for no longer than compiling is expected to take; an interrupt ends it. What was `tried`, by
        digest, is not what it waits for.
        """
        expected = self._expected_seconds(function)
        found = self.level.wait_for_other_kernel(environment, _GRAPH, key, expected, self._wait_for, tried)
        if not found:
            self._claims.setdefault(threading.get_ident(), []).append((environment, key))
        return self._unpacked(environment, found)

    def compiled(self, thread: int) -> None:
        """Let the kernels go on that wait for what a thread has compiled, once that is published."""
        for environment, key in self._claims.pop(thread, []):
            self._cache.submit(partial(self.level.compiled, environment, _GRAPH, key))

    def _wait_for(self, holder: Holder | None) -> None:
        self._holder = holder

    def _expected_seconds(self, function: str) -> float:
        timings = self.level.timings
        seconds = self._seconds.get(function, timings.usually_expected)
        return min(max(timings.least_expected, seconds), timings.most_expected)

    def _unpacked(self, environment: Environment, found: Iterable[VerifiedEntry]) -> list[Artifact]:
        artifacts = []
        for each in found:
            ref = each.ref
            try:
                artifacts.append(Artifact(ref.type, ref.key, each.unpack()))
            except FormatError as error:
                self._kernel.notice(f"{self.level.name}: an entry was refused: {error}")
                continue
            self._cache.store_fetched(environment, ref, each.packed, self.source)
        return artifacts

    # --- in the background ----------------------------------------------------------------------

    def publish(self, environment: Environment, ref: ArtifactRef) -> None:
        """Publish an artifact that is stored here."""
        if type_of(ref.type).is_shared:
            self.level.publish(environment, ref, partial(self._cache.packed, ref))

    def withdraw(self, environment: Environment, type: str, key: str, digest: str) -> None:
        """Remove an artifact that is wrong, once what was compiled here is written."""
        self._cache.submit(partial(self.level.withdraw, environment, type, key, digest))

    def publish_manifest(self, manifest: Manifest) -> None:
        """Publish what is here of a notebook, by the name of its file alone, and who compiled what of it.

        The statements of who compiled it lie beside the artifacts.
        """
        self._learn(manifest.graphs)
        told = with_makers(restricted(manifest, _signed(manifest.artifacts)))
        refs = tuple(replace(ref, provenance=None) for ref in told.artifacts)
        name = os.path.basename(manifest.notebook)
        self.level.publish_manifest(replace(told, notebook=name, artifacts=refs))

    def begin(self, environment: Environment) -> None:
        """Read ahead what others have of this notebook, publish what only this kernel has, and listen."""
        self._cache.refs(timeout=self.level.timings.least_expected)  # what is here is not read from there
        self._read_ahead(environment, self.publications())
        if (manifest := self._cache.stored()) is not None and manifest.artifacts:
            # Of the manifest's own environment: the kernel's may have changed since this began.
            for ref in self.level.absent(manifest.environment, manifest.artifacts):
                self.publish(manifest.environment, ref)
            self.publish_manifest(manifest)
        self.level.listen(self._notebook(), self._heard)

    def publications(self) -> list[Publication]:
        """Return what was published of this notebook, newest first."""
        return self.level.publications(self._notebook())

    def _heard(self, slot: str) -> None:
        if (environment := self._cache.environment) is not None:
            self._read_ahead(environment, self.level.publication(slot, self._notebook()))

    def _read_ahead(self, environment: Environment, publications: Sequence[Publication]) -> None:
        """Read what others have published, and is not here."""
        if not self._prefetch() or environment != self._cache.environment:
            return
        with self._reading:
            for each in publications:
                who = self.level.introduce(each.found.signer, each.user, each.host)
                self._cache.note_elsewhere(f"published by {who}", [each.manifest])
            fits = [fitting([each.manifest], environment) for each in publications]
            whole = union(environment, "", [each for each in fits if each is not None])
            self._learn(whole.graphs)
            if environment != self._read_for:  # the session has nothing any more of what was read before
                self._read_for, self._ahead = environment, 0
                self._asked_for.clear()
            here = {ref.identity for ref in self._cache.refs(timeout=0.0)} | self._asked_for
            wanted = [ref for ref in whole.artifacts if ref.identity not in here]
            listed = self.level.find_many(environment, wanted, most_bytes=_MOST_AHEAD - self._ahead)
            found = {each.statement.ref.identity: each for each in listed}
            self._ahead += sum(len(each.packed) for each in found.values())
            # What a store that failed did not tell of is asked for again.
            self._asked_for.update(found if self.level.failure else (ref.identity for ref in wanted))
            refs = tuple(
                replace(ref, provenance=found[ref.identity].provenance)
                for ref in wanted
                if ref.identity in found
            )
            if refs:
                packed = {ref.digest: found[ref.identity].packed for ref in refs}
                self._cache.adopt(environment, replace(whole, artifacts=refs), packed, self.source)

    def _notebook(self) -> str:
        return os.path.basename(self._kernel.notebook(timeout=2.0))

    def _learn(self, graphs: Iterable[GraphSummary]) -> None:
        for graph in graphs:
            self._seconds[graph.function] = max(graph.seconds, self._seconds.get(graph.function, 0.0))


def _signed(refs: Iterable[ArtifactRef]) -> Iterable[ArtifactRef]:
    """Return those of which it is known who compiled them."""
    return (ref for ref in refs if ref.provenance != UNSIGNED)
