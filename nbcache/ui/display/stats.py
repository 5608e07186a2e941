"""Show hits, misses and saved seconds, of this kernel and of all kernels in the history."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from nbcache.core.model import Level
from nbcache.core.text import DOT, ago, counted, duration, one_line, percent, size
from nbcache.explain.stats import Fate, Lifetime, Stats, StoredGraph, Tally
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import line
from nbcache.ui.display.render import Rendered, render
from nbcache.ui.display.words import missed_lines

_MOST_REASONS = 8
_MOST_UNUSED = 12
_LONGEST_REASON = 120
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


def render_stats(stats: Stats, notebook: str = "", *, now: float | None = None) -> Rendered:
    """Return the stats; `notebook` is the name of its file, `now` Unix seconds."""
    now = time.time() if now is None else now
    name = f"all of {one_line(notebook, 60)}" if notebook else "all kernels that cannot tell their notebook"
    blocks = [*_session(stats), *_lifetime(name, stats.notebook, now)]
    if stats.store != stats.notebook:
        blocks += _lifetime("all notebooks", stats.store, now)[:1]
    return render(blocks, stats.to_json(), "stats")


def _session(stats: Stats) -> list[doc.Block]:
    tally = stats.session
    lines = []
    if tally.saved_by_torch_seconds >= 0.1:
        lines.append(f"torch's own folder saved {duration(tally.saved_by_torch_seconds)}, as without nbcache")
    if tally.retuned:
        lines.append(f"{counted(tally.retuned, 'hit')} re-tuned: kernels were benchmarked again")
    if stats.traces:
        counts = (f"{count} {what}" for what, count in sorted(stats.traces.items()))
        lines.append(f"stored traces: {', '.join(counts)}")
    lines += missed_lines([run.summary() for run in stats.missed_unchanged])
    lines += _audit(stats)
    lines += [f"refused: {refusal.what}: {refusal.why}" for refusal in stats.refused]
    types = [
        (str(row.named), size(row.named_bytes), str(row.restored), size(row.restored_bytes), row.type)
        for row in stats.types
    ]
    blocks: list[doc.Block] = [doc.Title("nbcache stats", ["this kernel", *_totals(tally)])]
    blocks += [line(_net(stats))] if tally.graphs else []
    blocks += [line(text, style=doc.Style.FAINT) for text in lines]
    blocks += tally_tables(tally)
    return blocks + (_table(("stored", "bytes", "restored", "bytes", "artifact type"), types))


def _lifetime(label: str, lifetime: Lifetime, now: float) -> list[doc.Block]:
    tally = lifetime.tally
    totals = _totals(tally)
    if tally.graphs:
        totals.append(
            f"{duration(tally.saved_seconds)} saved" if tally.saved_seconds else "nothing saved yet"
        )
        kernels = f"in {counted(lifetime.kernels, 'kernel')}"
        kernels += f" since {ago(now - lifetime.since)}" if lifetime.kernels > 1 else ""
        totals.append(f"the last graphs, {kernels}" if lifetime.is_cut else kernels)
    return [doc.Title(label, totals), *(tally_tables(tally) if lifetime.kernels > 1 else [])]


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


def tally_tables(tally: Tally) -> list[doc.Block]:
    """Return where hits came from, and why other graphs did not hit."""
    levels = [
        (str(level.hits), duration(level.seconds), duration(level.saved_seconds), _LEVELS[level.level])
        for level in tally.levels
    ]
    return _table(("hits", "time", "saved", "from"), levels) + reason_table(tally)


def reason_table(tally: Tally) -> list[doc.Block]:
    """Return why graphs did not hit."""
    reasons = [
        (str(reason.graphs), duration(reason.seconds), reason.reason)
        for reason in tally.reasons[:_MOST_REASONS]
    ]
    if more := tally.reasons[_MOST_REASONS:]:
        seconds = duration(sum(reason.seconds for reason in more))
        others = f"{counted(len(more), 'other reason')} (--json has all)"
        reasons.append((str(sum(reason.graphs for reason in more)), seconds, others))
    return _table(("graphs", "time", "not hit because"), reasons)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[doc.Block]:
    """Return a table of numbers, with words in its last column; none without rows."""
    columns = [
        *(doc.Column(title, doc.Wrap.NUMBER) for title in titles[:-1]),
        doc.Column(titles[-1], doc.Wrap.REST),
    ]
    cells: list[list[doc.Cell]] = [
        [*numbers, doc.Span(words, limit=_LONGEST_REASON)] for *numbers, words in rows
    ]
    return [doc.Table(columns, cells)] if rows else []
