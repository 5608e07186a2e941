"""Show what the next kernel will find of a notebook, and what it will take."""

from __future__ import annotations

from collections.abc import Sequence

from nbcache.core.text import DOT, NOTHING, counted, duration, one_line
from nbcache.explain.plan import CellPlan, Plan, Unfit, Verdict
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import code, line
from nbcache.ui.display.render import Rendered, render
from nbcache.ui.display.words import missed_lines

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
    """Return the plan of `notebook`; `notes` may warn of it, and `problem` is why there is none."""
    title = f"nbcache plan{DOT}{one_line(notebook, 60)}" if notebook else "nbcache plan"
    head = doc.Title(title, [problem] if problem else plan_parts(plan))
    data = {"notebook": notebook, "notes": list(notes), "problem": problem or None, **plan.to_json()}
    return render([head, *plan_blocks(plan, notes)], data, "plan")


def plan_blocks(plan: Plan, notes: Sequence[str] = ()) -> list[doc.Block]:
    """Return the plan by cell, and remarks on it."""
    blocks: list[doc.Block] = []
    if plan.cells:
        columns = [doc.Column(title, doc.Wrap.WORDS) for title in ("cell", "next kernel", "from")]
        columns += [doc.Column(title, doc.Wrap.NUMBER) for title in ("expected", "cold")]
        blocks += [doc.Table(columns, list(map(_row, plan.cells))), doc.GAP]
    blocks += [line(text, style=doc.Style.FAINT) for text in (*notes, *_remarks(plan))]
    for unfit in plan.unfit[:_MOST_UNFIT]:
        blocks += [doc.GAP, line(_unfit(unfit)), doc.Code(unfit.lines, is_python=False)]
    return blocks


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
        remarks.append(f"compiled by cells that are not there any more: {names}{more}")
    if plan.others and plan.graphs:
        remarks.append(f"of {counted(plan.others, 'other cell')} no compile is known")
    if plan.graphs:
        remarks.append(_ESTIMATES)
    if (more_unfit := len(plan.unfit) - _MOST_UNFIT) > 0:
        remarks.append(f"of {counted(more_unfit, 'more environment')} nothing fits (--json has all)")
    return remarks


def _unfit(unfit: Unfit) -> str:
    return f"not used: {counted(unfit.graphs, 'graph')} of {one_line(unfit.name, 60)}"
