"""Interrupts of a benchmark: what was measured until then is shown."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from threading import Event
from types import FrameType
from typing import NoReturn

__all__ = ["interruptible", "told_as_interrupt"]


@contextlib.contextmanager
def interruptible() -> Iterator[Event]:
    """Take a polite request to end as an interrupt, and interrupts also where a shell has them ignored.

    Yields what is set as soon as either has come.
    """
    come = Event()

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        come.set()
        raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread
        yield come
        return
    try:
        yield come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def told_as_interrupt(come: Event) -> Iterator[None]:
    """Raise KeyboardInterrupt in place of an error that follows an interrupt.

    Within `shutil.rmtree`, for one, an interrupt may come out as an OSError.
    """
    try:
        yield
    except Exception as error:
        if come.is_set():
            raise KeyboardInterrupt from error
        raise
