"""Documents, which reports, magics and panels show: lines, tables, bars, code and folded sections.

A builder turns values into blocks. `text` and `html` render the same blocks for a terminal and a notebook.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nbcache.core.text import LIMIT

Style = enum.Enum("Style", "PLAIN BOLD FAINT CODE PATH WHOLE GOOD FAIR BAD NEUTRAL")
"""The look of a span: PATH may break anywhere, WHOLE keeps its lines, the last four are badges."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run of text in one style."""

    text: str
    style: Style = Style.PLAIN
    limit: int = LIMIT
    """Characters that HTML shows; its tooltip has the rest."""


@dataclass(frozen=True, slots=True)
class Meter:
    """A bar in a table's cell; a value of `most` fills it."""

    value: float
    most: float


Inline: TypeAlias = str | Span | Meter
Cell: TypeAlias = Inline | Sequence[Inline]


Mark = enum.Enum("Mark", "NONE NOTICE QUOTE RUNNING")
"""The edge of a line: none, a notice, a quotation, or the cell that runs."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, wrapped if it is too long."""

    spans: tuple[Inline, ...]
    level: int = 0
    style: Style = Style.PLAIN
    mark: Mark = Mark.NONE


@dataclass(frozen=True, slots=True)
class Title:
    """A label and a few facts, separated by dots."""

    label: str
    parts: Sequence[Inline] = ()


Wrap = enum.Enum("Wrap", "NEVER NUMBER WORDS REST")
"""The width of a column. A NUMBER is aligned to the right; REST, the last column, has all that is left."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    wrap: Wrap = Wrap.NEVER


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, with lines that explain it."""

    cells: Sequence[Cell]
    notes: Sequence[Line] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns. With `notes`, HTML has the notes of rows in a column of this title."""

    columns: Sequence[Column]
    rows: Sequence[Row | Sequence[Cell]]
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar."""

    name: str
    letter: str
    colour: str
    amount: float
    words: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Parts side by side; amounts that sum up to `scale` fill the whole width."""

    label: str
    parts: Sequence[Part]
    scale: float
    total: str


@dataclass(frozen=True, slots=True)
class Legend:
    """The meaning of letters and colours."""

    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of code, in a box."""

    lines: Sequence[str]
    is_python: bool = True
    """HTML colours Python code and lets it scroll; other lines are wrapped."""


GAP = Line(())
"""An empty line."""


InText = enum.Enum("InText", "ALL HEAD NOTHING")
"""The part of a folded section that plain text shows, where nothing can be unfolded."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A head, and blocks below it that the reader folds and unfolds."""

    head: Title | Line
    blocks: Sequence[Block]
    is_open: bool = False
    in_text: InText = InText.ALL


Block: TypeAlias = Line | Title | Table | Bar | Legend | Code | Folded

_BADGES = {"hit": Style.GOOD, "ok": Style.GOOD, "miss": Style.FAIR, "note": Style.FAIR, "problem": Style.BAD}


def spans_of(cell: Cell) -> Sequence[Inline]:
    return [cell] if isinstance(cell, str | Span | Meter) else cell


def rows_of(table: Table) -> list[Row]:
    return [row if isinstance(row, Row) else Row(row) for row in table.rows]


def line(*spans: Inline, level: int = 0, style: Style = Style.PLAIN, mark: Mark = Mark.NONE) -> Line:
    return Line(spans, level, style, mark)


def faint(text: str, limit: int = LIMIT) -> Span:
    return Span(text, Style.FAINT, limit)


def code(text: str, limit: int = LIMIT) -> Span:
    return Span(text, Style.CODE, limit)


def label_line(label: str, text: str, style: Style = Style.PLAIN, level: int = 0, limit: int = LIMIT) -> Line:
    return line(faint(f"{label}:"), Span(text, style, limit), level=level)


def badge(state: str, text: str = "") -> Span:
    """Return an outcome or a check's state as a coloured badge; `text` is shown instead of its name."""
    return Span(text or state, _BADGES.get(state, Style.NEUTRAL))
