"""The timeline of a live panel: bars as inline SVG, which no front end strips from a widget.

Each bar says in words what its parts are: neither colour nor shape is the only sign.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from nbcache.core.text import ago, counted, duration, one_line
from nbcache.explain.timeline import OUTSIDE, CellTimes, KernelRun, Timeline
from nbcache.ui.display.html import BOX, FAINT, LINE, _tag, _text
from nbcache.ui.display.timeline import COLOURS, bar_words, phase_name

__all__ = ["cells_html", "cells_words", "lost_words", "runs_html", "runs_words"]

_NAMED = 0.2
"""A part of a bar that is as wide as this share of it has its name on it."""
_HEIGHT = 18
_MOST_CELLS = 12
"""Cells that are drawn, the newest."""
_RUN_HEIGHT = 48
"""Pixels of the highest column."""
_HIT = "#22c55e"


def cells_words(found: Timeline) -> list[str]:
    """Return in short how long cells took, and what that was cold or is restored."""
    if not found.cells:
        return ["nothing has compiled in this kernel yet"]
    now = sum(sum(cell.now.values()) for cell in found.cells)
    parts = [counted(len(found.cells), "cell"), f"{duration(now)} now"]
    for name in ("cold", "restored"):
        known = [bar for cell in found.cells if (bar := getattr(cell, name)) is not None]
        if len(known) == len(found.cells):
            parts.append(f"about {duration(sum(sum(bar.values()) for bar in known))} {name}")
    return parts


def cells_html(found: Timeline) -> str:
    """Return where the seconds of each cell went, cold beside restored, all on one scale."""
    cells = found.cells[-_MOST_CELLS:]
    longest = max((sum(bar.values()) for cell in cells for _, bar in cell.bars()), default=0.0)
    if not longest:
        return ""
    drawn = "".join(_cell(cell, longest) for cell in cells)
    left_out = len(found.cells) - len(cells)
    more = _text(f"and {counted(left_out, 'cell')} before", style=FAINT) if left_out else ""
    return _tag("div", BOX, _axis(longest), drawn, more)


def _cell(cell: CellTimes, longest: float) -> str:
    named = f"<b>{_text(cell.label)}</b> {_text(one_line(', '.join(cell.functions), 60))}"
    return _tag("div", "margin:6px 0", named, *_bars(cell, longest))


def _bars(cell: CellTimes, longest: float) -> Iterator[str]:
    for label, bar in cell.bars():
        whole = f"{'~' if label != 'now' else ''}{duration(sum(bar.values()))}"
        yield _line(
            _text(label, style=FAINT),
            _svg(_pieces(bar, longest), _HEIGHT, f"{label}: {bar_words(bar)}"),
            whole,
        )
        yield _line("", _text(bar_words(bar), style=f"{FAINT};font-size:12px"), "")


def _line(name: str, middle: str, last: str) -> str:
    """Return a line of three columns, of which the middle one is as wide as there is room."""
    return _tag(
        "div",
        "display:flex;gap:8px;align-items:center",
        _tag("span", "flex:0 0 62px", name),
        _tag("div", "flex:1 1 auto;min-width:0;line-height:1.3", middle),
        _tag("span", "flex:0 0 76px;white-space:nowrap", _text(last)),
    )


def _pieces(bar: Mapping[str, float], longest: float) -> Iterator[str]:
    """Yield the parts of a bar, in the order in which a compile goes through them."""
    left = 0.0
    for phase, colour in COLOURS.items():
        share = bar.get(phase, 0.0) / longest
        if not share:
            continue
        where = f'x="{100 * left:.2f}%" width="{100 * share:.2f}%"'
        title = f"<title>{escape(phase_name(phase))} {duration(bar[phase])}</title>"
        edge = 'stroke="currentColor" stroke-opacity="0.5" stroke-width="0.5"'
        yield f'<rect {where} y="0" height="{_HEIGHT}" fill="{colour}" {edge}>{title}</rect>'
        if share >= _NAMED:
            ink = "currentColor" if phase == OUTSIDE else "#111"
            middle = f'x="{100 * (left + share / 2):.2f}%" y="{_HEIGHT - 5}" text-anchor="middle"'
            name = "rest" if phase == OUTSIDE else phase
            yield f'<text {middle} font-size="11" fill="{ink}" pointer-events="none">{escape(name)}</text>'
        left += share


def _axis(longest: float) -> str:
    """Return the scale that all bars share."""
    ticks = "".join(
        f'<text x="{100 * share:.0f}%" y="11" text-anchor="{anchor}" font-size="11" fill="currentColor" '
        f'opacity="0.65">{escape(duration(share * longest) if share else "0 s")}</text>'
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    )
    return _line("", _svg([ticks], 14, "seconds"), "") + _line(
        "", _tag("div", f"border-top:1px solid {LINE}"), ""
    )


def _svg(inner: Iterator[str] | Sequence[str], height: int, name: str) -> str:
    attributes = f' role="img" aria-label="{escape(name)}" width="100%" height="{height}"'
    return _tag("svg", "display:block;overflow:visible", *inner, attributes=attributes)


def lost_words(found: Timeline) -> list[str]:
    """Return in short what was compiled in all kernels that are remembered."""
    if not found.lost:
        return ["no kernel that is remembered has compiled anything"]
    graphs = sum(each.graphs for each in found.lost)
    return [f"{duration(sum(each.seconds for each in found.lost))} compiling {counted(graphs, 'graph')}"]


def runs_words(found: Timeline) -> list[str]:
    """Return in short how many of the last graphs were hits."""
    if not found.kernels:
        return ["no kernel is remembered"]
    hits, graphs = sum(each.hits for each in found.kernels), sum(each.graphs for each in found.kernels)
    return [counted(len(found.kernels), "kernel"), f"{hits} of {counted(graphs, 'graph')} hits"]


def runs_html(found: Timeline) -> str:
    """Return how many graphs each of the last kernels hit, oldest first: full columns of hollow ones."""
    most = max((each.graphs for each in found.kernels), default=0)
    if not most:
        return ""
    columns = "".join(_column(each, most) for each in reversed(found.kernels))
    said = _text(
        "graphs of each kernel, the newest at the right; the full part of a column was hit", style=FAINT
    )
    return _tag(
        "div", BOX, _tag("div", "display:flex;flex-wrap:wrap;gap:6px;align-items:flex-end", columns), said
    )


def _column(each: KernelRun, most: int) -> str:
    high, full = _RUN_HEIGHT * each.graphs / most, _RUN_HEIGHT * each.hits / most
    when = "this one" if each.is_now else ago(time.time() - each.time)
    name = f"{when}: {each.hits} of {counted(each.graphs, 'graph')} hit, {duration(each.seconds)}"
    outline = f'<rect x="6" y="{_RUN_HEIGHT - high + 0.5:.1f}" width="24" height="{max(high - 1, 0.0):.1f}" '
    outline += f'fill="none" stroke="currentColor" stroke-opacity="0.6"><title>{escape(name)}</title></rect>'
    filled = f'<rect x="6" y="{_RUN_HEIGHT - full:.1f}" width="24" height="{full:.1f}" fill="{_HIT}" '
    filled += 'pointer-events="none"></rect>'
    attributes = f' role="img" aria-label="{escape(name)}" width="36" height="{_RUN_HEIGHT}"'
    drawn = _tag("svg", "display:block", outline, filled, attributes=attributes)
    label = f"{each.hits}/{each.graphs}" + (" now" if each.is_now else "")
    return _tag("div", "text-align:center;font-size:11px", drawn, _text(label))
