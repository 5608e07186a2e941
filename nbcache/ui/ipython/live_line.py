"""One live line above the output of a cell that compiles, and the report as its last output."""

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

SHOW_AFTER = 0.4
"""Seconds of activity before the line appears: quick hits stay silent."""
INTERVAL = 0.2
"""Seconds between two samples: a page that gets updates without pause loses the last one."""
REMOVE_AFTER = 1.0
"""Seconds without activity after which the line is removed; pauses between graphs are shorter."""
JOIN = 1.0
"""The longest wait for the thread at the end of a cell, in seconds."""
_NO_LINE = Rendered("", "")
"""An empty line, which takes no room in front ends."""


class LiveLine:
    """Shows the activity from `sample` while a cell runs: a daemon thread updates one display.

    A front end cannot remove or move a display. A display amid the cell's output would split it: a progress
    bar that rewrites its line would begin a new one. So the display precedes all output, or is not made.
    No fault of the sampler or of the display reaches the cell. The thread that runs the cell calls `start`,
    `reserve` and `finish` once each.
    """

    def __init__(
        self,
        sample: Callable[[], Activity | None],
        publisher: Any,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`publisher` is the shell's at the start of the cell, since `%%capture` replaces it meanwhile."""
        self._sample = sample
        self._publisher = publisher
        self._clock = clock
        # The context has the header of the request that runs the cell, with which a front end assigns output
        # to cells. Without it, a late update would land in the next cell.
        self._context = contextvars.copy_context()
        self._id = f"nbcache-{uuid.uuid4().hex}"
        self._text = ""
        self._is_reserved = False
        self._is_placed = False
        """True once the display exists, even if it is empty."""
        self._has_output = False
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.RLock()
        """Protects the display: the thread and the cell's own writes both change it."""
        self._streams: list[tuple[Any, Any, Any]] = []
        """Each watched stream, our `write`, and the instance attribute `write` that it replaced, or None."""
        self._finished = False
        self._busy_since: float | None = None
        self._quiet_since: float | None = None
        renew_in_children(self)

    def renew(self) -> None:
        """Stop in a forked child, which has no thread that draws."""
        self._lock = threading.RLock()
        self._stop.set()
        self._unwatch()

    def start(self) -> None:
        with contextlib.suppress(Exception):
            # clear_output in a cell removes the display, and updates of a removed display show nothing.
            # Publishers call the hooks of the publishing thread, so this registers the cell's thread.
            if hasattr(self._publisher, "register_hook"):
                self._publisher.register_hook(self._notice)
            for stream in {id(stream): stream for stream in (sys.stdout, sys.stderr)}.values():
                with contextlib.suppress(AttributeError, TypeError):  # its `write` cannot be replaced
                    self._watch_stream(stream)
            self._thread = start_thread(partial(self._context.copy().run, self._watch), "live-line")

    def reserve(self) -> None:
        """Reserve a place for the line above all output of the cell, which is known to compile."""
        self._is_reserved = True

    def finish(self, final: Rendered | None = None) -> None:
        """Stop, empty the line, and show `final` after the cell's output. This takes a moment."""
        if self._finished:
            return
        self._finished = True
        self._stop.set()
        self._unwatch()
        if self._thread is not None:
            self._thread.join(JOIN)
        with contextlib.suppress(Exception):  # the publisher has no hooks, or not this one
            self._publisher.unregister_hook(self._notice)
        with contextlib.suppress(Exception), self._hold():
            if self._text:
                self._as_cell(self._publish, _NO_LINE)
            if final is not None:
                self._as_cell(self._publisher.publish, final.bundle(), {}, transient={}, update=False)

    def sample(self) -> None:
        """Show the activity once it has lasted SHOW_AFTER; remove the line REMOVE_AFTER its end."""
        activity = self._sample()
        with self._lock:
            if self._stop.is_set():
                return
            moment = self._clock()
            if activity is not None:
                self._quiet_since = None
                if self._busy_since is None:
                    self._busy_since = moment - activity.seconds
                if moment - self._busy_since >= SHOW_AFTER:
                    self._update(render_activity(activity))
                return
            self._quiet_since = moment if self._quiet_since is None else self._quiet_since
            if not self._text or moment - self._quiet_since >= REMOVE_AFTER:
                self._update(_NO_LINE)
                self._busy_since = None

    def _watch(self) -> None:
        with contextlib.suppress(Exception):
            while not self._stop.wait(INTERVAL):
                self.sample()

    @contextlib.contextmanager
    def _hold(self) -> Iterator[None]:
        """Hold the lock; if the thread does not release it in time, the cell continues without it."""
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
        """Show a line in the display, which the first call creates."""
        update, self._is_placed, self._text = self._is_placed, True, line.text
        self._publisher.publish(line.bundle(), {}, transient={"display_id": self._id}, update=update)

    def _as_cell(self, publish: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        # A copy: only one thread can enter a context at a time, and ours may be stuck in its context.
        self._context.copy().run(publish, *arguments, **options)

    def _precede(self) -> None:
        """Create the display before the cell's first output, if its place is reserved."""
        if not self._has_output:
            if self._is_reserved and not self._is_placed:
                self._as_cell(self._publish, _NO_LINE)
            self._has_output = True

    def _watch_stream(self, stream: Any) -> None:
        attribute = vars(stream).get("write")  # IPython's own wrapper, which records output
        original = stream.write

        def write(text: str, *arguments: Any) -> Any:
            if not text or self._stop.is_set():
                return original(text, *arguments)
            with self._hold():
                with contextlib.suppress(Exception):
                    self._precede()
                return original(text, *arguments)

        stream.write = write
        self._streams.append((stream, write, attribute))

    def _unwatch(self) -> None:
        """Restore the streams' `write`. One that others have wrapped since then still calls ours."""
        while self._streams:
            stream, ours, attribute = self._streams.pop()
            if vars(stream).get("write") is not ours:
                continue
            if attribute is None:
                del stream.write
            else:
                stream.write = attribute

    def _notice(self, message: Any) -> Any:
        """Follow the cell's displays and `clear_output` calls, just before their messages are sent."""
        kind, transient = message["msg_type"], message.get("content", {}).get("transient", {})
        if kind == "clear_output":
            with self._hold():
                self._is_placed, self._text, self._has_output = False, "", True
        elif kind == "display_data" and transient.get("display_id") != self._id:
            with self._hold():
                self._precede()
        return message
