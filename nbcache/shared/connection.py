"""A store that others run, as one kernel uses it: what it reads, and what it has written in the background.

A store that fails is left alone for a while (`CircuitBreaker`), and what was to be written meanwhile waits.
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
from nbcache.stores.base import Store, batches
from nbcache.stores.open import leases_of

T = TypeVar("T")

_BATCH = 16
"""Entries that are read in one round trip: all of them have its deadline."""
_MOST_PENDING = 256 << 20
"""Bytes that wait to be written; more is not published."""
_PROBE = "probe"
_PROBE_SECONDS = 0.001
_TRIES = 3
"""Attempts to write a value that the store fails at; some stores fail at long ones."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds for which kernels leave a shared store alone, and wait for each other."""

    first_pause: float = 2.0
    """The first pause of a store that fails; each further one is twice as long."""
    longest_pause: float = 300.0
    steady: float = 60.0
    """A store that fails again within this time after it came back is left alone for longer."""
    lease: float = 10.0
    """The time after its last heartbeat when a kernel that compiles is believed dead."""
    heartbeat: float = 3.0
    least_expected: float = 5.0
    """The least expected time of compiling a graph."""
    usually_expected: float = 60.0
    """The same, where nothing is known."""
    most_expected: float = 1800.0


USUAL = Timings()


class CircuitBreaker:
    """Off after a failure, for a while that doubles each time; then a thread asks `probe`.

    So nobody waits for a store that fails, but for the first who meets the failure. `changed` is called with
    the failure, and with None when the store is back. Methods are safe to call from any thread.
    """

    def __init__(
        self,
        probe: Callable[[], object],
        changed: Callable[[StoreError | None], None],
        timings: Timings,
        closed: threading.Event | None = None,
    ) -> None:
        """`closed` is waited for between two probes; `close` sets it."""
        self.failure: StoreError | None = None
        """Why the store is left alone now; None where it is not."""
        self._probe = probe
        self._changed = changed
        self._timings = timings
        self._lock = ForkSafeLock()
        self._closed = closed or threading.Event()
        self._pause = timings.first_pause
        self._back_at = -timings.steady
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, which has no thread that asks: what is off there stays off."""
        self._closed = threading.Event()
        self._closed.set()

    def record_failure(self, error: StoreError) -> None:
        """Leave the store alone for a while."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
            if time.monotonic() - self._back_at > self._timings.steady:
                self._pause = self._timings.first_pause
        logger.info("a store is left alone for %g s", self._pause, exc_info=error)
        self._changed(error)
        if not self._closed.is_set():
            start_thread(self._ask_again, "probe")  # without a thread it stays off

    def probe_now(self) -> None:
        """Ask now, in this thread, where the store is left alone: somebody wants to know."""
        if self.failure is not None and not self._closed.is_set():
            self._answers()

    def close(self) -> None:
        self._closed.set()

    def _ask_again(self) -> None:
        while not self._closed.wait(self._pause):
            self._pause = min(2 * self._pause, self._timings.longest_pause)
            if self.failure is None or self._answers():
                return

    def _answers(self) -> bool:
        """Ask, and return whether the store answers, so that it is used again."""
        try:
            self._probe()
        except StoreError:
            return False
        with self._lock:
            was_off, self.failure, self._back_at = self.failure is not None, None, time.monotonic()
        if was_off:
            self._changed(None)
        return True


@dataclass(slots=True)
class _Task:
    write: Callable[[], object]
    size: int
    """Bytes that it holds meanwhile."""
    name: str
    """The value's name in messages."""
    tries: int = _TRIES
    problem: str = ""
    """Why it could not be written."""


class Connection:
    """Safe to use from any thread. `say` gets one-line notices."""

    def __init__(self, store: Store, say: Callable[[str], None], timings: Timings) -> None:
        self.store = store
        self.name = store.name
        """The name of the store in reports; holds no secret."""
        self.say = say
        self.timings = timings
        self.leases = leases_of(store)
        self.reading = CircuitBreaker(lambda: store.get(_PROBE), self._changed, timings)
        self.writing = CircuitBreaker(self._try_to_write, self._changed, timings)
        """Off where it is full, a replica, or fails at writing alone: then it is still read."""
        self._worker = Worker(self._failed)
        self._lock = ForkSafeLock()
        self._unsent: list[_Task] = []
        self.pending = 0
        """Bytes that are still to be written."""
        self.closed = False
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, which reads and writes nothing."""
        self.closed = True

    @property
    def failure(self) -> StoreError | None:
        """Why it is not read, or not written to, now; None where it is both."""
        return self.reading.failure or self.writing.failure

    @property
    def why_off(self) -> str:
        """The same in words; empty where it is both."""
        return self.failure.what if self.failure else ""

    @property
    def can_read(self) -> bool:
        return self.reading.failure is None and not self.closed

    @property
    def can_write(self) -> bool:
        """Return whether it is read and written to."""
        return self.failure is None and not self.closed

    def ask(self) -> None:
        """Ask whether it answers again, where it is off; within its timeouts."""
        self.reading.probe_now()
        if self.reading.failure is None:
            self.writing.probe_now()

    def note(self, text: str) -> None:
        self.say(f"{self.name}: {text}")

    def read(self, action: Callable[[], T]) -> T | None:
        """Return what `action` returns; None where the store is off, or fails, which turns it off."""
        try:
            return action() if self.can_read else None
        except StoreError as error:
            self.fails(error)
            return None

    def read_batches(
        self, keys: Sequence[str], most_bytes: int
    ) -> Iterator[tuple[Sequence[str], Mapping[str, bytes]]]:
        """Yield some of `keys`, with their values, for each round trip; until it has read `most_bytes`."""
        read = 0
        for batch in batches(keys, _BATCH):
            if read >= most_bytes or (values := self.read(partial(self.store.get_many, batch))) is None:
                return
            read += sum(map(len, values.values()))
            yield batch, values

    def write(self, size: int, write: Callable[[], object], name: str) -> bool:
        """Give the worker `write`, which holds `size` bytes, for when the store is on; False if full."""
        with self._lock:
            if self.pending + size > _MOST_PENDING:
                self.note("more waits to be written than is kept; some is not shared")
                return False
            self.pending += size
        self._worker.submit(partial(self._do, _Task(write, size, name)))
        return True

    def _do(self, task: _Task) -> None:
        """Write something; where the store is off, it waits, unless it has no tries left."""
        waits = False
        try:
            waits = not self._is_written(task) and task.tries > 0
        finally:
            with self._lock:
                if waits:
                    self._unsent.append(task)
                else:
                    self.pending -= task.size
        if not task.tries:
            self.note(f"{task.name} could not be written {_TRIES} times, and is not shared: {task.problem}")
        elif waits and self.can_write:  # it is back just now
            self._send_again()

    def _is_written(self, task: _Task) -> bool:
        while task.tries and self.can_write:
            try:
                task.write()
                return True
            except StoreError as error:
                self.fails_to_write(error)
                task.tries, task.problem = task.tries - 1, error.what
        return False

    def _send_again(self) -> None:
        with self._lock:
            unsent, self._unsent = self._unsent, []
        for task in unsent:
            self._worker.submit(partial(self._do, task))

    def flush(self, timeout: float | None) -> bool:
        """Wait until all is written; False where `timeout` seconds were too few, or the store is off."""
        return self.closed or (self._worker.flush(timeout) and not self._unsent)

    def _try_to_write(self) -> None:
        """Raise StoreError unless the store can be written to, and coordinates where it did."""
        self.store.put(_PROBE, b"")
        if self.leases is not None:
            self.leases.claim(_PROBE, b"", _PROBE_SECONDS)

    # --- faults ---------------------------------------------------------------------------------

    def fails(self, error: StoreError) -> None:
        """Leave alone what somebody waited for in vain."""
        if not isinstance(error, StoreFull | StoreReadOnly):
            self.reading.record_failure(error)
        self.writing.record_failure(error)

    def fails_to_write(self, error: StoreError) -> None:
        """Leave off writing, and reading only where that fails as well; for threads that nobody waits for.

        A store that reads and writes something else goes on: then the one value was at fault. One part of a
        store may be away while others answer, so that a value is tried again only after a pause.
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
        self.writing.record_failure(error)

    def _changed(self, error: StoreError | None) -> None:
        if error is None:
            if self.failure is None:
                self.say(f"{self.name} answers again")
                self._send_again()
            return
        if error is self.writing.failure and self.reading.failure is not None:  # of reading it was said
            return
        next_step = f" Next: {error.next_step}." if error.next_step else ""
        until = "written to until it can be" if self.reading.failure is None else "asked until it answers"
        self.note(f"{error.what}, so it is not {until} again.{next_step}")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, NbcacheError):
            self.note(f"what was compiled is not shared: {error.with_next_step()}")
        else:  # a bug of nbcache must be seen
            self.say(f"sharing what was compiled failed unexpectedly, please report it: {error!r}")
