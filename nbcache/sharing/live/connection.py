"""A kernel's connection to a shared store: it reads at once, and writes in the background.

After a failure, the kernel does not use the store for a while, and its writes wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from nbcache.core.errors import NbcacheError, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from nbcache.core.log import logger
from nbcache.core.threads import ForkSafeLock, Worker, renew_in_children, start_thread
from nbcache.storage.backends.base import Store, batches
from nbcache.storage.backends.open import leases_of

T = TypeVar("T")

_BATCH = 16
"""Entries that are read in one round trip, and so within one deadline."""
_MOST_PENDING = 256 << 20
_PROBE = "probe"
_PROBE_SECONDS = 0.001
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds for which kernels pause after a store's failure, and wait for each other."""

    first_pause: float = 2.0
    longest_pause: float = 300.0
    steady: float = 60.0
    """If a store fails again within this time, the next pause is longer."""
    lease: float = 10.0
    """After this time without a heartbeat, a compiling kernel is considered dead."""
    heartbeat: float = 3.0
    least_expected: float = 5.0
    usually_expected: float = 60.0
    most_expected: float = 1800.0


USUAL = Timings()


@dataclass(slots=True)
class _Task:
    write: Callable[[], object]
    size: int
    name: str
    tries: int = _TRIES
    problem: str = ""


class Connection:
    """Reads a store at once, and writes in the background. Safe to use from any thread.

    After a failure the store is unused for a pause that doubles each time, and a thread probes it. So only
    the first caller waits for a store that fails. A full or read-only store is still read. `say` gets
    one-line notices. Each pause ends early if `stop` sets `closed`.
    """

    def __init__(
        self,
        store: Store,
        say: Callable[[str, str], None],
        timings: Timings = USUAL,
        closed: threading.Event | None = None,
    ) -> None:
        self.store = store
        self.name = store.name
        self.say = say
        self.timings = timings
        self.leases = leases_of(store)
        self.failure: StoreError | None = None
        """The fault that stopped writing, or reading and writing; None while both work."""
        self._is_readable = True
        self._turn = 0
        """Number of the thread that probes; earlier ones end."""
        self._pause = timings.first_pause
        self._back_at = -timings.steady
        self._closed = closed or threading.Event()
        self._worker = Worker(self._report_failure)
        self._lock = ForkSafeLock()
        self._unsent: list[_Task] = []
        self.pending = 0
        renew_in_children(self)

    def renew(self) -> None:
        """Close the connection in a forked child, which reads and writes nothing."""
        self._closed = threading.Event()
        self._closed.set()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @property
    def why_off(self) -> str:
        return self.failure.what if self.failure else ""

    @property
    def can_read(self) -> bool:
        return self._is_readable and not self.closed

    @property
    def can_write(self) -> bool:
        return self.failure is None and not self.closed

    def note(self, text: str, slug: str) -> None:
        self.say(f"{self.name}: {text}", slug)

    def read(self, action: Callable[[], T]) -> T | None:
        try:
            return action() if self.can_read else None
        except StoreError as error:
            self.fails(error)
            return None

    def read_batches(
        self, keys: Sequence[str], most_bytes: int
    ) -> Iterator[tuple[Sequence[str], Mapping[str, bytes]]]:
        """Yield a batch of `keys` and its values for each round trip, until `most_bytes` are read."""
        read = 0
        for batch in batches(keys, _BATCH):
            if read >= most_bytes or (values := self.read(partial(self.store.get_many, batch))) is None:
                return
            read += sum(map(len, values.values()))
            yield batch, values

    def write(self, size: int, write: Callable[[], object], name: str) -> bool:
        """Queue `write`, which holds `size` bytes, until the store is on; return whether that worked."""
        if self.closed:
            return False
        with self._lock:
            if self.pending + size > _MOST_PENDING:
                self.note("too many entries wait to be written: some are stored here only", "shared-store")
                return False
            self.pending += size
        self._worker.submit(partial(self._run_task, _Task(write, size, name)))
        return True

    def _run_task(self, task: _Task) -> None:
        waits = False
        try:
            waits = not self._try_task(task) and task.tries > 0
        finally:
            with self._lock:
                if waits:
                    self._unsent.append(task)
                else:
                    self.pending -= task.size
        if not task.tries:
            words = f"could not be written {_TRIES} times, and is not shared"
            self.note(f"{task.name} {words}: {task.problem}", "shared-store")
        elif waits and self.can_write:  # the store has recovered
            self._requeue_unsent()

    def _try_task(self, task: _Task) -> bool:
        while task.tries and self.can_write:
            try:
                task.write()
                return True
            except StoreError as error:
                self.fails_to_write(error)
                task.tries, task.problem = task.tries - 1, error.what
        return False

    def _requeue_unsent(self) -> None:
        with self._lock:
            unsent, self._unsent = self._unsent, []
        for task in unsent:
            self._worker.submit(partial(self._run_task, task))

    def flush(self, timeout: float | None) -> bool:
        """Wait for pending writes; False after `timeout` seconds, or if the store is off."""
        return self.closed or (self._worker.flush(timeout) and not self._unsent)

    def stop(self) -> None:
        self._closed.set()
        self._worker.stop()

    def _try_to_write(self) -> None:
        """Raise StoreError unless the store can be written to and, on Redis, coordinates kernels."""
        self.store.put(_PROBE, b"")
        if self.leases is not None:
            self.leases.claim(_PROBE, b"", _PROBE_SECONDS)

    # --- faults ---------------------------------------------------------------------------------

    def fails(self, error: StoreError) -> None:
        self._turn_off(error, readable=isinstance(error, StoreFull | StoreReadOnly))

    def fails_to_write(self, error: StoreError) -> None:
        """Stop writing, and also reading if that fails too; for threads that nobody waits for.

        If the store still reads and writes a probe, only the one value was at fault, and the store stays on.
        After StoreUnavailable writing pauses even so: one part of a store may be down while others answer.
        """
        if not isinstance(error, StoreFull | StoreReadOnly):
            try:
                self.store.get(_PROBE)
            except StoreError as fault:
                self.fails(fault)
                return
            with suppress(StoreError):
                if not isinstance(error, StoreUnavailable):
                    self._try_to_write()
                    return
        self._turn_off(error, readable=True)

    def ask(self) -> None:
        if self.failure is not None and not self.closed:
            self._probe()

    def _turn_off(self, error: StoreError, *, readable: bool) -> None:
        """Use the store no longer, or only read it if it is `readable`, until a probe succeeds."""
        with self._lock:
            was_on = self.failure is None
            if not was_on and (readable or not self._is_readable):
                return
            self.failure, self._is_readable = error, readable
            if time.monotonic() - self._back_at > self.timings.steady:
                self._pause = self.timings.first_pause
            self._turn += 1
        logger.info("a store is left alone for %g s", self._pause, exc_info=error)
        next_step = f" Next: {error.next_step}." if error.next_step else ""
        until = "written to until it accepts entries" if readable else "asked until it answers"
        self.note(f"{error.what}, so it is not {until} again.{next_step}", "shared-store")
        if not self.closed:
            start_thread(partial(self._probe_later, self._turn), "probe")  # without a thread it stays off

    def _probe_later(self, turn: int) -> None:
        while not self._closed.wait(self._pause):
            if turn != self._turn:
                return
            self._pause = min(2 * self._pause, self.timings.longest_pause)
            if self.failure is None or self._probe():
                return

    def _probe(self) -> bool:
        """Probe the store, and use it again as far as it works; return whether all of it works."""
        try:
            self.store.get(_PROBE)
            if not self._is_readable:
                self._is_readable, self._back_at = True, time.monotonic()
            self._try_to_write()
        except StoreError:
            return False
        with self._lock:
            was_off, self._back_at = self.failure is not None, time.monotonic()
            self.failure, self._is_readable = None, True  # it may have failed once more meanwhile
        if was_off:
            self.say(f"{self.name} answers again", "shared-store")
            self._requeue_unsent()
        return True

    def _report_failure(self, error: Exception) -> None:
        if isinstance(error, NbcacheError):
            self.note(f"compiled graphs are not shared: {error.with_next_step()}", "shared-store")
        else:  # users should report a bug in nbcache
            self.say(f"sharing compiled graphs failed unexpectedly, please report it: {error!r}", "fault")
