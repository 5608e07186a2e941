"""Shows what the next kernel will find of a notebook, and what it will take."""

from __future__ import annotations

from collections.abc import Sequence

from nbcache.core.text import DOT, NOTHING, aligned, counted, duration, one_line
from nbcache.explain.plan import CellPlan, Plan, Unfit, Verdict
from nbcache.ui.display.html import BOX, CODE, FAINT, NUMBER, WRAPPED, _head, _rows, _tag, _text
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.text import _joined, _wrapped
from nbcache.ui.display.words import missed_lines

__all__ = ["plan_html", "plan_parts", "render_plan"]

_MIME = "application/vnd.nbcache.plan+json"
_FOLDED = f"{WRAPPED};min-width:110px;word-break:break-word"
"""The column of cells, which folds where the page is narrow."""
_TITLE = 36
"""Characters of a cell's first line that are shown."""
_EXPECTED = 46
_MOST_UNFIT = 4
_WORDS = {
    Verdict.EDITED: "if unchanged",
    Verdict.GONE: "not stored any more",
    Verdict.ELSEWHERE: "of another environment",
    Verdict.BYPASS: "bypassed",
}
_EDITED = "of an edited cell those graphs hit that are still the same; the others are compiled"
_UNSURE = "if unchanged: a cell that defined the function was edited, or one that called it before is gone"
_ESTIMATES = "seconds are estimates: what earlier kernels took, else what a hit saves"


def render_plan(plan: Plan, notebook: str, notes: Sequence[str] = (), *, problem: str = "") -> Rendered:
    """Return the plan of `notebook`, the name of its file.

    `notes` say what may make it wrong, `problem` why there is none.
    """
    title = f"nbcache plan{DOT}{one_line(notebook, 60)}" if notebook else "nbcache plan"
    totals = [problem] if problem else plan_parts(plan)
    table = [_row(each) for each in plan.cells]
    said = [*notes, *_remarks(plan)]
    lines = _joined(title, totals)
    if table:
        headers = ("cell", "", "next kernel", "from", "expected", "cold")
        lines += ["", *("  " + line for line in aligned([headers, *table], right=(4, 5))), ""]
    lines += [line for each in said for line in _wrapped(each, 2)]
    for each in plan.unfit[:_MOST_UNFIT]:
        lines += ["", *_wrapped(_unfit(each), 2), *(f"    {line}" for line in each.lines)]
    html = _tag("div", BOX, _head(title, totals), plan_html(plan, notes))
    data = {"notebook": notebook, "notes": list(notes), "problem": problem or None, **plan.to_json()}
    return Rendered("\n".join(lines), html, data, _MIME)


def plan_html(plan: Plan, notes: Sequence[str] = ()) -> str:
    """Return the plan by cell, and what there is to say of it, as HTML without a title."""
    boxes = []
    if plan.cells:
        columns = [("cell", _FOLDED), ("next kernel", f"{WRAPPED};min-width:80px"), ("from", WRAPPED)]
        columns += [("expected", NUMBER), ("cold", NUMBER)]
        boxes.append(_rows(columns, [_cells_html(_row(each)) for each in plan.cells]))
    boxes += [_tag("div", FAINT, _text(each)) for each in (*notes, *_remarks(plan))]
    for each in plan.unfit[:_MOST_UNFIT]:
        shown = (_tag("div", f"{CODE};white-space:pre-wrap", _text(line)) for line in each.lines)
        boxes.append(_tag("div", "margin:4px 0", _tag("div", "", _text(_unfit(each))), *shown))
    return "".join(boxes)


def _edited_part(plan: Plan) -> str:
    """Return in words how many cells were edited since; empty where none was."""
    if not plan.edited:
        return ""
    return f"{counted(plan.edited, 'cell')} {'was' if plan.edited == 1 else 'were'} edited since"


def plan_parts(plan: Plan) -> list[str]:
    """Return the plan in short: graphs expected to hit, cells that were edited, seconds."""
    if not plan.graphs:
        return ["nothing that this notebook has compiled is known here"]
    parts = [f"{plan.hits} of {counted(plan.graphs, 'graph')} expected to hit"]
    parts += [_edited_part(plan)] if plan.edited else []
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


def _row(each: CellPlan) -> tuple[str, ...]:
    hits, cell = each.count(Verdict.HIT), each.cell
    total = len(each.graphs)
    counts = [(verdict, each.count(verdict)) for verdict in _WORDS]
    parts = [f"{hits} of {counted(total, 'graph')} hit"] if hits else []
    if each.is_edited:
        names = dict.fromkeys(one_line(graph.function, 24) for graph in each.graphs)
        parts = [f"edited since: {', '.join(names)}"]
        counts = [pair for pair in counts if pair[0] is not Verdict.EDITED]
    parts += [f"{count} {_WORDS[verdict]}" for verdict, count in counts if count]
    sources = dict.fromkeys(one_line(graph.source, 24) for graph in each.graphs if graph.source)
    expected = each.expected_seconds if not each.is_edited else None
    return (
        cell.label,
        one_line(cell.title, _TITLE),
        one_line(DOT.join(parts), _EXPECTED),
        ", ".join(sources) or NOTHING,
        _about(expected),
        _about(each.cold_seconds),
    )


def _about(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"~{duration(seconds)}"


def _cells_html(row: tuple[str, ...]) -> list[str]:
    label, title, *rest = row
    return [f"{_text(label)} {_text(title, style=CODE)}", *map(_text, rest)]


def _remarks(plan: Plan) -> list[str]:
    remarks = [_EDITED] if plan.edited else []
    unsure = any(each.count(Verdict.EDITED) for each in plan.cells if not each.is_edited)
    remarks += [_UNSURE] if unsure else []
    remarks += missed_lines([run.summary() for run in plan.missed_unchanged], "in the last kernel ")
    if plan.gone:
        names = ", ".join(one_line(name, 40) for name in plan.gone[:5])
        more = ", ..." if len(plan.gone) > 5 else ""
        remarks.append(f"compiled by cells that are not there any more: {names}{more}")
    if plan.others and plan.graphs:
        remarks.append(f"of {counted(plan.others, 'other cell')} no compile is known")
    if plan.graphs:
        remarks.append(_ESTIMATES)
    if (more_unfit := len(plan.unfit) - _MOST_UNFIT) > 0:
        remarks.append(f"of {counted(more_unfit, 'more environment')} nothing fits (--json has all)")
    return remarks


def _unfit(each: Unfit) -> str:
    return f"not used: {counted(each.graphs, 'graph')} of {one_line(each.name, 60)}"
