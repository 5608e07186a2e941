"""Show the report of a cell, the session, settings, checks and the live line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from nbcache.core.reports import Activity, CellReport
from nbcache.core.text import DOT, NOTHING, counted, one_line
from nbcache.explain.stats import tally
from nbcache.kernel.prewarming import Prewarming
from nbcache.shared.level import SharedFigures
from nbcache.ui.display import document as doc
from nbcache.ui.display import words
from nbcache.ui.display.document import badge, faint, line
from nbcache.ui.display.graph import graph_blocks
from nbcache.ui.display.html import to_html
from nbcache.ui.display.render import Rendered, render
from nbcache.ui.display.stats import reason_table
from nbcache.ui.display.words import BAR, Check, CheckState, SettingRow, StoreFigures, activity_parts, totals


def render_report(report: CellReport, *, stored: bool = True, why: str = "") -> Rendered:
    """Return the report after a cell; `stored` and `why` as in `totals`."""
    label = f"nbcache {one_line(report.name)}" if report.name else "nbcache"
    head = doc.Title(label, totals(report.graphs, stored=stored, why=why))
    blocks: list[doc.Block] = [
        doc.Folded(head, graph_blocks(report.graphs), is_open=True),
        *_notices(report.notices),
    ]
    return render(blocks, report.to_json())


def render_notices(report: CellReport) -> Rendered:
    """Return a report's notices alone, for a cell whose report is not to be shown."""
    return render([doc.Title("nbcache"), *_notices(report.notices)])


def render_status(
    reports: Sequence[CellReport],
    stores: Sequence[StoreFigures],
    prewarming: Prewarming,
    shared: SharedFigures | None = None,
    nursery: int = 0,
) -> Rendered:
    """Return the session by cell and graph; `nursery` is the process that forked this kernel, or 0."""
    runs = [report for report in reports if report.graphs]
    graphs = [graph for report in runs for graph in report.graphs]
    first, *rest = totals(graphs)
    in_runs = f" in {len(runs)} cell run{'s' if len(runs) > 1 else ''}" if runs else ""
    blocks: list[doc.Block] = [doc.Title("nbcache session", [first + in_runs, *rest])]
    forked = [f"forked from nursery {nursery}", "imports were done ahead"] if nursery else []
    facts = [*map(words.store_parts, stores), words.shared_parts(shared), forked]
    facts.append(words.prewarming_parts(prewarming))
    blocks += [line(DOT.join(parts), style=doc.Style.FAINT) for parts in facts if parts]
    blocks += _notices(dict.fromkeys(notice for report in reports for notice in report.notices))
    blocks += reason_table(tally(graphs))
    blocks += [_run(report, is_open=len(runs) <= 3) for report in runs]
    data = {
        "cells": [report.to_json() for report in reports],
        "stores": [asdict(store) for store in stores],
        "prewarm": prewarming.to_json(),
        "shared": None if shared is None else asdict(shared),
        "nursery": nursery or None,
    }
    return render(blocks, data, "status")


def _run(report: CellReport, *, is_open: bool) -> doc.Folded:
    """Return the graphs of one run of a cell."""
    label = report.cell.label if report.cell else "outside cells"
    name = f"{label} {one_line(report.name)}" if report.name else label
    return doc.Folded(doc.Title(name, totals(report.graphs)), graph_blocks(report.graphs), is_open=is_open)


def render_settings(rows: Sequence[SettingRow], torch_rows: Sequence[SettingRow] = ()) -> Rendered:
    """Return nbcache's settings, and the settings of torch's caches."""
    data = {"settings": [asdict(row) for row in rows], "torch": [asdict(row) for row in torch_rows]}
    return render(settings_blocks(rows, torch_rows), data, "settings")


def settings_blocks(rows: Sequence[SettingRow], torch_rows: Sequence[SettingRow] = ()) -> list[doc.Block]:
    """Return settings as a table; the settings of torch's caches have a table of their own."""
    tables: list[doc.Block] = [_settings(rows)]
    return [*tables, doc.Title("torch's caches"), _settings(torch_rows)] if torch_rows else tables


def _settings(rows: Sequence[SettingRow]) -> doc.Table:
    columns = [doc.Column(title, doc.Wrap.WORDS) for title in ("setting", "value", "from")]
    table = [
        doc.Row(
            [
                doc.Span(row.name, doc.Style.PATH),
                doc.Span(row.value or NOTHING, doc.Style.PATH),
                faint(row.origin) if row.origin == "default" else row.origin,
                faint(row.help),
            ],
            [line(row.note, mark=doc.Mark.NOTICE)] if row.note else (),
        )
        for row in rows
    ]
    return doc.Table([*columns, doc.Column("what it is for", doc.Wrap.REST)], table)


def render_checks(checks: Sequence[Check]) -> Rendered:
    """Return the checks of `%nbcache doctor`."""
    rows = [
        doc.Row(
            [check.name, badge(check.state.value), check.found],
            [line(f"next: {check.next_step}", mark=doc.Mark.QUOTE)] if check.next_step else (),
        )
        for check in checks
    ]
    table = doc.Table([doc.Column("check"), doc.Column("state"), doc.Column("found", doc.Wrap.REST)], rows)
    states = Counter(check.state for check in checks)
    wrong = [state for state in (CheckState.PROBLEM, CheckState.NOTE) if states[state]]
    found = [counted(states[state], state.value) for state in wrong] or ["all in order"]
    data = {"checks": [check.to_json() for check in checks]}
    head = doc.Title("nbcache doctor", [counted(len(checks), "check"), *found])
    return render([head, table], data, "checks")


def render_activity(now: Activity) -> Rendered:
    """Return the live line."""
    html = to_html([doc.Title("nbcache", activity_parts(now, BAR))])
    return Rendered(f"nbcache: {DOT.join(activity_parts(now))}", html)


def _notices(notices: Iterable[str]) -> list[doc.Line]:
    return [line(notice, mark=doc.Mark.NOTICE) for notice in notices]
