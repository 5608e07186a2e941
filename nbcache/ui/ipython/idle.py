"""Idle time: calls on the kernel's own thread while no cell runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

__all__ = ["IdleTime"]

_SETTLE = 0.1
"""Seconds after a cell before idle time begins: of cells that were sent together the next one comes first."""
_BREATH = 0.002
"""Seconds between two calls, in which the kernel takes messages in."""


class IdleTime:
    """Calls `step` again and again on `loop`, the kernel's, while nothing else is to be done.

    `step` returns the seconds to wait before the next call, None to wait for the end of another cell. `begin`
    and `end` may be called on any thread: a subshell's cells run on one of their own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, step: Callable[[], float | None]) -> None:
        self._loop = loop
        self._step = step
        self._timer: asyncio.TimerHandle | None = None
        self._resting = False

    def begin(self) -> None:
        """Note that no cell runs any more."""
        self._resting = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: the kernel ends
            self._loop.call_soon_threadsafe(self._schedule, _SETTLE)

    def end(self) -> None:
        """Note that a cell begins, or that idle time is of no use any more."""
        self._resting = False

    def _schedule(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._call)

    def _call(self) -> None:
        self._timer = None
        if not self._resting:
            return
        wait = self._step()
        if wait is not None and self._resting:
            self._schedule(max(wait, _BREATH))
