"""Hear of each write to standard streams before it happens, for as long as a cell runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any, TextIO

__all__ = ["WatchedStreams"]


class WatchedStreams:
    """Stands before `write` of some streams from `begin` to `end`.

    Each write is done within `around(text)`. A stream whose `write` cannot be replaced is left alone.
    """

    def __init__(
        self, streams: Iterable[TextIO], around: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._streams = list({id(stream): stream for stream in streams}.values())
        self._around = around
        self._ours: list[tuple[Any, Any, Any]] = []
        self._watching = False

    def begin(self) -> None:
        """Watch from now on."""
        self._watching = True
        for stream in self._streams:
            with suppress(AttributeError, TypeError):
                self._watch(stream)

    def end(self) -> None:
        """Leave the streams as they were; one that others have replaced since goes on through ours."""
        self._watching = False
        while self._ours:
            stream, ours, before = self._ours.pop()
            if vars(stream).get("write") is not ours:
                continue
            if before is None:
                del stream.write
            else:
                stream.write = before

    def _watch(self, stream: Any) -> None:
        before = vars(stream).get("write")  # IPython's, which keeps what cells write
        original = stream.write

        def write(text: str, *rest: Any) -> Any:
            if not self._watching or not isinstance(text, str):
                return original(text, *rest)
            with self._around(text):
                return original(text, *rest)

        stream.write = write
        self._ours.append((stream, write, before))
