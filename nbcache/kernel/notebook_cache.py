"""Reads ahead, looks up and records the notebook's artifacts in the local store.

Disks are read and written on separate threads, or while the compiler waits for an artifact. A fault of the
store costs hits, but never fails a cell.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from nbcache.core.errors import FormatError, StoreError, TrustError, UnsupportedVersion
from nbcache.core.log import logger
from nbcache.core.model import (
    Artifact,
    ArtifactRef,
    Environment,
    GraphSummary,
    Level,
    Manifest,
    Outcome,
    Source,
)
from nbcache.core.reports import GraphRecord
from nbcache.core.threads import ForkSafeEvent, ForkSafeLock, Worker, countdown, start_thread
from nbcache.kernel.events import INTERRUPTED
from nbcache.kernel.reasons import NOT_COMPILED, Elsewhere, unusable
from nbcache.storage.backends.base import Store
from nbcache.storage.encoding import pack, unpack
from nbcache.storage.history import HistoryStore, Run, merged, run_of
from nbcache.storage.manifests import union
from nbcache.storage.store import ArtifactStore
from nbcache.storage.types import type_of

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

T = TypeVar("T")

_MOST_USES = 256
"""Uses of artifacts that wait for the end of the cell to be recorded."""
_PAUSES = 20
"""Seconds between two writings of manifest and history, for each second that the first took.

Both contain all graphs, so a long notebook would spend more and more time on them.
"""
_QUIET_SECONDS = 60.0
_AHEAD_BYTES = 256 * 2**20
"""Bound of the artifacts that are read ahead and held in memory until torch looks them up."""
_READERS = 4
"""Threads that read ahead: reading, hashing and decompressing release Python's lock."""
_EVICT_SHARE = 50


class NotebookCache:
    """A notebook's artifacts, for any thread. A failing store is a miss, unless a method says otherwise."""

    def __init__(self, store: Store, session: Session) -> None:
        self.environment: Environment | None = None
        """The environment that compiled code is bound to; None until the compiler is imported."""
        self.artifacts = ArtifactStore(store, on_fault=self._note_fault, admits=self._admits)
        """The local store itself, whose methods raise StoreError."""
        self.history = History(self.artifacts.history)
        self._session = session
        self._worker = Worker(partial(session.report_fault, "storing compiled code"))
        self._lock = ForkSafeLock()
        self._origins: dict[tuple[str, str], Source] = {}
        self._elsewhere: dict[tuple[str, str], list[Elsewhere]] = {}
        self._given_up: set[tuple[str, str]] = set()
        self._readers: list[threading.Thread] = []
        self._prefetcher = Prefetcher(self._read, partial(session.report_fault, "unpacking a snapshot"))
        self._brought: list[tuple[Manifest, Mapping[str, bytes], Source]] = []
        """Manifests from elsewhere to be stored, each with packed contents by digest, and its source."""
        self._used: dict[tuple[str, str, str], ArtifactRef] = {}
        self._manifest_is_due = False
        self._uses: deque[Callable[[], object]] = deque()
        self._pid = os.getpid()
        self._closed = False
        self._next_save = 0.0
        """The time (`time.monotonic`) before which only `flush` writes the manifest."""
        self._save_timer: threading.Timer | None = None
        self._refused: dict[str, str] = {}
        self._damaged: set[str] = set()
        self._looking_for = threading.local()
        self._quiet_until: dict[str, float] = {}
        self._written = self._evicted_at = 0

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all recorded artifacts are stored; False if `timeout` seconds were not enough."""
        if self._closed or os.getpid() != self._pid:
            return True
        self._submit_uses()
        self.submit(self._save)
        return self._worker.flush(timeout)

    def close(self) -> None:
        self._closed = True
        if self._save_timer is not None:
            self._save_timer.cancel()
        self._worker.stop()
        self.artifacts.store.close()

    def stop_reading(self) -> None:
        self._prefetcher.stop()

    def forget(self) -> None:
        """Forget all artifacts that were read, used or given up, since the store has been cleared."""
        with self._lock:
            self._forget_artifacts()
            self._prefetcher.begin(None)
            self._given_up.clear()
            self.history.forget()

    # --- lookups --------------------------------------------------------------------------------

    def refs(self, timeout: float = 0.0) -> tuple[ArtifactRef, ...]:
        """Return the notebook's artifacts; empty if they are still unknown after `timeout` seconds."""
        return self._prefetcher.refs(timeout)

    def stored_manifest(self) -> Manifest | None:
        """Return the notebook's stored manifest, without waiting for pending writes."""
        environment, notebook = self.environment, self._session.notebook(timeout=1.0)
        return None if environment is None else self._load_manifest(environment, notebook)

    def packed_content(self, ref: ArtifactRef) -> bytes | None:
        return self._access("read", "reading an artifact to share", lambda: self.artifacts.read_packed(ref))

    def manifest(self) -> Manifest | None:
        """Return the manifest, after pending writes; None before torch is imported. May raise StoreError."""
        self.flush()
        if (environment := self.environment) is None:
            return None
        notebook = self._session.notebook(timeout=1.0)
        stored = self.artifacts.load_manifest(environment, notebook)
        return stored or Manifest(environment, notebook, ())

    def find(self, type: str, key: str) -> Sequence[Artifact]:
        """Return the artifacts under torch's `key` in the local store and in snapshots, newest first."""
        if self.environment is None or self.is_given_up(type, key):
            return ()
        artifacts = self._prefetcher.take(type, key)
        logger.debug("looked up %s %s here: %d found", type, key, len(artifacts))
        return artifacts

    def at_hand(self, type: str) -> Sequence[Artifact]:
        """Return the artifacts of a type that were read ahead, and not looked up yet."""
        return self._prefetcher.at_hand(type)

    def keys_of(self, type: str, timeout: float) -> list[str]:
        return list(dict.fromkeys(ref.key for ref in self._prefetcher.refs(timeout) if ref.type == type))

    def mark_restored(self, type: str, key: str) -> None:
        """Note that the artifact that `find` returned for `key` is now where the compiler looks."""
        local = (Level.L1, self.artifacts.store.name)
        self._origins[(type, key)] = self._prefetcher.sources.get((type, key)) or local
        logger.debug("%s %s is where torch looks; it came from %s", type, key, self._origins[(type, key)][1])

    def origin_of(self, type: str, key: str) -> Source:
        return self._origins.get((type, key), (Level.L0, "torch's cache folder"))

    def origins(self) -> Mapping[tuple[str, str], Source]:
        return dict(self._origins)

    def refusals(self) -> Mapping[str, str]:
        return dict(self._refused)

    def is_damaged(self, key: str) -> bool:
        return key in self._damaged

    def summaries(self) -> Sequence[GraphSummary]:
        return self._prefetcher.graphs

    def unusable_graphs(self) -> Iterator[Elsewhere]:
        """Yield the known graphs that cannot be used here, nearest first."""
        for graphs in [*self._elsewhere.values()]:
            yield from graphs
        if (snapshots := self._session.snapshots) is not None:
            yield from snapshots.unusable_graphs()

    def note_elsewhere(self, where: str, manifests: Iterable[Manifest]) -> None:
        """Note graphs that do not fit this environment; `where` is their place, as in `published by a@b`."""
        if (environment := self.environment) is not None:
            for manifest in manifests:
                unfit = [*unusable([manifest], environment, where)]
                self._elsewhere[where, manifest.environment.digest] = unfit

    def is_given_up(self, type: str, key: str) -> bool:
        """Return whether torch could not use the artifacts stored under `key`."""
        return (type, key) in self._given_up

    def give_up(self, type: str, key: str, why: str) -> None:
        """Delete the artifacts under `key`, which are useless here, and never look them up; log `why`."""
        if (environment := self.environment) is None or self.is_given_up(type, key):
            return
        self._given_up.add((type, key))
        logger.debug("%s %s is given up: %s", type, key, why)
        forget = partial(self.artifacts.forget, environment.digest, type, key)
        self.submit(partial(self._access, "write", "deleting useless artifacts", forget))

    # --- reading ahead --------------------------------------------------------------------------

    def set_environment(self, environment: Environment) -> None:
        """Set the environment of compiled code, and start to read the notebook's artifacts ahead."""
        if self.environment is not None and self.environment.digest == environment.digest:
            return
        with self._lock:
            self.environment = environment
            self._forget_artifacts()
        self.start_reading_ahead()

    def start_reading_ahead(self) -> None:
        if (environment := self.environment) is None:
            return
        if not self.read_in_background(partial(self._read_ahead, environment, self._prefetcher)):
            self._prefetcher.begin(None)

    def read_in_background(self, read: Callable[[], object]) -> bool:
        thread = start_thread(partial(self._session.attempt, "reading ahead", read), "prefetch")
        if thread is not None:
            with self._lock:
                self._readers = [*filter(threading.Thread.is_alive, self._readers), thread]
            return True
        self._session.notice("nothing is read ahead: this process cannot start another thread", "store")
        return False

    def finish_reading(self, timeout: float | None) -> bool:
        """Wait for threads that read ahead and publish; False after `timeout` seconds."""
        left = countdown(timeout)
        readers = [thread for thread in self._readers if thread is not threading.current_thread()]
        for thread in readers:
            thread.join(left())
        return not any(thread.is_alive() for thread in readers)

    def _read_ahead(self, environment: Environment, prefetcher: Prefetcher) -> None:
        session = self._session
        notebook = session.notebook(timeout=2.0)
        if session.snapshots is not None:
            session.attempt("restoring a snapshot", partial(session.snapshots.restore_all, environment))
        manifest = None
        if session.settings.prefetch:
            manifest = self._load_manifest(environment, notebook) or Manifest(environment, notebook, ())
        prefetcher.begin(manifest)
        if (shared_client := session.shared_client) is not None:
            shared_client.begin(environment)
        self.history.read(notebook)
        read = partial(self.artifacts.manifests, notebook)
        manifests = self._access("read", "reading the manifests of other environments", read) or {}
        self.note_elsewhere("in the local store", manifests.values())

    def _load_manifest(self, environment: Environment, notebook: str) -> Manifest | None:
        load = partial(self.artifacts.load_manifest, environment, notebook)
        return self._access("read", "reading the manifest", load)

    def _forget_artifacts(self) -> None:
        """Forget all artifacts that were read or used. The caller holds the lock."""
        self._prefetcher.stop()
        self._prefetcher = Prefetcher(self._read, partial(self._session.report_fault, "unpacking a snapshot"))
        self._used.clear()
        self._manifest_is_due = False
        self._origins.clear()
        self._elsewhere.clear()

    def _read(self, type: str, key: str) -> list[Artifact]:
        if (environment := self.environment) is None:
            return []
        self._looking_for.key = key
        find = partial(self.artifacts.find, environment.digest, type, key)
        return self._access("read", "reading", find) or []

    # --- recording ------------------------------------------------------------------------------

    def adopt(
        self, environment: Environment, manifest: Manifest, packed: Mapping[str, bytes], source: Source
    ) -> None:
        """Offer verified artifacts of `source`, `packed` by digest, to lookups; store them after a cell."""
        self._session.met_others()
        moment = time.time()
        refs = tuple(ref.not_after(moment) for ref in manifest.artifacts)
        notebook = self._session.notebook(timeout=2.0)
        own_manifest = replace(manifest, environment=environment, notebook=notebook, artifacts=refs)
        with self._lock:
            if self._closed or environment != self.environment:
                return
            if self._prefetcher.bring(own_manifest, packed, source) and self._session.settings.save:
                self._brought.append((own_manifest, packed, source))  # storing can wait

    def store_hit(self, environment: Environment, ref: ArtifactRef, packed: bytes, source: Source) -> None:
        """Store an artifact of `source`, which the compiler has looked up, in the background."""
        self._session.met_others()
        self._prefetcher.sources[ref.type, ref.key] = source
        if self._session.saving and self._session.settings.save:
            # The manifest names it once it is used.
            self.submit(partial(self._adopt, environment, ref, packed))

    def record(self, type: str, key: str, content: bytes | Callable[[], bytes], *, made: bool) -> None:
        """Store an artifact that this process `made`, in the background, or note the use of one that it hit.

        A hit may come from a folder that other CPUs use as well, or from a bundle. So it may belong to
        another environment, unless it is stored here already. `content` may be a function if reading it
        can wait.
        """
        session, environment = self._session, self.environment
        if environment is None or not (session.saving and session.settings.save):
            return
        if self._closed or os.getpid() != self._pid:  # unloaded, or in a forked child
            return
        cell = session.cell.digest if session.cell else ""

        def artifact() -> Artifact:
            return Artifact(type, key, content if isinstance(content, bytes) else content())

        task = partial(self._store, environment, artifact, cell, session.function(), made)
        if made or len(self._uses) >= _MOST_USES:
            self.submit(task)
        else:
            self._uses.append(task)

    def submit(self, task: Callable[[], object]) -> None:
        """Give `task` to the worker; a forked child has no worker, and ignores it."""
        if os.getpid() == self._pid:
            self._session.attempt("storing compiled code", partial(self._worker.submit, task))

    def save_manifest(self, graphs: Sequence[GraphRecord] = (), *, unfinished: bool = False) -> None:
        """Write manifest and history, in the background, with a cell's `graphs`; `unfinished`: it raised."""
        environment, saves = self.environment, self._session.saving and self._session.settings.save
        if graphs and saves and environment is not None and os.getpid() == self._pid:
            add = partial(self.history.add, graphs, environment.digest, unfinished=unfinished)
            self._session.attempt("keeping the history", add)
        self._submit_uses()
        self.submit(self._save_or_wait)

    def _submit_uses(self) -> None:
        while self._uses:
            self.submit(self._uses.popleft())

    # --- on the worker thread -------------------------------------------------------------------

    def _store(
        self, environment: Environment, make: Callable[[], Artifact], cell: str, function: str, made: bool
    ) -> None:
        def put() -> tuple[ArtifactRef | None, bytes | None]:
            artifact, digest = make(), environment.digest
            if not made:
                return self.artifacts.refresh(digest, artifact, cell=cell, function=function), None
            packed = pack(artifact.content)
            return self.artifacts.put(digest, artifact, packed, cell=cell, function=function), packed

        ref, packed = self._access("write", "storing compiled code", put) or (None, None)
        if ref is None:
            return
        self._evict_after(ref.size)
        with self._lock:
            if environment is self.environment:
                if type_of(ref.type).grows:
                    slot = ref.identity[:2]
                    self._used = {name: used for name, used in self._used.items() if name[:2] != slot}
                self._used.setdefault(ref.identity, ref)
                self._manifest_is_due = True
        if (shared_client := self._session.shared_client) is not None:
            shared_client.publish(environment, ref, packed)

    def _adopt(self, environment: Environment, ref: ArtifactRef, packed: bytes) -> bool | None:
        """Store a `packed` artifact from elsewhere; return whether it is new here."""
        adopt = partial(self.artifacts.adopt, environment.digest, ref, packed)
        new = self._access("write", "storing artifacts from elsewhere", adopt)
        if new:
            self._evict_after(len(packed))
        return new

    def _save_or_wait(self) -> None:
        """Write manifest and history now, or later by a timer if they have just been written."""
        pause = self._next_save - time.monotonic()
        if pause <= 0.0:
            self._save()
        elif self._save_timer is None or not self._save_timer.is_alive():
            self._save_timer = threading.Timer(pause, self.submit, [self._save_later])
            self._save_timer.name, self._save_timer.daemon = "nbcache-save", True
            self._save_timer.start()

    def _save_later(self) -> None:
        self._save_timer = None
        self._save_or_wait()

    def _save(self) -> None:
        began = time.monotonic()
        try:
            self._save_manifest()
        finally:
            self.history.save(self._session.notebook(timeout=1.0))
            ended = time.monotonic()
            self._next_save = ended + _PAUSES * (ended - began)

    def _save_manifest(self) -> None:
        with self._lock:
            pending, self._brought = self._brought, []
        for brought, packed, source in pending:  # so that it stays here without its source
            refs = brought.artifacts
            for ref in refs:
                if self._adopt(brought.environment, ref, packed[ref.digest]):
                    self._prefetcher.sources[ref.type, ref.key] = source
            self._save_one(brought)
            look = partial(self.artifacts.present, [ref.digest for ref in refs])
            present = self._access("read", "looking up stored artifacts", look) or ()
            self._prefetcher.release(ref for ref in refs if ref.digest in present and self._admits(ref))
        notebook = self._session.notebook(timeout=1.0)
        with self._lock:  # the environment may change, and used artifacts belong to one
            if (environment := self.environment) is None or not self._manifest_is_due:
                return
            self._manifest_is_due = False
            used = dict(self._used)
            earlier = [ref for ref in self._prefetcher.refs() if ref.identity not in used]
        named = (*used.values(), *earlier)
        manifest = Manifest(environment, notebook, named, _summaries(self._session.graphs, named))
        if (saved := self._save_one(manifest)) is None:
            self._manifest_is_due = True
        elif (shared_client := self._session.shared_client) is not None:
            shared_client.publish_manifest(saved)

    def _save_one(self, manifest: Manifest) -> Manifest | None:
        return self._access("write", "writing the manifest", lambda: self.artifacts.save_manifest(manifest))

    def _evict_after(self, written: int) -> None:
        """Evict artifacts beyond the bound, if enough bytes were `written` since the last time."""
        self._written += written
        most = self._session.settings.max_bytes
        if self._evicted_at == 0 or self._written - self._evicted_at > most / _EVICT_SHARE:
            self._evicted_at = max(1, self._written)
            self._access("write", "evicting old artifacts", lambda: self.artifacts.evict(most))

    # --- faults ---------------------------------------------------------------------------------

    def _access(self, access: Literal["read", "write"], task: str, action: Callable[[], T]) -> T | None:
        """Run `action` on the store, unless such an access failed a short while ago."""
        if time.monotonic() < self._quiet_until.get(access, 0.0):
            return None
        try:
            return action()
        except StoreError as error:
            self._quiet_until[access] = time.monotonic() + _QUIET_SECONDS
            text = f"{task} failed, so it is not tried for a while"
            self._notice(f"{text}. {error.with_next_step()}", "store")
        except Exception as error:
            self._session.report_fault(task, error)
        return None

    def _admits(self, ref: ArtifactRef) -> bool:
        """Return whether an artifact may be used; if not, a notice gives the reason."""
        try:
            self._session.judge.admit_stored(ref)
            if ref.provenance is not None:
                self._session.met_others()
                self._refused.pop(ref.digest, None)  # its maker is trusted by now
            return True
        except TrustError as error:
            self._refused[ref.digest] = error.what
            self._notice(f"an artifact from elsewhere is not used: {error.with_next_step()}", "refused")
            return False

    def _note_fault(self, error: FormatError) -> None:
        if isinstance(error, UnsupportedVersion):
            self._notice(
                "a newer nbcache wrote some entries, which this one leaves as they are", "newer-version"
            )
        else:
            self._damaged.add(getattr(self._looking_for, "key", ""))
            self._notice("damaged entries were removed and count as misses", "damaged")

    def _notice(self, text: str, slug: str) -> None:
        self._session.notice(f"{self.artifacts.store.name}: {text}", slug)


def _summaries(graphs: Iterable[GraphRecord], refs: Iterable[ArtifactRef]) -> tuple[GraphSummary, ...]:
    """Return summaries of `graphs` for a manifest, each with those of `refs` that its function uses."""
    artifacts: dict[tuple[str, str], dict[str, None]] = {}
    keys: set[str] = set()
    for ref in refs:
        artifacts.setdefault((ref.cell, ref.function), {})[ref.digest] = None
        keys.add(ref.key)
    summaries = []
    for graph in graphs:
        cell = graph.cell_digest
        if (cell, graph.function) not in artifacts:
            continue  # not cached, not to be saved, or of another environment
        if graph.outcome is Outcome.MISS and graph.key and graph.key not in keys:
            continue  # its compile was interrupted
        saves = graph.saved_seconds
        if saves is None:  # all but tracing and loading, which a hit does, too
            saves = graph.total_seconds - sum(graph.seconds.get(phase, 0.0) for phase in ("dynamo", "load"))
        summaries.append(
            GraphSummary(
                cell=cell,
                function=graph.function,
                direction=graph.direction,
                outcome=graph.outcome,
                key=graph.key or "",
                seconds=max(0.0, saves),
                artifacts=tuple(artifacts[cell, graph.function]),
                threads=graph.threads,
                components=graph.components,
            )
        )
    return tuple(summaries)


class Prefetcher:
    """Artifacts for one environment, read ahead or brought from elsewhere. Safe to call from any thread."""

    def __init__(
        self, find: Callable[[str, str], list[Artifact]], on_damage: Callable[[FormatError], None]
    ) -> None:
        """`find` reads the store; `on_damage` is called with faults of a snapshot's contents."""
        self._find = find
        self._on_damage = on_damage
        self._lock = ForkSafeLock()
        self._refs_ready = ForkSafeEvent()
        self._refs: tuple[ArtifactRef, ...] = ()
        self.graphs: tuple[GraphSummary, ...] = ()
        self._brought: list[Manifest] = []
        self._packed: dict[tuple[str, str], dict[str, tuple[ArtifactRef, bytes, Source]]] = {}
        """Type and key → digest → artifact that was brought, its compressed content, its source."""
        self.sources: dict[tuple[str, str], Source] = {}
        self._popped: set[tuple[str, str]] = set()
        self._ahead: dict[tuple[str, str], list[Artifact]] = {}
        self._bytes_ahead = 0
        self._reading = object()
        """A token for the current reading ahead; another one ends it."""

    def bring(self, manifest: Manifest, packed: Mapping[str, bytes], source: Source) -> bool:
        """Add a manifest of `source`, with contents by digest; return whether it is new."""
        with self._lock:
            if manifest in self._brought:
                return False
            for ref in manifest.artifacts:
                brought = self._packed.setdefault((ref.type, ref.key), {})
                brought[ref.digest] = (ref, packed[ref.digest], source)
            self._brought.append(manifest)
            return True

    def begin(self, manifest: Manifest | None) -> None:
        """Start threads that read ahead the artifacts of `manifest`, and those that were brought."""
        with self._lock:
            self._reading = reading = object()
            self._popped.clear()
            self._ahead.clear()
            self._bytes_ahead = 0
            if manifest is not None:
                manifests = [*self._brought, manifest]
                merged = union(manifest.environment, manifest.notebook, manifests)
                self._refs, self.graphs = merged.artifacts, merged.graphs
            self._refs_ready.set()
            refs = self._refs
        wanted = iter(dict.fromkeys((ref.type, ref.key) for ref in refs))
        for _ in range(_READERS if refs else 0):  # without threads, lookups read
            start_thread(partial(self._read, wanted, reading), "prefetch")

    def stop(self) -> None:
        with self._lock:
            self._reading = object()
            self._ahead.clear()
            self._packed.clear()
            self._bytes_ahead = 0
            self._refs_ready.set()

    def refs(self, timeout: float = 0.0) -> tuple[ArtifactRef, ...]:
        self._refs_ready.wait(timeout)
        return self._refs

    def at_hand(self, type: str) -> list[Artifact]:
        with self._lock:
            slots = [slot for slot in self._ahead if slot[0] == type]
            return [artifact for slot in slots for artifact in self._ahead[slot]]

    def take(self, type: str, key: str) -> list[Artifact]:
        """Return the artifacts under a type and key, and release those that were read ahead."""
        with self._lock:
            self._popped.add((type, key))
            artifacts = self._ahead.pop((type, key), None)
            self._bytes_ahead -= _bytes_of(artifacts or ())
        return self._look_up(type, key) if artifacts is None else artifacts

    def release(self, refs: Iterable[ArtifactRef]) -> None:
        with self._lock:
            for ref in refs:
                self._packed.get((ref.type, ref.key), {}).pop(ref.digest, None)

    def _look_up(self, type: str, key: str) -> list[Artifact]:
        """Return the stored artifacts, and those that were brought and are not stored yet."""
        artifacts = self._find(type, key)
        digests = {artifact.digest for artifact in artifacts}
        with self._lock:
            brought = dict(self._packed.get((type, key), {}))
        for digest, (ref, packed, source) in brought.items():
            if digest not in digests:
                try:
                    artifacts.append(Artifact(type, key, unpack(packed, size=ref.size, digest=digest)))
                    self.sources[type, key] = source
                except FormatError as error:
                    self._on_damage(error)
        return artifacts

    def _read(self, wanted: Iterator[tuple[str, str]], reading: object) -> None:
        while True:
            with self._lock:
                slot = next(wanted, None)
                if slot is None or reading is not self._reading:
                    return
                if slot in self._popped:
                    continue
                if self._bytes_ahead > _AHEAD_BYTES:
                    return
            artifacts = self._look_up(*slot)
            with self._lock:
                if reading is not self._reading:
                    return
                if artifacts and slot not in self._popped:
                    self._ahead[slot] = artifacts
                    self._bytes_ahead += _bytes_of(artifacts)


def _bytes_of(artifacts: Iterable[Artifact]) -> int:
    return sum(len(artifact.content) for artifact in artifacts)


class History:
    """The outcomes of the notebook's graphs, for any thread. Only `read` and `save` use the disk."""

    def __init__(self, store: HistoryStore) -> None:
        self.kernel = secrets.token_hex(8)
        self._store = store
        self._lock = ForkSafeLock()
        self._runs: dict[tuple[str, int], Run] = {}
        self._next_number = self._first_unsaved = 0
        """Number of this kernel's next run, and of its first run that is not stored yet."""

    def runs(self) -> tuple[Run, ...]:
        with self._lock:
            return merged(self._runs.values())

    def read(self, notebook: str) -> None:
        stored = self._store.read(notebook)
        with self._lock:
            own = [run for run in self._runs.values() if run.kernel == self.kernel]
            self._runs = {run.identity: run for run in (*stored, *own)}

    def add(
        self, graphs: Iterable[GraphRecord], environment_digest: str, *, unfinished: bool = False
    ) -> None:
        """Add the graphs of a cell that has ended (`unfinished`: it raised), but no interrupted compiles."""
        make = partial(run_of, time=time.time(), kernel=self.kernel, environment=environment_digest)
        with self._lock:
            for graph in graphs:
                if graph.reason == f"{NOT_COMPILED}{INTERRUPTED}":
                    continue
                run = make(graph, number=self._next_number, unfinished=unfinished)
                self._runs[run.identity] = run
                self._next_number += 1
            self._runs = {run.identity: run for run in merged(self._runs.values())}

    def save(self, notebook: str) -> None:
        """Store the runs of this kernel that are not stored yet; others were read from the store."""
        with self._lock:
            own = [run for run in self._runs.values() if run.kernel == self.kernel]
            runs, number = [run for run in own if run.number >= self._first_unsaved], self._next_number
        if runs and self._store.write(notebook, runs):
            self._first_unsaved = number

    def forget(self) -> None:
        with self._lock:
            self._runs = {}
