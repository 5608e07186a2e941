"""What people know a cell by: its number and its first line, where its notebook is at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nbcache.core.errors import NbcacheError
from nbcache.core.files import read
from nbcache.core.model import Snapshot
from nbcache.core.reports import Cell

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
                return _titles(json.loads(read(notebook, max_bytes=max_bytes)))
        except (NbcacheError, OSError, ValueError, TypeError, KeyError, RecursionError):
            continue  # no notebook that can be read: cells go by their digests
    return {}


def _titles(notebook: Any) -> dict[str, str]:
    """Return the titles of the cells of a notebook. To import nbformat for it may take more than a second."""
    code = [(cell, "".join(cell["source"])) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return {Cell.of(source, None).digest: _title(cell, source) for cell, source in code if source.strip()}


def _title(cell: Any, source: str) -> str:
    number = cell.get("execution_count")
    first = source.strip().splitlines()[0].strip()
    return f"In[{number}] {first}" if isinstance(number, int) else first
