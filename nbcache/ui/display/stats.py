"""Show hits and saved seconds of one kernel and of all, the next kernel's plan, and the timeline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from nbcache.core.model import Level
from nbcache.core.text import DOT, NOTHING, ago, counted, duration, one_line, percent
from nbcache.kernel.explain.plan import CellPlan, Plan, Verdict
from nbcache.kernel.explain.stats import Fate, Lifetime, Stats, Tally
from nbcache.kernel.explain.timeline import Timeline
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import code, faint, line
from nbcache.ui.display.render import Rendered, render
from nbcache.ui.display.words import PHASES, missed_lines

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
    Fate.LOST: "no longer stored",
    Fate.IDLE: "not asked for",
    Fate.UNREACHED: "of cells that have not run",
}
_MOST_UNFIT = 4
_WORDS = {
    Verdict.EDITED: "if unchanged",
    Verdict.GONE: "no longer stored",
    Verdict.ELSEWHERE: "of another environment",
    Verdict.BYPASS: "bypassed",
}
_EDITED = "in an edited cell, unchanged graphs hit; torch compiles the others"
_UNSURE = "if unchanged: a cell that defined the function was edited, or one that called it before is gone"
_ESTIMATES = "seconds are estimates: the time that earlier kernels took, else the time that a hit saves"
_MOST_CELLS = 40
_MOST_LOST = 8
_SMALL = 0.005
"""The share of a bar that is too small to draw."""


def render_stats(stats: Stats, notebook: str = "", *, at: float | None = None) -> Rendered:
    """Return the stats; `notebook` is the name of its file, `at` the present time in Unix seconds."""
    at = time.time() if at is None else at
    name = f"all of {one_line(notebook, 60)}" if notebook else "all kernels without a known notebook"
    blocks = [*_session(stats), *_lifetime(name, stats.notebook, at)]
    if stats.store != stats.notebook:
        blocks += _lifetime("all notebooks", stats.store, at)[:1]
    return render(blocks, stats.to_json(), "stats")


def render_lifetime(lifetime: Lifetime) -> Rendered:
    """Return the figures of all kernels of all notebooks."""
    return render(_lifetime("all notebooks", lifetime, time.time())[:1], lifetime.to_json(), "stats")


def _session(stats: Stats) -> list[doc.Block]:
    tally = stats.session
    lines = []
    if tally.saved_by_torch_seconds >= 0.1:
        lines.append(f"torch's own folder saved {duration(tally.saved_by_torch_seconds)}, as without nbcache")
    if tally.retuned:
        lines.append(f"{counted(tally.retuned, 'hit')} re-tuned: kernels were benchmarked again")
    if stats.traces:
        counts = (f"{count} {trace}" for trace, count in sorted(stats.traces.items()))
        lines.append(f"stored traces: {', '.join(counts)}")
    lines += missed_lines([run.summary() for run in stats.missed_unchanged])
    lines += _audit(stats)
    lines += [f"refused: {refusal.what}: {refusal.why}" for refusal in stats.refused]
    blocks: list[doc.Block] = [doc.Title("nbcache stats", ["this kernel", *_totals(tally)])]
    blocks += [line(_net(stats))] if tally.graphs else []
    blocks += [line(text, style=doc.Style.FAINT) for text in lines]
    return blocks + tally_tables(tally)


def _lifetime(label: str, lifetime: Lifetime, at: float) -> list[doc.Block]:
    tally = lifetime.tally
    totals = _totals(tally)
    if tally.graphs:
        totals.append(
            f"{duration(tally.saved_seconds)} saved" if tally.saved_seconds else "nothing saved yet"
        )
        kernels = f"in {counted(lifetime.kernels, 'kernel')}"
        kernels += f" since {ago(at - lifetime.since)}" if lifetime.kernels > 1 else ""
        totals.append(f"the last graphs, {kernels}" if lifetime.is_cut else kernels)
    if lifetime.week_kernels:
        saved = ("at least " if lifetime.is_cut else "") + duration(lifetime.week_saved_seconds)
        totals.insert(0, f"saved this week: {saved} in {counted(lifetime.week_kernels, 'kernel')}")
    return [doc.Title(label, totals), *(tally_tables(tally) if lifetime.kernels > 1 else [])]


def _totals(tally: Tally) -> list[str]:
    if not tally.graphs:
        return ["nothing compiled"]
    counts = ((tally.missed, "missed"), (tally.bypassed, "bypassed"), (tally.disabled, "disabled"))
    return [
        counted(tally.graphs, "graph"),
        f"{tally.hits} of {tally.graphs} hits ({percent(tally.hits, tally.graphs)})",
        *(f"{count} {outcome}" for count, outcome in counts if count),
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
    """Yield the fates of the graphs that earlier kernels stored, and why each unused one was not hit."""
    if not stats.stored:
        return
    fates = stats.fates()
    parts = [f"{fates[fate]} {words}" for fate, words in _FATES.items() if fates[fate]]
    yield f"{counted(len(stats.stored), 'graph')} stored before{DOT}{DOT.join(parts)}"
    unused = sorted((graph for graph in stats.stored if graph.why), key=lambda graph: -graph.saves_seconds)
    for graph in unused[:_MOST_UNUSED]:
        saves = f", {duration(graph.saves_seconds)}" if graph.saves_seconds >= 0.1 else ""
        fate = "changed since" if graph.fate is Fate.CHANGED else "no longer stored"
        yield f"{fate}: {one_line(graph.function, 60)} {graph.direction.value}{saves}: {graph.why}"
    if (more := len(unused) - _MOST_UNUSED) > 0:
        yield f"and {counted(more, 'more')} (--json has all)"


def tally_tables(tally: Tally) -> list[doc.Block]:
    """Return the table of hits by level, and the table of reasons for graphs that did not hit."""
    levels = [
        (str(level.hits), duration(level.seconds), duration(level.saved_seconds), _LEVELS[level.level])
        for level in tally.levels
    ]
    return _table(("hits", "time", "saved", "from"), levels) + reason_table(tally)


def reason_table(tally: Tally) -> list[doc.Block]:
    first, more = tally.reasons[:_MOST_REASONS], tally.reasons[_MOST_REASONS:]
    rows = [(str(reason.graphs), duration(reason.seconds), reason.reason) for reason in first]
    if more:
        graphs, seconds = (sum(getattr(reason, name) for reason in more) for name in ("graphs", "seconds"))
        remaining = f"{counted(len(more), 'other reason')} (--json has all)"
        rows.append((str(graphs), duration(seconds), remaining))
    return _table(("graphs", "time", "not hit because"), rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[doc.Block]:
    """Return a table of numbers, with words in its last column; an empty list if there are no rows."""
    columns = [
        *(doc.Column(title, doc.Wrap.NUMBER) for title in titles[:-1]),
        doc.Column(titles[-1], doc.Wrap.REST),
    ]
    cells: list[list[doc.Cell]] = [
        [*numbers, doc.Span(words, limit=_LONGEST_REASON)] for *numbers, words in rows
    ]
    return [doc.Table(columns, cells)] if rows else []


def render_plan(plan: Plan, notebook: str) -> Rendered:
    title = f"nbcache plan{DOT}{one_line(notebook, 60)}" if notebook else "nbcache plan"
    about = {"notebook": notebook, "notes": list(plan.notes), "problem": plan.problem or None}
    blocks = [doc.Title(title, plan_parts(plan)), *plan_blocks(plan)]
    return render(blocks, {**about, **plan.to_json()}, "plan")


def plan_blocks(plan: Plan) -> list[doc.Block]:
    blocks: list[doc.Block] = []
    if plan.cells:
        columns = [doc.Column(title, doc.Wrap.WORDS) for title in ("cell", "next kernel", "from")]
        columns += [doc.Column(title, doc.Wrap.NUMBER) for title in ("expected", "cold")]
        blocks += [doc.Table(columns, list(map(_row, plan.cells))), doc.GAP]
    blocks += [line(text, style=doc.Style.FAINT) for text in (*plan.notes, *_remarks(plan))]
    for unfit in plan.unfit[:_MOST_UNFIT]:
        whose = f"not used: {counted(unfit.graphs, 'graph')} of {one_line(unfit.name, 60)}"
        blocks += [doc.GAP, line(whose), doc.Code(unfit.lines, is_python=False)]
    return blocks


def plan_parts(plan: Plan) -> list[str]:
    """Return the plan in short: expected hits, edited cells, seconds."""
    if plan.problem:
        return [plan.problem]
    if not plan.graphs:
        return ["no compiled graph of this notebook is known here"]
    parts = [f"{plan.hits} of {counted(plan.graphs, 'graph')} expected to hit"]
    if plan.edited:
        parts.append(f"{counted(plan.edited, 'cell')} {'was' if plan.edited == 1 else 'were'} edited since")
    cold, restored = plan.cold_seconds, plan.expected_seconds
    if cold is not None and restored is not None and plan.hits:
        most = "at most about" if plan.edited else "about"
        instead = f" instead of {duration(cold)}" if restored < cold else ""
        parts.append(f"{most} {duration(restored)}{instead}")
    elif plan.hits and (saved := plan.saved_seconds):
        parts.insert(1, f"saves about {duration(saved)}")
    elif not plan.hits and cold is not None:
        parts.append(f"about {duration(cold)} cold")
    return parts


def _row(plan: CellPlan) -> list[doc.Cell]:
    hits, total = plan.count(Verdict.HIT), len(plan.graphs)
    counts = [(verdict, plan.count(verdict)) for verdict in _WORDS]
    parts = [f"{hits} of {counted(total, 'graph')} hit"] if hits else []
    if plan.is_edited:
        names = dict.fromkeys(one_line(graph.function, 24) for graph in plan.graphs)
        parts = [f"edited since: {', '.join(names)}"]
        counts = [pair for pair in counts if pair[0] is not Verdict.EDITED]
    parts += [f"{count} {_WORDS[verdict]}" for verdict, count in counts if count]
    sources = dict.fromkeys(one_line(graph.source, 24) for graph in plan.graphs if graph.source)
    return [
        [plan.cell.label, code(plan.cell.title, 36)],
        DOT.join(parts),
        ", ".join(sources) or NOTHING,
        _about(None if plan.is_edited else plan.expected_seconds),
        _about(plan.cold_seconds),
    ]


def _about(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"~{duration(seconds)}"


def _remarks(plan: Plan) -> list[str]:
    remarks = [_EDITED] if plan.edited else []
    unsure = any(cell.count(Verdict.EDITED) for cell in plan.cells if not cell.is_edited)
    remarks += [_UNSURE] if unsure else []
    remarks += missed_lines([run.summary() for run in plan.missed_unchanged], "in the last kernel ")
    if plan.gone:
        names = ", ".join(one_line(name, 40) for name in plan.gone[:5])
        more = ", ..." if len(plan.gone) > 5 else ""
        remarks.append(f"compiled by cells that no longer exist: {names}{more}")
    if plan.others and plan.graphs:
        remarks.append(f"of {counted(plan.others, 'other cell')} no compile is known")
    if plan.graphs:
        remarks.append(_ESTIMATES)
    if (more_unfit := len(plan.unfit) - _MOST_UNFIT) > 0:
        remarks.append(f"of {counted(more_unfit, 'more environment')} nothing fits (--json has all)")
    return remarks


def render_timeline(timeline: Timeline, notebook: str = "", *, at: float | None = None) -> Rendered:
    """Return the timeline; `notebook` is the name of its file, `at` the present time in Unix seconds."""
    title = f"nbcache timeline{DOT}{one_line(notebook, 60)}" if notebook else "nbcache timeline"
    parts = [] if timeline.cells or timeline.kernels else ["nothing has compiled yet"]
    blocks: list[doc.Block] = [doc.Title(title, parts)]
    for section in (_cells(timeline), _lost(timeline), _kernels(timeline, at)):
        blocks += [doc.GAP, *section] if section else []
    return render(blocks, timeline.to_json(), "timeline")


def _cells(timeline: Timeline) -> list[doc.Block]:
    """Return the bars of each cell, all on one scale, and a legend."""
    cells = timeline.cells[-_MOST_CELLS:]
    bars = [bar for cell in cells for _, bar in cell.bars()]
    scale = max((sum(bar.values()) for bar in bars), default=0.0)
    blocks: list[doc.Block] = []
    for cell in cells:
        name = line(doc.Span(cell.label, doc.Style.BOLD), one_line(", ".join(cell.functions), 60))
        blocks.append(name)
        for label, bar in cell.bars():
            total = sum(bar.values())
            visible = {phase: seconds for phase, seconds in bar.items() if seconds > _SMALL * total}
            about = "" if label == "now" else "~"  # the other bar is an estimate: without a hit
            blocks.append(doc.Bar(label, _parts(visible), scale, f"{about}{duration(total)}"))
        blocks.append(doc.GAP)
    if left_out := len(timeline.cells) - len(cells):
        blocks.append(line(faint(f"and {counted(left_out, 'cell')} before")))
    used = {phase: 1.0 for phase in PHASES if any(bar.get(phase) for bar in bars)}
    return [*blocks, doc.Legend(_parts(used))] if used else blocks


def _lost(timeline: Timeline) -> list[doc.Block]:
    columns = [doc.Column(title, doc.Wrap.NUMBER) for title in ("compiling", "graphs")]
    columns += [doc.Column("function"), doc.Column("why, in all kernels of the history", doc.Wrap.REST)]
    rows: list[list[doc.Cell]] = [
        [duration(lost.seconds), str(lost.graphs), code(lost.function, 30), doc.Span(lost.reason, limit=200)]
        for lost in timeline.lost[:_MOST_LOST]
    ]
    return [doc.Table(columns, rows)] if rows else []


def _kernels(timeline: Timeline, at: float | None) -> list[doc.Block]:
    at = time.time() if at is None else at
    columns = [doc.Column("kernel"), doc.Column("hits"), doc.Column("time", doc.Wrap.NUMBER), doc.Column("")]
    rows: list[list[doc.Cell]] = []
    for run in timeline.kernels:
        began = "this one" if run.is_now else ago(at - run.time)
        hits = f"{run.hits} of {counted(run.graphs, 'graph')}"
        rows.append([began, hits, duration(run.seconds), doc.Meter(run.hits, run.graphs)])
    return [doc.Table(columns, rows)] if rows else []


def _parts(bar: Mapping[str, float]) -> list[doc.Part]:
    return [
        doc.Part(name, letter, colour, bar[phase], duration(bar[phase]))
        for phase, (name, _, letter, colour) in PHASES.items()
        if bar.get(phase)
    ]
