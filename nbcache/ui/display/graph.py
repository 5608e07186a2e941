"""Show graphs: a table of them, one graph whole, and why graphs missed and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nbcache.core.reports import GraphContents, GraphRecord
from nbcache.core.text import DOT, NOTHING, counted, one_line, printable, size
from nbcache.explain.why import Why
from nbcache.kernel.reasons import NOT_STORED
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import badge, code, faint, labelled, line
from nbcache.ui.display.render import Rendered, render
from nbcache.ui.display.words import explanations, kernels, phases, saved, short_location, source, taken

_SHORT = 100
"""Characters of a reason that the HTML table shows; the details have all of it."""
_MOST_LINES, _LONGEST_LINE = 400, 400
"""Lines of code that are shown, and characters of each."""
_COLUMNS = (
    *map(doc.Column, ("function", "graph", "outcome", "from")),
    *(doc.Column(title, doc.Wrap.NUMBER) for title in ("time", "saved", "ops")),
    doc.Column("kernels"),
)


def graph_blocks(graphs: Sequence[GraphRecord]) -> list[doc.Block]:
    """Return graphs as a table, and, folded in HTML, all details of each."""
    if not graphs:
        return []
    rows = [
        doc.Row(
            [
                [code(graph.function, 40), faint(short_location(graph), 30)],
                [graph.compile_id, faint(graph.direction.value)],
                badge(graph.outcome.value),
                doc.Span(source(graph), limit=32),
                taken(graph),
                saved(graph),
                NOTHING if graph.operators is None else str(graph.operators),
                kernels(graph),
            ],
            [labelled(label, text, limit=_SHORT) for label, text in explanations(graph)],
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
    """Return everything that is known of a graph; `contents` has its guards and code."""
    blocks = [*_why_lines(why), *_facts(why.graph)]
    return blocks if contents is None else [*blocks, *_contents(why.graph, contents)]


def render_graph(why: Why, contents: GraphContents) -> Rendered:
    """Return a graph whole."""
    graph = why.graph
    data = {**why.to_json(), **contents.to_json(), "code_path": graph.code_path or None}
    head = doc.Title(
        f"{graph.function} {short_location(graph)} {_id(graph)}",
        [badge(graph.outcome.value, _outcome(graph)), taken(graph)],
    )
    return render([head, *detail(why, contents)], data, "graph")


def render_why(rows: Sequence[Why], notices: Sequence[str] = (), remark: str = "") -> Rendered:
    """Return the reasons of graphs, and the notices; `remark` names them, or says why there is none."""
    parts = [remark] if remark else [] if rows or notices else ["no graph has compiled yet"]
    blocks: list[doc.Block] = [doc.Title("nbcache why", parts)]
    for row in rows:
        blocks += [_head(row.graph), *_why_lines(row, level=1)]
    blocks += [line(notice, mark=doc.Mark.NOTICE) for notice in notices]
    data = {"graphs": [row.to_json() for row in rows], "notices": list(notices)}
    return render(blocks, data, "why")


def _head(graph: GraphRecord) -> doc.Line:
    """Return the line that names a graph: what became of it, and the seconds that it took."""
    outcome = badge(graph.outcome.value, DOT.join([_outcome(graph), taken(graph)]))
    return line(code(f"{graph.function} {short_location(graph)}"), faint(f"{_id(graph)}:"), outcome)


def graph_line(graph: GraphRecord) -> doc.Line:
    """Return a graph on one line, for a section that opens to its details."""
    facts = [taken(graph)]
    facts += [f"saved {saved(graph)}"] if saved(graph) != NOTHING else []
    facts += [source(graph)] if source(graph) != NOTHING else []
    facts += [
        text if label == graph.outcome.value else f"{label}: {text}" for label, text in explanations(graph)
    ]
    name = [code(graph.function, 40), faint(short_location(graph), 30), faint(_id(graph))]
    return line(*name, badge(graph.outcome.value), doc.Span(DOT.join(facts), limit=160))


def _outcome(graph: GraphRecord) -> str:
    return f"{graph.outcome.value} from {source(graph)}" if graph.level is not None else graph.outcome.value


def _id(graph: GraphRecord) -> str:
    return f"{graph.compile_id} {graph.direction.value}"


def _why_lines(why: Why, level: int = 0) -> Iterator[doc.Block]:
    """Yield the reasons of a graph, and the next step."""
    explanation = why.explanation
    clause = None if explanation is None else explanation.clause()  # the differences below say more
    for label, text in explanations(why.graph):
        if text != f"{NOT_STORED}{clause}":
            yield labelled(label, text.removesuffix(f"; {clause}"), doc.Style.WHOLE, level)
        if label == "recompile" and why.meter:
            yield labelled("so far", why.meter, level=level)
        if label == "graph break" and why.cost:
            yield labelled("cost", why.cost, level=level)
    for difference in () if explanation is None else explanation.differences:
        yield labelled("differs", difference.words(), level=level)
    if why.action:
        yield labelled("next", why.action, level=level)


def _facts(graph: GraphRecord) -> Iterator[doc.Block]:
    artifacts = DOT.join(f"{kind} {size(count)}" for kind, count in graph.bytes.items())
    operators = "" if graph.operators is None else str(graph.operators)
    plain = (("time", phases(graph)), ("artifacts", artifacts), ("operators", operators))
    paths = (("key", graph.key or ""), ("defined", graph.location))
    for facts, style in ((plain, doc.Style.PLAIN), (paths, doc.Style.PATH)):
        yield from (labelled(label, text, style) for label, text in facts if text)


def _contents(graph: GraphRecord, contents: GraphContents) -> Iterator[doc.Block]:
    if contents.no_guards:
        yield labelled("guards", contents.no_guards)
    else:
        head = labelled("guards", f"{len(contents.guards)}, all of which hold when torch runs this graph")
        yield doc.Folded(head, [doc.Code(contents.guards, is_python=False)])
    if contents.no_code:
        yield labelled("generated code", contents.no_code)
    else:
        lines, count = _shown_lines(contents.code)
        facts = DOT.join(filter(None, [count, size(len(contents.code.encode())), graph.code_path]))
        yield doc.Folded(line(faint("generated code:"), faint(one_line(facts))), [doc.Code(lines)])


def _shown_lines(code: str) -> tuple[list[str], str]:
    """Return the lines of code to show, and how many of all they are."""
    lines = code.splitlines()
    shown = [printable(line.expandtabs(4))[:_LONGEST_LINE] for line in lines[:_MOST_LINES]]
    total = counted(len(lines), "line")
    return shown, f"the first {len(shown)} of {total}" if len(lines) > len(shown) else total
