"""Shows why graphs missed, broke off or were compiled again, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nbcache.core.reports import GraphRecord
from nbcache.core.text import DOT
from nbcache.explain.actions import next_action
from nbcache.explain.misses import Explanation
from nbcache.ui.display.html import BADGES, BOX, CODE, FAINT, _head, _tag, _text
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.text import _wrapped
from nbcache.ui.display.words import explanations, short_location, source, taken

__all__ = ["WhyRow", "render_why"]

_MIME = "application/vnd.nbcache.why+json"


@dataclass(frozen=True, slots=True)
class WhyRow:
    """A graph, and how it differs from the nearest one that is stored."""

    graph: GraphRecord
    found: Explanation | None

    @property
    def action(self) -> str:
        """One thing to do next."""
        return next_action(self.graph, self.found)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Return what there is to say, as (label, text)."""
        for label, text in explanations(self.graph):
            if self.found is None or label != self.graph.outcome.value:
                yield label, text
        for each in () if self.found is None else self.found.differences:
            yield "differs", each.words()
        yield "next", self.action

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values, by the names that docs/json.md documents."""
        differences = () if self.found is None else self.found.differences
        return {
            "graph": self.graph.to_json(),
            "nearest": None if self.found is None else self.found.nearest,
            "differences": [
                {"what": each.what, "before": each.before, "now": each.now} for each in differences
            ],
            "action": self.action,
        }


def render_why(rows: Sequence[WhyRow]) -> Rendered:
    """Return what is known of each graph."""
    title = "nbcache why"
    if not rows:
        said = "no graph has compiled yet, or none of this name"
        return Rendered(f"{title}{DOT}{said}", _tag("div", BOX, _head(title, [said])))
    lines, boxes = [title], [_head(title, [])]
    for row in rows:
        graph = row.graph
        names = (f"{graph.function} {short_location(graph)}".strip(), graph.compile_id, graph.direction.value)
        came = f" from {source(graph)}" if graph.level is not None else ""
        parts = [f"{graph.outcome.value}{came}", f"{taken(graph)}"]
        lines += _wrapped("  ".join(names) + ": " + DOT.join(parts), 2)
        for label, text in row.lines():
            lines += _wrapped(f"{label}: {text}", 4)
        badge = f"background-color:{BADGES[graph.outcome]};border-radius:8px;padding:0 8px"
        head = f"{_text(names[0], style=CODE)} {_text(' '.join(names[1:]), style=FAINT)} "
        told = (
            _tag("div", "padding-left:14px", _text(f"{label}:", style=FAINT), " ", _text(text))
            for label, text in row.lines()
        )
        boxes.append(_tag("div", "margin:4px 0", head, _text(DOT.join(parts), style=badge), *told))
    data = {"graphs": [row.to_json() for row in rows]}
    return Rendered("\n".join(lines), _tag("div", BOX, *boxes), data, _MIME)
