"""Shows where the seconds of cells went, and how the kernels of a notebook followed one another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from nbcache.core.text import DOT, ago, aligned, counted, duration, one_line
from nbcache.explain.timeline import OUTSIDE, CellTimes, KernelRun, Timeline
from nbcache.ui.display.html import BOX, CELL, CODE, FAINT, LAST, NUMBER, _head, _rows, _tag, _text
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.words import PHASE_NAMES

__all__ = ["COLOURS", "bar_words", "phase_name", "render_timeline", "timeline_parts"]

_MIME = "application/vnd.nbcache.timeline+json"
_WIDTH = 50
"""Characters of the longest bar."""
_LETTERS = {
    "trace": "t",
    "dynamo": "D",
    "aot": "A",
    "inductor": "I",
    "build": "B",
    "wait": "w",
    "load": "l",
    OUTSIDE: ".",
}
"""What each phase is drawn with in text, in the order in which a compile goes through them."""
COLOURS = {
    "trace": "#8b5cf6",
    "dynamo": "#3b82f6",
    "aot": "#06b6d4",
    "inductor": "#f59e0b",
    "build": "#ef4444",
    "wait": "#9ca3af",
    "load": "#22c55e",
    OUTSIDE: "rgba(128,128,128,0.35)",
}
"""What each phase is drawn with elsewhere; what is written on it is nearly black."""
_MOST_LOST = 8
_SMALL = 0.005
"""The share of a bar that cannot be seen."""


def render_timeline(found: Timeline, notebook: str = "", *, now: float | None = None) -> Rendered:
    """Return the timeline; `notebook` is the name of its file, `now` Unix seconds."""
    title = f"nbcache timeline{DOT}{one_line(notebook, 60)}" if notebook else "nbcache timeline"
    said = [] if found.cells or found.kernels else ["nothing has compiled yet"]
    parts = timeline_parts(found, now=now).values()
    lines = [DOT.join([title, *said]), *(line for text, _ in parts for line in text)]
    boxes = [_tag("div", "", _head(title, said)), *(html for _, html in parts)]
    return Rendered("\n".join(lines), _tag("div", BOX, *boxes), found.to_json(), _MIME)


def timeline_parts(found: Timeline, *, now: float | None = None) -> dict[str, tuple[list[str], str]]:
    """Return what `%nbcache timeline` shows as text and as HTML, by the part of a panel that it is."""
    parts = {
        "timeline": _cells(found.cells),
        "lost": _lost(found),
        "runs": _kernels(found, time.time() if now is None else now),
    }
    whole = {name: [*each] for name, each in parts.items()}
    return {
        name: ([line for text, _ in each for line in text], "".join(html for _, html in each))
        for name, each in whole.items()
    }


def _cells(cells: Sequence[CellTimes]) -> Iterator[tuple[list[str], str]]:
    """Yield the bars of each cell, on one scale, as text and as HTML, and what their parts mean."""
    bars = [bar for cell in cells for _, bar in cell.bars()]
    longest = max((sum(bar.values()) for bar in bars), default=0.0)
    for cell in cells:
        named = f"{cell.label} {one_line(', '.join(cell.functions), 60)}"
        html = _tag("div", "margin:6px 0", _text(named), *_bars_html(cell, longest))
        yield ["", f"  {named}", *_bars_text(cell, longest)], html
    if used := [phase for phase in _LETTERS if any(bar.get(phase) for bar in bars)]:
        legend = "  ".join(f"{_LETTERS[phase]} {phase_name(phase)}" for phase in used)
        yield ["", f"  {legend}"], _tag("div", "", *map(_swatch, used))


def _lost(found: Timeline) -> Iterator[tuple[list[str], str]]:
    """Yield what was compiled for which reason."""
    headers = ("compiling", "graphs", "function", "why, in all kernels that are remembered")
    rows = [
        (duration(each.seconds), str(each.graphs), one_line(each.function, 30), one_line(each.reason))
        for each in found.lost[:_MOST_LOST]
    ]
    if rows:
        styles = (NUMBER, NUMBER, CELL, LAST)
        cells = [[a, b, _text(c, style=CODE), _text(d, 200)] for a, b, c, d in rows]
        short = [(*rest, one_line(reason, 56)) for *rest, reason in rows]
        yield _table(headers, short, (0, 1)), _rows([*zip(headers, styles, strict=True)], cells)


def _kernels(found: Timeline, now: float) -> Iterator[tuple[list[str], str]]:
    """Yield how many graphs each kernel hit, newest first."""
    headers = ("kernel", "hits", "", "compiling and loading")
    rows = [_kernel(each, now) for each in found.kernels]
    if rows:
        styles = (CELL, CELL, CELL, LAST)
        cells = [[_text(a), _text(b), _text(c, style=CODE), d] for a, b, c, d in rows]
        yield _table(headers, rows, (3,)), _rows([*zip(headers, styles, strict=True)], cells)


def phase_name(phase: str) -> str:
    """Return what people call a phase."""
    return "the rest of the cell" if phase == OUTSIDE else PHASE_NAMES.get(phase, phase)


def bar_words(bar: Mapping[str, float]) -> str:
    """Return the seconds of a bar by phase, in words; of phases that can be seen."""
    least = _SMALL * sum(bar.values())
    shown = [phase for phase in _LETTERS if bar.get(phase, 0.0) > least]
    return DOT.join(f"{phase_name(phase)} {duration(bar[phase])}" for phase in shown)


def _bars_text(cell: CellTimes, longest: float) -> Iterator[str]:
    for label, bar in cell.bars():
        drawn = "".join(_LETTERS[phase] * count for phase, count in _widths(bar, longest, _WIDTH))
        about = "~" if label != "now" else ""
        yield f"    {label.ljust(8)}  {drawn or '|'}  {about}{duration(sum(bar.values()))}"


def _widths(bar: Mapping[str, float], longest: float, most: int) -> Iterator[tuple[str, int]]:
    """Yield how wide each phase is, so that all of them together are as wide as the bar is to be."""
    drawn, so_far = 0, 0.0
    for phase in _LETTERS:
        so_far += bar.get(phase, 0.0)
        until = round(most * so_far / longest) if longest else 0
        yield phase, until - drawn
        drawn = until


def _bars_html(cell: CellTimes, longest: float) -> Iterator[str]:
    for label, bar in cell.bars():
        about = "~" if label != "now" else ""
        pieces = (
            _tag(
                "span",
                f"display:inline-block;height:12px;vertical-align:middle;background-color:{COLOURS[phase]};"
                f"width:{100 * bar.get(phase, 0.0) / longest:.2f}%",
                attributes=f' title="{escape(phase_name(phase))} {duration(bar.get(phase, 0.0))}"',
            )
            for phase in _LETTERS
            if longest and bar.get(phase)
        )
        track = _tag("div", "width:60%;min-width:200px;display:inline-block;line-height:12px", *pieces)
        name = _tag("span", f"{FAINT};display:inline-block;width:70px", escape(label))
        said = _text(f"{about}{duration(sum(bar.values()))}", style="margin-left:8px")
        yield _tag("div", "white-space:nowrap", name, track, said)
        yield _tag("div", f"{FAINT};font-size:12px;padding-left:70px", _text(bar_words(bar)))


def _swatch(phase: str) -> str:
    square = "display:inline-block;width:10px;height:10px;margin:0 4px 0 10px"
    return _tag("span", f"{square};background-color:{COLOURS[phase]}") + _text(phase_name(phase), style=FAINT)


def _kernel(each: KernelRun, now: float) -> tuple[str, str, str, str]:
    when = "this one" if each.is_now else ago(now - each.time)
    full = round(10 * each.hits / each.graphs) if each.graphs else 0
    return (
        when,
        f"{each.hits} of {counted(each.graphs, 'graph')}",
        "#" * full + "-" * (10 - full),
        duration(each.seconds),
    )


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: tuple[int, ...]) -> list[str]:
    return ["", *("  " + line for line in aligned([headers, *rows], right=right))]
