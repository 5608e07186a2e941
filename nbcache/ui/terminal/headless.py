"""Run a notebook without a person, cell after cell in a fresh kernel, and return its reports."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbcache.core.errors import SnapshotError
from nbcache.core.files import read
from nbcache.core.text import one_line
from nbcache.sharing.snapshots.in_notebook import decode_notebook
from nbcache.sharing.snapshots.sources import MAX_NOTEBOOK_BYTES

if TYPE_CHECKING:
    from nbclient import NotebookClient

_LOAD = "%load_ext nbcache"
_LOAD_PART = "load_ext nbcache"
"""A part of every line that loads or reloads the extension."""


@dataclass(slots=True)
class Run:
    """The result of running a notebook."""

    reports: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    """The cell that failed and its error, in words; None if all cells ran."""
    snapshot: str | None = None
    """The output of `%nbcache snapshot`; None without a snapshot, or if a cell had failed."""
    missed_unchanged: list[dict[str, Any]] = field(default_factory=list)
    """Graphs that missed although their cells are unchanged, as in `%nbcache stats --json`."""

    @property
    def graphs(self) -> list[dict[str, Any]]:
        return [graph for report in self.reports for graph in report["graphs"]]

    @property
    def notices(self) -> list[str]:
        """The kernel's warnings, each once: a shared store that is off, an untrusted signer."""
        return list(dict.fromkeys(notice for report in self.reports for notice in report["notices"]))


def run(
    path: Path, environ: Mapping[str, str], *, snapshot: str | None = None, say: Callable[[str], None]
) -> Run:
    """Run the notebook at `path` in its folder, with nbcache loaded; the file is not changed.

    The kernel is the one that the notebook names. With `snapshot`, a path, a snapshot is written at the end.
    SnapshotError if the notebook or its kernel is unusable, or the kernel returns no reports.
    """
    try:
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, DeadKernelError
        from nbformat.v4 import new_code_cell
    except ImportError as error:
        missing = f"running notebooks needs {error.name}"
        raise SnapshotError(missing, next_step="pip install 'nbcache[run]'") from error
    notebook = decode_notebook(read(path, max_bytes=MAX_NOTEBOOK_BYTES), str(path))
    cells = [(number, cell) for number, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code"]
    resources = {"metadata": {"path": str(path.resolve().parent)}}
    client = NotebookClient(notebook, timeout=None, resources=resources)
    done, place, count = Run(), "its start", len(notebook.cells)

    def execute(cell: Any, number: int) -> str:
        """Run a cell and return its output; if it loads nbcache, pass nbcache's lines to `say`."""
        client.execute_cell(cell, number - 1)  # `number` starts at 1
        parts = (part.get("text") or part.get("data", {}).get("text/plain", "") for part in cell.outputs)
        output = "".join(parts)
        if _LOAD_PART in cell.source:
            for line in output.splitlines():
                if line.startswith("nbcache: "):
                    say(one_line(line))
        return output

    def run_cell(source: str) -> str:
        """Run an additional cell, and return its output."""
        notebook.cells.append(new_code_cell(source))  # type: ignore[no-untyped-call]
        return execute(notebook.cells[-1], len(notebook.cells))

    def failure(problem: str, next_step: str) -> SnapshotError:
        return SnapshotError(problem, where=str(path), next_step=next_step)

    env = {**os.environ, **environ, "NBCACHE_NOTEBOOK": str(path.resolve())}
    try:
        with _kernel(client, path, env, say):
            try:
                if not any(_LOAD_PART in cell.source for _, cell in cells):
                    run_cell(_LOAD)
            except CellExecutionError as error:
                problem = f"its kernel cannot load nbcache: {error.ename}: {one_line(error.evalue)}"
                next_step = f"make {_LOAD} work in that kernel: nbcache must be installed there"
                raise failure(problem, next_step) from error
            try:
                for number, cell in cells:
                    if cell.source.strip():
                        place = f"cell {number}"
                        say(f"{place} of {count}")
                        execute(cell, number)
                if snapshot is not None:
                    place = "the snapshot"
                    done.snapshot = run_cell(f"%nbcache snapshot {shlex.quote(snapshot)}")
            except CellExecutionError as error:
                done.error = f"{place}: {error.ename}: {error.evalue}"
            place = "its end"
            try:
                run_cell("%nbcache flush")
                done.reports = json.loads(run_cell("%nbcache status --json"))["cells"]
                done.missed_unchanged = json.loads(run_cell("%nbcache stats --json"))["missed_unchanged"]
            except (CellExecutionError, ValueError) as error:
                if done.error is None:  # the first error is the one to report
                    reason = one_line(getattr(error, "evalue", "its output did not arrive"))
                    problem = "all its cells ran, but nbcache did not answer which graphs they compiled"
                    next_step = "let its cells neither unload nbcache nor replace print or sys.stdout"
                    raise failure(f"{problem}: {reason}", next_step) from error
    except DeadKernelError as error:
        next_step = "run it in Jupyter: a cell ends the kernel, or takes more memory than there is"
        raise failure(f"its kernel died at {place}", next_step) from error
    return done


@contextlib.contextmanager
def _kernel(
    client: NotebookClient, path: Path, env: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[None]:
    """Start a notebook's kernel, and end it; SnapshotError if it does not start."""
    name = client.kernel_name
    with contextlib.ExitStack() as running:
        try:
            name = client.create_kernel_manager().kernel_name
            try:
                running.enter_context(client.setup_kernel(env=dict(env)))
            except RuntimeError:
                # Another process may have taken a port after jupyter_client found it free.
                say("its kernel did not start, and is started again")
                running.enter_context(client.setup_kernel(env=dict(env)))
        except (KeyError, OSError, RuntimeError) as error:  # KeyError: no kernel has this name
            problem = f"its kernel {name!r} does not start: {one_line(str(error))}"
            next_step = "start it in Jupyter, or choose another there (jupyter kernelspec list)"
            raise SnapshotError(problem, where=str(path), next_step=next_step) from error
        yield
