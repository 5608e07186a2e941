"""A whole panel as static HTML and as text: what a saved notebook keeps, and what is shown without widgets.

The HTML keeps to what JupyterLab's sanitizer leaves of an untrusted notebook, as that of `ui.display` does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from nbcache.core.reports import GraphRecord
from nbcache.core.text import DOT, counted, one_line, printable
from nbcache.ui.display.html import BOX, FAINT, _folded, _head, _table_html, _tag, _text
from nbcache.ui.display.plan import render_plan
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.text import _table_text, _wrapped
from nbcache.ui.display.timeline import timeline_parts
from nbcache.ui.display.words import totals
from nbcache.ui.panels import pages, timeline
from nbcache.ui.panels.values import Facts, Now, graph_page

__all__ = ["SECTIONS", "render_panel"]

SECTIONS = ("next", "graphs", "levels", "people", "snapshot", "settings", "space")
"""The parts of a whole panel, in order."""
_MOST = 20
"""Graphs of which a saved notebook tells."""
_MOST_OPEN = 3
"""Cells whose graphs are to be seen at once."""


def render_panel(now: Now, facts: Facts, sections: Sequence[str] = SECTIONS, *, note: str = "") -> Rendered:
    """Return the panel as it is now; `note` says how to have it live."""
    levels = pages.by_level(now.graphs)
    parts = {
        "next": ("next run", pages.plan_words(facts), pages.plan_html(facts), _plan_text(facts), False),
        "graphs": (
            "graphs",
            pages.graphs_words(now.graphs),
            _graphs_html(now.graphs),
            _graphs_text(now),
            True,
        ),
        "levels": ("levels", pages.levels_words(levels), pages.levels_html(levels), [], False),
        "people": (
            "people",
            pages.people_words(facts, now),
            _people_html(facts, now),
            _people_text(facts, now),
            True,
        ),
        "snapshot": (
            "snapshot",
            pages.snapshot_words(facts),
            pages.snapshots_html(facts),
            [*facts.snapshots[1:], *facts.paste],
            len(facts.snapshots) > 1 or bool(facts.paste),
        ),
        **_timeline(facts),
        "settings": ("settings", pages.settings_words(facts), pages.settings_table_html(facts), [], False),
        "space": ("space", pages.space_words(facts), pages.space_html(facts), [], False),
    }
    at = time.strftime("%H:%M:%S", time.localtime(facts.time or time.time()))
    said = one_line(DOT.join(filter(None, [*pages.activity_words(now), f"as of {at}", note])))
    html = [pages.head_html(facts), _tag("div", FAINT, _text(said))]
    title = one_line(DOT.join(["nbcache panel", *filter(None, [facts.notebook]), *facts.machine]))
    lines = [title, f"  {said}"]
    for section in sections:
        title, words, inner, told, is_open = parts[section]
        head, indented = _head(title, words), _tag("div", "padding-left:14px", inner)
        empty = "<" not in inner.removeprefix(f'<div style="{BOX}">').removesuffix("</div>")
        html.append(_tag("div", "", head) if empty else _folded(head, indented, is_open=is_open))
        lines += ["", *_wrapped(one_line(DOT.join([title.upper(), *words])), 0)]
        lines += [line for each in told for line in _wrapped(printable(each), 2)]
    return Rendered("\n".join(lines), _tag("div", BOX, *html))


def _timeline(facts: Facts) -> dict[str, tuple[str, list[str], str, list[str], bool]]:
    """Return the parts of the timeline: where seconds went, what was lost, and how kernels followed."""
    parts = timeline_parts(facts.timeline)
    said = {
        "timeline": ("timeline", timeline.cells_words(facts.timeline)),
        "lost": ("seconds lost", timeline.lost_words(facts.timeline)),
        "runs": ("last runs", timeline.runs_words(facts.timeline)),
    }
    return {name: (*said[name], html, text[1:], True) for name, (text, html) in parts.items()}


def _plan_text(facts: Facts) -> list[str]:
    """Return the table of the plan, without its title."""
    if facts.plan_problem or not facts.plan.cells:
        return []
    return render_plan(facts.plan, facts.notebook, facts.plan_notes).text.splitlines()[1:]


def _graphs_html(graphs: Sequence[GraphRecord]) -> str:
    """Return the graphs of the newest cells, folded by cell; each opens to all that is known of it."""
    runs = _newest(graphs)
    boxes = [
        _folded(_head(label, totals(run)), _table_html(run), is_open=i < _MOST_OPEN)
        for i, (label, run) in enumerate(runs)
    ]
    if more := _left_out(graphs, runs):
        boxes.append(_tag("div", FAINT, _text(more)))
    return "".join(boxes)


def _graphs_text(now: Now) -> list[str]:
    runs = _newest(now.graphs)
    lines = []
    for label, run in runs:
        lines += [DOT.join([label, *totals(run)]), *(f"  {line}" for line in _table_text(run))]
    if more := _left_out(now.graphs, runs):
        lines.append(more)
    return lines


def _newest(graphs: Sequence[GraphRecord]) -> list[tuple[str, list[GraphRecord]]]:
    """Return the newest runs of cells, each after its label, the last one first."""
    runs: list[tuple[str, list[GraphRecord]]] = []
    for _, graph in graph_page(graphs, size=_MOST).rows:
        label = graph.cell.label if graph.cell else "outside cells"
        if not runs or runs[-1][1][-1].cell != graph.cell:
            runs.append((label, []))
        runs[-1][1].append(graph)
    return runs


def _left_out(graphs: Sequence[GraphRecord], runs: Sequence[tuple[str, Sequence[GraphRecord]]]) -> str:
    more = len(graphs) - sum(len(run) for _, run in runs)
    return f"and {counted(more, 'graph')} before (%nbcache status has all)" if more else ""


def _people_html(facts: Facts, now: Now) -> str:
    told = pages.people_html(facts, now) if now.shared else ""
    return told + "".join(map(pages.stranger_html, facts.strangers))


def _people_text(facts: Facts, now: Now) -> list[str]:
    lines = list(facts.people) if now.shared else []
    for each in facts.strangers:
        calls = f"calls itself {each.name}" if each.name else ""
        lines += [f"not trusted: {DOT.join(filter(None, [calls, each.what]))}", f"  {each.fingerprint}"]
    return lines
