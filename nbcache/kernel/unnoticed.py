"""Compiles that no report tells of, such as those of prewarming."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from nbcache.kernel.events import Event

__all__ = ["Unnoticed"]


class Unnoticed:
    """One thread at a time whose events are hidden, and those of other threads on the same compiles."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._compile_ids: set[str] = set()

    @contextlib.contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """Hide what this thread compiles in here."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._compile_ids.clear()

    def is_here(self) -> bool:
        """Tell whether what this thread does is hidden."""
        return self._thread == threading.get_ident()

    def hides(self, event: Event) -> bool:
        """Tell whether an event is to be hidden."""
        if self._thread is None:
            return False
        if event.thread == self._thread and event.compile_id is not None:
            self._compile_ids.add(event.compile_id)
        return event.thread == self._thread or event.compile_id in self._compile_ids
