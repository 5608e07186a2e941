"""Reports, status, settings and checks as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from nbcache.core.model import Outcome
from nbcache.core.reports import Activity, CellReport, GraphRecord
from nbcache.core.text import DOT, LONG, NOTHING, duration, one_line, printable, size
from nbcache.ui.display.rows import (
    SHORT,
    TORCH_SETTINGS,
    Check,
    CheckState,
    SettingRow,
    activity_parts,
    check_totals,
    graph_label,
    notices_of,
    report_title,
    session_totals,
)
from nbcache.ui.display.words import (
    explanations,
    kernels,
    phases,
    ranked_reasons,
    saved,
    short_location,
    source,
    taken,
    totals,
)

__all__ = [
    "BADGES",
    "BOX",
    "CELL",
    "CODE",
    "FAINT",
    "LAST",
    "LINE",
    "NOTICE",
    "NUMBER",
    "WRAPPED",
    "activity_html",
    "checks_html",
    "report_html",
    "settings_html",
    "status_html",
]


LINE = "rgba(128,128,128,0.3)"


BADGES: Mapping[Outcome | CheckState, str] = {
    Outcome.HIT: "rgba(46,160,67,0.28)",
    Outcome.MISS: "rgba(219,148,0,0.32)",
    Outcome.BYPASS: "rgba(128,128,128,0.28)",
    Outcome.DISABLED: "rgba(128,128,128,0.28)",
    CheckState.OK: "rgba(46,160,67,0.28)",
    CheckState.NOTE: "rgba(219,148,0,0.32)",
    CheckState.PROBLEM: "rgba(218,54,51,0.32)",
}


BOX = "font-size:13px;line-height:1.5;margin:2px 0"


FAINT = "opacity:0.65"


BAR = ("\N{FULL BLOCK}", "\N{LIGHT SHADE}")
"""What a bar is drawn with, full and empty."""


CODE = "font-family:monospace;font-size:12px"


NOTICE = "border-left:3px solid rgba(219,148,0,0.8);padding-left:8px;margin:3px 0"


CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:top;border:none;white-space:nowrap"


NUMBER = CELL.replace("left;", "right;")


WRAPPED = CELL.replace("nowrap", "normal")


LAST = WRAPPED + ";width:100%;min-width:160px"


def report_html(report: CellReport, *, stored: bool = True, why: str = "") -> str:
    """Return the report after a cell for a notebook: the totals, and the table folded below them.

    `stored` and `why` as in `report_text`.
    """
    head = _head(report_title(report), totals(report.graphs, stored=stored, why=why))
    shown = _folded(head, _table_html(report.graphs), is_open=True) if report.graphs else head
    return _tag("div", BOX, shown, _notices_html(report.notices))


def status_html(reports: Sequence[CellReport], facts: Sequence[Sequence[str]]) -> str:
    """Return the session for a notebook: totals, facts, reasons, then each run of a cell, folded if many."""
    parts = [_tag("div", "", _head("nbcache session", session_totals(reports)))]
    parts += [_tag("div", FAINT, _text(DOT.join(each))) for each in facts if each]
    parts.append(_notices_html(notices_of(reports)))
    if ranked := ranked_reasons(graph for report in reports for graph in report.graphs):
        rows = [[str(count), duration(seconds), _text(why, 120)] for why, count, seconds in ranked]
        parts.append(_rows([("graphs", NUMBER), ("time", NUMBER), ("not hit because", LAST)], rows))
    runs = [report for report in reports if report.graphs]
    parts += [
        _folded(_head(graph_label(run), totals(run.graphs)), _table_html(run.graphs), is_open=len(runs) <= 3)
        for run in runs
    ]
    return _tag("div", BOX, *parts)


def settings_html(rows: Sequence[SettingRow], torch_rows: Sequence[SettingRow] = ()) -> str:
    """Return settings for a notebook, as a table, those of torch's caches in one of their own."""
    tables = [_settings_html(rows)]
    if torch_rows:
        tables += [_tag("div", "", _head(TORCH_SETTINGS, [])), _settings_html(torch_rows)]
    return _tag("div", BOX, *tables)


def _settings_html(rows: Sequence[SettingRow]) -> str:
    """Return settings in two columns, which fit a narrow page: name and origin, value and description."""
    named = CODE + ";word-break:break-all"
    table = [
        [
            _tag("div", "", _text(row.name, style=named))
            + _tag("div", "", _text(row.origin, style=FAINT if row.origin == "default" else "")),
            _tag("div", "", _text(row.value or NOTHING, style=named))
            + _tag("div", "", _text(row.help, style=FAINT))
            + _notices_html([row.note] if row.note else []),
        ]
        for row in rows
    ]
    headers = [
        ("setting, and where its value is from", WRAPPED + ";min-width:130px"),
        ("value, and what it is for", WRAPPED + ";min-width:160px"),
    ]
    return _rows(headers, table)


def checks_html(checks: Sequence[Check]) -> str:
    """Return checks for a notebook, as a table."""
    table = [
        [
            _text(check.name),
            _badge(check.state),
            _text(check.found) + _notices_html([f"next: {check.next_step}"] if check.next_step else []),
        ]
        for check in checks
    ]
    headers = [("check", CELL), ("state", CELL), ("found", LAST)]
    return _tag("div", BOX, _head("nbcache doctor", check_totals(checks)), _rows(headers, table))


def activity_html(now: Activity) -> str:
    """Return the live line for a notebook."""
    return _tag("div", BOX, _head("nbcache", activity_parts(now, BAR)))


def _tag(name: str, style: str, *inner: str, attributes: str = "") -> str:
    """Return an element; `inner` and `attributes` are HTML already."""
    styled = f' style="{style}"' if style else ""
    return f"<{name}{attributes}{styled}>{''.join(inner)}</{name}>"


def _text(text: str, limit: int = LONG, style: str = "") -> str:
    """Return text as HTML, on one line; where it is cut, all of it is in its tooltip."""
    shown = one_line(text, limit)
    title = "" if shown == one_line(text) else f' title="{escape(one_line(text))}"'
    return _tag("span", style, escape(shown), attributes=title) if title or style else escape(shown)


def _badge(state: Outcome | CheckState) -> str:
    style = f"background-color:{BADGES[state]};border-radius:8px;padding:0 8px;font-size:12px"
    return _text(state.value, style=style)


def _head(label: str, parts: Sequence[str]) -> str:
    return DOT.join([f"<b>{_text(label)}</b>", *(_text(part) for part in parts)])


def _folded(summary: str, inner: str, *, is_open: bool) -> str:
    line = _tag("summary", "cursor:pointer", summary)
    return _tag("details", "margin:2px 0", line, inner, attributes=" open" if is_open else "")


def _notices_html(notices: Iterable[str]) -> str:
    return "".join(_tag("div", NOTICE, _text(notice)) for notice in notices)


def _rows(headers: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; `headers` are (text, style of the column), the cells HTML already."""
    head = "".join(
        _tag("th", f"{style};font-weight:normal;{FAINT}", text, attributes=' scope="col"')
        for text, style in headers
    )
    row_style = f"border-top:1px solid {LINE};background-color:transparent"
    body = "".join(
        _tag(
            "tr", row_style, *(_tag("td", style, cell) for (_, style), cell in zip(headers, row, strict=True))
        )
        for row in rows
    )
    style = "border-collapse:collapse;border:none;table-layout:auto;margin:2px 0;font-size:13px;width:100%"
    table = _tag("table", style, f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>")
    return _tag("div", "overflow-x:auto", table)


def _table_html(graphs: Sequence[GraphRecord]) -> str:
    headers = [("function", CELL), ("graph", CELL), ("outcome", CELL), ("from", CELL), ("time", NUMBER)]
    headers += [("saved", NUMBER), ("ops", NUMBER), ("kernels", LAST)]
    if any(map(explanations, graphs)):
        headers[-1:] = [("kernels", CELL), ("reason", LAST)]
    rows = []
    for graph in graphs:
        place = _text(one_line(short_location(graph), 30), style=FAINT + ";font-size:12px")
        rows.append(
            [
                f"{_text(graph.function, 40, CODE)} {place}",
                f"{_text(graph.compile_id)} {_text(graph.direction.value, style=FAINT)}",
                _badge(graph.outcome),
                _text(source(graph), 32),
                taken(graph),
                saved(graph),
                NOTHING if graph.operators is None else str(graph.operators),
                kernels(graph),
                _reasons(graph),
            ][: len(headers)]
        )
    details = "".join(_details(graph, is_open=len(graphs) <= 3) for graph in graphs)
    return _rows(headers, rows) + _folded(_text("details", style=FAINT), details, is_open=False)


def _reasons(graph: GraphRecord) -> str:
    """Return what there is to explain, one line each; the outcome has a column of its own."""
    return "".join(
        _tag("div", "", _text(text if label == graph.outcome.value else f"{label}: {text}", SHORT))
        for label, text in explanations(graph)
    )


def _details(graph: GraphRecord, *, is_open: bool) -> str:
    """Return everything that is known of a graph, folded, at full width."""
    by_type = DOT.join(f"{kind} {size(count)}" for kind, count in graph.bytes.items())
    known = [
        *((label, text, "white-space:pre-wrap;word-wrap:break-word") for label, text in explanations(graph)),
        ("time", phases(graph), ""),
        ("bytes", by_type, ""),
        ("key", graph.key or "", CODE + ";word-break:break-all"),
        ("defined", graph.location, CODE + ";word-break:break-all"),
    ]
    lines = (
        _tag(
            "div",
            "padding-left:14px",
            _text(label, style=FAINT),
            " ",
            _tag("span", style, escape("\n".join(map(printable, text[:LONG].splitlines())))),
        )
        for label, text, style in known
        if text
    )
    head = f"{_text(graph.function, 60, CODE)} {_text(f'{graph.compile_id} {graph.direction.value}')}"
    return _tag("div", "padding-left:14px", _folded(head, "".join(lines), is_open=is_open))
