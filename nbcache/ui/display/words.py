"""Put numbers, outcomes and reasons into words: what text, HTML and panels say alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nbcache.core.model import Level, Outcome
from nbcache.core.reports import PHASES, GraphRecord
from nbcache.core.text import DOT, NOTHING, counted, duration, one_line, percent
from nbcache.explain.guards import readable

__all__ = [
    "explanations",
    "kernels",
    "missed_lines",
    "phases",
    "saved",
    "short_location",
    "source",
    "taken",
    "totals",
]


_MOST_MISSED = 5
PHASE_NAMES = {
    "trace": "stored trace",
    "dynamo": "Dynamo",
    "aot": "AOTAutograd",
    "inductor": "Inductor",
    "build": "kernel build",
    "wait": "waiting",
    "load": "loading",
}
_ASKING = 0.1
"""Seconds of the phase `wait` that may have gone into asking whether there is anybody to wait for."""
REPEATED = ("trace", "dynamo", "wait", "load", "total")
"""Phases that no later run saves: a hit goes through most of them as well. `total` is no phase."""


def totals(graphs: Sequence[GraphRecord], *, stored: bool = False, why: str = "") -> list[str]:
    """Return the parts of a total line: graphs, hits of all graphs, seconds, and what was or will be saved.

    `stored` tells whether what missed is now in a store, so that the next run will hit it; `why` is why it is
    not, or what may make one doubt that it is.
    """
    if not graphs:
        return ["nothing compiled"]
    outcomes = Counter(graph.outcome for graph in graphs)
    hits, every = outcomes[Outcome.HIT], len(graphs)
    parts = [counted(every, "graph"), f"{hits} of {every} hits ({percent(hits, every)})"]
    if outcomes[Outcome.BYPASS]:
        parts.append(f"{outcomes[Outcome.BYPASS]} bypassed")
    if outcomes[Outcome.DISABLED]:
        parts.append(f"{outcomes[Outcome.DISABLED]} disabled")
    waited = sum(waited for graph in graphs if (waited := graph.seconds.get("wait", 0.0)) > _ASKING)
    spent = sum(graph.total_seconds for graph in graphs) - waited
    parts.append(f"{duration(spent)} {'loading' if hits == every else 'compiling'}")
    if waited:
        parts.append(f"{duration(waited)} waiting for another kernel")
    by_torch = [graph.saved_seconds or 0.0 for graph in graphs if graph.level is Level.L0]
    if len(by_torch) < hits:
        gain = sum(graph.saved_seconds or 0.0 for graph in graphs if graph.level is not Level.L0)
        parts.append(f"{duration(gain)} saved")
    if by_torch:
        parts.append(f"{duration(sum(by_torch))} saved by torch's own folder")
    if stored and outcomes[Outcome.MISS]:
        gain = sum(_gain(graph) for graph in graphs if graph.outcome is Outcome.MISS)
        kept = f"stored for next time, {why}" if why else "stored for next time"
        parts.append(kept + (f" (saves about {duration(gain)})" if gain >= 0.1 else ""))
    elif why and outcomes[Outcome.MISS]:
        parts.append(f"nothing stored: {why}")
    return parts


def _gain(graph: GraphRecord) -> float:
    """Return the seconds that a hit would have spared this miss."""
    return sum(seconds for phase, seconds in graph.seconds.items() if phase not in REPEATED)


def taken(graph: GraphRecord) -> str:
    """Return the seconds that a graph took, compiled or loaded."""
    return duration(graph.total_seconds) if "total" in graph.seconds else NOTHING


def saved(graph: GraphRecord) -> str:
    """Return the seconds that a hit saved, and say so where torch would have saved them by itself."""
    if graph.saved_seconds is None:
        return NOTHING
    return duration(graph.saved_seconds) + (" (torch)" if graph.level is Level.L0 else "")


def phases(graph: GraphRecord) -> str:
    """Return the seconds by phase: `Dynamo 0.42 s · Inductor 4.1 s`."""
    spent = dict(graph.seconds)
    spent.pop("total", None)
    order = [
        *(phase for phase in PHASES if phase in spent),
        *(phase for phase in spent if phase not in PHASES),
    ]
    return DOT.join(f"{PHASE_NAMES.get(phase, phase)} {duration(spent[phase])}" for phase in order)


def kernels(graph: GraphRecord) -> str:
    """Return how many kernels a graph runs: `3`, `3 (2 compiled)`."""
    if not graph.kernels:
        return NOTHING
    return f"{graph.kernels}" + (f" ({graph.kernels_compiled} compiled)" if graph.kernels_compiled else "")


def source(graph: GraphRecord) -> str:
    """Return what was hit, with its level: `L1 local store`."""
    return " ".join(part for part in (graph.level, graph.source) if part) or NOTHING


def short_location(graph: GraphRecord) -> str:
    """Return the location without its folders: `model.py:12`."""
    return one_line(graph.location.replace("\\", "/").rsplit("/", 1)[-1])


def explanations(graph: GraphRecord) -> list[tuple[str, str]]:
    """Return what there is to explain, as (label, text), the outcome's reason first."""
    label = "note" if graph.outcome is Outcome.HIT else graph.outcome.value
    waited, came = graph.seconds.get("wait", 0.0), graph.outcome is Outcome.HIT
    why = f"{duration(waited)} for another kernel, {'which compiled it' if came else 'in vain'}"
    known = (
        (label, graph.reason),
        ("recompile", readable(graph.recompile_reason or "")),
        ("graph break", graph.graph_break_reason),
        ("waited", why if waited > _ASKING else None),
    )
    return [(name, text) for name, text in known if text]


def missed_lines(graphs: Sequence[Mapping[str, Any]], when: str = "") -> list[str]:
    """Return a line on graphs that missed in unchanged cells, as `Run.summary` describes them."""
    if not graphs:
        return []
    names = []
    for graph in graphs[:_MOST_MISSED]:
        count = graph["execution_count"]
        cell = "" if count is None else f"In[{count}] "
        names.append(one_line(f"{cell}{graph['function']} {graph['direction']}", 60))
    more = ", ..." if len(graphs) > _MOST_MISSED else ""
    missed = f"{when}{counted(len(graphs), 'graph')} missed in cells that are the same as last time"
    return [f"{missed}: {', '.join(names)}{more}"]
