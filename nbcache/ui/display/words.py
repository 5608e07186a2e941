"""The values that reports, checks and the live line show, and how each is put into words."""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbcache.core.model import Level, Outcome
from nbcache.core.reports import Activity, GraphRecord, cost_of_hit
from nbcache.core.text import DOT, NOTHING, counted, duration, one_line, percent, size
from nbcache.kernel.explain.guards import in_words
from nbcache.kernel.explain.timeline import OUTSIDE
from nbcache.kernel.prewarming import Prewarming
from nbcache.sharing.live.level import SharedFigures

BAR = ("\N{FULL BLOCK}", "\N{LIGHT SHADE}")
"""The full and the empty part of a bar in HTML."""
PHASES = {
    "trace": ("stored trace", "looking for a trace", "t", "#8b5cf6"),
    "dynamo": ("Dynamo", "tracing", "D", "#3b82f6"),
    "aot": ("AOTAutograd", "AOTAutograd", "A", "#06b6d4"),
    "inductor": ("Inductor", "generating code", "I", "#f59e0b"),
    "build": ("kernel build", "building kernels", "B", "#ef4444"),
    "wait": ("waiting", "waiting for another kernel", "w", "#9ca3af"),
    "load": ("loading", "looking in the cache", "l", "#22c55e"),
    OUTSIDE: ("the rest of the cell", "running the cell", ".", "rgba(128,128,128,0.35)"),
}
"""Phase → its name, its name on the live line, its letter and colour; in the order of a compile."""
_SHORT = 1.0
_LONG = 10.0
"""Seconds after which the live line says that a first compile takes its time."""
_BAR = 10
_MOST_MISSED = 5
_ASKING = 0.1
"""Seconds of the phase `wait` that the shared store may take to answer; a wait that short is not shown."""
REPEATED = ("trace", "dynamo", "wait", "load", "total")
"""Phases that a hit does not save, as most hits go through them, too; and `total`, which is no phase."""


@dataclass(frozen=True, slots=True)
class StoreFigures:
    name: str
    """The name for people, without secrets: `local store`, `redis://host/0`."""
    entries: int
    bytes: int
    limit: int | None = None
    """The most bytes that the store may hold; None if it is unbounded."""


class CheckState(enum.StrEnum):
    OK = "ok"
    NOTE = "note"
    """nbcache works, but only in part, or differently from what the user may expect."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """A row of `%nbcache doctor`: one requirement of nbcache, and its state on this machine."""

    name: str
    state: CheckState
    found: str
    next_step: str = ""
    """The remedy; empty if the state is `ok`."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"next_step": self.next_step or None}


def store_parts(store: StoreFigures) -> list[str]:
    """Return a store in words: its name, its entries, and its bytes of the limit, if it has one."""
    used = size(store.bytes)
    if store.limit is not None:
        used += f" of {size(store.limit)} ({percent(store.bytes, store.limit)})"
    return [store.name, counted(store.entries, "entry", "entries"), used]


def shared_parts(shared: SharedFigures | None) -> list[str]:
    """Return the shared store and the artifacts exchanged with it, in words; empty without a connection."""
    if shared is None:
        return []
    parts = [shared.name, f"{shared.found} found", f"{shared.published} published"]
    if shared.waiting:
        parts.append(f"{size(shared.waiting)} to be written")
    return parts + ([f"off for now: {one_line(shared.off)}"] if shared.off else [])


def prewarming_parts(prewarming: Prewarming) -> list[str]:
    """Return the progress of prewarming in words; empty if it has not begun."""
    if not (slices := prewarming.slices):
        return []
    seconds, longest = sum(piece.seconds for piece in slices), max(slices, key=lambda piece: piece.seconds)
    idle = f"{duration(seconds)} of idle time in {counted(len(slices), 'slice')}"
    state = "prewarmed" if prewarming.state == "done" else f"prewarming ({prewarming.state})"
    return [state, idle, f"longest {duration(longest.seconds)} ({longest.name})"]


def activity_parts(activity: Activity, bar: tuple[str, str] = ("#", "-")) -> list[str]:
    """Return the parts of the live line; `bar` has the characters of a bar's full and empty part."""
    clock = _clock(activity.seconds)
    function = one_line(activity.function, 60)
    if activity.phase == "restoring":
        parts = [f"restoring {function or 'artifacts'}", clock]
    elif activity.compiled_by:
        since = duration(max(0.0, round(time.time() - activity.compiled_since)))
        by = f"{one_line(activity.compiled_by, 60)} is compiling this, {since}"
        parts = [f"waiting for {function} {activity.compile_id}".rstrip(), by]
    else:
        doing = PHASES[activity.phase][1] if activity.phase in PHASES else one_line(activity.phase, 30)
        parts = [f"compiling {function} {activity.compile_id}".rstrip(), doing]
        if activity.usual_seconds >= _SHORT:
            about = ", more than the usual" if activity.seconds > activity.usual_seconds else " of about"
            share = min(0.99, activity.seconds / activity.usual_seconds)
            full = round(share * _BAR)  # a bar like that of tqdm: `43%|####------|`
            drawn = f"{share:3.0%}|{bar[0] * full}{bar[1] * (_BAR - full)}|"
            parts.append(f"{drawn} {clock}{about} {_clock(activity.usual_seconds)}")
        else:
            parts += [clock, "a first compile takes its time"] if activity.seconds >= _LONG else [clock]
    if activity.graphs_done:
        more = f" of about {activity.usual_graphs}" if activity.usual_graphs > activity.graphs_done else ""
        parts.append(f"{counted(activity.graphs_done, 'graph')}{more} done")
    return parts


def _clock(seconds: float) -> str:
    """Return the seconds so far, in whole seconds from 10 s on: a long compile then needs fewer updates."""
    if 9.95 <= seconds < 59.5:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def totals(graphs: Sequence[GraphRecord], *, stored: bool = False, why: str = "") -> list[str]:
    """Return a total line: graphs, hits, seconds, and what was saved.

    `stored`: the graphs that missed are stored for the next kernel. `why`: why they are not, or may not hit.
    """
    if not graphs:
        return ["nothing compiled"]
    outcomes = Counter(graph.outcome for graph in graphs)
    hits, every = outcomes[Outcome.HIT], len(graphs)
    waited = sum(waited for graph in graphs if (waited := graph.seconds.get("wait", 0.0)) > _ASKING)
    spent = sum(graph.total_seconds for graph in graphs) - waited
    saved = sum(graph.saved_seconds or 0.0 for graph in graphs)
    if hits == every:
        instead = f" instead of about {duration(spent + saved)}" if saved >= 0.1 else ""
        parts = [f"{hits} of {counted(every, 'graph')} reused in {duration(spent)}{instead}"]
    else:
        parts = [counted(every, "graph"), f"{hits} of {every} hits ({percent(hits, every)})"]
        kept_out = {Outcome.BYPASS: "bypassed", Outcome.DISABLED: "disabled"}
        parts += [f"{outcomes[outcome]} {word}" for outcome, word in kept_out.items() if outcomes[outcome]]
        parts.append(f"{duration(spent)} compiling")
    if waited:
        parts.append(f"{duration(waited)} waiting for another kernel")
    by_torch = [graph.saved_seconds or 0.0 for graph in graphs if graph.level is Level.L0]
    if len(by_torch) < hits < every:
        parts.append(f"{duration(saved - sum(by_torch))} saved")
    if by_torch:
        parts.append(f"{duration(sum(by_torch))} saved by torch's own folder")
    if stored and outcomes[Outcome.MISS]:
        missed = [graph.seconds for graph in graphs if graph.outcome is Outcome.MISS]
        gain = sum(cost for seconds in missed for phase, cost in seconds.items() if phase not in REPEATED)
        stored_words = f"stored for next time, {why}" if why else "stored for next time"
        parts.append(stored_words + (f" (saves about {duration(gain)})" if gain >= 0.1 else ""))
    elif why and outcomes[Outcome.MISS]:
        parts.append(f"nothing stored: {why}")
    return parts


def time_words(graph: GraphRecord) -> str:
    return duration(graph.total_seconds) if "total" in graph.seconds else NOTHING


def saved_words(graph: GraphRecord) -> str:
    """Return the seconds that a hit saved, marked if torch would have saved them without nbcache."""
    if graph.saved_seconds is None:
        return NOTHING
    return duration(graph.saved_seconds) + (" (torch)" if graph.level is Level.L0 else "")


def phases(graph: GraphRecord) -> str:
    """Return the seconds by phase: `Dynamo 0.42 s · Inductor 4.1 s`."""
    spent = {phase: seconds for phase, seconds in graph.seconds.items() if phase != "total"}
    order = dict.fromkeys([*PHASES, *spent])
    names = {phase: PHASES[phase][0] if phase in PHASES else phase for phase in order}
    return DOT.join(f"{name} {duration(spent[phase])}" for phase, name in names.items() if phase in spent)


def source(graph: GraphRecord) -> str:
    """Return the level and the name of the store that a graph was restored from: `L1 local store`."""
    return " ".join(part for part in (graph.level, graph.source) if part) or NOTHING


def short_location(graph: GraphRecord) -> str:
    """Return the location without its folders: `model.py:12`."""
    return one_line(graph.location.replace("\\", "/").rsplit("/", 1)[-1])


def explanations(graph: GraphRecord) -> list[tuple[str, str]]:
    """Return a graph's explanations as (label, text), the reason of its outcome first."""
    is_hit, waited = graph.outcome is Outcome.HIT, graph.seconds.get("wait", 0.0)
    why = f"{duration(waited)} for another kernel, {'which compiled it' if is_hit else 'in vain'}"
    labelled = (
        ("note", cost_of_hit(graph.reason)) if is_hit else (graph.outcome.value, graph.reason),
        ("recompile", in_words(graph.recompile_reason or "")),
        ("graph break", graph.graph_break_reason),
        ("waited", why if waited > _ASKING else None),
    )
    return [(name, text) for name, text in labelled if text]


def missed_lines(graphs: Sequence[Mapping[str, Any]], when: str = "") -> list[str]:
    """Return a line about graphs that missed although their cells are unchanged; values of `Run.summary`."""
    if not graphs:
        return []
    names = []
    for graph in graphs[:_MOST_MISSED]:
        cell = "" if (count := graph["execution_count"]) is None else f"In[{count}] "
        names.append(one_line(f"{cell}{graph['function']} {graph['direction']}", 60))
    listed = ", ".join(names) + (", ..." if len(graphs) > _MOST_MISSED else "")
    missed = counted(len(graphs), "graph")
    return [f"{when}{missed} missed in cells that are the same as last time: {listed}"]
