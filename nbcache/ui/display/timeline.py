"""Show where the seconds of cells went, and how the kernels of a notebook followed one another."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from nbcache.core.text import DOT, ago, counted, duration, one_line
from nbcache.explain.timeline import OUTSIDE, CellTimes, Timeline
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import code, faint, line
from nbcache.ui.display.render import Rendered, render
from nbcache.ui.display.words import phase_name

_PHASES = {
    "trace": ("t", "#8b5cf6"),
    "dynamo": ("D", "#3b82f6"),
    "aot": ("A", "#06b6d4"),
    "inductor": ("I", "#f59e0b"),
    "build": ("B", "#ef4444"),
    "wait": ("w", "#9ca3af"),
    "load": ("l", "#22c55e"),
    OUTSIDE: (".", "rgba(128,128,128,0.35)"),
}
"""The letter and the colour of each phase, in the order in which a compile goes through them."""
_MOST_CELLS = 40
"""Cells that are drawn, the newest."""
_MOST_LOST = 8
_SMALL = 0.005
"""The share of a bar that cannot be seen."""


def render_timeline(timeline: Timeline, notebook: str = "", *, now: float | None = None) -> Rendered:
    """Return the timeline; `notebook` is the name of its file, `now` Unix seconds."""
    title = f"nbcache timeline{DOT}{one_line(notebook, 60)}" if notebook else "nbcache timeline"
    parts = [] if timeline.cells or timeline.kernels else ["nothing has compiled yet"]
    blocks: list[doc.Block] = [doc.Title(title, parts)]
    for section in (_cells(timeline), _lost(timeline), _kernels(timeline, now)):
        blocks += [doc.GAP, *section] if section else []
    return render(blocks, timeline.to_json(), "timeline")


def _cells(timeline: Timeline) -> list[doc.Block]:
    """Return the bars of each cell, all on one scale, and the meaning of their parts."""
    cells = timeline.cells[-_MOST_CELLS:]
    bars = [bar for cell in cells for _, bar in cell.bars()]
    scale = max((sum(bar.values()) for bar in bars), default=0.0)
    blocks: list[doc.Block] = []
    for cell in cells:
        name = line(doc.Span(cell.label, doc.Style.BOLD), one_line(", ".join(cell.functions), 60))
        blocks += [name, *_bars(cell, scale), doc.GAP]
    if left_out := len(timeline.cells) - len(cells):
        blocks.append(line(faint(f"and {counted(left_out, 'cell')} before")))
    used = {phase: 1.0 for phase in _PHASES if any(bar.get(phase) for bar in bars)}
    return [*blocks, doc.Legend(_parts(used))] if used else blocks


def _lost(timeline: Timeline) -> list[doc.Block]:
    """Return what was compiled for which reason."""
    columns = [doc.Column(title, doc.Wrap.NUMBER) for title in ("compiling", "graphs")]
    columns += [doc.Column("function"), doc.Column("why, in all kernels of the history", doc.Wrap.REST)]
    rows: list[list[doc.Cell]] = [
        [duration(lost.seconds), str(lost.graphs), code(lost.function, 30), doc.Span(lost.reason, limit=200)]
        for lost in timeline.lost[:_MOST_LOST]
    ]
    return [doc.Table(columns, rows)] if rows else []


def _kernels(timeline: Timeline, now: float | None) -> list[doc.Block]:
    """Return how many graphs each kernel hit, newest first."""
    at = time.time() if now is None else now
    columns = [doc.Column("kernel"), doc.Column("hits"), doc.Column("time", doc.Wrap.NUMBER)]
    columns.append(doc.Column(""))
    rows: list[list[doc.Cell]] = [
        [
            "this one" if run.is_now else ago(at - run.time),
            f"{run.hits} of {counted(run.graphs, 'graph')}",
            duration(run.seconds),
            doc.Meter(run.hits, run.graphs),
        ]
        for run in timeline.kernels
    ]
    return [doc.Table(columns, rows)] if rows else []


def _bars(cell: CellTimes, scale: float) -> Iterable[doc.Bar]:
    for label, bar in cell.bars():
        total = sum(bar.values())
        visible = {phase: seconds for phase, seconds in bar.items() if seconds > _SMALL * total}
        about = "" if label == "now" else "~"
        yield doc.Bar(label, _parts(visible), scale, f"{about}{duration(total)}")


def _parts(bar: Mapping[str, float]) -> list[doc.Part]:
    return [
        doc.Part(phase_name(phase), letter, colour, bar[phase], duration(bar[phase]))
        for phase, (letter, colour) in _PHASES.items()
        if bar.get(phase)
    ]
