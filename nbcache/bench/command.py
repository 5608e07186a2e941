"""`nbcache bench`: measure and show, and leave nothing behind, also after an error or an interrupt."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
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

from nbcache.bench.report import FULL, VARIANTS, Idle, Result, report_json, report_text
from nbcache.core.errors import ConfigError, NbcacheError
from nbcache.core.files import write_whole
from nbcache.core.text import clean
from nbcache.core.version import __version__

_INTERRUPTED = 130
_STOP_SECONDS = 20.0
"""Time that an interrupted benchmark has to end its kernels and show its figures."""

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_OF_NOTEBOOKS = ("cold", "torch-warm", "restart", "fresh")
"""The variants of a notebook that are measured unless others are named."""
_HELP = """\
Measures what a user waits for: the cells of a notebook in fresh Jupyter kernels, side by side.

SUBJECT is a notebook, which is not changed, or module:function: the function returns (model, example
inputs), where the inputs are a tensor, a tuple, or a dict of keyword arguments.

variants, each in a kernel process of its own, run 1 of each before run 2 of any:
  eager       no compile (TORCH_COMPILE_DISABLE=1)
  cold        nothing cached anywhere, nbcache loaded
  torch-warm  without nbcache; torch's own cache folder filled by an earlier kernel
  mega-cache  without nbcache; empty folders; the first cell loads a torch.compiler bundle
  restart     nbcache's store of the cold run; torch's folder and the temp folder empty
  fresh       a copy of that store in another place; all else empty
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nbcache bench` to `parser`."""
    parser.description = _HELP
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("models", nargs="+", metavar="SUBJECT", help="a notebook, or module:function")
    add("--training", action="store_true", help="of functions: measure forward and backward")
    add("--runs", metavar="N", type=_runs, help="runs of each variant; default: 3, of notebooks 1")
    idle = (
        "idle time before each cell of restart and fresh, or `full`: until prewarming is done; "
        "may be repeated; default: 0 and full, of notebooks 0"
    )
    add("--idle", metavar="SECONDS", type=_idle, action="append", help=idle)
    variants = f"only these variants; default: all, of notebooks {', '.join(_OF_NOTEBOOKS)}"
    add("--variants", metavar="NAME,…", type=_variants, help=variants)
    json = "write all runs and medians there, again after each run; without FILE, print them, and no table"
    add("--json", nargs="?", const="-", metavar="FILE.json", help=json)


def _complete(arguments: argparse.Namespace) -> None:
    """Fill in the defaults; ConfigError where arguments contradict each other."""
    of_notebooks = arguments.models[0].endswith(".ipynb")
    for name in arguments.models:
        if name.endswith(".ipynb") and not Path(name).is_file():
            raise _error(f"there is no notebook {name!r}", "check the path")
        if not name.endswith(".ipynb") and not _FUNCTION.fullmatch(name):
            raise _error(f"{name!r} is neither a notebook nor a function", "name a .ipynb or module:function")
        if name.endswith(".ipynb") != of_notebooks:
            raise _error("notebooks and functions are measured in different ways", "use two commands")
    if of_notebooks and arguments.training:
        raise _error("a notebook has its own cells", "leave out --training")
    file = arguments.json
    if file not in (None, "-") and not (file.endswith(".json") and Path(file).absolute().parent.is_dir()):
        raise _error(f"--json {file} is no .json file in a folder", "or put SUBJECT before --json")
    arguments.models = [*dict.fromkeys(arguments.models)]
    arguments.runs = arguments.runs or (1 if of_notebooks else 3)
    arguments.idle = arguments.idle or ([0.0] if of_notebooks else [0.0, FULL])
    arguments.variants = arguments.variants or (_OF_NOTEBOOKS if of_notebooks else tuple(VARIANTS))


def _runs(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, 1 or more")
    return int(text)


def _idle(text: str) -> Idle:
    if text == FULL:
        return FULL
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is neither seconds, 0 or more, nor `full`")


def _variants(text: str) -> tuple[str, ...]:
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in VARIANTS:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(VARIANTS)}")
    return tuple(name for name in VARIANTS if name in words)


def _error(message: str, next_step: str) -> ConfigError:
    return ConfigError(message, where="nbcache bench", next_step=next_step)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return 0, 1 where a part could not be measured, or 130 after an interrupt."""
    _complete(arguments)
    missing = [name for name in ("torch", "ipykernel", "nbclient") if not importlib.util.find_spec(name)]
    if missing:
        raise NbcacheError(
            f"nbcache bench needs {' and '.join(missing)}",
            where=sys.executable,
            next_step="pip install 'nbcache[bench]'",
        )
    from nbcache.bench.runner import Runner, schedule, subjects

    names = ("models", "training", "runs", "idle", "variants", "json")
    options = {name: getattr(arguments, name) for name in names}
    about, results, interrupted = machine(), list[Result](), False
    signals: list[int] = []

    def values() -> str:
        return json.dumps(report_json(results, options, about, interrupted=interrupted), indent=2)

    def save() -> None:
        if arguments.json not in (None, "-"):
            write_whole(Path(arguments.json), f"{values()}\n".encode())
        if signals and not interrupted:  # nbclient took the interrupt for the end of a kernel
            raise KeyboardInterrupt

    planned = [*schedule([VARIANTS[name] for name in arguments.variants], arguments.idle, arguments.runs)]
    try:
        with interruptible(signals), tempfile.TemporaryDirectory(prefix="nbcache-bench-") as folder:
            for number, subject in enumerate(subjects(arguments.models, arguments.training)):
                results.append(subject)
                Runner(subject, VARIANTS, Path(folder, str(number)), say).run(planned, save)
    except BaseException:  # an interrupt while nbclient ends a kernel makes it raise something else
        if not signals:
            raise
        interrupted = True
        say("interrupted; what was measured until now:")
    save()
    tables = (report_text(result, arguments.runs, about) for result in results)
    print(values() if arguments.json == "-" else clean("\n\n".join(tables)), flush=True)
    return _INTERRUPTED if interrupted else int(any(result.error for result in results))


def say(line: str) -> None:
    """Show a line of progress, which may hold text of others."""
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
    """Raise KeyboardInterrupt on SIGTERM and SIGINT, also where a shell ignores it; note it in `signals`."""

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
    """Run `nbcache bench` in a new process and print its lines; an interrupt has it show what it measured."""
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
    with process:
        try:
            _show(process)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            _show(process)
        finally:
            process.terminate()  # nothing where it has ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            process.kill()
    if process.returncode == _INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode:
        ended = f"nbcache bench ended with status {process.returncode}"
        raise NbcacheError(ended, next_step="see what it says above")


def _show(process: subprocess.Popen[str]) -> None:
    """Print the output of a process until it ends; NbcacheError where it stays alive after its output."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        unended = f"nbcache bench has not ended {_STOP_SECONDS:.0f} s after its last output, and is killed"
        raise NbcacheError(unended, next_step="run it again; if it stays so, please report it") from None
