"""`make bench ARGS="nanogpt bert --runs 3"`, or `python -m benchmarks`: measure, and print tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.at_once import at_once_text
from benchmarks.entries import entries_text
from benchmarks.models import MODELS
from benchmarks.redis_server import Server, started_server
from benchmarks.report import overview_text, subject_text
from benchmarks.standard import COMPILE_MODES, NURSERY, ROOT, STANDARD, USUAL, Model, ModelRunner
from nbcache.bench.command import interruptible, machine, say
from nbcache.bench.report import FULL, Idle, report_json
from nbcache.bench.runner import schedule
from nbcache.core.files import write_whole
from nbcache.core.text import clean

__all__ = ["main"]

_PARTS = ("redis", "processes", "entries")
_REDIS = ("torch-redis", "shared")


def main() -> int:
    """Measure what the command line names; return the exit status: 130 after an interrupt."""
    arguments = _arguments()
    os.chdir(ROOT)
    with (
        tempfile.TemporaryDirectory(prefix="nbcache-bench-") as name,
        interruptible([]),
        contextlib.ExitStack() as ending,
    ):
        folder, parts = Path(name), arguments.parts or ()
        variants = _REDIS if "redis" in parts else arguments.variants
        server = None
        if parts or set(variants) & set(_REDIS):
            server = ending.enter_context(started_server(folder, arguments.redis))
        status = 0
        if not parts or "redis" in parts:
            status = _models(arguments, variants, folder, server)
        if "processes" in parts and server is not None:
            model = (arguments.models or ["benchmarks.models:pieces"])[0]
            runs, processes = arguments.runs or 3, arguments.processes
            print(at_once_text(server, folder, model, processes, runs, say), flush=True)
        if "entries" in parts and server is not None:
            server.clear()
            print(entries_text(server, folder, arguments.entries, say), flush=True)
        return status


def _models(
    arguments: argparse.Namespace, variants: tuple[str, ...], folder: Path, server: Server | None
) -> int:
    forked = arguments.kernel == "nursery"
    variants = NURSERY if forked else variants
    runs = arguments.runs or (5 if forked else 3)
    idle: list[Idle] = arguments.idle or ([0.0] if forked else [0.0, FULL])
    kinds = ["inference"] * (arguments.inference or not arguments.training)
    kinds += ["training"] * arguments.training
    about = machine()
    runners = [
        ModelRunner(
            Model(
                model,
                kind,
                mode,
                size=arguments.size,
                device=arguments.device,
                precision=arguments.precision,
                dynamic=arguments.dynamic,
            ),
            folder / f"{model}-{kind}-{mode}",
            say,
            server=server,
            compile_once=arguments.compile_once,
        )
        for model in arguments.models or (["nanogpt"] if arguments.parts else MODELS)
        for kind in kinds
        for mode in arguments.mode
    ]

    def save(*, interrupted: bool = True) -> None:
        if arguments.json is not None:
            results = [runner.subject for runner in runners]
            options = {**vars(arguments), "json": str(arguments.json)}
            values = report_json(results, options, about, interrupted=interrupted)
            for subject, runner in zip(values["subjects"], runners, strict=True):
                subject |= runner.to_json()
            write_whole(arguments.json, f"{json.dumps(values, indent=2)}\n".encode())

    interrupted = False
    try:
        for runner in runners:
            if server is not None:
                server.clear()
            runner.run([*schedule([STANDARD[name] for name in variants], idle, runs)], save)
    except KeyboardInterrupt:
        interrupted = True
    save(interrupted=interrupted)
    tables = [subject_text(runner, runs, about) for runner in runners]
    print(clean("\n\n".join([*tables, overview_text(runners)])), flush=True)
    failed = any(runner.subject.error for runner in runners)
    return 130 if interrupted else int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)} (default: all), or module:function")
    add("--size", choices=("small", "full"), default="small", help="small for a CPU, full for a GPU")
    add("--training", action="store_true", help="forward and backward")
    add("--inference", action="store_true", help="the default; both where both are given")
    add("--mode", type=_names(COMPILE_MODES), default=("default",), help="modes of torch.compile")
    add("--precision", choices=("float32", "bfloat16", "amp"), help="default: float32; see docs/benchmark.md")
    add("--dynamic", action="store_true", help="compile for dynamic shapes from the start")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--runs", type=int, help="runs of each variant; default: 3, of forked kernels 5")
    add("--idle", type=_idle, action="append", help="seconds, or `full`; default: 0 and full")
    add("--variants", type=_names(STANDARD), default=USUAL, help=f"of {', '.join(STANDARD)}")
    add("--kernel", choices=("nursery",), help=f"measure {', '.join(NURSERY)}, without idle time")
    add("--compile-once", action="store_true", help="the cold kernel fills torch's own cache, too")
    add("--parts", type=_names(_PARTS), help="measure a shared Redis: redis, processes, entries")
    add("--redis", metavar="URL", help="an empty database; without it, a server is started")
    add("--processes", type=int, default=8, help="kernels that start at once")
    add("--entries", type=int, default=100_000, help="artifacts in the full Redis")
    add("--json", type=Path, metavar="FILE", help="write all runs and medians there, after each run")
    return parser.parse_args()


def _names(known: Any) -> Any:
    def names(text: str) -> tuple[str, ...]:
        if unknown := set(text.split(",")).difference(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(known)}")
        return tuple(name for name in known if name in text.split(","))

    return names


def _idle(text: str) -> Idle:
    return text if text == FULL else float(text)


if __name__ == "__main__":
    sys.exit(main())
