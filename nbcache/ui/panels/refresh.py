"""Draws that are asked for often and done seldom: at most so many a second, and the last one always."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from functools import partial

from nbcache.core.log import logger
from nbcache.core.threads import start_thread

__all__ = ["Refresher"]


class Refresher:
    """Calls `draw` on a thread of its own, at most once in `interval` seconds, after each `ask`.

    `draw` returns whether it is to be called again without being asked. What it raises is logged: nothing of
    it reaches who asks.
    """

    def __init__(
        self,
        draw: Callable[[], bool],
        interval: float,
        name: str,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._draw = draw
        self._sleep = sleep
        self._interval = interval
        self._name = name
        self._lock = threading.Lock()
        self._asked = False
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self) -> None:
        """Have `draw` called soon, once for all who ask until then."""
        with self._lock:
            self._asked = True
            if self._thread is None and not self._closed:
                run = partial(contextvars.copy_context().run, self._run)
                self._thread = start_thread(run, self._name)

    def close(self) -> None:
        """Draw no more."""
        with self._lock:
            self._closed = True

    def _run(self) -> None:
        goes_on = False
        while True:
            with self._lock:
                if self._closed or not (self._asked or goes_on):
                    self._thread = None
                    return
                self._asked = False
            try:
                goes_on = self._draw()
            except Exception as error:
                goes_on = False
                logger.info("drawing a panel failed", exc_info=error)
            self._sleep(self._interval)
