"""Render a document as plain text: at most `WIDTH` wide, and ASCII but for a dash and a middle dot."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from nbcache.core.text import DOT, aligned, one_line, printable
from nbcache.ui.display import document as doc

WIDTH = 110
_BAR = 50
_METER = 10
"""Characters of a full meter."""
_FIRST, _OTHER = 36, 24
"""The most characters that the first column, and each other one but the last, is widened to."""
_LEAST = 8
"""The least width of a column, in characters."""


def to_text(blocks: Iterable[doc.Block]) -> str:
    return "\n".join(_lines(blocks, 0))


def _lines(blocks: Iterable[doc.Block], depth: int) -> Iterator[str]:
    """Yield the lines of blocks; `depth` is the number of folded sections around them."""
    above: doc.Block | None = None
    for block in blocks:
        if isinstance(block, doc.Folded) and block.in_text is doc.InText.NOTHING:
            continue
        if above is not None and not depth and _needs_gap(above, block):
            yield ""
        yield from _block(block, depth)
        above = block


def _needs_gap(above: doc.Block, block: doc.Block) -> bool:
    if doc.GAP in (above, block):
        return False
    head = block.head if isinstance(block, doc.Folded) else block
    return isinstance(head, doc.Title) or (isinstance(head, doc.Table) and not isinstance(above, doc.Title))


def _block(block: doc.Block, depth: int) -> Iterator[str]:
    indent = 2 * max(depth, 1)
    match block:
        case doc.Title(label, parts):
            yield from _join(one_line(label), list(map(_inline, parts)), 2 * depth)
        case doc.Line(spans, level, _, mark):
            lead = "! " if mark is doc.Mark.NOTICE else ""
            yield from _wrap(lead + _plain(spans), indent + 2 * level) or [""]
        case doc.Table():
            yield from (" " * indent + line for line in _table(block, WIDTH - indent))
        case doc.Bar(label, _, _, total):
            yield f"{' ' * indent}  {label.ljust(8)}  {_letters(block) or '|'}  {total}"
        case doc.Legend(parts):
            yield " " * indent + "  ".join(f"{part.letter} {part.name}" for part in parts)
        case doc.Code(lines):
            yield from (f"{' ' * indent}  {printable(line)}".rstrip() for line in lines)
        case doc.Folded(head, blocks):
            yield from _block(head, depth)
            if block.in_text is doc.InText.ALL:
                yield from _lines(blocks, depth + 1)


def _plain(cell: doc.Cell) -> str:
    return " ".join(filter(None, map(_inline, doc.spans_of(cell))))


def _inline(span: doc.Inline) -> str:
    if isinstance(span, doc.Meter):
        full = round(_METER * span.value / span.most) if span.most else 0
        return "#" * full + "-" * (_METER - full)
    return one_line(span if isinstance(span, str) else span.text)


def _cut(cell: doc.Cell, width: int) -> str:
    """Return a cell's text, cut to `width`; faint spans at its end are left out first."""
    spans = list(doc.spans_of(cell))
    while len(_plain(spans)) > width and spans[1:] and getattr(spans[-1], "style", "") is doc.Style.FAINT:
        spans.pop()
    return one_line(_plain(spans), width)


def _table(table: doc.Table, room: int) -> Iterator[str]:
    """Yield the lines of a table that is at most `room` wide."""
    rows = doc.rows_of(table)
    if table.columns[-1].wrap is doc.Wrap.REST and not table.notes:
        yield from _with_rest(table.columns, rows, room)
        return
    titles = [column.title for column in table.columns]
    widths = [
        max(map(len, map(_plain, cells))) for cells in zip(titles, *(row.cells for row in rows), strict=True)
    ]
    elastic = [i for i, column in enumerate(table.columns) if column.wrap is not doc.Wrap.NUMBER]
    while sum(widths) + 2 * (len(widths) - 1) > room:
        widest = max(elastic, key=lambda i: widths[i])
        if widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    cells = [[_cut(cell, width) for cell, width in zip(row.cells, widths, strict=True)] for row in rows]
    head, *lines = aligned([titles, *cells], _numbers(table.columns))
    yield head
    for row, line in zip(rows, lines, strict=True):
        yield line
        yield from (text for note in row.notes for text in _wrap(_note(note), 2, room))


def _with_rest(columns: Sequence[doc.Column], rows: Sequence[doc.Row], room: int) -> Iterator[str]:
    """Yield the lines of a table with sentences in its last column, which begin below overlong cells."""
    cells = [[_plain(cell) for cell in row.cells] for row in rows]
    titles = [column.title for column in columns]
    widths = [
        max((len(texts[i]) for texts in [titles, *cells] if len(texts[i]) <= most), default=0)
        for i, most in enumerate([_FIRST, *[_OTHER] * (len(columns) - 2)])
    ]
    start = sum(widths) + 2 * len(widths)
    numbers = _numbers(columns)
    notes = [[_note(note) for note in row.notes] for row in rows]
    for texts, more in zip([titles, *cells], [[], *notes], strict=True):
        head = "  ".join(
            text.rjust(width) if i in numbers else text.ljust(width)
            for i, (text, width) in enumerate(zip(texts, widths, strict=False))
        ).rstrip()
        about = []
        for part in (texts[-1], *more):  # paths and commands break at spaces only
            about += textwrap.wrap(part, max(room - start, 20), break_on_hyphens=False) or [""]
        if len(head) <= start - 2:
            head = (head.ljust(start) + about.pop(0)).rstrip()
        yield head
        yield from (" " * start + line for line in about if line)


def _numbers(columns: Sequence[doc.Column]) -> list[int]:
    return [i for i, column in enumerate(columns) if column.wrap is doc.Wrap.NUMBER]


def _note(note: doc.Line) -> str:
    return ("! " if note.mark is doc.Mark.NOTICE else "") + _plain(note.spans)


def _letters(bar: doc.Bar) -> str:
    """Return a bar of letters. Each part ends at the rounded sum so far, so rounding adds no length."""
    letters, so_far = "", 0.0
    for part in bar.parts:
        so_far += part.amount
        until = round(_BAR * so_far / bar.scale) if bar.scale else 0
        letters += part.letter * (until - len(letters))
    return letters


def _join(label: str, parts: Sequence[str], indent: int = 0) -> list[str]:
    """Return parts on one line, or, if that is too wide, on several lines of whole parts."""
    lines = [" " * indent + label]
    for part in parts:
        fits = len(lines[-1]) + len(DOT + part) <= WIDTH
        lines[-1:] = [lines[-1] + DOT + part] if fits else [lines[-1], " " * indent + "  " + part]
    return lines


def _wrap(text: str, indent: int = 0, width: int = WIDTH) -> list[str]:
    lead, further = " " * indent, " " * (indent + 2)
    text = one_line(text, 4 * WIDTH)
    return textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=further, break_on_hyphens=False)
