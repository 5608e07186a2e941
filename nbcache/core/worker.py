"""A thread that does what nobody waits for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["Worker"]


class Worker:
    """One daemon thread that does tasks in order; started by the first task."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def submit(self, task: Callable[[], object]) -> None:
        """Have `task` done after those that were submitted before it.

        RuntimeError where no thread can be started: then nothing is kept either.
        """
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="nbcache-store", daemon=True)
                thread.start()
                self._thread = thread
        self._tasks.put(task)

    def flush(self, timeout: float | None) -> bool:
        """Wait for the tasks so far; False where `timeout` seconds were not enough."""
        if self._thread is None or self._stopped:
            return True
        done = threading.Event()
        self._tasks.put(done.set)
        return done.wait(timeout)

    def stop(self) -> None:
        """End the thread after the tasks so far."""
        self._stopped = True
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:
                self._on_error(error)
