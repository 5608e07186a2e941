"""Whether a store that others run is asked: after a failure it is left alone until it answers again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nbcache.core.errors import StoreError
from nbcache.core.log import logger
from nbcache.core.threads import renew_in_children, start_thread
from nbcache.shared.timings import Timings

__all__ = ["CircuitBreaker"]


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
        self._probe = probe
        self._changed = changed
        self._timings = timings
        self._lock = threading.Lock()
        self._closed = closed or threading.Event()
        self._failure: StoreError | None = None
        self._pause = timings.first_pause
        self._back_at = -timings.steady
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, which has no thread that asks: what is off there stays off."""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._closed.set()

    @property
    def failure(self) -> StoreError | None:
        """Why the store is left alone now; None where it is not."""
        return self._failure

    def record_failure(self, error: StoreError) -> None:
        """Leave the store alone for a while."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            if time.monotonic() - self._back_at > self._timings.steady:
                self._pause = self._timings.first_pause
        logger.info("a store is left alone for %g s", self._pause, exc_info=error)
        self._changed(error)
        if not self._closed.is_set():
            start_thread(self._ask_again, "probe")  # without a thread it stays off

    def probe_now(self) -> None:
        """Ask now, in this thread, where the store is left alone: somebody wants to know."""
        if self._failure is not None and not self._closed.is_set():
            self._answers()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _ask_again(self) -> None:
        while not self._closed.wait(self._pause):
            self._pause = min(2 * self._pause, self._timings.longest_pause)
            if self._failure is None or self._answers():
                return

    def _answers(self) -> bool:
        """Ask, and tell whether the store answers, so that it is used again."""
        try:
            self._probe()
        except StoreError:
            return False
        with self._lock:
            was_off, self._failure, self._back_at = self._failure is not None, None, time.monotonic()
        if was_off:
            self._changed(None)
        return True
