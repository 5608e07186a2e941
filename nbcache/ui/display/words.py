"""Put numbers, outcomes and reasons into words: what text, HTML and panels say alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence

from nbcache.core.model import PHASES, GraphRecord, Level, Outcome

__all__ = [
    "DOT",
    "LONG",
    "NOTHING",
    "aligned",
    "counted",
    "duration",
    "explanations",
    "kernels",
    "one_line",
    "percent",
    "phases",
    "ranked_reasons",
    "saved",
    "short_location",
    "size",
    "source",
    "taken",
    "totals",
]

NOTHING = "–"
DOT = " · "
LONG = 2_000
"""Characters of a reason that are shown anywhere."""

PHASE_NAMES = {
    "dynamo": "Dynamo",
    "aot": "AOTAutograd",
    "inductor": "Inductor",
    "build": "kernel build",
    "wait": "waiting",
    "load": "loading",
}
_ASKING = 0.1
"""Seconds of the phase `wait` that may have gone into asking whether there is anybody to wait for."""
REPEATED = ("dynamo", "wait", "load", "total")
"""Phases that no later run saves: a hit goes through most of them as well. `total` is no phase."""


def duration(seconds: float) -> str:
    """Return seconds for people: `0.003 s`, `0.31 s`, `12.4 s`, `2 min 05 s`, `1 h 02 min`."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if 0 < seconds < 0.0005:
        return "<0.001 s"
    for below, digits in ((0.00995, 3), (0.995, 2), (59.95, 1)):
        if seconds < below:
            return f"{seconds:.{digits}f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def ago(seconds: float) -> str:
    """Return how long ago something was, roughly: `just now`, `23 s ago`, `3 h ago`, `4 days ago`."""
    if seconds < 1:
        return "just now"
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def size(count: int) -> str:
    """Return bytes for people, in powers of 1000: `640 B`, `1.2 MB`, `12 MB`."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.5:
            return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"
    return f"{amount / 1000:.1f} TB"


def percent(part: int, whole: int) -> str:
    """Return a share, `83 %`; 199 of 200 is not yet 100 %, nor 1 of 1000 already 0 %."""
    if not whole:
        return NOTHING
    share = round(100 * part / whole)
    if 0 < part < whole:
        share = min(max(share, 1), 99)
    return f"{share} %"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 graph`, `2 graphs`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def one_line(text: str, limit: int = LONG) -> str:
    """Return `text` on one line, without control characters, at most `limit` long."""
    line = "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 3].rstrip() + "..."


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
        ("recompile", graph.recompile_reason),
        ("graph break", graph.graph_break_reason),
        ("waited", why if waited > _ASKING else None),
    )
    return [(name, text) for name, text in known if text]


def ranked_reasons(graphs: Iterable[GraphRecord]) -> list[tuple[str, int, float]]:
    """Return (reason, graphs, seconds) of all but hits: the most frequent first, then the longest."""
    spent: dict[str, list[float]] = defaultdict(list)
    for graph in graphs:
        if graph.outcome is not Outcome.HIT:
            reason = f"{graph.outcome.value}: {one_line(graph.reason or 'no reason known')}"
            spent[reason].append(graph.total_seconds)
    ranked = [(reason, len(seconds), sum(seconds)) for reason, seconds in spent.items()]
    return sorted(ranked, key=lambda row: (-row[1], -row[2], row[0]))


def aligned(rows: Sequence[Sequence[str]], right: Container[int]) -> list[str]:
    """Return rows as lines, two spaces between columns; `right` has the columns that end alike."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad = [str.rjust if i in right else str.ljust for i in range(len(widths))]
    return ["  ".join(pad[i](row[i], widths[i]) for i in range(len(widths))).rstrip() for row in rows]
