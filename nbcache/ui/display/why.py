"""Shows why graphs missed, broke off or were compiled again, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nbcache.core.text import DOT
from nbcache.explain.why import Why
from nbcache.kernel.reasons import NOT_STORED
from nbcache.ui.display.html import BADGES, BOX, CODE, FAINT, _head, _tag, _text
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.text import _joined, _wrapped
from nbcache.ui.display.words import explanations, short_location, source, taken

__all__ = ["render_why", "why_lines"]

_MIME = "application/vnd.nbcache.why+json"


def why_lines(why: Why) -> Iterator[tuple[str, str]]:
    """Return what there is to say of a graph, as (label, text)."""
    found = why.explanation
    said = None if found is None else found.clause()  # which says no more than what follows
    for label, text in explanations(why.graph):
        if text != f"{NOT_STORED}{said}":
            yield label, text.removesuffix(f"; {said}")
        if label == "recompile" and why.meter:
            yield "so far", why.meter
        if label == "graph break" and why.cost:
            yield "cost", why.cost
    for each in () if found is None else found.differences:
        yield "differs", each.words()
    yield "next", why.action


def render_why(rows: Sequence[Why], notices: Sequence[str] = (), remark: str = "") -> Rendered:
    """Return what is known of each graph, and the notices; `remark` tells which graphs, or why none."""
    title = "nbcache why"
    said = [remark] if remark else [] if rows or notices else ["no graph has compiled yet"]
    lines, boxes = _joined(title, said), [_head(title, said)]
    for row in rows:
        graph = row.graph
        names = (f"{graph.function} {short_location(graph)}".strip(), graph.compile_id, graph.direction.value)
        came = f" from {source(graph)}" if graph.level is not None else ""
        parts = [f"{graph.outcome.value}{came}", f"{taken(graph)}"]
        lines += _wrapped("  ".join(names) + ": " + DOT.join(parts), 2)
        for label, text in why_lines(row):
            lines += _wrapped(f"{label}: {text}", 4)
        badge = f"background-color:{BADGES[graph.outcome]};border-radius:8px;padding:0 8px"
        head = f"{_text(names[0], style=CODE)} {_text(' '.join(names[1:]), style=FAINT)} "
        told = (
            _tag("div", "padding-left:14px", _text(f"{label}:", style=FAINT), " ", _text(text))
            for label, text in why_lines(row)
        )
        boxes.append(_tag("div", "margin:4px 0", head, _text(DOT.join(parts), style=badge), *told))
    for notice in notices:
        lines += _wrapped(f"! {notice}", 2)
        boxes.append(_tag("div", "margin:4px 0", _text(f"! {notice}")))
    data = {"graphs": [row.to_json() for row in rows], "notices": list(notices)}
    return Rendered("\n".join(lines), _tag("div", BOX, *boxes), data, _MIME)
