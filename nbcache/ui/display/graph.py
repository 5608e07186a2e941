"""Shows one graph whole: why it was no hit, what differs, phases, artifacts, guards and generated code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from nbcache.core.reports import PHASES, GraphContents, GraphRecord
from nbcache.core.text import DOT, LONG, NOTHING, one_line, printable, size
from nbcache.explain.why import Why
from nbcache.ui.display.code import code_html, lines_html, shown_lines
from nbcache.ui.display.html import BADGES, BOX, CODE, FAINT, LINE, WRAPPED, _folded, _rows, _tag, _text
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.text import _joined, _wrapped
from nbcache.ui.display.why import why_lines
from nbcache.ui.display.words import phases, short_location, source, taken

__all__ = ["detail_html", "differences_html", "phase_bars", "render_graph"]

_MIME = "application/vnd.nbcache.graph+json"
_BARS = (
    "\N{LOWER ONE EIGHTH BLOCK}\N{LOWER ONE QUARTER BLOCK}\N{LOWER THREE EIGHTHS BLOCK}\N{LOWER HALF BLOCK}\
\N{LOWER FIVE EIGHTHS BLOCK}\N{LOWER THREE QUARTERS BLOCK}\N{LOWER SEVEN EIGHTHS BLOCK}\N{FULL BLOCK}"
)
_SHARE = 0.01
"""Phases that took a smaller share of a graph's seconds have no bar."""
_WHOLE = "white-space:pre-wrap;word-wrap:break-word"
_BROKEN = f"{CODE};word-break:break-all"


def phase_bars(seconds: Mapping[str, float]) -> str:
    """Return the phases of a compile, each with a bar; that of the longest is the highest."""
    spent = [(phase, seconds[phase]) for phase in PHASES if seconds.get(phase)]
    whole = sum(each for _, each in spent)
    shown = [(phase, each) for phase, each in spent if each >= _SHARE * whole]
    most = max((each for _, each in shown), default=0.0)
    bars = (f"{phase} {_BARS[max(0, round(len(_BARS) * each / most) - 1)]}" for phase, each in shown if most)
    return " ".join(bars)


def differences_html(why: Why) -> str:
    """Return all that differs from the nearest stored graph, before and now; empty where nothing tells."""
    if (found := why.explanation) is None:
        return ""
    wide = f"{WRAPPED};min-width:70px"
    headers = [(title, wide) for title in ("differs", "before", "now")] + [("line", WRAPPED)]
    code = f"{CODE};word-wrap:break-word"
    rows = [
        [
            _text(each.what, 200),
            _text(each.before or NOTHING, 400, code),
            _text(each.now or NOTHING, 400, code),
            _text(each.where or NOTHING, 60),
        ]
        for each in found.differences
    ]
    nearest = _tag(
        "div", f"{FAINT};word-break:break-all", _text(f"before: the nearest stored graph, {found.nearest}")
    )
    return _tag("div", BOX, _rows(headers, rows), nearest)


def detail_html(why: Why, contents: GraphContents | None = None) -> str:
    """Return everything that is known of a graph; `contents` has its guards and code."""
    edge = f"border-left:2px solid {LINE};padding:0 0 2px 10px;margin:0 0 4px 4px"
    lines = (
        _tag(
            "div",
            "",
            _text(f"{label}:", style=FAINT),
            " ",
            _tag("span", style, escape("\n".join(map(printable, text[:LONG].splitlines())))),
        )
        for label, text, style in _known(why)
        if text
    )
    return _tag(
        "div", f"{BOX};{edge}", *lines, *([] if contents is None else _contents_html(why.graph, contents))
    )


def _known(why: Why) -> Iterator[tuple[str, str, str]]:
    """Yield what is known of a graph, as (label, text, style)."""
    graph = why.graph
    for label, text in why_lines(why):
        yield label, text, _WHOLE
    yield "time", phases(graph), ""
    yield "artifacts", DOT.join(f"{kind} {size(count)}" for kind, count in graph.bytes.items()), ""
    yield "operators", "" if graph.operators is None else str(graph.operators), ""
    yield "key", graph.key or "", _BROKEN
    yield "defined", graph.location, _BROKEN


def _contents_html(graph: GraphRecord, contents: GraphContents) -> Iterator[str]:
    if contents.no_guards:
        yield _tag("div", "", _text("guards:", style=FAINT), " ", _text(contents.no_guards))
    else:
        yield _folded(_guards_title(contents), lines_html(contents.guards), is_open=False)
    if contents.no_code:
        yield _tag("div", "", _text("generated code:", style=FAINT), " ", _text(contents.no_code))
    else:
        yield _folded(
            _text("generated code", style=FAINT), code_html(contents.code, graph.code_path), is_open=False
        )


def _guards_title(contents: GraphContents) -> str:
    of_torch = f"{len(contents.guards)}, all of which hold when torch runs this graph"
    return f"{_text('guards:', style=FAINT)} {_text(of_torch)}"


def render_graph(why: Why, contents: GraphContents) -> Rendered:
    """Return a graph whole, as text, as HTML and as JSON values."""
    graph = why.graph
    name = f"{graph.function} {short_location(graph)}".strip()
    came = f" from {source(graph)}" if graph.level is not None else ""
    said = [f"{graph.outcome.value}{came}", taken(graph)]
    title = one_line(f"{name} {graph.compile_id} {graph.direction.value}")
    lines = _joined(title, said)
    for label, text, _ in _known(why):
        for i, line in enumerate(printable(each) for each in text[:LONG].splitlines()):
            lines += _wrapped(f"{label}: {line}" if not i else line, 2 if not i else 4)
    lines.append(f"  guards: {contents.no_guards or ''}".rstrip())
    lines += [f"    {printable(each)}" for each in contents.guards]
    code, cut = shown_lines(contents.code)
    lines.append(
        "  "
        + one_line(f"generated code: {contents.no_code or DOT.join(filter(None, [cut, graph.code_path]))}")
    )
    lines += [f"    {line}".rstrip() for line in code]
    badge = f"background-color:{BADGES[graph.outcome]};border-radius:8px;padding:0 8px"
    head = f"{_text(name, style=CODE)} {_text(f'{graph.compile_id} {graph.direction.value}', style=FAINT)} "
    rest = _text(f" {said[1]}")
    html = _tag("div", "", head, _text(said[0], style=badge), rest) + differences_html(why)
    data = {**why.to_json(), **contents.to_json(), "code_path": graph.code_path or None}
    return Rendered("\n".join(lines), _tag("div", BOX, html, detail_html(why, contents)), data, _MIME)
