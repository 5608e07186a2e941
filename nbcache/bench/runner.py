"""Run every variant of one subject in fresh kernels, alternating."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbcache.bench.kernels import CellFailed, Home, Kernel, environment, kernel
from nbcache.bench.options import FULL, Idle, Variant
from nbcache.bench.report import Result, Run, idle_text
from nbcache.bench.subjects import Subject
from nbcache.core.text import DOT, duration

__all__ = ["Planned", "Runner", "prewarmed", "schedule"]

_PREWARM_STATE = (
    "(lambda session: session.prewarm.state if session.settings.prewarm else 'switched off')"
    "(__import__('nbcache').session())"
)
_PREWARM_OVER = ("done", "failed", "switched off")
_SAVE_BUNDLE = """\
import pathlib, torch
pathlib.Path({!r}).write_bytes((torch.compiler.save_cache_artifacts() or (b"",))[0])"""
_REPORTS = """\
import json, nbcache
nbcache.session().flush()
print(json.dumps([report.to_json() for report in nbcache.session().reports]))"""
_VERSIONS = "' '.join([__import__('torch').__version__, __import__('platform').python_version()])"


@dataclass(frozen=True, slots=True)
class Planned:
    """A kernel that is still to be started."""

    variant: Variant
    number: int
    """Number of the run of this variant, from 1; 0 for a kernel that only prepares."""
    idle: Idle | None = None
    """Idle time before each cell; None for a variant that does not idle."""

    @property
    def label(self) -> str:
        return self.variant.name if self.idle is None else f"{self.variant.name}, {idle_text(self.idle)}"


def schedule(variants: Sequence[Variant], idle: Sequence[Idle], runs: int) -> Iterator[Planned]:
    """Yield run 1 of each variant, then run 2, so that a slow minute of the machine hits all of them."""
    for number in range(1, runs + 1):
        for variant in variants:
            for seconds in idle if variant.idles else (None,):
                yield Planned(variant, number, seconds)


class Runner:
    """Measures one subject. `result` grows with each run: an interrupt loses nothing."""

    def __init__(
        self, subject: Subject, variants: Mapping[str, Variant], folder: Path, say: Callable[[str], None]
    ) -> None:
        """`folder` is an empty one for everything that kernels write; `say` takes a line of progress."""
        self.subject = subject
        self.result = Result(subject)
        self.folder = folder
        self.variants = variants
        self._say = say

    @property
    def bundle(self) -> Path:
        """The bundle that mega-cache loads."""
        return self.folder / "bundle"

    def run(self, planned: Sequence[Planned], saved: Callable[[], None] = lambda: None) -> None:
        """Start all kernels; call `saved` after each. A failure is noted in the result."""
        try:
            self.prepare([kernel.variant for kernel in planned])
            for number, plan in enumerate(planned, 1):
                self._run(plan, f"{number} of {len(planned)}")
                saved()
        except CellFailed as error:  # of a kernel that others need
            self.fail(str(error))

    def _run(self, plan: Planned, position: str) -> None:
        try:
            run = self.one(plan)
        except CellFailed as error:
            if plan.variant.stores:
                raise
            self.fail(f"{plan.label}: {error}")
            return
        self.result.runs.append(run)
        seconds = duration(run.cell_seconds)
        self.say(f"run {plan.number}{DOT}{plan.label}: {seconds} ({position})")

    def fail(self, problem: str) -> None:
        """Note the first failure, and show each."""
        self.result.error = self.result.error or problem
        self.say(f"FAILED {problem}")

    def say(self, line: str) -> None:
        """Show a line of progress."""
        self._say(f"{self.subject.label}: {line}")

    def prepare(self, variants: Sequence[Variant]) -> None:
        """Fill torch's own cache, and nbcache's store where no cold run will; none of these runs counts.

        The first kernel also reads modules into the page cache and compiles them to .pyc files, for all.
        """
        torchs = any(variant.torchs for variant in variants)
        self.say("preparing torch's own cache" if torchs else "preparing")
        self.one(Planned(self.variants["torch-warm" if torchs else "eager"], 0))
        names = [variant.name for variant in variants]
        for name in dict.fromkeys(variant.restores for variant in variants if variant.restores):
            if name not in names:
                self.say("preparing nbcache's store")
                self.one(Planned(self.variants[name], 0))

    def one(self, planned: Planned) -> Run:
        """Run the cells in one fresh kernel."""
        variant, measured = planned.variant, self.subject.measured
        fills = self.fills(planned)
        Home(self.folder / self.home(variant)).empty(
            keep_caches=variant.torchs == "folder" and not fills,
            store=self.stored(variant.restores) if variant.restores else None,
        )
        seconds: dict[str, float] = {}
        printed, state = [], None
        with self.start(planned) as running:
            for title, cell in self.subject.cells(variant, self.bundle).items():
                if planned.idle == FULL and seconds:
                    state = prewarmed(running)
                elif planned.idle is not None and seconds:
                    time.sleep(float(planned.idle))
                self.before(running, planned, title)
                ran = running.run(cell)
                seconds[title] = ran.seconds
                printed.append(ran.printed)
            if fills:
                running.run(_SAVE_BUNDLE.format(str(self.bundle)))
            if variant.stores:
                prewarmed(running)  # a user's kernel goes on, and stores what prewarming makes, too
            more = self.finish(running, planned)
            versions = (running.ask(_VERSIONS) or "? ?").split()
        self.result.environment.update(zip(("torch", "python"), versions, strict=True))
        if variant.stores:
            shutil.rmtree(self.stored(variant.name), ignore_errors=True)
            shutil.copytree(self.folder / self.home(variant) / "store", self.stored(variant.name))
        return Run(
            variant.name,
            planned.number,
            planned.idle,
            seconds,
            seconds[measured] if measured else sum(seconds.values()),
            ran.ended - running.started,
            [*filter(None, printed)],
            running.ready_seconds,
            state,
            **more,
        )

    def fills(self, planned: Planned) -> bool:
        """Return whether this kernel fills torch's own cache folder, and saves the bundle."""
        return planned.variant.torchs == "folder" and planned.number == 0

    def home(self, variant: Variant) -> str:
        """Return the name of the variant's folders."""
        return variant.home or variant.name

    def stored(self, name: str) -> Path:
        """Return the store as the last run of the variant `name` left it."""
        return self.folder / f"stored-{name}"

    def variables(self, planned: Planned) -> dict[str, str]:
        """Return the environment variables of the kernel."""
        home = Home(self.folder / self.home(planned.variant))
        return {**environment(home, os.environ), **planned.variant.variables}

    def start(self, planned: Planned) -> contextlib.AbstractContextManager[Kernel]:
        """Start a kernel, and end it."""
        command = self.subject.kernel or self.command(planned)
        home = Home(self.folder / self.home(planned.variant))
        return kernel(command, home, self.subject.cwd, self.variables(planned))

    def command(self, planned: Planned) -> list[str]:
        """Return the command of a kernel of this interpreter."""
        return [sys.executable, "-m", "ipykernel_launcher"]

    def before(self, running: Kernel, planned: Planned, title: str) -> None:
        """Called before each cell."""

    def finish(self, running: Kernel, planned: Planned) -> dict[str, Any]:
        """Return further fields of a `Run`, once its cells have run."""
        if not planned.variant.loads:
            return {}
        try:
            return {"reports": json.loads(running.run(_REPORTS).printed)}
        except ValueError as error:
            raise CellFailed("no report arrived: leave print and sys.stdout as they are") from error


def prewarmed(running: Kernel, *, settle: float = 0.5, poll: float = 0.25, most: float = 60.0) -> str | None:
    """Wait until prewarming is over, at most `most` seconds, and return its state.

    A kernel takes a moment after a cell before it prewarms: it is asked after `settle` seconds, then each
    `poll` seconds. No cell runs for that, or prewarming would stop.
    """
    deadline = time.monotonic() + most
    time.sleep(settle)
    while True:
        state = running.ask(_PREWARM_STATE)
        if state is None or state in _PREWARM_OVER or time.monotonic() > deadline:
            return state
        time.sleep(poll)
