"""All that there is to say of one graph: what it did and why, what that costs, and one thing to do next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nbcache.core.model import Direction
from nbcache.core.reports import RESUMED, Explanation, GraphRecord, bare_name
from nbcache.explain.actions import next_action


@dataclass(frozen=True, slots=True)
class Why:
    graph: GraphRecord
    fell_into: int = 1
    """How many graphs its function fell into, for one call; more than one after graph breaks."""

    @property
    def explanation(self) -> Explanation | None:
        return self.graph.explanation

    @property
    def action(self) -> str:
        return next_action(self.graph)

    @property
    def meter(self) -> str:
        """How many versions of its function there are, and may be; empty where it was not recompiled."""
        most, count = self.graph.recompile_limit, self.graph.versions
        if not self.graph.recompile_reason or not most or not count:
            return ""
        return f"{count} of at most {most} versions; after that, calls that fit none of them run eagerly"

    @property
    def cost(self) -> str:
        """What a graph break costs; empty where there is none."""
        if not self.graph.graph_break_reason or self.fell_into < 2:
            return ""
        parts = f"{self.fell_into} graphs, with Python between them"
        return f"{self.graph.function.removesuffix(RESUMED)} fell into {parts}: nothing is fused across"

    def to_json(self) -> dict[str, Any]:
        found = self.explanation
        return {
            "graph": self.graph.to_json(),
            "nearest": None if found is None else found.nearest,
            "differences": [
                {"what": each.what, "before": each.before, "now": each.now, "where": each.where}
                for each in (() if found is None else found.differences)
            ],
            "meter": self.meter or None,
            "fell_into": self.fell_into,
            "cost": self.cost or None,
            "action": self.action,
        }


def explain(graphs: Iterable[GraphRecord], known: Sequence[GraphRecord]) -> list[Why]:
    """Return `graphs` with all that there is to say of them; `known` are those that this kernel has."""
    return [Why(graph, _fell_into(graph, known)) for graph in graphs]


def _fell_into(graph: GraphRecord, known: Sequence[GraphRecord]) -> int:
    """Return how many frames the function of a graph has become, in the cell that compiled it."""
    frames = {
        each.compile_id.partition("/")[0]
        for each in known
        if _whose(each) == _whose(graph) and each.direction is not Direction.BACKWARD
    }
    return max(1, len(frames))


def _whose(graph: GraphRecord) -> tuple[object, ...]:
    """Return what the parts of one function share, in one run of a cell."""
    return (bare_name(graph.function), graph.location.rpartition(":")[0], graph.cell)
