"""Run every variant of one subject, a notebook or a function, in fresh kernels, alternating."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbcache.bench.kernels import CellFailed, Home, Kernel, environment, kernel
from nbcache.bench.options import FULL, Idle, Options, Variant
from nbcache.bench.report import Result, Run, idle_text
from nbcache.core.files import read
from nbcache.core.text import DOT, duration, one_line
from nbcache.snapshots.in_notebook import decode_notebook
from nbcache.snapshots.sources import MAX_NOTEBOOK_BYTES

if TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["CALL", "LOAD", "Planned", "Runner", "Subject", "load_bundle", "prewarmed", "schedule", "subjects"]

LOAD, CALL, HOT = "%load_ext nbcache", "compile and call", "call again"
"""Titles of the cells that nbcache adds to a notebook, and of those that are made for a function."""
_LOADS = re.compile(r"^(\s*%(?:re)?load_ext\s+nbcache)\s*$", re.MULTILINE)
_TORCH_ALONE = r"\1.ui.ipython.torch_alone"
_TITLE_LENGTH = 32

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


class Subject:
    """The cells of a notebook, which are run from top to bottom."""

    measured: str | None = None
    """Title of the cell that is compared; None for all cells together."""
    kernel: str | None = None
    """Name of the Jupyter kernel; None for a kernel of this interpreter."""

    def __init__(self, label: str, values: Mapping[str, Any]) -> None:
        self.label = label
        self.values = dict(values)
        """The subject as JSON values."""
        self.cwd = Path.cwd()
        """The folder in which its kernels run."""

    def cells(self, variant: Variant, bundle: Path) -> dict[str, NotebookNode | str]:
        """Return the cells for a kernel of this variant, by title; `bundle` is the file of mega-cache."""
        raise NotImplementedError


class _Notebook(Subject):
    def __init__(self, path: str) -> None:
        """NbcacheError where the file cannot be read."""
        super().__init__(path, {"notebook": path})
        self.cwd = Path(path).resolve().parent
        notebook = decode_notebook(read(Path(path), max_bytes=MAX_NOTEBOOK_BYTES), path)
        self.kernel = notebook.metadata.get("kernelspec", {}).get("name", "python3")
        self._cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]

    def cells(self, variant: Variant, bundle: Path) -> dict[str, NotebookNode | str]:
        cells: dict[str, NotebookNode | str] = {}
        if variant.torchs == "bundle":
            cells["load the bundle"] = f"import torch\n{load_bundle(bundle)}"
        if variant.loads and not any(_LOADS.search(cell.source) for cell in self._cells):
            cells[LOAD] = LOAD
        for number, cell in enumerate(copy.deepcopy(self._cells), 1):
            title = one_line(f"In[{number}] {cell.source.strip().splitlines()[0]}", _TITLE_LENGTH)
            if not variant.loads:
                cell.source = _LOADS.sub(_TORCH_ALONE, cell.source)
            cells[title] = cell
        return cells


class _Function(Subject):
    measured = CALL

    def __init__(self, function: str, training: bool) -> None:
        mode = "training" if training else "inference"
        super().__init__(DOT.join([function, mode]), {"model": function, "mode": mode})
        self._module, _, self._name = function.partition(":")
        self._training = training

    def cells(self, variant: Variant, bundle: Path) -> dict[str, NotebookNode | str]:
        loading = {LOAD: LOAD} if variant.loads else {}
        make = f"""\
import torch
from torch.utils._pytree import tree_leaves
from {self._module} import {self._name}
torch.manual_seed(0)
model, inputs = {self._name}()
if isinstance(model, torch.nn.Module):
    model.train({self._training})
args = () if isinstance(inputs, dict) else inputs if isinstance(inputs, (tuple, list)) else (inputs,)
kwargs = inputs if isinstance(inputs, dict) else {{}}
def total(output):
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.sum() for tensor in tensors if tensor.is_floating_point())"""
        compiled = "model" if variant.name == "eager" else "torch.compile(model)"
        bundled = f"{load_bundle(bundle)}\n" if variant.torchs == "bundle" else ""
        call = f"with torch.set_grad_enabled({self._training}):\n    loss = total(compiled(*args, **kwargs))"
        if self._training:
            call += "\nloss.backward()"
        call += "\nprint(float(loss))"  # on a GPU, this waits for the result
        return {**loading, "make the model": make, CALL: f"{bundled}compiled = {compiled}\n{call}", HOT: call}


def load_bundle(file: Path) -> str:
    """Return the line that loads the bundle of mega-cache."""
    return f"torch.compiler.load_cache_artifacts(open({str(file)!r}, 'rb').read())"


def subjects(options: Options) -> list[Subject]:
    """Return what `options` name, in that order; NbcacheError where a notebook cannot be read."""
    return [
        _Notebook(name) if name.endswith(".ipynb") else _Function(name, options.training)
        for name in options.models
    ]


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
        self.result = Result(subject.label, subject.values, subject.measured)
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
