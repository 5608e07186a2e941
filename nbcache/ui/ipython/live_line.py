"""Show one live line while a cell compiles, and the report after all else when the cell is done.

What a cell itself writes is never torn apart: in a notebook the line stands above it or is not there, and
in a terminal it goes before anything is written.
"""

from __future__ import annotations

import contextlib
import contextvars
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, TextIO

from nbcache.core.reports import Activity
from nbcache.core.threads import renew_in_children, start_thread
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.reports import render_activity, render_idle
from nbcache.ui.ipython.streams import WatchedStreams

__all__ = ["LiveLine"]

DELAY = 0.4
"""Seconds that something must have been going on before the line appears: quick hits stay silent."""
INTERVAL = 0.2
"""Seconds between two looks at the sampler. A page that is sent updates without pause sticks and loses the
last one (FACTS 3), so this is also the shortest time between two updates."""
PATIENCE = 1.0
"""Seconds without activity after which the line says so: graphs follow one another sooner."""
JOIN = 1.0
"""Seconds that the end of a cell waits at most for the thread."""


class LiveLine:
    """Show what `sample` returns while a cell runs, from a daemon thread.

    In a kernel the line is a display, which is empty in the end; in a terminal it is one line of standard
    error; where neither is there, nothing is shown. No fault of the sampler or of the display reaches the
    cell: it turns the line off. The thread that runs the cell calls `start`, `reserve` and `finish`, once.
    """

    def __init__(
        self,
        sample: Callable[[], Activity | None],
        *,
        shell: Any = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Prepare to show on `shell` (IPython's current one by default); `stream` replaces standard error."""
        self._sample = sample
        self._clock = clock
        self._shell = shell
        self._stream = stream
        self._screen: _Screen | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.RLock()  # whoever draws holds it, and whoever writes for the cell
        self._streams: WatchedStreams | None = None
        self._finished = False
        self._busy_since: float | None = None
        self._quiet_since: float | None = None
        self._last: Activity | None = None
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, where nobody draws."""
        self._lock = threading.RLock()
        self._stop.set()
        if self._streams is not None:
            self._streams.end()

    def start(self) -> None:
        """Watch the sampler until `finish`."""
        with contextlib.suppress(Exception):
            self._screen = _screen(self._shell, self._stream)
            if self._screen.can_update:
                self._streams = WatchedStreams(self._screen.streams(), self._writing)
                self._streams.begin()
                # The context carries the header of the request that runs the cell, by which a front end knows
                # whose output it is: without it a late update lands in the next cell.
                run = contextvars.copy_context().run
                self._thread = start_thread(partial(run, self._watch), "live-line")

    def reserve(self) -> None:
        """Keep a place for the line above all that the cell is going to write: it is known to compile."""
        if self._screen is not None:
            self._screen.is_reserved = True

    def finish(self, final: Rendered | None = None) -> None:
        """Stop, take the line away, and show `final` after all that the cell has written.

        Waits for the thread, but not for long.
        """
        if self._finished:
            return
        self._finished = True
        self._stop.set()
        if self._streams is not None:
            self._streams.end()
        if self._thread is not None:
            self._thread.join(JOIN)
        drawing = self._lock.acquire(timeout=JOIN)
        try:
            with contextlib.suppress(Exception):
                screen = self._screen or _screen(self._shell, self._stream)
                screen.finish(final)
        finally:
            if drawing:
                self._lock.release()

    @contextlib.contextmanager
    def _writing(self, text: str) -> Iterator[None]:
        """Move the line out of the way while the cell writes `text`."""
        lock = self._lock
        held = lock.acquire(timeout=JOIN)
        try:
            with contextlib.suppress(Exception):
                if self._screen is not None:
                    self._screen.make_way(text)
            yield
        finally:
            if held:
                lock.release()

    def _watch(self) -> None:
        with contextlib.suppress(Exception):
            while not self._stop.wait(INTERVAL):
                self.look()

    def look(self) -> None:
        """Call the sampler once, and draw what it returns."""
        activity = self._sample()
        with self._lock:
            if self._screen is not None and self._screen.can_update and not self._stop.is_set():
                self._draw(self._screen, activity, self._clock())

    def _draw(self, screen: _Screen, activity: Activity | None, now: float) -> None:
        if activity is not None:
            self._last, self._quiet_since = activity, None
            if self._busy_since is None:
                self._busy_since = now - activity.seconds
            if now - self._busy_since >= DELAY:
                screen.update(render_activity(activity))
        elif not screen.is_shown:
            self._busy_since = None
        elif self._last is not None:
            self._quiet_since = now if self._quiet_since is None else self._quiet_since
            if now - self._quiet_since >= screen.patience:
                screen.rest(render_idle(self._last))
                self._busy_since = None


_NO_LINE = Rendered("", "")
"""The empty line: front ends take no room for it."""


class _Screen(Protocol):
    """The place of the line."""

    can_update: bool
    """False if no line can be drawn; `finish` can always be called."""
    is_reserved: bool
    """True if the line takes a place before the cell writes anything, even if nothing compiles yet."""
    patience: float
    """Seconds without activity after which to `rest`."""

    @property
    def is_shown(self) -> bool:
        """Return whether a line is visible."""

    def streams(self) -> list[TextIO]:
        """Return the streams by which the cell writes to where the line is drawn."""

    def make_way(self, text: str) -> None:
        """Move the line out of the way of `text`, which the cell is about to write."""

    def update(self, line: Rendered) -> None: ...
    def rest(self, line: Rendered) -> None: ...
    def finish(self, final: Rendered | None) -> None: ...


def _screen(shell: Any, stream: TextIO | None) -> _Screen:
    if shell is None and "IPython" in sys.modules:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
    if getattr(shell, "kernel", None) is not None:
        return _KernelScreen(shell.display_pub)
    return _TerminalScreen(stream or sys.stderr)


class _KernelScreen:
    """A display with an id, which updates replace.

    No display can be taken away or moved, and one amid what a cell writes tears it apart: a bar that
    rewrites its line begins a new one below. So the line is there before anything else, or not at all.
    The publisher is the one that the cell began with: a cell under `%%capture` has another one meanwhile.
    """

    can_update = True
    patience = PATIENCE

    def __init__(self, publisher: Any):
        self.is_reserved = False
        self._publisher = publisher
        self._context = contextvars.copy_context()
        self._id = f"nbcache-{uuid.uuid4().hex}"
        self._text = ""
        self._placed = False
        """True once the display is there, even an empty one."""
        self._below = False
        """True once the cell has written or cleared anything."""
        self._publishing = threading.RLock()
        # A cell that calls clear_output takes the line away, and an update of what is gone shows nothing. No
        # other comes in its place: whatever is displayed next may be what the front end waits for to clear.
        # Publishers call the hooks of the thread that publishes: of this one, the cell's.
        if hasattr(publisher, "register_hook"):
            publisher.register_hook(self._notice)
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child."""
        self._publishing = threading.RLock()

    @property
    def is_shown(self) -> bool:
        return bool(self._text)

    def streams(self) -> list[TextIO]:
        return [sys.stdout, sys.stderr]

    def make_way(self, text: str) -> None:
        if text and not self._below:
            with self._publishing:
                if self.is_reserved and not self._placed:
                    self._as_cell(self._publish, _NO_LINE)
                self._below = True

    def update(self, line: Rendered) -> None:
        with self._publishing:
            # The hook runs just before the message that clears is sent, and must not be overtaken.
            if line.text != self._text and (self._placed or not self._below):
                self._publish(line)

    def rest(self, line: Rendered) -> None:
        self.update(line)

    def finish(self, final: Rendered | None) -> None:
        if hasattr(self._publisher, "unregister_hook"):
            self._publisher.unregister_hook(self._notice)
        if self.is_shown:
            self._as_cell(self._publish, _NO_LINE)
        if final is not None:
            self._as_cell(self._publisher.publish, final.bundle(), {}, transient={}, update=False)

    def _as_cell(self, publish: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        # A copy: a context can be entered once only, and the thread may be stuck in its own.
        self._context.copy().run(publish, *arguments, **options)

    def _publish(self, line: Rendered) -> None:
        """Show a line in the display, which is made where it is not there."""
        update, self._placed, self._text = self._placed, True, line.text
        self._publisher.publish(line.bundle(), {}, transient={"display_id": self._id}, update=update)

    def _notice(self, message: Any) -> Any:
        """Hear of what the cell displays, and of its clearing, just before it is sent."""
        if message["msg_type"] == "clear_output":
            held = self._publishing.acquire(timeout=JOIN)
            self._placed, self._text, self._below = False, "", True
            if held:
                self._publishing.release()
        elif message["msg_type"] == "display_data" and _display_id(message) != self._id:
            self.make_way("a display")
        return message


def _display_id(message: Any) -> Any:
    return message["content"].get("transient", {}).get("display_id")


class _TerminalScreen:
    """The line that the cursor is on.

    It is taken away before the cell writes, and as soon as nothing compiles, since what the cell starts may
    write, too. It is not drawn over a line that the cell has begun, such as a bar.
    """

    patience = 0.0

    def __init__(self, stream: TextIO):
        self.is_reserved = False
        self._stream = stream
        self._text = ""
        self._at_start = True
        """True while the cursor is at the beginning of a line."""
        self._write_directly = partial(type(stream).write, stream)  # IPython keeps what passes `stream.write`
        self.can_update = stream.isatty()

    @property
    def is_shown(self) -> bool:
        return bool(self._text)

    def streams(self) -> list[TextIO]:
        return [each for each in (sys.stdout, sys.stderr) if each.isatty()]

    def make_way(self, text: str) -> None:
        self._clear()
        if text:
            self._at_start = text.endswith("\n")

    def update(self, line: Rendered) -> None:
        text = line.text[: shutil.get_terminal_size().columns - 1]
        if text != self._text and self._at_start:
            self._write("\r" + text + " " * (len(self._text) - len(text)))
            self._text = text

    def rest(self, line: Rendered) -> None:
        self._clear()

    def finish(self, final: Rendered | None) -> None:
        self._clear()
        if final is not None:
            begun = "" if self._at_start else "\n"
            sys.stdout.write(begun + _encodable(final.text, sys.stdout) + "\n")
            sys.stdout.flush()

    def _clear(self) -> None:
        if self.is_shown:
            self._write("\r" + " " * len(self._text) + "\r")
            self._text = ""

    def _write(self, text: str) -> None:
        self._write_directly(_encodable(text, self._stream))
        self._stream.flush()


def _encodable(text: str, stream: TextIO) -> str:
    """Return `text` with what the stream cannot encode replaced."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
