"""Reports, status, settings and checks as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from nbcache.core.reports import Activity, CellReport, GraphRecord
from nbcache.core.text import DOT, NOTHING, aligned, duration, one_line
from nbcache.ui.display.rows import (
    TORCH_SETTINGS,
    WIDTH,
    Check,
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
    ranked_reasons,
    saved,
    short_location,
    source,
    taken,
    totals,
)

__all__ = ["HEADERS", "RIGHT", "activity_text", "checks_text", "report_text", "settings_text", "status_text"]


HEADERS = ("function", "graph", "direction", "outcome", "from", "time", "saved", "ops", "kernels")


RIGHT = (5, 6, 7)
"""Columns of `HEADERS` that hold numbers."""


def report_text(report: CellReport, *, stored: bool = True, why: str = "") -> str:
    """Return the report after a cell for a terminal.

    `stored` tells whether what missed is now in a store, so that the next run will hit it; `why` is why it is
    not, or what may make one doubt that it is.
    """
    lines = _joined(report_title(report), totals(report.graphs, stored=stored, why=why))
    return "\n".join([*lines, *_table_text(report.graphs), *_notices_text(report.notices)])


def status_text(reports: Sequence[CellReport], facts: Sequence[Sequence[str]]) -> str:
    """Return the session for a terminal: totals, facts in parts, reasons, then each run of a cell."""
    lines = _joined("nbcache session", session_totals(reports))
    lines += ["  " + one_line(DOT.join(parts), WIDTH - 2) for parts in facts if parts]
    lines += _notices_text(notices_of(reports))
    if ranked := ranked_reasons(graph for report in reports for graph in report.graphs):
        table = [(str(count), duration(seconds), one_line(why, 80)) for why, count, seconds in ranked]
        ranked_lines = aligned([("graphs", "time", "not hit because"), *table], right=(0, 1))
        lines += ["", *("  " + line for line in ranked_lines)]
    for report in reports:
        if report.graphs:
            lines += ["", *_joined(graph_label(report), totals(report.graphs))]
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
    lines = _joined("nbcache doctor", check_totals(checks))
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
    return "nbcache: " + DOT.join(activity_parts(now))


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
