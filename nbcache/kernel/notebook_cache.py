"""What is stored of this notebook, in this kernel's environment: read ahead, found, recorded, and named.

Everything that reads or writes disks happens on threads of its own, or where the compiler waits for an
artifact anyway.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from nbcache.core.log import logger
from nbcache.core.model import Artifact, ArtifactRef, Environment, GraphSummary, Level, Manifest, Source
from nbcache.core.reports import Cell, GraphRecord
from nbcache.core.settings import Settings
from nbcache.core.threads import Worker, renew_in_children, start_thread
from nbcache.kernel.elsewhere import Elsewhere, unusable
from nbcache.kernel.history import History
from nbcache.kernel.local_cache import LocalLevel
from nbcache.kernel.manifest import ManifestBuilder, PendingImport
from nbcache.kernel.prefetch import Prefetcher

__all__ = ["Kernel", "NotebookCache"]

T = TypeVar("T")

_MOST_USES = 256
"""So many wait for the end of a cell, with what they are of."""
_PAUSES = 20
"""Seconds between two writings of manifest and history, for each second that the first took.

Both hold all graphs, so that a long notebook would spend ever more time on them.
"""


class Kernel(Protocol):
    """What it needs of the kernel's session."""

    settings: Settings
    saving: bool
    """Whether the running cell is recorded."""

    @property
    def cell(self) -> Cell | None: ...

    @property
    def graphs(self) -> list[GraphRecord]: ...

    def function(self) -> str:
        """Return the function that this thread compiles."""

    def notebook(self, timeout: float) -> str: ...

    def notice(self, text: str) -> None: ...

    def attempt(self, what: str, action: Callable[[], T]) -> T | None: ...

    def failed(self, what: str, error: BaseException) -> None: ...

    def met_others(self) -> None:
        """Have nothing that the compiler finds in its folder counted as compiled here from now on."""

    def was_stored(self, environment: Environment, ref: ArtifactRef) -> None:
        """Take note of an artifact that was stored."""

    def was_named(self, manifest: Manifest) -> None:
        """Take note of the manifest that was written."""

    def was_read(self, environment: Environment) -> None:
        """Take note that the notebook's manifest was read."""


class NotebookCache:
    """Methods are safe to call from any thread, and cost hits where the store fails."""

    def __init__(self, local: LocalLevel, kernel: Kernel) -> None:
        self.environment: Environment | None = None
        """What compiled code is bound to here; None until the compiler is imported."""
        self.reading_ahead: list[Callable[[Environment], object]] = []
        """Called, on a thread of its own, before this notebook's manifest is read."""
        self.history = History(local.artifacts.history)
        """What the graphs of this notebook took."""
        self._local = local
        self._kernel = kernel
        self._worker = Worker(partial(kernel.failed, "storing what was compiled"))
        self._lock = threading.Lock()
        self._origins: dict[tuple[str, str], Source] = {}
        self.elsewhere: list[Callable[[], Iterable[Elsewhere]]] = []
        """What else tells of graphs that cannot be used here; each answers at once."""
        self._elsewhere: dict[tuple[str, str], list[Elsewhere]] = {}
        """By where they are, and their environment's digest."""
        self._given_up: set[tuple[str, str]] = set()
        self._readers: list[threading.Thread] = []
        self._prefetcher = self._new_prefetcher()
        self._manifest_builder = ManifestBuilder()
        self._uses: deque[Callable[[], object]] = deque()
        """What notes that artifacts were used: work that waits for the end of the cell."""
        self._pid = os.getpid()
        self._closed = False
        self._next_save = 0.0
        """The time (`time.monotonic`) before which only `flush` writes the manifest."""
        self._save_timer: threading.Timer | None = None
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, which finds what is stored and stores nothing: it has no worker."""
        self._lock = threading.Lock()
        self._readers = []

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was recorded is stored; False where `timeout` seconds were not enough."""
        if self._closed or os.getpid() != self._pid:
            return True
        self._submit_uses()
        self._kernel.attempt("writing the manifest", partial(self.submit, self._save))
        return self._worker.flush(timeout)

    def close(self) -> None:
        """Store nothing any more."""
        self._closed = True
        if self._save_timer is not None:
            self._save_timer.cancel()
        self._worker.stop()
        self._local.artifacts.store.close()

    def stop_reading(self) -> None:
        """Read nothing more ahead."""
        self._prefetcher.stop()

    def forget(self) -> None:
        """Begin as if nothing had been read, found, used or given up: what was stored is removed."""
        with self._lock:
            self._forget_read()
            self._prefetcher.begin(None)
            self._given_up.clear()
            self.history.forget()

    # --- what is there --------------------------------------------------------------------------

    def refs(self, timeout: float = 0.0) -> tuple[ArtifactRef, ...]:
        """Return what is here of this notebook; nothing where that is not known within `timeout` seconds."""
        return self._prefetcher.refs(timeout)

    def stored(self) -> Manifest | None:
        """Return what is stored of this notebook, without waiting for what is still to be stored."""
        if (environment := self.environment) is None:
            return None
        return self._local.manifest(environment, self._kernel.notebook(timeout=1.0))

    def packed(self, ref: ArtifactRef) -> bytes | None:
        """Return an artifact that is stored, as a snapshot holds it; None where it is not there."""
        return self._local.packed(ref)

    def store_fetched(
        self, environment: Environment, ref: ArtifactRef, packed: bytes, source: Source
    ) -> None:
        """Have an artifact stored that came from `source` because the compiler asked for it."""
        self._kernel.met_others()
        self._prefetcher.came_from(ref.type, ref.key, source)
        if self._kernel.saving and self._kernel.settings.save:
            adopt = partial(self._local.adopt, environment, ref, packed)  # named by the manifest once used
            self._kernel.attempt("storing what was shared", partial(self.submit, adopt))

    def manifest(self) -> Manifest | None:
        """Return all that is stored of this notebook in this environment; None before torch is imported.

        StoreError where the store fails.
        """
        self.flush()
        environment = self.environment
        if environment is None:
            return None
        notebook = self._kernel.notebook(timeout=1.0)
        stored = self._local.artifacts.load_manifest(environment, notebook)
        return stored or Manifest(environment, notebook, ())

    def find(self, type: str, key: str) -> Sequence[Artifact]:
        """Return what the local store and the snapshots hold under torch's `key`, newest first."""
        if self.environment is None or self.is_given_up(type, key):
            return ()
        found = self._prefetcher.pop(type, key)
        logger.debug("looked up %s %s here: %d found", type, key, len(found))
        return found

    def at_hand(self, type: str) -> Sequence[Artifact]:
        """Return what was read ahead of this type, and nobody has asked for yet."""
        return self._prefetcher.at_hand(type)

    def keys_of(self, type: str, timeout: float) -> list[str]:
        """Return the keys of this type that manifests name; none if that takes over `timeout` seconds."""
        return list(dict.fromkeys(ref.key for ref in self._prefetcher.refs(timeout) if ref.type == type))

    def mark_restored(self, type: str, key: str) -> None:
        """Note that what was found for `key` is where the compiler looks, and was not before."""
        here = (Level.L1, self._local.artifacts.store.name)
        self._origins[(type, key)] = self._prefetcher.source(type, key) or here
        logger.debug("%s %s is where torch looks; it came from %s", type, key, self._origins[(type, key)][1])

    def origin_of(self, type: str, key: str) -> tuple[Level, str]:
        """Return the level and the source, in words, of an artifact that the compiler has just hit."""
        return self._origins.get((type, key), (Level.L0, "torch's cache folder"))

    def restored(self) -> Mapping[tuple[str, str], Source]:
        """Return where each artifact came from that was put where the compiler looks, by type and key."""
        return dict(self._origins)

    def refused(self) -> Mapping[str, str]:
        """Return why artifacts of the local store may not be used, by digest."""
        return dict(self._local.refused)

    def summaries(self) -> Sequence[GraphSummary]:
        """Return what is known of the graphs that are stored of this notebook."""
        return self._prefetcher.graphs()

    def of_no_use(self) -> Iterator[Elsewhere]:
        """Yield what is known of graphs that cannot be used here, nearest first."""
        for found in [*self._elsewhere.values()]:
            yield from found
        for look in self.elsewhere:
            yield from look()

    def note_elsewhere(self, where: str, manifests: Iterable[Manifest]) -> None:
        """Take note of what is not stored here, such as `published by a@b`, in whatever environment."""
        if (environment := self.environment) is not None:
            for each in manifests:
                self._elsewhere[where, each.environment.digest] = [*unusable([each], environment, where)]

    def is_given_up(self, type: str, key: str) -> bool:
        """Tell whether what is stored under `key` was found to be of no use."""
        return (type, key) in self._given_up

    def give_up(self, type: str, key: str, why: str) -> None:
        """Use what is stored under `key` no more, and drop it here; `why` is a clause.

        Else it would lie beside what is made now, and might be tried first for good.
        """
        environment = self.environment
        if environment is None or self.is_given_up(type, key):
            return
        self._given_up.add((type, key))
        logger.debug("%s %s is given up: %s", type, key, why)
        self.submit(partial(self._local.forget, environment, type, key))

    # --- what is read ahead ---------------------------------------------------------------------

    def environment_ready(self, environment: Environment) -> None:
        """Take in what compiled code is bound to, and start to read this notebook's artifacts ahead."""
        if self.environment is not None and self.environment.digest == environment.digest:
            return
        with self._lock:
            self.environment = environment
            self._forget_read()
        self._start_reading(environment)

    def _start_reading(self, environment: Environment) -> None:
        if not self.read_in_background(partial(self._read_ahead, environment, self._prefetcher)):
            self._prefetcher.begin(None)

    def read_in_background(self, read: Callable[[], object]) -> bool:
        """Have `read` read something ahead on a thread of its own; False, with a notice, if none starts."""
        thread = start_thread(partial(self._kernel.attempt, "reading ahead", read), "prefetch")
        if thread is not None:
            with self._lock:
                self._readers = [*filter(threading.Thread.is_alive, self._readers), thread]
            return True
        self._kernel.notice("nothing is read ahead: this process may start no more threads")
        return False

    def finish_reading(self, timeout: float | None) -> bool:
        """Wait for threads that read ahead, and publish what others lack; False after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        readers = [thread for thread in self._readers if thread is not threading.current_thread()]
        for thread in readers:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in readers)

    def read_again(self) -> None:
        """Read ahead anew, with what has come since."""
        if (environment := self.environment) is not None:
            self._start_reading(environment)

    # --- what is stored -------------------------------------------------------------------------

    def adopt(
        self, environment: Environment, manifest: Manifest, packed: Mapping[str, bytes], source: Source
    ) -> None:
        """Provide what `source` brought, `packed` by digest, in `environment`; store it after a cell.

        Whoever calls answers for it: it is not asked here who signed it, nor whether it fits.
        """
        self._kernel.met_others()
        now = time.time()
        refs = [ref.not_after(now) for ref in manifest.artifacts]
        notebook = self._kernel.notebook(timeout=2.0)
        ours = replace(manifest, environment=environment, notebook=notebook, artifacts=tuple(refs))
        with self._lock:
            if self._closed or environment != self.environment:
                return
            if self._prefetcher.bring(ours, packed, source) and self._kernel.settings.save:
                self._manifest_builder.bring(PendingImport(ours, packed, source))

    def record(self, type: str, key: str, content: bytes | Callable[[], bytes], *, made: bool) -> None:
        """Store an artifact that this process `made`, in the background; of one that it hit note the use.

        What was hit may come from a folder that other CPUs use as well, or from a bundle: nothing says
        that it belongs to this environment, unless it is stored here already. `content` may be a function,
        where reading it can wait.
        """
        environment = self.environment
        if environment is None or not (self._kernel.saving and self._kernel.settings.save):
            return
        if self._closed or os.getpid() != self._pid:  # a kernel compiled earlier, or a forked child
            return
        cell = self._kernel.cell.digest if self._kernel.cell else ""
        function = self._kernel.function()
        store = self._local.artifacts.put if made else self._local.artifacts.refresh

        def put() -> ArtifactRef | None:
            artifact = Artifact(type, key, content if isinstance(content, bytes) else content())
            return store(environment.digest, artifact, cell=cell, function=function)

        task = partial(self._store, environment, put)
        if made or len(self._uses) >= _MOST_USES:
            self._kernel.attempt("storing what was compiled", partial(self.submit, task))
        else:
            self._uses.append(task)

    def submit(self, task: Callable[[], object]) -> None:
        """Have the worker do `task`; a forked child has none, and nothing to write."""
        if os.getpid() == self._pid:
            self._worker.submit(task)

    def save_manifest(self, graphs: Sequence[GraphRecord] = (), *, unfinished: bool = False) -> None:
        """Have the notebook's manifest and history written in the background, with the `graphs` of a cell.

        An `unfinished` cell raised.

        And what it has used noted: while it runs, a thread that does so would take the cell's time.
        """
        environment, saves = self.environment, self._kernel.saving and self._kernel.settings.save
        if graphs and saves and environment is not None and os.getpid() == self._pid:
            add = partial(self.history.add, graphs, environment.digest, unfinished=unfinished)
            self._kernel.attempt("keeping the history", add)
        self._submit_uses()
        self._kernel.attempt("writing the manifest", partial(self.submit, self._save_paced))

    def _submit_uses(self) -> None:
        while self._uses:
            self._kernel.attempt("noting what was used", partial(self.submit, self._uses.popleft()))

    # --- on the worker thread -------------------------------------------------------------------

    def _store(self, environment: Environment, put: Callable[[], ArtifactRef | None]) -> None:
        if (ref := self._local.put(put)) is None:
            return
        self._use(environment, ref)
        self._kernel.was_stored(environment, ref)

    def _use(self, environment: Environment, ref: ArtifactRef) -> None:
        with self._lock:
            if environment is self.environment:
                self._manifest_builder.use(ref)

    def _save_paced(self) -> None:
        """Write manifest and history, or have a timer do so where they have just been written."""
        pause = self._next_save - time.monotonic()
        if pause <= 0.0:
            self._save()
        elif self._save_timer is None or not self._save_timer.is_alive():
            self._save_timer = threading.Timer(pause, self.submit, [self._save_later])
            self._save_timer.name, self._save_timer.daemon = "nbcache-save", True
            self._save_timer.start()

    def _save_later(self) -> None:
        self._save_timer = None
        self._save_paced()

    def _save(self) -> None:
        began = time.monotonic()
        try:
            self._save_manifest()
        finally:
            self._save_history()
            ended = time.monotonic()
            self._next_save = ended + _PAUSES * (ended - began)

    def _save_manifest(self) -> None:
        for brought in self._manifest_builder.take_brought():  # so that it is here without who brought it
            for ref in brought.manifest.artifacts:
                if self._local.adopt(brought.manifest.environment, ref, brought.packed[ref.digest]):
                    self._prefetcher.came_from(ref.type, ref.key, brought.source)
            self._local.save(brought.manifest)
            self._prefetcher.release(self._local.usable(brought.manifest.artifacts))
        notebook = self._kernel.notebook(timeout=1.0)
        with self._lock:  # the environment may change, and what was used belongs to one
            if (environment := self.environment) is None:
                return
            manifest = self._manifest_builder.manifest(
                environment, notebook, self._prefetcher.refs(), self._kernel.graphs
            )
        if manifest is None:
            return
        if (saved := self._local.save(manifest)) is None:
            self._manifest_builder.not_saved()
        else:
            self._kernel.was_named(saved)

    def _save_history(self) -> None:
        self.history.save(self._kernel.notebook(timeout=1.0))

    def _forget_read(self) -> None:
        """Begin as if nothing had been read, found or used; with the lock held."""
        self._prefetcher.stop()
        self._prefetcher = self._new_prefetcher()
        self._manifest_builder.forget()
        self._origins.clear()
        self._elsewhere.clear()

    def _new_prefetcher(self) -> Prefetcher:
        return Prefetcher(self._read, partial(self._kernel.failed, "unpacking a snapshot"))

    def _read(self, type: str, key: str) -> list[Artifact]:
        environment = self.environment
        return [] if environment is None else self._local.find(environment, type, key)

    def _read_ahead(self, environment: Environment, prefetcher: Prefetcher) -> None:
        """Find what this notebook's manifest and its snapshots name, and have it read ahead."""
        notebook = self._kernel.notebook(timeout=2.0)
        for hook in self.reading_ahead:
            self._kernel.attempt("restoring a snapshot", partial(hook, environment))
        manifest = None
        if self._kernel.settings.prefetch:
            manifest = self._local.manifest(environment, notebook) or Manifest(environment, notebook, ())
        prefetcher.begin(manifest)
        self._kernel.was_read(environment)
        self.history.read(notebook)
        self.note_elsewhere("in the local store", self._local.of_all_environments(notebook))
