"""What torch and nbcache note of the functions that are compiled: graphs, graph breaks, recompiles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nbcache.core.model import Direction
from nbcache.core.reports import GraphRecord
from nbcache.core.text import one_line
from nbcache.explain.actions import break_action
from nbcache.explain.diagnosis import Break, Recompile
from nbcache.explain.guards import readable, recompile_action
from nbcache.torch_bridge.events import break_text, user_line, with_cells, words_of_break

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["Noted", "break_of", "guard_of", "recompiled"]

_LONGEST = 160
"""Characters of a guard."""
_OFTEN = 3
"""So many recompiles are no coincidence."""
_WHICH = re.compile(r"^\d+/\d+: ")
"""What stands before a guard: the compile that it belongs to."""
_COMMENT = re.compile(r"\s+# ")
"""What separates a guard from the code that it is of, and that from its place."""
_PACKAGES = re.compile(r"\(/\S*/(?:site|dist)-packages/")
"""Where installed code is."""


def recompiled(made: Sequence[GraphRecord], warm: int) -> Iterator[Recompile]:
    """Yield the functions that were compiled again; the first `warm` graphs were made while warming up."""
    functions: dict[str, list[int]] = {}
    for index, graph in enumerate(made):
        if graph.recompile_reason and graph.direction is not Direction.BACKWARD:
            functions.setdefault(graph.function, []).append(index)
    for function, found in functions.items():
        last, settled = made[found[-1]], found[-1] < warm or len(found) < _OFTEN
        action = recompile_action(last.recompile_reason or "")
        yield Recompile(function, len(found), settled, guard_of(last), action)


def break_of(session: Session, error: Exception) -> Break:
    """Return the graph break that an error of `fullgraph=True` tells of."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    told = [line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")]
    place = user_line(session, str(error))
    reason = one_line(": ".join([lines[0], *told[:1]]) + (f" ({place})" if place else ""))
    return Break(reason, break_action(reason))


def guard_of(graph: GraphRecord) -> str:
    """Return the guard that failed and the line that it is of, without the compile that it belongs to."""
    lines = (graph.recompile_reason or "").strip().splitlines() or [""]
    guard, *comments = _COMMENT.split(_WHICH.sub("", readable(lines[0])))
    return one_line(f"{guard} ({comments[-1]})" if len(comments) > 1 else guard, _LONGEST)


class Noted:
    """What torch notes of the functions that it compiles from now on."""

    def __init__(self, session: Session) -> None:
        from torch._dynamo import utils

        self._session = session
        self._utils = utils
        self._reasons = len(utils.graph_break_reasons)
        self._breaks = Counter(utils.counters["graph_break"])
        self._graphs = utils.counters["stats"]["unique_graphs"]
        self._records = len(session.graphs)

    def graphs(self) -> int:
        """Return into how many graphs the functions fell; backward graphs are not counted."""
        traced = int(self._utils.counters["stats"]["unique_graphs"] - self._graphs)
        made = self._session.graphs[self._records :]  # more than were traced, where a trace was stored
        return max(traced, sum(graph.direction is not Direction.BACKWARD for graph in made))

    def breaks(self) -> Iterator[Break]:
        """Yield each graph break, once."""
        reasons: dict[str, None] = {}
        for each in self._utils.graph_break_reasons[self._reasons :]:
            if getattr(each, "graph_break", True):
                stack = getattr(each, "user_stack", None)
                words = words_of_break(each.reason)
                place = (stack[-1].filename, stack[-1].lineno) if stack else None
                reasons[break_text(self._session, words, *place) if place else words] = None
        if not reasons:  # where the whole function is left to Python, torch only counts them
            for text in Counter(self._utils.counters["graph_break"]) - self._breaks:
                reasons[text.strip().splitlines()[0]] = None
        for reason in reasons:
            reason = _PACKAGES.sub("(", one_line(with_cells(self._session, reason) or ""))
            yield Break(reason, break_action(reason))
