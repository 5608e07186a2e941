"""Run a notebook without a person: a fresh kernel, cell after cell, and what was compiled in it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbcache.errors import SnapshotError
from nbcache.files import read
from nbcache.notebook.attachment import decode_notebook

__all__ = ["Run", "run"]

_LOAD = "%load_ext nbcache"
_LOADS = ("load_ext nbcache", "reload_ext nbcache")
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Run:
    """What running a notebook came to."""

    reports: list[dict[str, Any]]
    """The report of each cell that compiled, as JSON values."""
    error: str | None
    """The cell that failed and its error, in words; None where all went well."""
    snapshot: str | None
    """What `%nbcache snapshot` said; None where none was asked for, or a cell had failed."""

    @property
    def graphs(self) -> list[dict[str, Any]]:
        return [graph for report in self.reports for graph in report["graphs"]]


def run(
    path: Path, environ: Mapping[str, str], *, snapshot: str | None = None, say: Callable[[str], None]
) -> Run:
    """Run the notebook at `path` in its folder, nbcache loaded; the file is not changed.

    The kernel is the one that the notebook names. With `snapshot`, a path, a snapshot is taken at the end.
    SnapshotError where the notebook or its kernel cannot be used.
    """
    try:
        from jupyter_client.kernelspec import NoSuchKernel
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
        from nbformat.v4 import new_code_cell
    except ImportError as error:
        raise SnapshotError(
            f"running notebooks needs {error.name}", next_step="pip install 'nbcache[run]'"
        ) from error
    notebook = decode_notebook(read(path, max_bytes=_MAX_BYTES), str(path))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not any(word in cell.source for cell in code for word in _LOADS):
        notebook.cells.insert(0, new_code_cell(_LOAD))  # type: ignore[no-untyped-call]
    resources = {"metadata": {"path": str(path.resolve().parent)}}
    client = NotebookClient(notebook, timeout=None, resources=resources)
    env = {**os.environ, **environ, "NBCACHE_NOTEBOOK": str(path.resolve())}
    error_text, said, reports = None, None, []
    try:
        with client.setup_kernel(env=env):
            try:
                for index, cell in enumerate(notebook.cells):
                    if cell.cell_type == "code" and cell.source.strip():
                        say(f"cell {index + 1} of {len(notebook.cells)}")
                        client.execute_cell(cell, index)
            except CellExecutionError as error:
                error_text = f"cell {index + 1}: {error.ename}: {error.evalue}"
            extra = [_REPORTS]
            if error_text is None and snapshot is not None:
                extra.insert(0, f"%nbcache snapshot {shlex.quote(snapshot)}")
            for source in extra:
                cell = new_code_cell(source)  # type: ignore[no-untyped-call]
                notebook.cells.append(cell)
                try:
                    client.execute_cell(cell, len(notebook.cells) - 1)
                except CellExecutionError as error:
                    error_text = f"the snapshot: {error.ename}: {error.evalue}"
            reports = json.loads(_text(notebook.cells[-1]))
            said = None if error_text is not None or len(extra) == 1 else _text(notebook.cells[-2])
    except NoSuchKernel as error:
        raise SnapshotError(
            f"there is no kernel {error.name!r} here", where=str(path), next_step="jupyter kernelspec list"
        ) from error
    return Run(reports, error_text, said)


_REPORTS = (
    "import json, nbcache; nbcache.session().flush(); "
    "print(json.dumps([each.to_json() for each in nbcache.session().reports if each.graphs]))"
)


def _text(cell: Any) -> str:
    """Return what a cell printed or displayed, as text."""
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "".join(parts)
