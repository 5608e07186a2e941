"""One live line above the output of a cell that compiles, or none, and the report as its last output."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from nbcache.core.reports import Activity
from nbcache.core.threads import renew_in_children, start_thread
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.reports import render_activity

DELAY = 0.4
"""Seconds of activity before the line appears: quick hits stay silent."""
INTERVAL = 0.2
"""Seconds between two looks at the sampler: a page that is sent updates without pause loses the last one."""
PATIENCE = 1.0
"""Seconds without activity after which the line goes: graphs follow one another sooner."""
JOIN = 1.0
"""Seconds that the end of a cell waits at most for the thread."""
_NO_LINE = Rendered("", "")
"""The empty line: front ends take no room for it."""


class LiveLine:
    """Shows what `sample` returns while a cell runs, from a daemon thread, in a display that updates replace.

    A front end can neither remove nor move a display, and one amid the cell's output tears it apart: a bar
    that rewrites its line begins a new one below. So the display precedes the cell's output, or is not there.
    No fault of the sampler or of the display reaches the cell. The thread that runs the cell calls `start`,
    `reserve` and `finish`, once.
    """

    def __init__(
        self,
        sample: Callable[[], Activity | None],
        publisher: Any,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`publisher` is the shell's, with which the cell began: under `%%capture` it has another one."""
        self._sample = sample
        self._publisher = publisher
        self._clock = clock
        # The context carries the header of the request that runs the cell, by which a front end knows whose
        # output it is: without it a late update lands in the next cell.
        self._context = contextvars.copy_context()
        self._id = f"nbcache-{uuid.uuid4().hex}"
        self._text = ""
        self._is_reserved = False
        self._is_placed = False
        """True once the display is there, even an empty one."""
        self._has_output = False
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.RLock()
        """Protects the display: the thread and the cell's own writes both change it."""
        self._streams: list[tuple[Any, Any, Any]] = []
        """Each stream, the `write` that stands before its own, and the attribute that was there before."""
        self._finished = False
        self._busy_since: float | None = None
        self._quiet_since: float | None = None
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, where nobody draws."""
        self._lock = threading.RLock()
        self._stop.set()
        self._unwatch()

    def start(self) -> None:
        with contextlib.suppress(Exception):
            # A cell that calls clear_output removes the line, and an update of what is gone shows nothing.
            # Publishers call the hooks of the thread that publishes: of this one, the cell's.
            if hasattr(self._publisher, "register_hook"):
                self._publisher.register_hook(self._notice)
            for stream in {id(stream): stream for stream in (sys.stdout, sys.stderr)}.values():
                with contextlib.suppress(AttributeError, TypeError):  # its `write` cannot be replaced
                    self._watch_stream(stream)
            self._thread = start_thread(partial(self._context.copy().run, self._watch), "live-line")

    def reserve(self) -> None:
        """Place the line above all that the cell is going to write: the cell is known to compile."""
        self._is_reserved = True

    def finish(self, final: Rendered | None = None) -> None:
        """Stop, empty the line, and show `final` after all that the cell has written. This takes a moment."""
        if self._finished:
            return
        self._finished = True
        self._stop.set()
        self._unwatch()
        if self._thread is not None:
            self._thread.join(JOIN)
        with contextlib.suppress(Exception):  # it has no hooks, or not ours
            self._publisher.unregister_hook(self._notice)
        with contextlib.suppress(Exception), self._hold():
            if self._text:
                self._as_cell(self._publish, _NO_LINE)
            if final is not None:
                self._as_cell(self._publisher.publish, final.bundle(), {}, transient={}, update=False)

    def look(self) -> None:
        activity = self._sample()
        with self._lock:
            if self._stop.is_set():
                return
            now = self._clock()
            if activity is not None:
                self._quiet_since = None
                if self._busy_since is None:
                    self._busy_since = now - activity.seconds
                if now - self._busy_since >= DELAY:
                    self._update(render_activity(activity))
                return
            self._quiet_since = now if self._quiet_since is None else self._quiet_since
            if not self._text or now - self._quiet_since >= PATIENCE:
                self._update(_NO_LINE)
                self._busy_since = None

    def _watch(self) -> None:
        with contextlib.suppress(Exception):
            while not self._stop.wait(INTERVAL):
                self.look()

    @contextlib.contextmanager
    def _hold(self) -> Iterator[None]:
        """Hold the lock; the cell goes on without it if the thread does not release it in time."""
        lock = self._lock
        acquired = lock.acquire(timeout=JOIN)
        try:
            yield
        finally:
            if acquired:
                lock.release()

    def _update(self, line: Rendered) -> None:
        if line.text != self._text and (self._is_placed or not self._has_output):
            self._publish(line)

    def _publish(self, line: Rendered) -> None:
        """Show a line in the display, which is made if it is not there."""
        update, self._is_placed, self._text = self._is_placed, True, line.text
        self._publisher.publish(line.bundle(), {}, transient={"display_id": self._id}, update=update)

    def _as_cell(self, publish: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        # A copy: a context can be entered once only, and the thread may be stuck in its own.
        self._context.copy().run(publish, *arguments, **options)

    def _precede(self) -> None:
        """Place the line, if its place is reserved, before the first output of the cell."""
        if not self._has_output:
            if self._is_reserved and not self._is_placed:
                self._as_cell(self._publish, _NO_LINE)
            self._has_output = True

    def _watch_stream(self, stream: Any) -> None:
        before = vars(stream).get("write")  # IPython's, which keeps what cells write
        original = stream.write

        def write(text: str, *rest: Any) -> Any:
            if not text or self._stop.is_set():
                return original(text, *rest)
            with self._hold():
                with contextlib.suppress(Exception):
                    self._precede()
                return original(text, *rest)

        stream.write = write
        self._streams.append((stream, write, before))

    def _unwatch(self) -> None:
        """Leave the streams as they were; one that others have replaced since goes on through ours."""
        while self._streams:
            stream, ours, before = self._streams.pop()
            if vars(stream).get("write") is not ours:
                continue
            if before is None:
                del stream.write
            else:
                stream.write = before

    def _notice(self, message: Any) -> Any:
        """Note what the cell displays, and that it clears its output, just before the message is sent."""
        kind, transient = message["msg_type"], message.get("content", {}).get("transient", {})
        if kind == "clear_output":
            with self._hold():
                self._is_placed, self._text, self._has_output = False, "", True
        elif kind == "display_data" and transient.get("display_id") != self._id:
            with self._hold():
                self._precede()
        return message
