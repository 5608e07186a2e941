"""Run a notebook without a person: a fresh kernel, cell after cell, and what was compiled in it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbcache.core.errors import SnapshotError
from nbcache.core.files import read
from nbcache.core.text import one_line
from nbcache.snapshots.in_notebook import decode_notebook

if TYPE_CHECKING:
    from nbclient import NotebookClient

__all__ = ["Run", "run"]

_LOAD = "%load_ext nbcache"
_LOADS = ("load_ext nbcache", "reload_ext nbcache")
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Run:
    """What running a notebook came to."""

    reports: list[dict[str, Any]]
    """The report of each cell, as JSON values."""
    error: str | None
    """The cell that failed and its error, in words; None where all went well."""
    snapshot: str | None
    """What `%nbcache snapshot` said; None where none was asked for, or a cell had failed."""
    missed_unchanged: list[dict[str, Any]]
    """Graphs that missed, although their cells are the same as last time, as `%nbcache stats` has them."""

    @property
    def graphs(self) -> list[dict[str, Any]]:
        return [graph for report in self.reports for graph in report["graphs"]]

    @property
    def notices(self) -> list[str]:
        """What the kernel warned of, each once: a shared store that is off, somebody who is not trusted."""
        return list(dict.fromkeys(notice for report in self.reports for notice in report["notices"]))


def run(
    path: Path, environ: Mapping[str, str], *, snapshot: str | None = None, say: Callable[[str], None]
) -> Run:
    """Run the notebook at `path` in its folder, nbcache loaded; the file is not changed.

    The kernel is the one that the notebook names. With `snapshot`, a path, a snapshot is taken at the end.
    SnapshotError where the notebook or its kernel cannot be used, or the kernel cannot tell what compiled.
    """
    try:
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, DeadKernelError
        from nbformat.v4 import new_code_cell
    except ImportError as error:
        raise SnapshotError(
            f"running notebooks needs {error.name}", next_step="pip install 'nbcache[run]'"
        ) from error
    notebook = decode_notebook(read(path, max_bytes=_MAX_BYTES), str(path))
    cells = list(notebook.cells)
    loads = any(word in cell.source for cell in cells if cell.cell_type == "code" for word in _LOADS)
    resources = {"metadata": {"path": str(path.resolve().parent)}}
    client = NotebookClient(notebook, timeout=None, resources=resources)

    def added(source: str) -> Any:
        """Run a cell that the file does not have, and return it."""
        cell = new_code_cell(source)  # type: ignore[no-untyped-call]
        notebook.cells.append(cell)
        client.execute_cell(cell, len(notebook.cells) - 1)
        return cell

    def tell_arrivals(cell: Any) -> None:
        """Say what loading printed: which snapshots came along, and what keeps them from being used."""
        for line in _text(cell).splitlines():
            if line.startswith("nbcache: "):
                say(one_line(line))

    def load() -> None:
        try:
            tell_arrivals(added(_LOAD))
        except CellExecutionError as error:
            raise SnapshotError(
                f"its kernel cannot load nbcache: {error.ename}: {one_line(error.evalue)}",
                where=str(path),
                next_step=f"make {_LOAD} work in that kernel: nbcache must be installed there",
            ) from error

    def results() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the reports of all cells, and the graphs that missed in unchanged cells."""
        try:
            added("%nbcache flush")
            reports = _printed(added("%nbcache status --json"))["cells"]
            return reports, _printed(added("%nbcache stats --json")).get("missed_unchanged", [])
        except (CellExecutionError, ValueError) as error:
            if error_text is not None:  # of two errors the first is told
                return [], []
            reason = one_line(getattr(error, "evalue", "what it printed did not arrive"))
            raise SnapshotError(
                f"all its cells ran, but nbcache could not be asked what they compiled: {reason}",
                where=str(path),
                next_step="have its cells leave nbcache loaded, and print and sys.stdout as they are",
            ) from error

    error_text, said, at = None, None, "its start"
    env = {**os.environ, **environ, "NBCACHE_NOTEBOOK": str(path.resolve())}
    with _kernel(client, path, env, say):
        try:
            if not loads:
                load()
            try:
                for number, cell in enumerate(cells, 1):
                    if cell.cell_type == "code" and cell.source.strip():
                        at = f"cell {number}"
                        say(f"{at} of {len(cells)}")
                        client.execute_cell(cell, number - 1)
                        if any(word in cell.source for word in _LOADS):
                            tell_arrivals(cell)
                if snapshot is not None:
                    at = "the snapshot"
                    said = _text(added(f"%nbcache snapshot {shlex.quote(snapshot)}"))
            except CellExecutionError as error:
                error_text = f"{at}: {error.ename}: {error.evalue}"
            at = "its end"
            reports, missed = results()
            return Run(reports, error_text, said, missed)
        except DeadKernelError as error:
            raise SnapshotError(
                f"its kernel died at {at}",
                where=str(path),
                next_step="run it in Jupyter: a cell ends the kernel, or takes more memory than there is",
            ) from error


@contextlib.contextmanager
def _kernel(
    client: NotebookClient, path: Path, env: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[None]:
    """Start a notebook's kernel, and end it; SnapshotError where it is none that can run torch."""
    from jupyter_client.kernelspec import NoSuchKernel

    name = client.kernel_name
    with contextlib.ExitStack() as running:
        try:
            manager = client.create_kernel_manager()
            name, spec = manager.kernel_name, manager.kernel_spec
            language = spec.language if spec is not None else ""
            if language and "python" not in language.lower():
                raise SnapshotError(
                    f"its kernel runs {one_line(language)}, and torch needs one that runs Python",
                    where=str(path),
                    next_step="choose a kernel of Python's in Jupyter",
                )
            try:
                running.enter_context(client.setup_kernel(env=dict(env)))
            except RuntimeError:
                # Another process may have been faster to take a port that jupyter_client had found free.
                say("its kernel did not start, and is started again")
                running.enter_context(client.setup_kernel(env=dict(env)))
        except NoSuchKernel as error:
            raise SnapshotError(
                f"there is no kernel {error.name!r} here",
                where=str(path),
                next_step="jupyter kernelspec list",
            ) from error
        except (OSError, RuntimeError) as error:
            raise SnapshotError(
                f"its kernel {name!r} does not start: {one_line(str(error))}",
                where=str(path),
                next_step="start it in Jupyter, or choose another there",
            ) from error
        yield


def _printed(cell: Any) -> dict[str, Any]:
    """Return the JSON object that a cell printed; ValueError where it printed none."""
    printed = "".join(each.text for each in cell.outputs if each.get("name") == "stdout")
    values: dict[str, Any] = json.loads(printed)
    return values


def _text(cell: Any) -> str:
    """Return what a cell printed or displayed, as text."""
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "".join(parts)
