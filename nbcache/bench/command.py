"""`nbcache bench`: measure, show, and leave nothing behind, whether it ends, fails or is interrupted."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from nbcache.bench.interrupts import interruptible, told_as_interrupt
from nbcache.bench.options import FROM_TRANSFORMERS, Options
from nbcache.bench.output import machine, say, text_of, write_json
from nbcache.core.errors import NbcacheError

__all__ = ["check_packages", "run", "run_in_notebook"]

_INTERRUPTED = 130
_STOP_SECONDS = 20.0
"""How long an interrupted benchmark may take to end its kernels and show what it has."""


def run(options: Options) -> int:
    """Do what `options` ask for; return the exit status.

    0, or 1 where something could not be measured, or 130 after an interrupt: what was measured until
    then is shown. NbcacheError where a package is missing.
    """
    check_packages(options)
    with (
        tempfile.TemporaryDirectory(prefix="nbcache-bench-", ignore_cleanup_errors=True) as folder,
        interruptible() as interrupt,
    ):
        if options.stores:
            from nbcache.bench.stores.parts import run_stores

            return run_stores(options, Path(folder), say, interrupt)
        return _run_models(options, Path(folder), interrupt)


def _run_models(options: Options, folder: Path, interrupt: Event) -> int:
    from nbcache.bench.redis_server import needed_server
    from nbcache.bench.report import report_json, report_text
    from nbcache.bench.runner import Runner
    from nbcache.core.files import write_whole

    def values(*, interrupted: bool) -> dict[str, Any]:
        environment = {**runner.environment, **machine()}
        return report_json(runner.results, environment, options, interrupted=interrupted)

    def measured() -> None:
        if options.json not in (None, "-"):
            write_whole(Path(options.json), text_of(values(interrupted=True)).encode())

    runner, interrupted = Runner(options, folder, say, measured=measured), False
    try:
        with told_as_interrupt(interrupt), contextlib.ExitStack() as ending:
            if options.needs_server:
                runner.server = ending.enter_context(needed_server(options.redis, folder))
            runner.run()
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted; what was measured until now:")
    environment = {**runner.environment, **machine()}
    if options.json != "-":
        print(report_text(runner.results, environment, options), flush=True)
    write_json(options, values(interrupted=interrupted))
    if options.plot is not None and any(result.runs for result in runner.results):
        from nbcache.bench.chart import draw

        draw(runner.results, environment, options.plot)
        say(f"chart: {options.plot}")
    if interrupted:
        return _INTERRUPTED
    return 1 if any(result.error is not None for result in runner.results) else 0


def run_in_notebook(arguments: Sequence[str]) -> None:
    """Run `nbcache bench ARGUMENTS` in a process of its own and print what it says, as it says it.

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
        with process.stdout:
            try:
                _print_lines(process.stdout)
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                _print_lines(process.stdout)
        status = process.wait(_STOP_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
        if process.poll() is None:
            process.kill()
    if status == _INTERRUPTED:
        raise KeyboardInterrupt
    if status != 0:
        raise NbcacheError(f"nbcache bench ended with status {status}", next_step="see what it says above")


def _print_lines(stream: Iterator[str]) -> None:
    for line in stream:
        print(line, end="", flush=True)


def check_packages(options: Options) -> None:
    """Raise NbcacheError where an optional package is missing that these options need."""
    needed = ["torch"]
    if not options.stores or {"redis", "processes"} & set(options.parts):
        needed += ["ipykernel", "jupyter_client"]
        needed += ["transformers"] * any(model in FROM_TRANSFORMERS for model in options.models)
    needed += ["matplotlib"] * bool(options.plot)
    if options.needs_server and options.redis is None:
        from nbcache.bench.redis_server import server_executable

        server_executable()
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise NbcacheError(
            f"nbcache bench needs {' and '.join(missing)}",
            where=sys.executable,
            next_step="pip install 'nbcache[bench]'",
        )
