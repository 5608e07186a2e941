"""What came of running an expression eager and compiled, and what to do about it: values and the verdict."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nbcache.core.text import counted, duration
from nbcache.explain.guards import dynamic_spares

__all__ = [
    "TOLERANCES",
    "Agreement",
    "Break",
    "Comparison",
    "Diagnosis",
    "Recompile",
    "Resized",
    "Spot",
    "Timing",
    "Variant",
    "best",
    "calls_to_pay",
    "counted_calls",
    "is_faster",
    "recommendation",
    "speed_up",
    "times",
]

TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
"""What `torch.testing.assert_close` allows, relative and absolute, by dtype; 0 for integers and booleans."""
_SUSPECT = 100.0
"""So many times the tolerance may be due to another order of sums; more is looked into first."""
_WORTH_IT = 1.05
"""A speed-up below this is none."""
_CLEARLY = 0.75
"""The share of pairs of calls in which the faster is faster."""


class Agreement(enum.StrEnum):
    """How results compare, eager against compiled."""

    EQUAL = "equal"
    """Bit for bit."""
    USUAL = "usual"
    """Within what torch.testing allows for the dtype."""
    LARGER = "larger"
    """Beyond that, as another order of sums can give."""
    DIFFERENT = "different"
    """Far beyond that, or of another shape, dtype or structure."""
    UNKNOWN = "unknown"
    """They cannot be compared."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of repeated calls, after warming up."""

    seconds: tuple[float, ...]
    """In the order in which they ran; at least one."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles, between which half of the calls are."""
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
class Spot:
    """The value of the results at which they differ most, by one measure."""

    place: str
    """As Python writes it: `output['logits'][3, 17]`."""
    eager: float
    compiled: float
    difference: float
    """Absolute, or relative to the eager value."""

    def to_json(self) -> dict[str, Any]:
        values = (self.eager, self.compiled, self.difference)
        names = ("eager", "compiled", "difference")
        return {"place": self.place} | dict(zip(names, map(_finite, values), strict=True))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of the first call, eager against compiled."""

    ratio: float = 0.0
    """The largest difference in units of what torch.testing allows there; infinite at a NaN."""
    dtype: str = ""
    """The dtype where that is; empty where all are equal."""
    absolute: Spot | None = None
    """The largest absolute difference; None where all are equal."""
    relative: Spot | None = None
    """The largest relative difference, of values that are not near zero."""
    mismatch: str = ""
    """How shapes, dtypes or structures differ; empty where they do not."""
    unknown: str = ""
    """Why the results cannot be compared; empty where they can."""

    @property
    def agreement(self) -> Agreement:
        if self.unknown:
            return Agreement.UNKNOWN
        if self.mismatch or self.ratio > _SUSPECT:
            return Agreement.DIFFERENT
        if self.absolute is None:
            return Agreement.EQUAL
        return Agreement.USUAL if self.ratio <= 1 else Agreement.LARGER

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values, by the names that docs/json.md documents."""
        return {
            "agreement": self.agreement.value,
            "ratio": _finite(self.ratio),
            "dtype": self.dtype or None,
            "absolute": self.absolute and self.absolute.to_json(),
            "relative": self.relative and self.relative.to_json(),
            "mismatch": self.mismatch or None,
            "unknown": self.unknown or None,
        }


@dataclass(frozen=True, slots=True)
class Variant:
    """The expression, compiled in one mode."""

    mode: str
    timing: Timing | None = None
    """None where it failed."""
    eager: Timing | None = None
    """The eager calls that took turns with it; None where those of the diagnosis are meant."""
    compile_seconds: float = 0.0
    """What the first calls took beyond running, now."""
    saved_seconds: float = 0.0
    """What compiling would have taken more, had no cache had it."""
    comparison: Comparison = field(default_factory=Comparison)
    peak_bytes: int | None = None
    """Bytes on the GPU that a call needs beyond what was held before it; None without one."""
    failure: str = ""
    """Why it could not be compiled or run, in one line."""

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
    """How to fix it; a clause that begins with a verb."""


@dataclass(frozen=True, slots=True)
class Recompile:
    """A function that was compiled again in later calls with the very same arguments."""

    function: str
    times: int
    settled: bool
    """Whether that came to an end: while warming up, or before the third time."""
    guard: str
    """What failed the last time."""
    action: str
    """What to do about it; a clause that begins with a verb."""


@dataclass(frozen=True, slots=True)
class Resized:
    """A call with another size in the first dimension."""

    size: int
    seconds: float = 0.0
    """Wall seconds of the call."""
    guards: tuple[str, ...] = ()
    """Why it was compiled again; empty where what was there could run it."""
    action: str = ""
    """What to do about that."""
    refused: str = ""
    """The error of the eager call, which takes no such size, in one line."""
    failure: str = ""
    """The error of the compiled call alone, in one line."""

    def to_json(self) -> dict[str, Any]:
        """Return the call as JSON values, by the names that docs/json.md documents."""
        return {
            "size": self.size,
            "seconds": self.seconds,
            "recompiled": bool(self.guards),
            "guards": list(self.guards),
            "action": self.action or None,
            "refused": self.refused or None,
            "failure": self.failure or None,
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that was found out about one expression."""

    expression: str
    device: str
    eager: Timing
    variants: tuple[Variant, ...]
    """By mode, in the order in which they were asked for; at least one."""
    graphs: int = 0
    """How many graphs the first variant fell into, backward graphs not counted."""
    breaks: tuple[Break, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    """Of the first variant, with the same arguments."""
    size: int | None = None
    """The size in the first dimension that the tensors share; None where they have none."""
    resized: tuple[Resized, ...] = ()
    eager_peak_bytes: int | None = None
    notes: tuple[str, ...] = ()
    """What the reader is to know of how this was measured, one sentence each."""

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON values, by the names that docs/json.md documents."""
        return {
            "expression": self.expression,
            "device": self.device,
            "eager": {**self.eager.to_json(), "peak_bytes": self.eager_peak_bytes},
            "modes": [self._variant_to_json(each) for each in self.variants],
            "graphs": self.graphs,
            "graph_breaks": [{"reason": each.reason, "action": each.action} for each in self.breaks],
            "recompiles": [asdict(each) for each in self.recompiles],
            "size": self.size,
            "other_sizes": [each.to_json() for each in self.resized],
            "notes": list(self.notes),
            "recommendation": recommendation(self),
        }

    def _variant_to_json(self, variant: Variant) -> dict[str, Any]:
        ran = variant.timing is not None
        return {
            "mode": variant.mode,
            "timing": variant.timing and variant.timing.to_json(),
            "speed_up": variant.timing and speed_up(variant.eager or self.eager, variant.timing),
            "compile_seconds": variant.compile_seconds if ran else None,
            "saved_seconds": variant.saved_seconds if ran else None,
            "pays_after": calls_to_pay(self.eager, variant),
            "results": variant.comparison.to_json() if ran else None,
            "peak_bytes": variant.peak_bytes,
            "failure": variant.failure or None,
        }


def speed_up(before: Timing, after: Timing) -> float:
    """Return how many times faster `after` is."""
    return before.median / after.median if after.median else math.inf


def is_faster(one: Timing, other: Timing) -> bool:
    """Tell whether `one` is clearly faster: by a twentieth at least, and in three of four pairs of calls.

    Pairs of any two, so that a moment in which the machine was busy counts for little.
    """
    if speed_up(other, one) < _WORTH_IT:
        return False
    pairs = [(mine, theirs) for mine in one.seconds for theirs in other.seconds]
    wins = sum(1.0 if mine < theirs else 0.5 if mine == theirs else 0.0 for mine, theirs in pairs)
    return wins >= _CLEARLY * len(pairs)


def calls_to_pay(eager: Timing, variant: Variant) -> int | None:
    """Return after how many calls compiling has paid for itself; None where it never does."""
    eager = variant.eager or eager
    if variant.timing is None or not is_faster(variant.timing, eager):
        return None
    return math.ceil(variant.cold_seconds / (eager.median - variant.timing.median))


def best(variants: Sequence[Variant]) -> Variant | None:
    """Return the first that runs, or a later one that is clearly faster and whose results are no worse."""
    found: Variant | None = None
    for each in variants:
        if each.timing is None:
            continue
        if found is None:
            found = each
        elif is_faster(_in_eager_calls(each), _in_eager_calls(found)):
            worse = each.comparison.agreement is Agreement.DIFFERENT
            found = found if worse and found.comparison.agreement is not Agreement.DIFFERENT else each
    return found


def _in_eager_calls(variant: Variant) -> Timing:
    """Return the timing in units of the eager calls that took turns with it."""
    calls, unit = variant.timing or Timing((math.inf,)), variant.eager.median if variant.eager else 1.0
    return Timing(tuple(seconds / unit for seconds in calls.seconds))


def times(ratio: float) -> str:
    """Return a speed-up for people: `1.9 x`, `0.87 x`, `24 x`, `under 0.01 x`."""
    if ratio < 0.01:
        return "under 0.01 x"
    if ratio >= 9.95:
        return f"{ratio:.0f} x"
    return f"{ratio:.1f} x" if ratio >= 0.995 else f"{ratio:.2f} x"


def recommendation(found: Diagnosis) -> str:
    """Return the one thing to do; a clause that begins with a verb."""
    chosen = best(found.variants)
    if chosen is None or chosen.timing is None:
        return f"do not compile it as it is: torch.compile fails: {found.variants[0].failure}"
    if chosen.comparison.agreement is Agreement.DIFFERENT:
        return f"find out why results differ before you use it compiled: {_where(chosen.comparison)}"
    eager = chosen.eager or found.eager
    ratio = speed_up(eager, chosen.timing)
    if restless := [each for each in found.recompiles if not each.settled]:
        first = restless[0]
        return f"keep {first.function} from being compiled again at each call: {first.guard}: {first.action}"
    if not found.graphs and not found.breaks:
        return "look at what it does: there is no graph in it that torch.compile could compile"
    if is_faster(chosen.timing, eager):
        cost = _cost(eager, chosen)
        told = [f"compile it with mode={chosen.mode!r}: {times(ratio)} faster, {cost}"]
        return "; ".join([*told, *_sizes(found), *_more_to_gain(found.breaks)])
    if found.breaks:
        action = found.breaks[0].action
        return f"fix {_breaks(found.breaks)} and measure again: {action}; compiled now it is {times(ratio)}"
    if is_faster(eager, chosen.timing):
        return f"do not compile it as it is: {times(ratio)}, so it gets slower"
    if ratio < _WORTH_IT:
        return f"do not compile it as it is: {times(ratio)}, so there is nothing to gain"
    return f"measure it with more --runs: {times(ratio)}, but single calls vary more than that"


def _cost(eager: Timing, chosen: Variant) -> str:
    """Return what compiling costs, and when that has paid."""
    calls = calls_to_pay(eager, chosen)
    told = f"{duration(chosen.cold_seconds)} to compile"
    return told if calls is None else f"{told}, pays after {counted_calls(calls)}"


def counted_calls(calls: int) -> str:
    """Return a number of calls, to two digits: `1,300 calls`."""
    digits = len(str(calls)) - 2
    rounded = round(calls, -digits) if digits > 0 else calls
    return "1 call" if rounded == 1 else f"{rounded:,} calls"


def _where(comparison: Comparison) -> str:
    if comparison.mismatch:
        return comparison.mismatch
    if comparison.absolute is None:
        return "they are far from each other"
    spot = comparison.absolute
    return f"{spot.eager:.4g} eager, {spot.compiled:.4g} compiled at {spot.place}"


def _sizes(found: Diagnosis) -> list[str]:
    """Return what to do where sizes change, if it was compiled again for them and need not be."""
    again = [each for each in found.resized if any(map(dynamic_spares, each.guards))]
    if not again:
        return []
    spared = duration(sum(each.seconds for each in again))
    return [f"where sizes change, dynamic=True spares {counted(len(again), 'recompile')} ({spared})"]


def _breaks(breaks: Sequence[Break]) -> str:
    return "the graph break" if len(breaks) == 1 else f"the first of {len(breaks)} graph breaks"


def _more_to_gain(breaks: Sequence[Break]) -> list[str]:
    return [f"{_breaks(breaks)} may cost more than that: {breaks[0].action}"] if breaks else []


def _finite(value: float) -> float | None:
    """Return a number as JSON can hold it: None for an infinite one, and for NaN."""
    return value if math.isfinite(value) else None
