"""The code cells of a notebook's file. Values in, values out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from nbcache.core.errors import FormatError
from nbcache.core.reports import Cell
from nbcache.core.text import one_line

__all__ = ["NotebookCell", "cells_of"]

_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class NotebookCell:
    """A code cell as the file has it."""

    position: int
    """Its place among the code cells, from 1 on."""
    digest: str
    """As `Cell.digest`."""
    execution_count: int | None
    """Its number when it ran last; None where it has none."""
    title: str
    """Its first line that tells something: no decorator, comment or magic if there is another."""
    names: frozenset[str] = field(repr=False)
    """The names that its source mentions."""

    @property
    def label(self) -> str:
        """How people name it: `In[3]`, or by its place where it has no number."""
        return f"cell {self.position}" if self.execution_count is None else f"In[{self.execution_count}]"


def cells_of(data: bytes) -> tuple[NotebookCell, ...]:
    """Return the code cells of a notebook, in order; FormatError where `data` is no notebook of nbformat 4.

    Importing nbformat for it would take up to a second.
    """
    try:
        notebook = json.loads(data)
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        return tuple(_cell(cell, position) for position, cell in enumerate(code, 1))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError("this is no notebook that can be read", next_step="save the notebook") from error


def _cell(cell: Mapping[str, object], position: int) -> NotebookCell:
    lines = cell["source"]
    source = lines if isinstance(lines, str) else "".join(map(str, lines if isinstance(lines, list) else ()))
    source = source.encode(errors="replace").decode()
    count = cell.get("execution_count")
    return NotebookCell(
        position=position,
        digest=Cell.of(source, None).digest,
        execution_count=count if isinstance(count, int) else None,
        title=one_line(_title(source), 200),
        names=frozenset(_NAME.findall(source)),
    )


def _title(source: str) -> str:
    lines = [line for line in source.splitlines() if line.strip()]
    telling = (line for line in lines if not line.lstrip().startswith(("@", "#", "%")))
    return next(telling, lines[0] if lines else "")
