"""The result of running a call eager and compiled, and the advice that follows from it."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbcache.core.text import counted, duration
from nbcache.explain.guards import dynamic_spares

__all__ = [
    "Agreement",
    "Break",
    "Comparison",
    "Compiled",
    "Diagnosis",
    "Recompile",
    "Resized",
    "Timing",
    "calls_to_pay",
    "counted_calls",
    "is_faster",
    "recommendation",
    "speed_up",
    "times",
]

_WORTH_IT = 1.05
"""The smallest speed-up that matters."""
_CLEARLY = 0.75
"""The share of pairs of calls in which the faster one is faster."""


class Agreement(enum.StrEnum):
    """The degrees to which compiled results agree with eager ones."""

    EQUAL = "equal"
    USUAL = "usual"
    """Within what torch.testing allows for the dtype."""
    LARGER = "larger"
    """Up to a hundred times of that, as another order of sums can give."""
    DIFFERENT = "different"
    """Beyond that, or of another shape, dtype or structure."""
    UNKNOWN = "unknown"
    """They cannot be compared."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of the first call's results, at the place where they agree least."""

    agreement: Agreement = Agreement.EQUAL
    place: str = ""
    """As Python writes it: `output['logits']`; empty where all are equal."""
    message: str = ""
    """The words of torch.testing.assert_close, or why results cannot be compared."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a call, measured repeatedly; at least once."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles."""
        if len(self.seconds) == 1:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    def to_json(self) -> dict[str, Any]:
        """Return the timing as JSON values, by the names that docs/json.md documents."""
        low, high = self.spread
        ends = {"fastest": min(self.seconds), "slowest": max(self.seconds)}
        return {"median": self.median, "low": low, "high": high, **ends, "runs": len(self.seconds)}


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compiled call."""

    mode: str
    timing: Timing | None = None
    """None where it failed."""
    compile_seconds: float = 0.0
    """Seconds that the first calls took beyond running, now."""
    saved_seconds: float = 0.0
    """Seconds of compiling that caches saved."""
    comparison: Comparison = Comparison()
    peak_bytes: int | None = None
    """Bytes on the GPU that a call needs beyond those allocated before it; None without a GPU."""
    failure: str = ""
    """The error, in one line."""

    @property
    def cold_seconds(self) -> float:
        """Seconds of compiling where nothing is stored."""
        return self.compile_seconds + self.saved_seconds


@dataclass(frozen=True, slots=True)
class Break:
    """A graph break."""

    reason: str
    """With the line at its end: `... (In[3]:4)`."""
    action: str
    """The fix; a clause that begins with a verb."""


@dataclass(frozen=True, slots=True)
class Recompile:
    """A function that was compiled again in later calls with the same arguments."""

    function: str
    times: int
    settled: bool
    """True if that ended: while warming up, or before the third time."""
    guard: str
    """The last guard that failed."""
    action: str
    """The fix; a clause that begins with a verb."""


@dataclass(frozen=True, slots=True)
class Resized:
    """A call with another size in the first dimension."""

    size: int
    seconds: float = 0.0
    """Wall seconds of the call."""
    guards: tuple[str, ...] = ()
    """The guards that failed; empty where the call was not compiled again."""
    action: str = ""
    """The fix for that."""
    refused: str = ""
    """The error of the eager call, in one line."""
    failure: str = ""
    """The error of the compiled call alone, in one line."""

    def to_json(self) -> dict[str, Any]:
        """Return the call as JSON values, by the names that docs/json.md documents."""
        row = {name: value or None for name, value in asdict(self).items()}
        guards = {"recompiled": bool(self.guards), "guards": list(self.guards)}
        return {**row, "seconds": self.seconds, **guards}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The measurements of one call."""

    expression: str
    device: str
    eager: Timing
    compiled: Compiled
    graphs: int = 0
    """Graphs that the call was split into, backward graphs not counted."""
    breaks: tuple[Break, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    size: int | None = None
    """The size in the first dimension that most tensors share; None without such tensors."""
    resized: tuple[Resized, ...] = ()
    eager_peak_bytes: int | None = None
    notes: tuple[str, ...] = ()
    """Remarks on how this was measured, one sentence each."""

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON values, by the names that docs/json.md documents."""
        compiled, timing = self.compiled, self.compiled.timing
        mode = {
            "mode": compiled.mode,
            "timing": timing and timing.to_json(),
            "speed_up": timing and speed_up(self.eager, timing),
            "compile_seconds": compiled.compile_seconds if timing else None,
            "saved_seconds": compiled.saved_seconds if timing else None,
            "pays_after": calls_to_pay(self),
            "results": asdict(compiled.comparison) if timing else None,
            "peak_bytes": compiled.peak_bytes,
            "failure": compiled.failure or None,
        }
        return {
            "expression": self.expression,
            "device": self.device,
            "eager": {**self.eager.to_json(), "peak_bytes": self.eager_peak_bytes},
            "modes": [mode],
            "graphs": self.graphs,
            "graph_breaks": [asdict(graph_break) for graph_break in self.breaks],
            "recompiles": [asdict(recompile) for recompile in self.recompiles],
            "size": self.size,
            "other_sizes": [call.to_json() for call in self.resized],
            "notes": list(self.notes),
            "recommendation": recommendation(self),
        }


def speed_up(slow: Timing, fast: Timing) -> float:
    """Return how many times faster `fast` is."""
    return slow.median / fast.median if fast.median else math.inf


def is_faster(one: Timing, other: Timing) -> bool:
    """Return whether `one` is clearly faster: by a twentieth at least, and in three of four pairs of calls.

    Pairs of any two, so that a moment in which the machine was busy counts for little.
    """
    pairs = [mine <= others for mine in one.seconds for others in other.seconds]
    return speed_up(other, one) >= _WORTH_IT and sum(pairs) >= _CLEARLY * len(pairs)


def calls_to_pay(diagnosis: Diagnosis) -> int | None:
    """Return after how many calls compiling has paid for itself; None where it never does."""
    eager, timing = diagnosis.eager, diagnosis.compiled.timing
    if timing is None or not is_faster(timing, eager):
        return None
    return math.ceil(diagnosis.compiled.cold_seconds / (eager.median - timing.median))


def times(ratio: float) -> str:
    """Return a speed-up for people: `1.9 x`, `0.87 x`, `24 x`, `under 0.01 x`."""
    if ratio < 0.01:
        return "under 0.01 x"
    if ratio >= 9.95:
        return f"{ratio:.0f} x"
    return f"{ratio:.1f} x" if ratio >= 0.995 else f"{ratio:.2f} x"


def counted_calls(calls: int) -> str:
    """Return a number of calls, to two digits: `1,300 calls`."""
    digits = len(str(calls)) - 2
    rounded = round(calls, -digits) if digits > 0 else calls
    return "1 call" if rounded == 1 else f"{rounded:,} calls"


def recommendation(diagnosis: Diagnosis) -> str:
    """Return the one thing to do; a clause that begins with a verb."""
    compiled, eager = diagnosis.compiled, diagnosis.eager
    if compiled.timing is None:
        return f"do not compile it as it is: torch.compile fails: {compiled.failure}"
    if compiled.comparison.agreement is Agreement.DIFFERENT:
        difference = f"{compiled.comparison.place}: {compiled.comparison.message}"
        return f"find out why results differ before you use it compiled: {difference}"
    ratio, breaks = speed_up(eager, compiled.timing), diagnosis.breaks
    if restless := [recompile for recompile in diagnosis.recompiles if not recompile.settled]:
        first = restless[0]
        return f"keep {first.function} from being compiled again at each call: {first.guard}: {first.action}"
    if not diagnosis.graphs and not breaks:
        return "look at what it does: there is no graph in it that torch.compile could compile"
    if is_faster(compiled.timing, eager):
        cost = f"{duration(compiled.cold_seconds)} to compile"
        cost += f", pays after {counted_calls(calls_to_pay(diagnosis) or 1)}"
        clauses = [f"compile it with mode={compiled.mode!r}: {times(ratio)} faster, {cost}"]
        if breaks:
            clauses.append(f"{_breaks(breaks)} may cost more than that: {breaks[0].action}")
        return "; ".join([*clauses, *_sizes(diagnosis)])
    if breaks:
        return (
            f"fix {_breaks(breaks)} and measure again: {breaks[0].action}; compiled now it is {times(ratio)}"
        )
    if is_faster(eager, compiled.timing):
        return f"do not compile it as it is: {times(ratio)}, so it gets slower"
    if ratio < _WORTH_IT:
        return f"do not compile it as it is: {times(ratio)}, so there is nothing to gain"
    return f"measure it with more --runs: {times(ratio)}, but single calls vary more than that"


def _sizes(diagnosis: Diagnosis) -> list[str]:
    """Return the advice on sizes, if dynamic=True would have spared recompiles."""
    spared = [call for call in diagnosis.resized if any(map(dynamic_spares, call.guards))]
    if not spared:
        return []
    seconds = duration(sum(call.seconds for call in spared))
    return [f"where sizes change, dynamic=True spares {counted(len(spared), 'recompile')} ({seconds})"]


def _breaks(breaks: Sequence[Break]) -> str:
    return "the graph break" if len(breaks) == 1 else f"the first of {len(breaks)} graph breaks"
