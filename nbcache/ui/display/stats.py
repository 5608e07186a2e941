"""Shows what restoring came to: in this kernel, and in all that are remembered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nbcache.core.model import Level
from nbcache.core.text import DOT, ago, aligned, counted, duration, one_line, percent, size
from nbcache.explain.stats import Fate, Lifetime, Stats, StoredGraph, Tally
from nbcache.ui.display.html import BOX, FAINT, LAST, NUMBER, _head, _rows, _tag, _text
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.text import _joined, _wrapped
from nbcache.ui.display.words import missed_lines

__all__ = ["render_stats"]

_MIME = "application/vnd.nbcache.stats+json"
_MOST_REASONS = 8
_MOST_UNUSED = 12
_LONGEST_REASON = 76
_LEVELS = {
    Level.L0: "L0 torch's own folder",
    Level.L1: "L1 local store",
    Level.L2: "L2 snapshot",
    Level.L3: "L3 shared store",
}
_FATES = {
    Fate.USED: "used",
    Fate.CHANGED: "not used: changed since",
    Fate.OTHER: "not used: other versions ran",
    Fate.LOST: "not there any more",
    Fate.IDLE: "not asked for",
    Fate.UNREACHED: "of cells that have not run",
}


@dataclass(frozen=True, slots=True)
class _Table:
    headers: tuple[str, ...]
    right: tuple[int, ...]
    """Columns that hold numbers."""
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Part:
    """One of kernel, notebook and store."""

    label: str
    totals: list[str]
    lines: list[str]
    tables: list[_Table]


def render_stats(stats: Stats, notebook: str = "", *, now: float | None = None) -> Rendered:
    """Return what restoring came to; `notebook` is the name of its file, `now` Unix seconds."""
    now = time.time() if now is None else now
    name = f"all of {one_line(notebook, 60)}" if notebook else "all kernels that cannot tell their notebook"
    parts = [_session(stats), _lifetime(name, stats.notebook, now)]
    if stats.store != stats.notebook:
        parts.append(replace(_lifetime("all notebooks", stats.store, now), tables=[]))
    lines: list[str] = []
    boxes = []
    for part in parts:
        lines += ["", *_joined(part.label, part.totals)] if lines else _joined(part.label, part.totals)
        lines += [line for text in part.lines for line in _wrapped(text, 2)]
        tables = [_rows_html(table) for table in part.tables if table.rows]
        for table in part.tables:
            if table.rows:
                lines += ["", *("  " + line for line in aligned([table.headers, *table.rows], table.right))]
        told = [_tag("div", FAINT if i else "", _text(text)) for i, text in enumerate(part.lines)]
        boxes.append(_tag("div", "margin:4px 0", _head(part.label, part.totals), *told, *tables))
    return Rendered("\n".join(lines), _tag("div", BOX, *boxes), stats.to_json(), _MIME)


def _session(stats: Stats) -> _Part:
    tally = stats.session
    lines = [_net(stats)] if tally.graphs else []
    if tally.saved_by_torch_seconds >= 0.1:
        lines.append(f"torch's own folder saved {duration(tally.saved_by_torch_seconds)}, as without nbcache")
    if tally.retuned:
        lines.append(f"{counted(tally.retuned, 'hit')} re-tuned: kernels were benchmarked again")
    if stats.traces:
        counts = (f"{count} {what}" for what, count in sorted(stats.traces.items()))
        lines.append(f"stored traces: {', '.join(counts)}")
    lines += missed_lines([run.summary() for run in stats.missed_unchanged])
    lines += _audit(stats)
    lines += [f"refused: {each.what}: {each.why}" for each in stats.refused]
    types = [
        (str(each.named), size(each.named_bytes), str(each.restored), size(each.restored_bytes), each.type)
        for each in stats.types
    ]
    headers = ("stored", "bytes", "restored", "bytes", "artifact type")
    tables = [_levels(tally), _reasons(tally), _Table(headers, (0, 1, 2, 3), types)]
    return _Part("nbcache stats", ["this kernel", *_totals(tally)], lines, tables)


def _lifetime(label: str, lifetime: Lifetime, now: float) -> _Part:
    tally = lifetime.tally
    totals = _totals(tally)
    if tally.graphs:
        totals.append(
            f"{duration(tally.saved_seconds)} saved" if tally.saved_seconds else "nothing saved yet"
        )
        kernels = f"in {counted(lifetime.kernels, 'kernel')}"
        kernels += f" since {ago(now - lifetime.since)}" if lifetime.kernels > 1 else ""
        totals.append(f"the last graphs, {kernels}" if lifetime.is_cut else kernels)
    return _Part(label, totals, [], [_levels(tally), _reasons(tally)] if lifetime.kernels > 1 else [])


def _totals(tally: Tally) -> list[str]:
    if not tally.graphs:
        return ["nothing compiled"]
    counts = ((tally.missed, "missed"), (tally.bypassed, "bypassed"), (tally.disabled, "disabled"))
    return [
        counted(tally.graphs, "graph"),
        f"{tally.hits} of {tally.graphs} hits ({percent(tally.hits, tally.graphs)})",
        *(f"{count} {what}" for count, what in counts if count),
        f"{duration(tally.seconds)} compiling and loading",
    ]


def _net(stats: Stats) -> str:
    tally = stats.session
    less = f"{duration(stats.overhead_seconds)} that nbcache took"
    if not tally.saved_seconds:
        return f"nothing saved against plain torch yet; nbcache took {duration(stats.overhead_seconds)}"
    if tally.waited_in_vain_seconds >= 0.1:
        less += f" and {duration(tally.waited_in_vain_seconds)} waited in vain"
    saved = f"{duration(tally.saved_seconds)} saved against plain torch"
    return f"net {duration(stats.net_seconds)}: {saved}, less {less}"


def _audit(stats: Stats) -> Iterator[str]:
    """Yield what became of the graphs that were stored before, and by what change some were not used."""
    if not stats.stored:
        return
    fates = stats.fates()
    parts = [f"{fates[fate]} {words}" for fate, words in _FATES.items() if fates[fate]]
    yield f"{counted(len(stats.stored), 'graph')} stored before{DOT}{DOT.join(parts)}"
    told = [each for each in stats.stored if each.why]
    for each in sorted(told, key=lambda each: -each.saves_seconds)[:_MOST_UNUSED]:
        yield f"{_named(each)}: {each.why}"
    if (more := len(told) - _MOST_UNUSED) > 0:
        yield f"and {counted(more, 'more')} (--json has all)"


def _named(graph: StoredGraph) -> str:
    saves = f", {duration(graph.saves_seconds)}" if graph.saves_seconds >= 0.1 else ""
    how = "changed since" if graph.fate is Fate.CHANGED else "not there any more"
    return f"{how}: {one_line(graph.function, 60)} {graph.direction.value}{saves}"


def _levels(tally: Tally) -> _Table:
    rows = [
        (str(each.hits), duration(each.seconds), duration(each.saved_seconds), _LEVELS[each.level])
        for each in tally.levels
    ]
    return _Table(("hits", "time", "saved", "from"), (0, 1, 2), rows)


def _reasons(tally: Tally) -> _Table:
    rows = [
        (str(each.graphs), duration(each.seconds), one_line(each.reason, _LONGEST_REASON))
        for each in tally.reasons[:_MOST_REASONS]
    ]
    if more := tally.reasons[_MOST_REASONS:]:
        seconds = duration(sum(each.seconds for each in more))
        others = f"{counted(len(more), 'other reason')} (--json has all)"
        rows.append((str(sum(each.graphs for each in more)), seconds, others))
    return _Table(("graphs", "time", "not hit because"), (0, 1), rows)


def _rows_html(table: _Table) -> str:
    styles = [NUMBER if i in table.right else LAST for i in range(len(table.headers))]
    cells = [[_text(cell) for cell in row] for row in table.rows]
    return _rows(list(zip(table.headers, styles, strict=True)), cells)
