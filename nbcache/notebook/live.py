"""Show one live line while a cell compiles, and the report in its place when the cell is done."""

from __future__ import annotations

import contextlib
import contextvars
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from nbcache.model import Activity
from nbcache.notebook.render import Rendered, render_activity, render_idle

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

    In a kernel the line is a display that the final report then replaces; in a terminal it is one line of
    standard error; where neither is there, nothing is shown. No fault of the sampler or of the display
    reaches the cell: it turns the line off. The thread that runs the cell calls `start` and `finish`, once.
    """

    def __init__(
        self, sample: Callable[[], Activity | None], *, shell: Any = None, stream: TextIO | None = None
    ):
        """Prepare to show on `shell` (IPython's current one by default); `stream` replaces standard error."""
        self._sample = sample
        self._shell = shell
        self._stream = stream
        self._screen: _Screen | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()  # whoever draws holds it
        self._finished = False
        self._busy_since: float | None = None
        self._quiet_since: float | None = None
        self._last: Activity | None = None

    def start(self) -> None:
        """Watch the sampler until `finish`."""
        with contextlib.suppress(Exception):
            self._screen = _screen(self._shell, self._stream)
            if self._screen.can_update:
                # The context carries the header of the request that runs the cell, by which a front end knows
                # whose output it is: without it a late update lands in the next cell.
                run = contextvars.copy_context().run
                self._thread = threading.Thread(
                    target=run, args=(self._watch,), name="nbcache-live-line", daemon=True
                )
                self._thread.start()

    def finish(self, final: Rendered | None = None) -> None:
        """Stop, and show `final` last: in the line's place where there is one, else as a new output.

        Without `final`, the line is taken away. Waits for the thread, but not for long.
        """
        if self._finished:
            return
        self._finished = True
        self._stop.set()
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

    def _watch(self) -> None:
        with contextlib.suppress(Exception):
            while not self._stop.wait(INTERVAL):
                activity = self._sample()
                with self._lock:
                    if self._stop.is_set() or self._screen is None:
                        return
                    self._draw(self._screen, activity, time.monotonic())

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


class _Screen(Protocol):
    """Where the line is drawn."""

    can_update: bool
    """Whether a line can be drawn at all; `finish` can always be called."""
    is_shown: bool
    patience: float
    """Seconds without activity after which to `rest`."""

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

    The publisher is the one that the cell began with: a cell under `%%capture` has another one meanwhile.
    """

    can_update = True
    patience = PATIENCE

    def __init__(self, publisher: Any):
        self.is_shown = False
        self._publisher = publisher
        self._context = contextvars.copy_context()
        self._id = f"nbcache-{uuid.uuid4().hex}"
        self._text = ""
        self._publishing = threading.Lock()
        self._cleared = float("-inf")
        # A cell that calls clear_output takes the line away, and an update of what is gone shows nothing.
        # Publishers call the hooks of the thread that publishes: of this one, the cell's.
        if hasattr(publisher, "register_hook"):
            publisher.register_hook(self._notice_clearing)

    def update(self, line: Rendered) -> None:
        with self._publishing:
            # The hook runs just before the message that clears is sent, and must not be overtaken.
            if line.text != self._text and time.monotonic() - self._cleared > INTERVAL / 2:
                self._publish(line)

    def rest(self, line: Rendered) -> None:
        self.update(line)

    def finish(self, final: Rendered | None) -> None:
        if hasattr(self._publisher, "unregister_hook"):
            self._publisher.unregister_hook(self._notice_clearing)
        if final is not None or self.is_shown:
            # A copy: a context can be entered once only, and the thread may be stuck in its own.
            self._context.copy().run(self._publish, final or Rendered("", ""))

    def _publish(self, line: Rendered) -> None:
        self._publisher.publish(
            data=line.bundle(), metadata={}, transient={"display_id": self._id}, update=self.is_shown
        )
        self.is_shown, self._text = True, line.text

    def _notice_clearing(self, message: Any) -> Any:
        if message["msg_type"] == "clear_output":
            held = self._publishing.acquire(timeout=JOIN)
            self.is_shown, self._text, self._cleared = False, "", time.monotonic()
            if held:
                self._publishing.release()
        return message


class _TerminalScreen:
    """The line that the cursor is on.

    It is taken away as soon as nothing compiles, since the cell may print then.
    """

    patience = 0.0

    def __init__(self, stream: TextIO):
        self.is_shown = False
        self._stream = stream
        self._text = ""
        self.can_update = stream.isatty()

    def update(self, line: Rendered) -> None:
        text = line.text[: shutil.get_terminal_size().columns - 1]
        if text != self._text:
            self._write("\r" + text + " " * (len(self._text) - len(text)))
            self.is_shown, self._text = True, text

    def rest(self, line: Rendered) -> None:
        self._clear()

    def finish(self, final: Rendered | None) -> None:
        self._clear()
        if final is not None:
            sys.stdout.write(_encodable(final.text, sys.stdout) + "\n")
            sys.stdout.flush()

    def _clear(self) -> None:
        if self.is_shown:
            self._write("\r" + " " * len(self._text) + "\r")
            self.is_shown, self._text = False, ""

    def _write(self, text: str) -> None:
        self._stream.write(_encodable(text, self._stream))
        self._stream.flush()


def _encodable(text: str, stream: TextIO) -> str:
    """Return `text` with what the stream cannot encode replaced."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
