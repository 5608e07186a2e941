"""What people know a cell by: its number and its first line, where its notebook is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbcache.core.errors import NbcacheError
from nbcache.core.files import read
from nbcache.core.model import Cell, Snapshot
from nbcache.snapshots import in_notebook

__all__ = ["cell_titles"]


def cell_titles(where: str, snapshot: Snapshot, *, max_bytes: int) -> dict[str, str]:
    """Return the titles of a snapshot's cells by their digests, of those that its notebook still has.

    The notebook is at `where`, or beside the file there: snapshots hold no source.
    """
    place = Path(where)
    beside = [place.with_name(Path(snapshot.notebook).name)] if Path(snapshot.notebook).name else []
    for notebook in [place] if place.suffix == ".ipynb" else [*beside, place.with_suffix(".ipynb")]:
        try:
            if notebook.suffix == ".ipynb" and notebook.is_file():
                cells = in_notebook.decode_notebook(read(notebook, max_bytes=max_bytes), str(notebook)).cells
                return {Cell.of(cell.source, None).digest: _title(cell) for cell in cells if _is_code(cell)}
        except (NbcacheError, OSError, ValueError, AttributeError, TypeError):
            continue  # no notebook that can be read: cells go by their digests
    return {}


def _is_code(cell: Any) -> bool:
    return bool(cell.cell_type == "code" and cell.source.strip())


def _title(cell: Any) -> str:
    number = cell.get("execution_count")
    first = cell.source.strip().splitlines()[0].strip()
    return f"In[{number}] {first}" if isinstance(number, int) else str(first)
