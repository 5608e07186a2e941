"""Prewarming: a list of short pieces of work, done one at a time while no cell runs."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from nbcache.core.threads import ForkSafeLock, start_thread

_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of work for the kernel's own thread, well under half a second if it can be divided."""

    name: str
    run: Callable[[], object]


class Pause(enum.Enum):
    """A step in place of a slice: the kernel's thread has nothing to do."""

    SHORT = "another thread or process is at work"
    CELL = "nothing before another cell has run"


Steps: TypeAlias = Iterator[Slice | Pause]


@dataclass(frozen=True, slots=True)
class SliceTime:
    name: str
    seconds: float


class BackgroundProcess:
    """A process that works only between cells: while a cell runs, it and its children are stopped.

    They are a process group of the kernel's session, so that the system ends a stopped group with the kernel.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        null = subprocess.DEVNULL
        # In its own group, the process gets none of the user's interrupts.
        self._process = subprocess.Popen(
            command, env=environ, stdin=null, stdout=null, stderr=null, process_group=0
        )

    def exit_status(self) -> int | None:
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children, unless the process has ended."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def pause(self) -> bool:
        """Stop the process; return False, and let it run on, if it holds a lock that would block others."""
        self.send(signal.SIGSTOP)
        with contextlib.suppress(OSError), open("/proc/locks") as locks:
            stands_still = os.WSTOPPED | os.WEXITED | os.WNOWAIT
            os.waitid(os.P_PID, self._process.pid, stands_still)
            if any(line.split()[4] == str(self._process.pid) for line in locks):
                self.send(signal.SIGCONT)
                return False
        return True

    def end(self, seconds: float) -> None:
        """End the process, which stores finished artifacts; wait `seconds` at most, then let it run on."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a stopped process would not receive it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)


class Prewarming:
    """Runs the slices of `steps` one by one, and remembers how long each took.

    `step` is for one thread, the kernel's own. A slice that raises ends it all, and `on_error` is called.
    """

    def __init__(
        self,
        steps: Callable[[], Steps],
        on_error: Callable[[str, Exception], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make = steps
        self._steps: Steps | None = None
        self._on_error = on_error
        self._clock = clock
        self._began: float | None = None
        self.state = "off"
        """`off`: not begun or switched off; `running`; `done`; `failed`."""
        self.slices: list[SliceTime] = []
        self.seconds = 0.0
        """Seconds from the first slice to the end of the last one, with pauses."""
        self._background: BackgroundProcess | None = None
        self._cell_runs = False
        self._lock = ForkSafeLock()

    def begin_cell(self) -> None:
        """Stop the background process until the next step: a cell needs the processor."""
        with self._lock:
            self._cell_runs = True
            if self._background is None or self._background.exit_status() is not None:
                return
        self._pause_soon()

    def start_background(self, command: Sequence[str], environ: Mapping[str, str]) -> BackgroundProcess:
        """Start the process that works between cells; OSError if that fails."""
        process = BackgroundProcess(command, environ)
        with self._lock:
            self._background = process
        self._pause_soon()  # a cell may have begun on another thread meanwhile
        return process

    def _pause_soon(self) -> None:
        if not self._pause():
            start_thread(self._pause_later, "pausing")

    def _pause(self) -> bool:
        """Stop the background process while a cell runs; return whether that is done."""
        with self._lock:
            return not self._cell_runs or self._background is None or self._background.pause()

    def _pause_later(self) -> None:
        while not self._pause():
            time.sleep(_PAUSE_SECONDS)

    def step(self) -> Pause | None:
        """Run the next slice, or return the event to wait for. After a failure, return `Pause.CELL`."""
        with self._lock:
            if self._cell_runs and self._background is not None:
                self._background.send(signal.SIGCONT)
            self._cell_runs = False
        if self.state == "failed":
            return Pause.CELL
        if self._steps is None:
            self._steps = self._make()
        self._began = self._clock() if self._began is None else self._began
        name = "finding out what to do"
        try:
            following = next(self._steps, Pause.CELL)
            if not isinstance(following, Slice):
                self.state = "running" if following is Pause.SHORT else "done"
                return following
            self.state, name = "running", following.name
            began = self._clock()
            following.run()
        except Exception as error:
            self.state = "failed"
            self._on_error(f"prewarming ({name})", error)
            return Pause.CELL
        self.slices.append(SliceTime(name, self._clock() - began))
        self.seconds = self._clock() - self._began
        return None

    def stop(self) -> None:
        """Stop, and close the steps; another `step` begins from the start."""
        steps, self._steps = self._steps, None
        getattr(steps, "close", lambda: None)()
        self.state = "off"

    def to_json(self) -> dict[str, Any]:
        slices = [asdict(slice_time) for slice_time in self.slices]
        return {"state": self.state, "seconds": self.seconds, "slices": slices}
