"""`nbcache bench`: measure, print a table, and remove all files, even after an error or an interrupt."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from nbcache.bench.report import FULL, VARIANTS, Idle, report_json, report_text
from nbcache.core.errors import ConfigError, NbcacheError
from nbcache.core.files import write_whole
from nbcache.core.text import clean
from nbcache.core.version import __version__

_INTERRUPTED = 130
_STOP_SECONDS = 20.0
"""The longest time for an interrupted benchmark to end its kernels and print its figures."""
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_HELP = """\
Measures what a user waits for: the cells of a notebook in fresh Jupyter kernels, side by side.

SUBJECT is a notebook, which is not changed, or module:function: the function returns (model, example
inputs), where the inputs are a tensor, a tuple, or a dict of keyword arguments.

variants, each in a kernel process of its own, run 1 of each before run 2 of any:
  cold        nothing cached anywhere, nbcache loaded
  torch-warm  without nbcache; torch's own cache folder filled by an earlier kernel
  restart     nbcache's store of the cold run; torch's folder and the temp folder empty
  fresh       a copy of that store in another place; all else empty
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nbcache bench` to `parser`."""
    parser.description = _HELP
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("subject", metavar="SUBJECT", help="a notebook, or module:function")
    add("--training", action="store_true", help="of a function: measure forward and backward")
    add("--runs", metavar="N", type=int, default=1, help="runs of each variant; default: 1")
    idle = "measure restart and fresh a second time, idle before each cell until prewarming is done"
    add("--idle", action="store_true", help=idle)
    json = "write all runs and medians there, again after each run; without FILE, print them, and no table"
    add("--json", nargs="?", const="-", metavar="FILE.json", help=json)


def _check(arguments: argparse.Namespace) -> None:
    """Raise ConfigError if an argument is wrong."""
    name, file = arguments.subject, arguments.json
    notebook = name.endswith(".ipynb")
    if notebook and not Path(name).is_file():
        raise _error(f"there is no notebook {name!r}", "check the path")
    if not notebook and not _FUNCTION.fullmatch(name):
        raise _error(f"{name!r} is neither a notebook nor a function", "name a .ipynb or module:function")
    if notebook and arguments.training:
        raise _error("a notebook has its own cells", "leave out --training")
    if arguments.runs < 1:
        raise _error(f"{arguments.runs} is no number of runs", "measure 1 or more")
    if file not in (None, "-") and not (file.endswith(".json") and Path(file).absolute().parent.is_dir()):
        raise _error(f"--json {file} is no .json file in a folder", "or put SUBJECT before --json")


def _error(message: str, next_step: str) -> ConfigError:
    return ConfigError(message, where="nbcache bench", next_step=next_step)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return 0, 1 if a part could not be measured, or 130 after an interrupt."""
    _check(arguments)
    missing = [name for name in ("torch", "ipykernel", "nbclient") if not importlib.util.find_spec(name)]
    if missing:
        raise NbcacheError(
            f"nbcache bench needs {' and '.join(missing)}",
            where=sys.executable,
            next_step="pip install 'nbcache[bench]'",
        )
    from nbcache.bench.runner import Runner, schedule, subject_of

    idle: list[Idle] = [0.0, FULL] if arguments.idle else [0.0]
    options = {"models": [arguments.subject], "training": arguments.training, "runs": arguments.runs}
    options |= {"idle": idle, "json": arguments.json}
    subject = subject_of(arguments.subject, arguments.training)
    about, interrupted = machine(), False
    signals: list[int] = []

    def values() -> str:
        return json.dumps(report_json([subject], options, about, interrupted=interrupted), indent=2)

    def save() -> None:
        if arguments.json not in (None, "-"):
            write_whole(Path(arguments.json), f"{values()}\n".encode())
        if signals and not interrupted:  # nbclient mistook the interrupt for the end of a kernel
            raise KeyboardInterrupt

    try:
        with interruptible(signals), tempfile.TemporaryDirectory(prefix="nbcache-bench-") as folder:
            planned = schedule([*VARIANTS.values()], idle, arguments.runs)
            Runner(subject, Path(folder, "kernels"), say).run([*planned], save)
    except BaseException:  # interrupted while it ends a kernel, nbclient raises another error
        if not signals:
            raise
        interrupted = True
        say("interrupted; measured until now:")
    save()
    shown = values() if arguments.json == "-" else clean(report_text(subject, arguments.runs, about))
    print(shown, flush=True)
    return _INTERRUPTED if interrupted else int(subject.error is not None)


def say(line: str) -> None:
    """Print a line of progress without control characters, as it may quote foreign text."""
    print(clean(line.replace("\n", " ")), file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Return nbcache's version, the CPU's name and the number of cores that this process may use."""
    info = ""
    with contextlib.suppress(OSError):
        info = Path("/proc/cpuinfo").read_text()
    name = re.search(r"^model name\s*: (.+)", info, re.MULTILINE)
    cpu = name[1] if name else platform.machine()
    return {"nbcache": __version__, "cpu": cpu, "cores": len(os.sched_getaffinity(0))}


@contextlib.contextmanager
def interruptible(signals: list[int]) -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGINT, even if a shell ignores it; append it to `signals`."""

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
    """Run `nbcache bench` in a new process and print its output, also that after an interrupt."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "nbcache", "bench", *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # outside the kernel's group, so that an interrupt arrives only once
    )
    with process:
        try:
            _show(process)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            _show(process)
        finally:
            process.terminate()  # no effect if it has ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            process.kill()
    if process.returncode == _INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode:
        ended = f"nbcache bench ended with status {process.returncode}"
        raise NbcacheError(ended, next_step="read its output above")


def _show(process: subprocess.Popen[str]) -> None:
    """Print the output of a process until it ends; NbcacheError if it stays alive after its output."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        unended = f"nbcache bench has not ended {_STOP_SECONDS:.0f} s after its last output, and is killed"
        raise NbcacheError(unended, next_step="run it again; if it stays so, please report it") from None
