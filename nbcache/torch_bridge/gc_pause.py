"""Pause Python's garbage collector during imports and tracing.

Both create millions of permanent objects. The collector takes a third of the time that torch's import needs,
and 0.2 to 0.3 s for one traced model (2 cores, torch 2.13.0, Python 3.11), and finds no garbage.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

from nbcache.core.threads import renew_in_children

_BY_PYTHON = 1000
"""A limit: Python 3.12 freezes 375 objects at its start; a user's `gc.freeze` freezes thousands."""
_is_permanent = False


def keep_frozen() -> None:
    """Freeze the heap until the process ends, so that forked children share unmodified memory."""
    global _is_permanent
    gc.collect()
    gc.freeze()
    _is_permanent = True


@contextlib.contextmanager
def pause() -> Iterator[None]:
    """Pause collections; afterwards move new objects to the oldest generation, so that scans skip them."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not _stays_frozen():
            gc.freeze()
            gc.unfreeze()
        gc.enable()


class HeapAside:
    """Excludes existing objects from collections, from the first `begin` to the last `end` of all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._frozen = False
        renew_in_children(self)

    def renew(self) -> None:
        """Unfreeze the heap in a forked child: the thread that would do so may exist only in the parent."""
        self._lock = threading.Lock()
        self.reset()

    def begin(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1 and gc.isenabled() and not _stays_frozen():
                gc.freeze()
                self._frozen = True

    def end(self) -> None:
        with self._lock:
            self._depth = max(0, self._depth - 1)
            if self._depth == 0:
                self._release()

    def reset(self) -> None:
        with self._lock:
            self._depth = 0
            self._release()

    def _release(self) -> None:
        if self._frozen:
            self._frozen = False
            gc.unfreeze()


def _stays_frozen() -> bool:
    return _is_permanent or gc.get_freeze_count() > _BY_PYTHON  # slow: a million objects in 0.04 s
