"""Render graphs, why they missed, a cell's report, the session, settings, checks and the live line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from nbcache.core.reports import Activity, CellReport, GraphContents, GraphRecord
from nbcache.core.text import DOT, NOTHING, counted, one_line, printable, size
from nbcache.kernel.explain.stats import tally
from nbcache.kernel.explain.why import Why
from nbcache.kernel.prewarming import Prewarming
from nbcache.kernel.reasons import NOT_STORED
from nbcache.sharing.live.level import SharedFigures
from nbcache.torch_bridge.cache_settings import CacheSetting
from nbcache.ui.display import document as doc
from nbcache.ui.display import words
from nbcache.ui.display.document import badge, code, faint, label_line, line
from nbcache.ui.display.render import Rendered, render, to_html
from nbcache.ui.display.stats import reason_table
from nbcache.ui.display.words import BAR, Check, CheckState, StoreFigures, activity_parts, totals

_SHORT = 100
"""Characters of a reason in the HTML table; the details have the whole reason."""
_MOST_LINES, _LONGEST_LINE = 400, 400
"""Lines of code that are shown, and characters of each."""
_COLUMNS = (
    *map(doc.Column, ("function", "graph", "outcome", "from")),
    *(doc.Column(title, doc.Wrap.NUMBER) for title in ("time", "saved", "ops")),
    doc.Column("kernels"),
)


def graph_blocks(graphs: Sequence[GraphRecord]) -> list[doc.Block]:
    """Return graphs as a table; HTML also has a folded section with the details of each graph."""
    if not graphs:
        return []
    rows = [
        doc.Row(
            [
                [code(graph.function, 40), faint(words.short_location(graph), 30)],
                [graph.compile_id, faint(graph.direction.value)],
                badge(graph.outcome.value),
                doc.Span(words.source(graph), limit=32),
                words.time_words(graph),
                words.saved_words(graph),
                NOTHING if graph.operators is None else str(graph.operators),
                str(graph.kernels or NOTHING)
                + (f" ({graph.kernels_compiled} compiled)" if graph.kernels_compiled else ""),
            ],
            [label_line(label, text, limit=_SHORT) for label, text in words.explanations(graph)],
        )
        for graph in graphs
    ]
    few = len(graphs) <= 3
    details = [
        doc.Folded(line(code(graph.function, 60), _id(graph)), detail(Why(graph)), is_open=few)
        for graph in graphs
    ]
    return [
        doc.Table(_COLUMNS, rows, notes="reason"),
        doc.Folded(line(faint("details")), details, in_text=doc.InText.NOTHING),
    ]


def detail(why: Why, contents: GraphContents | None = None) -> list[doc.Block]:
    """Return all details of a graph; `contents` adds its guards and generated code."""
    blocks = [*_why_lines(why), *_facts(why.graph)]
    return blocks if contents is None else [*blocks, *_contents(why.graph, contents)]


def render_graph(why: Why, contents: GraphContents) -> Rendered:
    graph = why.graph
    data = {**why.to_json(), **contents.to_json(), "code_path": graph.code_path or None}
    head = doc.Title(
        f"{graph.function} {words.short_location(graph)} {_id(graph)}",
        [badge(graph.outcome.value, _outcome(graph)), words.time_words(graph)],
    )
    return render([head, *detail(why, contents)], data, "graph")


def render_why(rows: Sequence[Why], notices: Sequence[str] = (), remark: str = "") -> Rendered:
    """Return why graphs missed, and notices; `remark` names their cell, or why the list is empty."""
    parts = [remark] if remark else [] if rows or notices else ["no graph has compiled yet"]
    blocks: list[doc.Block] = [doc.Title("nbcache why", parts)]
    lines: list[doc.Block] = []
    for row in rows:
        graph, place = row.graph, words.short_location(row.graph)
        outcome = badge(graph.outcome.value, DOT.join([_outcome(graph), words.time_words(graph)]))
        blocks.append(line(code(f"{graph.function} {place}"), faint(f"{_id(graph)}:"), outcome))
        above, lines = lines, [*_why_lines(row, level=1)]
        blocks += lines if lines != above else [line(faint("as above"), level=1)]
    blocks += [line(notice, mark=doc.Mark.NOTICE) for notice in notices]
    data = {"graphs": [row.to_json() for row in rows], "notices": list(notices)}
    return render(blocks, data, "why")


def graph_line(graph: GraphRecord) -> doc.Line:
    """Return a graph on one line, the heading above its details."""
    outcome, saved, source = graph.outcome.value, words.saved_words(graph), words.source(graph)
    facts = [words.time_words(graph)]
    facts += [f"saved {saved}"] if saved != NOTHING else []
    facts += [source] if source != NOTHING else []
    reasons = words.explanations(graph)
    facts += [text if label == outcome else f"{label}: {text}" for label, text in reasons]
    name = [code(graph.function, 40), faint(words.short_location(graph), 30), faint(_id(graph))]
    return line(*name, badge(outcome), doc.Span(DOT.join(facts), limit=160))


def _outcome(graph: GraphRecord) -> str:
    origin = f" from {words.source(graph)}" if graph.level is not None else ""
    return f"{graph.outcome.value}{origin}"


def _id(graph: GraphRecord) -> str:
    return f"{graph.compile_id} {graph.direction.value}"


def _why_lines(why: Why, level: int = 0) -> Iterator[doc.Block]:
    explanation = why.explanation
    clause = None if explanation is None else explanation.clause()  # the differences below say more
    for label, text in words.explanations(why.graph):
        if text != f"{NOT_STORED}{clause}":
            yield label_line(label, text.removesuffix(f"; {clause}"), doc.Style.WHOLE, level)
        if label == "recompile" and why.meter:
            yield label_line("so far", why.meter, level=level)
        if label == "graph break" and why.cost:
            yield label_line("cost", why.cost, level=level)
    for difference in () if explanation is None else explanation.differences:
        yield label_line("differs", difference.words(), level=level)
    if why.action:
        yield label_line("next", why.action, level=level)


def _facts(graph: GraphRecord) -> Iterator[doc.Block]:
    artifacts = DOT.join(f"{kind} {size(count)}" for kind, count in graph.bytes.items())
    operators = "" if graph.operators is None else str(graph.operators)
    plain = (("time", words.phases(graph)), ("artifacts", artifacts), ("operators", operators))
    yield from (label_line(label, text) for label, text in plain if text)
    paths = (("key", graph.key or ""), ("defined", graph.location))
    yield from (label_line(label, text, doc.Style.PATH) for label, text in paths if text)


def _contents(graph: GraphRecord, contents: GraphContents) -> Iterator[doc.Block]:
    if contents.no_guards:
        yield label_line("guards", contents.no_guards)
    else:
        head = label_line("guards", f"{len(contents.guards)}, all of which hold when torch runs this graph")
        yield doc.Folded(head, [doc.Code(contents.guards, is_python=False)])
    if contents.no_code:
        yield label_line("generated code", contents.no_code)
        return
    every = contents.code.splitlines()
    lines = [printable(line.expandtabs(4))[:_LONGEST_LINE] for line in every[:_MOST_LINES]]
    count = counted(len(every), "line")
    count = f"the first {len(lines)} of {count}" if len(every) > len(lines) else count
    facts = DOT.join(filter(None, [count, size(len(contents.code.encode())), graph.code_path]))
    yield doc.Folded(line(faint("generated code:"), faint(one_line(facts))), [doc.Code(lines)])


def render_report(report: CellReport, *, stored: bool = True, why: str = "") -> Rendered:
    """Return the report after a cell; `stored` and `why` as in `totals`."""
    label = f"nbcache {one_line(report.name)}" if report.name else "nbcache"
    head = doc.Title(label, totals(report.graphs, stored=stored, why=why))
    blocks: list[doc.Block] = [
        doc.Folded(head, graph_blocks(report.graphs), is_open=any(map(words.explanations, report.graphs))),
        *_notices(report.notices),
    ]
    return render(blocks, report.to_json())


def render_notices(report: CellReport) -> Rendered:
    """Return only the notices of a cell, whose report the settings hide."""
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
    first, *more = totals(graphs)
    in_runs = f" in {len(runs)} cell run{'s' if len(runs) > 1 else ''}" if runs else ""
    blocks: list[doc.Block] = [doc.Title("nbcache session", [first + in_runs, *more])]
    forked = [f"forked from nursery {nursery}", "imports were done before"] if nursery else []
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
    label = report.cell.label if report.cell else "outside cells"
    name = f"{label} {one_line(report.name)}" if report.name else label
    return doc.Folded(doc.Title(name, totals(report.graphs)), graph_blocks(report.graphs), is_open=is_open)


def render_settings(rows: Sequence[CacheSetting], torch_rows: Sequence[CacheSetting] = ()) -> Rendered:
    data = {"settings": [asdict(row) for row in rows], "torch": [asdict(row) for row in torch_rows]}
    return render(settings_blocks(rows, torch_rows), data, "settings")


def settings_blocks(rows: Sequence[CacheSetting], torch_rows: Sequence[CacheSetting] = ()) -> list[doc.Block]:
    blocks: list[doc.Block] = [_settings(rows)]
    return blocks + ([doc.Title("torch's caches"), _settings(torch_rows)] if torch_rows else [])


def _settings(rows: Sequence[CacheSetting]) -> doc.Table:
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
    return doc.Table([*columns, doc.Column("meaning", doc.Wrap.REST)], table)


def render_checks(checks: Sequence[Check]) -> Rendered:
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
    counts = [counted(states[state], state.value) for state in wrong] or ["all in order"]
    data = {"checks": [check.to_json() for check in checks]}
    head = doc.Title("nbcache doctor", [counted(len(checks), "check"), *counts])
    return render([head, table], data, "checks")


def render_activity(activity: Activity) -> Rendered:
    html = to_html([doc.Title("nbcache", activity_parts(activity, BAR))])
    return Rendered(f"nbcache: {DOT.join(activity_parts(activity))}", html)


def _notices(notices: Iterable[str]) -> list[doc.Line]:
    return [line(notice, mark=doc.Mark.NOTICE) for notice in notices]
