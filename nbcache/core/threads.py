"""Background threads, and locks for forked children.

A forked child has none of its parent's other threads, but the locks that they held stay locked.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

T = TypeVar("T")


def start_thread(action: Callable[[], object], name: str) -> threading.Thread | None:
    """Start `action` on a daemon thread, `nbcache-<name>`; None if no thread can start."""
    thread = threading.Thread(target=action, name=f"nbcache-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def within(seconds: float, action: Callable[[], T], name: str) -> T:
    """Return the result of `action` on a thread; TimeoutError after `seconds`. The thread then goes on."""
    done: Future[T] = Future()

    def act() -> None:
        try:
            done.set_result(action())
        except BaseException as error:
            done.set_exception(error)

    if start_thread(act, name) is None:
        act()
    return done.result(seconds)


def countdown(timeout: float | None) -> Callable[[], float | None]:
    """Return a function that returns the remaining seconds of `timeout`; None for no bound."""
    end = None if timeout is None else time.monotonic() + timeout
    return lambda: None if end is None else max(0.0, end - time.monotonic())


class Worker:
    """One daemon thread that does tasks in order; started by the first task."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def submit(self, task: Callable[[], object]) -> None:
        """Queue `task` after earlier ones; RuntimeError, and the task is dropped, where no thread starts."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="nbcache-store", daemon=True)
                thread.start()
                self._thread = thread
        self._tasks.put(task)

    def flush(self, timeout: float | None) -> bool:
        if self._thread is None or self._stopped:
            return True
        done = threading.Event()
        self._tasks.put(done.set)
        return done.wait(timeout)

    def stop(self) -> None:
        self._stopped = True
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:
                self._on_error(error)


class Renewed(Protocol):
    def renew(self) -> None:
        """Make new locks without waiting: a forked child has no other thread."""


_renewed: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew_in_children(renewed: Renewed) -> None:
    """Renew an object in every process that is forked from this one, as long as the object lives.

    Kernels fork (`multiprocessing`, data loaders). A child that compiles would wait forever for a lock that
    another thread of the parent held at the fork.
    """
    _renewed.add(renewed)
    _watch_forks()


@functools.cache
def _watch_forks() -> None:
    """Register once in a process, since Python cannot remove such a hook."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew)


def _renew() -> None:
    for renewed in [*_renewed]:
        renewed.renew()


class ForkSafeEvent(threading.Event):
    """An event that is set in a forked child, which lacks the thread that would set it."""

    def __init__(self) -> None:
        super().__init__()
        renew_in_children(self)

    def renew(self) -> None:
        super().__init__()
        self.set()


class ForkSafeLock:
    """A lock that is free in a forked child even if another thread of the parent held it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        renew_in_children(self)

    def renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(RuntimeError):  # in a child, whose parent forked while it held the lock
            self._lock.release()
