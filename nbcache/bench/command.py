"""`nbcache bench`: measure and show, and leave nothing behind, also after an error or an interrupt."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from nbcache.bench.options import VARIANTS, Options
from nbcache.bench.report import Result, report_json, report_text
from nbcache.core.errors import NbcacheError
from nbcache.core.files import write_whole
from nbcache.core.text import clean
from nbcache.core.version import __version__

__all__ = ["interruptible", "machine", "run", "run_in_notebook", "say"]

_INTERRUPTED = 130
_STOP_SECONDS = 20.0
"""Time that an interrupted benchmark has to end its kernels and show its figures."""


def run(options: Options) -> int:
    """Measure and print; return the exit status.

    0, or 1 where something could not be measured, or 130 after an interrupt: what was measured until
    then is shown. NbcacheError where a package is missing.
    """
    missing = [name for name in ("torch", "ipykernel", "nbclient") if not importlib.util.find_spec(name)]
    if missing:
        raise NbcacheError(
            f"nbcache bench needs {' and '.join(missing)}",
            where=sys.executable,
            next_step="pip install 'nbcache[bench]'",
        )
    from nbcache.bench.runner import Runner, schedule, subjects

    about, results, interrupted = machine(), list[Result](), False
    signals: list[int] = []

    def values() -> str:
        return json.dumps(report_json(results, asdict(options), about, interrupted=interrupted), indent=2)

    def save() -> None:
        if options.json not in (None, "-"):
            write_whole(Path(options.json), f"{values()}\n".encode())
        if signals and not interrupted:  # nbclient took the interrupt for the end of a kernel
            raise KeyboardInterrupt

    planned = [*schedule([VARIANTS[name] for name in options.variants], options.idle, options.runs)]
    try:
        with interruptible(signals), tempfile.TemporaryDirectory(prefix="nbcache-bench-") as folder:
            for number, subject in enumerate(subjects(options)):
                runner = Runner(subject, VARIANTS, Path(folder, str(number)), say)
                results.append(runner.result)
                runner.run(planned, save)
    except BaseException:  # an interrupt while nbclient ends a kernel makes it raise something else
        if not signals:
            raise
        interrupted = True
        say("interrupted; what was measured until now:")
    save()
    tables = (report_text(result, options.runs, about) for result in results)
    print(values() if options.json == "-" else clean("\n\n".join(tables)), flush=True)
    if interrupted:
        return _INTERRUPTED
    return 1 if any(result.error is not None for result in results) else 0


def say(line: str) -> None:
    """Show a line of progress, which may hold text of others."""
    print(clean(line.replace("\n", " ")), file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Return nbcache's version, the CPU's name and the number of cores that this process may use."""
    name = platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return {"nbcache": __version__, "cpu": name, "cores": len(os.sched_getaffinity(0))}


@contextlib.contextmanager
def interruptible(signals: list[int]) -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, too, and also where a shell has interrupts ignored.

    Each signal that arrives is added to `signals`.
    """

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        signals.append(number)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def run_in_notebook(arguments: Sequence[str]) -> None:
    """Run `nbcache bench ARGUMENTS` in a new process and print its output line by line.

    An interrupt ends it; what it has measured is still shown. NbcacheError where it fails.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "nbcache", "bench", *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # the kernel's interrupts go to its whole group: this passes them on, once
    )
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            try:
                for line in lines:
                    print(line, end="", flush=True)
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                for line in lines:
                    print(line, end="", flush=True)
        status = process.wait(_STOP_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            process.kill()
    if status == _INTERRUPTED:
        raise KeyboardInterrupt
    if status != 0:
        raise NbcacheError(f"nbcache bench ended with status {status}", next_step="see what it says above")
