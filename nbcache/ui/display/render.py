"""Show reports, the session, settings, checks and the live line, as text and as HTML: values in, strings out.

The HTML keeps to what JupyterLab's sanitizer leaves of an untrusted notebook: inline styles with plain
values, `<details>`, no `<style>`, `<script>` or `<svg>`. It sets no text colour, so that it reads in light
and dark themes alike. The text is at most `WIDTH` wide, and ASCII but for a dash and a middle dot.
"""

from __future__ import annotations

import enum
import json
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from nbcache.core.model import Activity, CellReport, GraphRecord, Outcome
from nbcache.kernel.prewarming import Prewarming
from nbcache.shared.level import SharedFigures
from nbcache.ui.display.words import (
    DOT,
    LONG,
    NOTHING,
    aligned,
    counted,
    duration,
    explanations,
    kernels,
    one_line,
    percent,
    phases,
    ranked_reasons,
    saved,
    short_location,
    size,
    source,
    taken,
    totals,
)

__all__ = [
    "WIDTH",
    "Check",
    "CheckState",
    "Rendered",
    "SettingRow",
    "StoreFigures",
    "activity_html",
    "activity_text",
    "checks_html",
    "checks_text",
    "prewarming_parts",
    "render_activity",
    "render_checks",
    "render_idle",
    "render_report",
    "render_settings",
    "render_status",
    "report_html",
    "report_text",
    "settings_html",
    "settings_text",
    "shared_parts",
    "status_html",
    "status_text",
    "store_parts",
]

WIDTH = 110
"""Columns that a line of text may have."""
JSON_LIMIT = 16_384
"""Bytes of JSON above which a report is displayed without it, to keep notebooks small."""
SHORT = 100
"""Characters of a reason that the HTML table shows; the rest is one click away."""
DOING = {
    "dynamo": "tracing",
    "aot": "AOTAutograd",
    "inductor": "generating code",
    "build": "building kernels",
    "wait": "waiting for another kernel",
    "load": "looking in the cache",
}
"""The phases of `Activity.phase`, as the live line says them."""
TORCH_SETTINGS = "torch's caches"
"""What stands above torch's cache settings."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a person sees, ready for IPython's `display`: text in a terminal, HTML in a notebook."""

    text: str
    html: str
    data: Mapping[str, Any] | None = None
    """The same as JSON values; carried along where small."""
    mime: str = "application/vnd.nbcache.report+json"
    """MIME type of `data`."""

    def bundle(self) -> dict[str, Any]:
        """Return the MIME bundle; `data` is left out above 16 KiB of JSON."""
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": self.html}
        if self.data is not None and len(json.dumps(self.data)) <= JSON_LIMIT:
            bundle[self.mime] = dict(self.data)
        return bundle

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return self.bundle()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """What a store holds: one line of the status."""

    name: str
    """As people know it: `local store`, `redis://host/0`; free of secrets."""
    entries: int
    bytes: int
    limit: int | None = None
    """Bytes that it may hold; None where it is unbounded."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as `%nbcache config` shows it."""

    name: str
    value: str
    """As text, free of secrets."""
    origin: str
    """Where the value comes from: `default`, `%config`, an environment variable's name, …"""
    help: str
    note: str = ""
    """What to know about this value: that torch ignores it, that it takes effect after a restart."""


class CheckState(enum.StrEnum):
    """What a check of `%nbcache doctor` found."""

    OK = "ok"
    NOTE = "note"
    """nbcache works, but not in full, or not as one may think."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that nbcache needs, and how it is here: a row of `%nbcache doctor`."""

    name: str
    state: CheckState
    found: str
    next_step: str = ""
    """What to do; empty where the state is `ok`."""

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON values, by the names that docs/json.md documents."""
        return {
            "name": self.name,
            "state": self.state.value,
            "found": self.found,
            "next_step": self.next_step or None,
        }


def render_report(report: CellReport, *, stored: bool = True, why: str = "") -> Rendered:
    """Return the report after a cell; `stored` and `why` as in `report_text`."""
    text = report_text(report, stored=stored, why=why)
    html = report_html(report, stored=stored, why=why)
    return Rendered(text, html, report.to_json())


def render_notices(report: CellReport) -> Rendered:
    """Return a report's notices alone, for a cell whose report is not to be shown."""
    text = "\n".join(["nbcache", *_notices_text(report.notices)])
    return Rendered(text, _tag("div", BOX, _head("nbcache", []), _notices_html(report.notices)))


def render_status(
    reports: Sequence[CellReport],
    stores: Sequence[StoreFigures],
    prewarming: Prewarming,
    shared: SharedFigures | None = None,
) -> Rendered:
    """Return the session by cell and graph; `shared` is the store that it is connected to, if it is."""
    data = {
        "cells": [report.to_json() for report in reports],
        "stores": [asdict(store) for store in stores],
        "prewarm": prewarming.to_json(),
        "shared": None if shared is None else asdict(shared),
    }
    facts = [*map(store_parts, stores), shared_parts(shared), prewarming_parts(prewarming)]
    text, html = status_text(reports, facts), status_html(reports, facts)
    return Rendered(text, html, data, "application/vnd.nbcache.status+json")


def render_settings(rows: Sequence[SettingRow], torch_rows: Sequence[SettingRow] = ()) -> Rendered:
    """Return nbcache's settings, and those of torch's caches."""
    data = {"settings": [asdict(row) for row in rows], "torch": [asdict(row) for row in torch_rows]}
    text, html = settings_text(rows, torch_rows), settings_html(rows, torch_rows)
    return Rendered(text, html, data, "application/vnd.nbcache.settings+json")


def render_checks(checks: Sequence[Check]) -> Rendered:
    """Return what was checked."""
    data = {"checks": [check.to_json() for check in checks]}
    return Rendered(checks_text(checks), checks_html(checks), data, "application/vnd.nbcache.checks+json")


def render_activity(now: Activity) -> Rendered:
    """Return the live line."""
    return Rendered(activity_text(now), activity_html(now))


def render_idle(last: Activity) -> Rendered:
    """Return the live line while the cell runs but compiles nothing; `last` is what it compiled before."""
    parts = ["running the cell"]
    if last.phase != "restoring":
        parts.append(f"last compiled {one_line(last.function, 60)} {last.compile_id}".rstrip())
    return Rendered("nbcache: " + DOT.join(parts), _tag("div", BOX, _head("nbcache", parts)))


# What text and HTML share


def store_parts(store: StoreFigures) -> list[str]:
    """Return a store in words: its name, entries, bytes."""
    held = size(store.bytes)
    if store.limit is not None:
        held += f" of {size(store.limit)} ({percent(store.bytes, store.limit)})"
    return [store.name, counted(store.entries, "entry", "entries"), held]


def shared_parts(shared: SharedFigures | None) -> list[str]:
    """Return in words what was shared; nothing where this kernel is not connected."""
    if shared is None:
        return []
    parts = [shared.name, f"{shared.found} found", f"{shared.published} published"]
    if shared.waiting:
        parts.append(f"{size(shared.waiting)} to be written")
    return parts + ([f"off for now: {one_line(shared.off)}"] if shared.off else [])


def prewarming_parts(prewarming: Prewarming) -> list[str]:
    """Return in words how far prewarming is; nothing where it has not begun."""
    if not prewarming.slices:
        return []
    done = sum(each.seconds for each in prewarming.slices)
    longest = max(prewarming.slices, key=lambda each: each.seconds)
    return [
        "prewarmed" if prewarming.state == "done" else f"prewarming ({prewarming.state})",
        f"{duration(done)} of idle time in {counted(len(prewarming.slices), 'slice')}",
        f"longest {duration(longest.seconds)} ({longest.name})",
    ]


def _session_totals(reports: Sequence[CellReport]) -> list[str]:
    first, *rest = totals([graph for report in reports for graph in report.graphs])
    runs = sum(bool(report.graphs) for report in reports)
    return [f"{first} in {counted(runs, 'cell run')}" if runs else first, *rest]


def _notices(reports: Sequence[CellReport]) -> list[str]:
    return list(dict.fromkeys(notice for report in reports for notice in report.notices))


def _check_totals(checks: Sequence[Check]) -> list[str]:
    states = Counter(check.state for check in checks)
    wrong = [state for state in (CheckState.PROBLEM, CheckState.NOTE) if states[state]]
    said = [counted(states[state], state.value) for state in wrong] or ["all in order"]
    return [counted(len(checks), "check"), *said]


def _label(report: CellReport) -> str:
    label = report.cell.label if report.cell else "outside cells"
    return f"{label} {one_line(report.name)}" if report.name else label


def _title(report: CellReport) -> str:
    return f"nbcache {one_line(report.name)}" if report.name else "nbcache"


def _activity_parts(now: Activity) -> list[str]:
    # Whole seconds from 10 s on: fewer updates of a line that stands for long.
    clock = f"{now.seconds:.1f} s" if now.seconds < 9.95 else duration(now.seconds)
    if 9.95 <= now.seconds < 59.5:
        clock = f"{now.seconds:.0f} s"
    if now.phase == "restoring":
        parts = ["restoring " + one_line(now.function or "artifacts", 60), clock]
    else:
        what = f"compiling {one_line(now.function, 60)} {now.compile_id}".rstrip()
        parts = [what, one_line(DOING.get(now.phase, now.phase), 30), clock]
        if now.compiled_by:
            since = duration(max(0.0, round(time.time() - now.compiled_since)))
            what = f"waiting for {one_line(now.function, 60)} {now.compile_id}".rstrip()
            parts = [what, f"{one_line(now.compiled_by, 60)} is compiling this, {since}"]
    if now.graphs_done:
        parts.append(f"{counted(now.graphs_done, 'graph')} done")
    return parts


# Text

HEADERS = ("function", "graph", "direction", "outcome", "from", "time", "saved", "ops", "kernels")
RIGHT = (5, 6, 7)
"""Columns of `HEADERS` that hold numbers."""


def report_text(report: CellReport, *, stored: bool = True, why: str = "") -> str:
    """Return the report after a cell for a terminal.

    `stored` tells whether what missed is now in a store, so that the next run will hit it; `why` is why it is
    not, or what may make one doubt that it is.
    """
    lines = _joined(_title(report), totals(report.graphs, stored=stored, why=why))
    return "\n".join([*lines, *_table_text(report.graphs), *_notices_text(report.notices)])


def status_text(reports: Sequence[CellReport], facts: Sequence[Sequence[str]]) -> str:
    """Return the session for a terminal: totals, facts in parts, reasons, then each run of a cell."""
    lines = _joined("nbcache session", _session_totals(reports))
    lines += ["  " + one_line(DOT.join(parts), WIDTH - 2) for parts in facts if parts]
    lines += _notices_text(_notices(reports))
    if ranked := ranked_reasons(graph for report in reports for graph in report.graphs):
        table = [(str(count), duration(seconds), one_line(why, 80)) for why, count, seconds in ranked]
        ranked_lines = aligned([("graphs", "time", "not hit because"), *table], right=(0, 1))
        lines += ["", *("  " + line for line in ranked_lines)]
    for report in reports:
        if report.graphs:
            lines += ["", *_joined(_label(report), totals(report.graphs))]
            lines += _table_text(report.graphs)
    return "\n".join(lines)


def settings_text(rows: Sequence[SettingRow], torch_rows: Sequence[SettingRow] = ()) -> str:
    """Return settings for a terminal, those of torch's caches in a block of their own."""
    lines = _settings_text(rows)
    if torch_rows:
        lines += ["", TORCH_SETTINGS, *_settings_text(torch_rows)]
    return "\n".join(lines)


def _settings_text(rows: Sequence[SettingRow]) -> list[str]:
    """Return settings as lines: name, value, origin, and the description beside or beneath them."""
    cells = [(row.name, one_line(row.value) or NOTHING, one_line(row.origin)) for row in rows]
    widths = [
        max((len(cell[i]) for cell in cells if len(cell[i]) <= widest), default=0)
        for i, widest in enumerate((36, 24, 24))
    ]
    start = sum(widths) + 2 * len(widths)
    lines = []
    for row, cell in zip(rows, cells, strict=True):
        head = "  ".join(cell[i].ljust(widths[i]) for i in range(3)).rstrip()
        about = textwrap.wrap(one_line(row.help), WIDTH - start)
        about += textwrap.wrap("! " + one_line(row.note), WIDTH - start) if row.note else []
        if about and len(head) <= start - 2:
            head = head.ljust(start) + about.pop(0)
        lines += [head, *(" " * start + line for line in about)]
    return lines


def checks_text(checks: Sequence[Check]) -> str:
    """Return checks for a terminal: name, state, what was found, and the next step beneath it."""
    lines = _joined("nbcache doctor", _check_totals(checks))
    heads = aligned([(check.name, check.state.value) for check in checks], right=())
    start = 2 + max(map(len, heads), default=0) + 2
    for check, head in zip(checks, heads, strict=True):
        about = _beside(check.found, start)
        about += _beside(f"next: {check.next_step}", start) if check.next_step else []
        lines.append(f"  {head}".ljust(start) + about[0])
        lines += [" " * start + line for line in about[1:]]
    return "\n".join(lines)


def activity_text(now: Activity) -> str:
    """Return the live line; while `restoring`, `function` says what: `12 of 40 artifacts`."""
    return "nbcache: " + DOT.join(_activity_parts(now))


def _joined(label: str, parts: Sequence[str]) -> list[str]:
    """Return parts on one line, or, too wide, on several that break between parts."""
    lines = [label]
    for part in parts:
        fits = len(lines[-1]) + len(DOT + part) <= WIDTH
        lines[-1:] = [lines[-1] + DOT + part] if fits else [lines[-1], "  " + part]
    return lines


def _beside(text: str, start: int) -> list[str]:
    """Return text as lines for a column that begins at `start`; paths and commands break at spaces only."""
    return textwrap.wrap(one_line(text), WIDTH - start, break_on_hyphens=False) or [NOTHING]


def _wrapped(text: str, indent: int = 0) -> list[str]:
    lead, rest = " " * indent, " " * (indent + 2)
    return textwrap.wrap(one_line(text, 4 * WIDTH), WIDTH, initial_indent=lead, subsequent_indent=rest)


def _table_text(graphs: Sequence[GraphRecord]) -> list[str]:
    """Return the table's lines, what there is to explain beneath each row."""
    if not graphs:
        return []
    rows = [
        [
            one_line(graph.function),
            graph.compile_id,
            graph.direction.value,
            graph.outcome.value,
            one_line(source(graph)),
            taken(graph),
            saved(graph),
            NOTHING if graph.operators is None else str(graph.operators),
            kernels(graph),
        ]
        for graph in graphs
    ]
    widths = [max(map(len, column)) for column in zip(HEADERS, *rows, strict=True)]
    # The function, its location and the source share what the other columns leave; in need, the
    # location goes first, then the longer of the two is cut.
    room = WIDTH - 2 - sum(2 + width for i, width in enumerate(widths) if i not in (0, 4)) - 2
    from_width = min(widths[4], max(room // 2, room - widths[0]))
    for row, graph in zip(rows, graphs, strict=True):
        row[4] = one_line(row[4], from_width)
        placed = f"{row[0]} {short_location(graph)}".rstrip()
        row[0] = placed if len(placed) <= room - from_width else one_line(row[0], room - from_width)
    head, *body = ("  " + line for line in aligned([HEADERS, *rows], RIGHT))
    lines = [head]
    for line, graph in zip(body, graphs, strict=True):
        lines.append(line)
        for label, text in explanations(graph):
            lines += _wrapped(f"{label}: {text}", 4)
    return lines


def _notices_text(notices: Iterable[str]) -> list[str]:
    return [line for notice in notices for line in _wrapped("! " + notice, 2)]


# HTML: what comes from outside passes through `_text`

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
    head = _head(_title(report), totals(report.graphs, stored=stored, why=why))
    shown = _folded(head, _table_html(report.graphs), is_open=True) if report.graphs else head
    return _tag("div", BOX, shown, _notices_html(report.notices))


def status_html(reports: Sequence[CellReport], facts: Sequence[Sequence[str]]) -> str:
    """Return the session for a notebook: totals, facts, reasons, then each run of a cell, folded if many."""
    parts = [_tag("div", "", _head("nbcache session", _session_totals(reports)))]
    parts += [_tag("div", FAINT, _text(DOT.join(each))) for each in facts if each]
    parts.append(_notices_html(_notices(reports)))
    if ranked := ranked_reasons(graph for report in reports for graph in report.graphs):
        rows = [[str(count), duration(seconds), _text(why, 120)] for why, count, seconds in ranked]
        parts.append(_rows([("graphs", NUMBER), ("time", NUMBER), ("not hit because", LAST)], rows))
    runs = [report for report in reports if report.graphs]
    parts += [
        _folded(_head(_label(run), totals(run.graphs)), _table_html(run.graphs), is_open=len(runs) <= 3)
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
    table = [
        [
            _text(row.name, style=CODE),
            _text(row.value or NOTHING, style=CODE + ";word-wrap:break-word"),
            _text(row.origin, style=FAINT if row.origin == "default" else ""),
            _text(row.help) + _notices_html([row.note] if row.note else []),
        ]
        for row in rows
    ]
    headers = [("setting", CELL), ("value", WRAPPED), ("origin", CELL), ("description", LAST)]
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
    return _tag("div", BOX, _head("nbcache doctor", _check_totals(checks)), _rows(headers, table))


def activity_html(now: Activity) -> str:
    """Return the live line for a notebook."""
    return _tag("div", BOX, _head("nbcache", _activity_parts(now)))


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
            _tag("span", style, escape(text[:LONG])),
        )
        for label, text, style in known
        if text
    )
    head = f"{_text(graph.function, 60, CODE)} {_text(f'{graph.compile_id} {graph.direction.value}')}"
    return _tag("div", "padding-left:14px", _folded(head, "".join(lines), is_open=is_open))
