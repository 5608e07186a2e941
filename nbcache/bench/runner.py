"""Run all variants of one subject, a notebook or a function, in alternating fresh kernels."""

from __future__ import annotations

import ast
import contextlib
import copy
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from nbcache.bench.report import FULL, VARIANTS, Idle, Run, Subject, Variant, label
from nbcache.core.errors import NbcacheError
from nbcache.core.files import read
from nbcache.core.text import DOT, duration, one_line
from nbcache.sharing.snapshots.in_notebook import decode_notebook
from nbcache.sharing.snapshots.sources import MAX_NOTEBOOK_BYTES

LOAD, CALL, HOT = "%load_ext nbcache", "compile and call", "call again"
"""Titles of the cell that is added to a notebook, and of cells that are made for a function."""
_LOAD_LINE = re.compile(r"^(\s*%(?:re)?load_ext\s+nbcache)\s*$", re.MULTILINE)
_TORCH_ALONE = r"\1.ui.ipython.torch_alone"
_TITLE_LENGTH = 32
_PREWARM_STATE = (
    "(lambda session: session.prewarm.state if session.settings.prewarm else 'switched off')"
    "(__import__('nbcache').session())"
)
_PREWARM_OVER = (None, "done", "failed", "switched off")
_REPORTS = """\
import json, nbcache
nbcache.session().flush()
print(json.dumps([report.to_json() for report in nbcache.session().reports]))"""
_VERSIONS = "' '.join([__import__('torch').__version__, __import__('platform').python_version()])"
_SETTINGS = (
    *("ATEN_", "CUDA_CACHE_", "NBCACHE_", "PYTORCH_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_"),
    *("IPYTHON", "JPY_", "PYTHONDONTWRITEBYTECODE"),
)
"""Beginnings of environment variables that would pass the caller's settings or caches to a kernel."""
_PLACES = re.compile(r"TRITON_\w+_PATH|TORCH_HOME")
"""Variables with the path of an installed part: an assembler, weights."""
_FOLDERS = {
    "TMPDIR": "tmp",  # torch puts its cache folder and its precompiled headers there
    "TRITON_HOME": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "NBCACHE_DIR": "store",
    "NBCACHE_TRUST_DIR": "keys",
    "IPYTHONDIR": "ipython",
}


class CellFailed(NbcacheError):
    """A cell raised an error, or its kernel died or did not start."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folders of one kernel, all below `root`."""

    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    def empty(self, *, keep_caches: bool = False, store: Path | None = None) -> None:
        """Empty all folders; `keep_caches` keeps those of torch, Triton and CUDA. Copy `store`."""
        for name in ("store", "ipython", *(() if keep_caches else ("tmp", "triton", "cuda"))):
            shutil.rmtree(self.root / name, ignore_errors=True)
        (self.root / "tmp").mkdir(parents=True, exist_ok=True)
        if store is not None:
            shutil.copytree(store, self.store)

    def environment(self, caller: Mapping[str, str]) -> dict[str, str]:
        """Return a kernel's environment variables: the caller's, without settings of torch and nbcache."""
        variables = {
            name: value
            for name, value in caller.items()
            if not name.startswith(_SETTINGS) or _PLACES.fullmatch(name)
        }
        variables |= {name: str(self.root / folder) for name, folder in _FOLDERS.items()}
        variables["NBCACHE_AUDIT"] = "0"  # otherwise, one of 20 kernels traces its restored graphs again
        variables["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # otherwise, ipykernel's debugger warns
        return variables


class CellRun(NamedTuple):
    seconds: float
    """From sending the cell to its result."""
    ended: float
    """Time of the result, on the clock of `time.perf_counter`."""
    printed: str


class Kernel:
    def __init__(self, client: NotebookClient, log: Path) -> None:
        self._client = client
        self._log = log
        self.started = time.perf_counter()
        self.ready_seconds = 0.0
        """From the start of the process to its first answer."""

    def run(self, cell: NotebookNode | str) -> CellRun:
        """Run a cell; CellFailed with the error that it raises."""
        node: Any = new_code_cell(cell) if isinstance(cell, str) else cell  # type: ignore[no-untyped-call]
        cells = self._client.nb.cells
        cells.append(node)
        where = f"in the cell `{node.source.strip().splitlines()[0]}`"
        began = time.perf_counter()
        try:
            self._client.execute_cell(node, len(cells) - 1)
        except CellExecutionError as error:
            raise CellFailed(one_line(f"{error.ename}: {error.evalue}", 300), where=where) from error
        except DeadKernelError as error:
            raise CellFailed(f"the kernel died{self.last_log_line()}", where=where) from error
        ended = time.perf_counter()
        return CellRun(ended - began, ended, _output_of(node))

    def ask(self, expression: str) -> str | None:
        """Return the value of an expression without running a cell; None if it is no string."""
        assert self._client.kc is not None
        message = self._client.kc.execute(
            "", silent=True, store_history=False, user_expressions={"asked": expression}, allow_stdin=False
        )
        reply = self._client.wait_for_reply(message) or {}
        answer = reply.get("content", {}).get("user_expressions", {}).get("asked", {})
        value = ast.literal_eval(answer["data"]["text/plain"]) if answer.get("status") == "ok" else None
        return value if isinstance(value, str) else None

    def last_log_line(self) -> str:
        """Return a colon and the last line of the process's log, for an error message; empty without one."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f": {one_line(lines[-1], 300)}" if lines else ""


@contextlib.contextmanager
def kernel(
    home: Home,
    cwd: Path,
    variables: Mapping[str, str],
    *,
    name: str | None = None,
    specs: KernelSpecManager | None = None,
) -> Iterator[Kernel]:
    """Start a Jupyter kernel, by default this interpreter's; kill it at the end. CellFailed if it fails."""
    # In this folder, the file is removed even if an interrupt precedes jupyter_client's removal.
    file = str(home.root / "kernel.json")
    specs = specs or (KernelSpecManager() if name else KernelSpecManager(kernel_dirs=[]))
    manager = AsyncKernelManager(kernel_name=name or "python3", connection_file=file)
    manager.kernel_spec_manager = specs
    notebook = new_notebook()  # type: ignore[no-untyped-call]
    place = {"metadata": {"path": str(cwd)}}
    client = NotebookClient(notebook, km=manager, timeout=None, shutdown_kernel="immediate", resources=place)
    client.log.disabled = True  # it also raises the errors that it logs
    log, group = home.root / "kernel.log", None
    with log.open("wb") as output, contextlib.ExitStack() as running:
        running.callback(_end_children, but=_children())  # an interrupted start leaves a kernel
        fresh = Kernel(client, log)
        started = client.setup_kernel(env=dict(variables), stdout=output, stderr=output, cleanup_kc=True)
        try:
            running.enter_context(started)
        except (NoSuchKernel, OSError, RuntimeError) as error:
            problem = f"the kernel {one_line(manager.kernel_name)!r} does not start: {error}"
            raise CellFailed(f"{problem}{fresh.last_log_line()}") from error
        fresh.ready_seconds = time.perf_counter() - fresh.started
        group = getattr(manager.provisioner, "pgid", None)
        try:
            yield fresh
        finally:
            running.close()
            if group is not None:  # the kernel's child processes may outlive it
                with contextlib.suppress(OSError):
                    os.killpg(group, signal.SIGKILL)


def _children() -> set[int]:
    """Return this process's child processes."""
    children: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            children.update(map(int, (task / "children").read_text().split()))
    return children


def _end_children(*, but: set[int]) -> None:
    for child in _children() - but:
        with contextlib.suppress(OSError):  # it has just ended
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _output_of(cell: Any) -> str:
    if cell.source.startswith("%") and not cell.source.startswith("%%"):
        return ""  # nbcache's output has seconds, which differ
    streams = [output.text for output in cell.outputs if output.get("name") == "stdout"]
    values = [output.data for output in cell.outputs if output.output_type == "execute_result"]
    return "".join([*streams, *(data.get("text/plain", "") for data in values)])


def _notebook(path: str) -> Subject:
    notebook = decode_notebook(read(Path(path), max_bytes=MAX_NOTEBOOK_BYTES), path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    titles = [f"In[{number}] {cell.source.strip().splitlines()[0]}" for number, cell in enumerate(code, 1)]
    cells = {one_line(title, _TITLE_LENGTH): cell for title, cell in zip(titles, code, strict=True)}
    kernel = notebook.metadata.get("kernelspec", {}).get("name", "python3")
    cwd = Path(path).resolve().parent
    return Subject(path, {"notebook": path}, sources=cells, kernel=kernel, cwd=cwd)


def _function(function: str, training: bool) -> Subject:
    module, _, name = function.partition(":")
    mode = "training" if training else "inference"
    make = f"""\
import torch
from torch.utils._pytree import tree_leaves
from {module} import {name}
torch.manual_seed(0)
model, inputs = {name}()
if isinstance(model, torch.nn.Module):
    model.train({training})
args = () if isinstance(inputs, dict) else inputs if isinstance(inputs, (tuple, list)) else (inputs,)
kwargs = inputs if isinstance(inputs, dict) else {{}}
def total(output):
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.sum() for tensor in tensors if tensor.is_floating_point())"""
    call = f"with torch.set_grad_enabled({training}):\n    loss = total(compiled(*args, **kwargs))"
    call += "\nloss.backward()" * training + "\nprint(float(loss))"  # on a GPU, this waits for the result
    cells = {"make the model": make, CALL: f"compiled = torch.compile(model)\n{call}", HOT: call}
    nodes = {title: new_code_cell(source) for title, source in cells.items()}  # type: ignore[no-untyped-call]
    values = {"model": function, "mode": mode}
    return Subject(DOT.join([function, mode]), values, measured=CALL, sources=nodes)


def subject_of(name: str, training: bool) -> Subject:
    """Return the notebook or function of this name; NbcacheError if a notebook cannot be read."""
    return _notebook(name) if name.endswith(".ipynb") else _function(name, training)


@dataclass(frozen=True, slots=True)
class Planned:
    """A kernel to start."""

    variant: Variant
    number: int
    """Number of the run of this variant, from 1; 0 for a kernel that only prepares."""
    idle: Idle | None = None


def schedule(variants: Sequence[Variant], idle: Sequence[Idle], runs: int) -> Iterator[Planned]:
    """Yield run 1 of each variant, then run 2, so that a slow minute of the machine affects all variants."""
    for number in range(1, runs + 1):
        for variant in variants:
            for seconds in idle if variant.idles else (None,):
                yield Planned(variant, number, seconds)


class Runner:
    """Measures one subject, and appends each run to it, so that an interrupt loses no finished run."""

    def __init__(self, subject: Subject, folder: Path, say: Callable[[str], None]) -> None:
        """`folder`: an empty folder for all files of kernels. `say`: is called with lines of progress."""
        self.subject = subject
        self.folder = folder
        self.say: Callable[[str], None] = lambda line: say(f"{subject.label}: {line}")

    def run(self, planned: Sequence[Planned], after_each: Callable[[], None] = lambda: None) -> None:
        """Run the planned kernels one after another. Stop if a cell fails: its error is in the subject."""
        name = "the first kernel"  # in the error, if `prepare` fails
        try:
            self.prepare([plan.variant for plan in planned])
            for number, plan in enumerate(planned, 1):
                name = label(plan.variant.name, plan.idle)
                run = self.run_one(plan)
                self.subject.runs.append(run)
                seconds = duration(run.cell_seconds)
                self.say(f"run {plan.number}{DOT}{name}: {seconds} ({number} of {len(planned)})")
                after_each()
        except CellFailed as error:
            self.subject.error = f"{name}: {error}"
            self.say(f"FAILED {self.subject.error}")

    def prepare(self, variants: Sequence[Variant]) -> None:
        """Fill torch's cache, the page cache and .pyc files."""
        self.say("preparing torch's own cache")
        self.run_one(Planned(VARIANTS["torch-warm"], 0))

    def run_one(self, planned: Planned) -> Run:
        variant, measured, home = planned.variant, self.subject.measured, self.home(planned.variant)
        store = self.store_of(variant.restores) if variant.restores else None
        home.empty(keep_caches=variant.keeps_torchs and planned.number > 0, store=store)
        seconds: dict[str, float] = {}
        printed, state = [], None
        with self.start(planned) as running:
            for title, cell in self.cells(variant).items():
                if planned.idle == FULL and seconds:
                    state = wait_for_prewarming(running)
                elif planned.idle is not None and seconds:
                    time.sleep(float(planned.idle))
                self.before_cell(planned)
                ran = running.run(cell)
                seconds[title] = ran.seconds
                printed.append(ran.printed)
            more = self.finish(running, planned)
            versions = (running.ask(_VERSIONS) or "? ?").split()
        self.subject.environment.update(zip(("torch", "python"), versions, strict=True))
        if variant.stores:
            shutil.rmtree(self.store_of(variant.name), ignore_errors=True)
            shutil.copytree(home.store, self.store_of(variant.name))
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

    def store_of(self, name: str) -> Path:
        """Return the folder with the store that the last run of the variant `name` left."""
        return self.folder / f"stored-{name}"

    # --- what the project's own benchmarks override ------------------------------------------------

    def cells(self, variant: Variant) -> dict[str, NotebookNode | str]:
        """Return the cells for a kernel of this variant, by title."""
        sources = copy.deepcopy(self.subject.sources)
        if variant.loads:
            loads = any(_LOAD_LINE.search(cell.source) for cell in sources.values())
            return {**sources} if loads else {LOAD: LOAD, **sources}
        for cell in sources.values():
            cell.source = _LOAD_LINE.sub(_TORCH_ALONE, cell.source)
        return {**sources}

    def home(self, variant: Variant) -> Home:
        return Home(self.folder / (variant.home or variant.name))

    def start(self, planned: Planned, **more: Any) -> contextlib.AbstractContextManager[Kernel]:
        variables, home = self.variables(planned), self.home(planned.variant)
        return kernel(home, self.subject.cwd, variables, name=self.subject.kernel, **more)

    def variables(self, planned: Planned) -> dict[str, str]:
        return {**self.home(planned.variant).environment(os.environ), **planned.variant.variables}

    def before_cell(self, planned: Planned) -> None:
        """Prepare each cell; this one does nothing."""

    def finish(self, running: Kernel, planned: Planned) -> dict[str, Any]:
        """Return further fields of a `Run` after its cells have run."""
        if planned.variant.stores:
            wait_for_prewarming(running)  # a user's kernel also stores the results of prewarming
        if not planned.variant.loads:
            return {}
        try:
            return {"reports": json.loads(running.run(_REPORTS).printed)}
        except ValueError as error:
            raise CellFailed(
                "no report arrived: do not replace print or sys.stdout in the notebook"
            ) from error


def wait_for_prewarming(
    running: Kernel, *, settle: float = 0.5, poll: float = 0.25, most: float = 60.0
) -> str | None:
    """Wait until prewarming is over, at most `most` seconds, and return its state.

    Prewarming begins a moment after a cell, so the first poll is after `settle` seconds, and the others every
    `poll` seconds. Polling runs no cell, as that would stop prewarming.
    """
    deadline = time.monotonic() + most
    time.sleep(settle)
    while (state := running.ask(_PREWARM_STATE)) not in _PREWARM_OVER and time.monotonic() <= deadline:
        time.sleep(poll)
    return state
