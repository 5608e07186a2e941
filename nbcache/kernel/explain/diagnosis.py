"""The result of running a call eager and compiled, and the advice that follows from it."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from nbcache.core.text import counted, duration
from nbcache.kernel.explain.guards import dynamic_spares

_WORTH_IT = 1.05
_CLEARLY = 0.75


class Agreement(enum.StrEnum):
    EQUAL = "equal"
    USUAL = "usual"
    """Within the tolerance of torch.testing for the dtype."""
    LARGER = "larger"
    """Up to a hundred times that tolerance, as another order of sums may cause."""
    DIFFERENT = "different"
    """Beyond that, or of another shape, dtype or structure."""
    UNKNOWN = "unknown"
    """They cannot be compared."""


@dataclass(frozen=True, slots=True)
class Comparison:
    agreement: Agreement = Agreement.EQUAL
    place: str = ""
    """As Python writes it: `output['logits']`; empty if all are equal."""
    message: str = ""
    """The words of torch.testing.assert_close, or why results cannot be compared."""


@dataclass(frozen=True, slots=True)
class Timing:
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        if len(self.seconds) == 1:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    def to_json(self) -> dict[str, Any]:
        low, high = self.spread
        ends = {"fastest": min(self.seconds), "slowest": max(self.seconds)}
        return {"median": self.median, "low": low, "high": high, **ends, "runs": len(self.seconds)}


@dataclass(frozen=True, slots=True)
class Break:
    reason: str
    """With the line at its end: `... (In[3]:4)`."""
    action: str


@dataclass(frozen=True, slots=True)
class Recompile:
    """A function that was compiled again in later calls with the same arguments."""

    function: str
    times: int
    settled: bool
    """True if that ended: while warming up, or before the third time."""
    guard: str
    action: str


@dataclass(frozen=True, slots=True)
class Resized:
    """A call with another size in the first dimension."""

    size: int
    seconds: float = 0.0
    guards: tuple[str, ...] = ()
    """The guards that failed; empty if the call was not compiled again."""
    action: str = ""
    refused: str = ""
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        row = {name: value or None for name, value in asdict(self).items()}
        guards = {"recompiled": bool(self.guards), "guards": list(self.guards)}
        return {**row, "seconds": self.seconds, **guards}


@dataclass(slots=True)
class Diagnosis:
    expression: str
    mode: str = "default"
    device: str = "cpu"
    eager: Timing = Timing((0.0,))
    compiled: Timing | None = None
    """None if the compiled call failed."""
    failure: str = ""
    compile_seconds: float = 0.0
    """Seconds that the first calls took beyond running, now."""
    saved_seconds: float = 0.0
    """Seconds of compiling that caches saved."""
    comparison: Comparison = Comparison()
    graphs: int = 0
    """Graphs that the call was split into, without backward graphs."""
    breaks: tuple[Break, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    size: int | None = None
    """The size in the first dimension that most tensors share; None without such tensors."""
    resized: tuple[Resized, ...] = ()
    eager_peak_bytes: int | None = None
    peak_bytes: int | None = None
    """Bytes on the GPU that a call needs beyond those allocated before it; None without a GPU."""
    notes: tuple[str, ...] = ()

    @property
    def cold_seconds(self) -> float:
        """Seconds of compiling if nothing is stored."""
        return self.compile_seconds + self.saved_seconds

    @property
    def speed_up(self) -> float | None:
        return None if self.compiled is None else _ratio(self.eager, self.compiled)

    @property
    def pays_after(self) -> int | None:
        """The number of calls after which compiling has paid for itself; None if it never does."""
        if self.compiled is None or not is_faster(self.compiled, self.eager):
            return None
        return math.ceil(self.cold_seconds / (self.eager.median - self.compiled.median))

    def to_json(self) -> dict[str, Any]:
        timing = self.compiled
        mode = {
            "mode": self.mode,
            "timing": timing and timing.to_json(),
            "speed_up": self.speed_up,
            "compile_seconds": self.compile_seconds if timing else None,
            "saved_seconds": self.saved_seconds if timing else None,
            "pays_after": self.pays_after,
            "results": asdict(self.comparison) if timing else None,
            "peak_bytes": self.peak_bytes,
            "failure": self.failure or None,
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


def _ratio(slow: Timing, fast: Timing) -> float:
    return slow.median / fast.median if fast.median else math.inf


def is_faster(one: Timing, other: Timing) -> bool:
    """Return whether `one` is faster by at least 5 %, and in at least 75 % of the pairs of calls."""
    pairs = [seconds <= other_seconds for seconds in one.seconds for other_seconds in other.seconds]
    return _ratio(other, one) >= _WORTH_IT and sum(pairs) >= _CLEARLY * len(pairs)


def times(ratio: float) -> str:
    """Return a speed-up for people: `1.9 x`, `0.87 x`, `24 x`, `under 0.01 x`."""
    if ratio < 0.01:
        return "under 0.01 x"
    digits = 0 if ratio >= 9.95 else 1 if ratio >= 0.995 else 2
    return f"{ratio:.{digits}f} x"


def counted_calls(calls: int) -> str:
    """Return a number of calls, to two digits: `1,300 calls`."""
    rounded = round(calls, min(2 - len(str(calls)), 0))
    return "1 call" if rounded == 1 else f"{rounded:,} calls"


def recommendation(diagnosis: Diagnosis) -> str:
    return "; ".join(_advice(diagnosis))


def _advice(diagnosis: Diagnosis) -> Iterator[str]:
    eager, compiled, breaks = diagnosis.eager, diagnosis.compiled, diagnosis.breaks
    comparison = diagnosis.comparison
    not_now = "do not compile it in this form"
    if compiled is None:
        yield f"{not_now}: torch.compile fails: {diagnosis.failure}"
        return
    ratio = _ratio(eager, compiled)
    faster = times(ratio)
    first = "the graph break" if len(breaks) == 1 else f"the first of {len(breaks)} graph breaks"
    restless = [recompile for recompile in diagnosis.recompiles if not recompile.settled]
    if comparison.agreement is Agreement.DIFFERENT:
        difference = f"{comparison.place}: {comparison.message}"
        yield f"find out why results differ before you use the compiled function: {difference}"
    elif restless:
        function, cause = restless[0].function, f"{restless[0].guard}: {restless[0].action}"
        yield f"keep {function} from being compiled again at each call: {cause}"
    elif not diagnosis.graphs and not breaks:
        yield "look at the function: it has no graph that torch.compile could compile"
    elif is_faster(compiled, eager):
        cost = f"{duration(diagnosis.cold_seconds)} to compile"
        pays = counted_calls(diagnosis.pays_after or 1)
        yield f"compile it with mode={diagnosis.mode!r}: {faster} faster, {cost}, pays after {pays}"
        if breaks:
            yield f"{first} may cost more than that: {breaks[0].action}"
        if spared := [call for call in diagnosis.resized if any(map(dynamic_spares, call.guards))]:
            seconds = duration(sum(call.seconds for call in spared))
            yield f"where sizes change, dynamic=True spares {counted(len(spared), 'recompile')} ({seconds})"
    elif breaks:
        yield f"fix {first} and measure again: {breaks[0].action}"
        yield f"compiled now it is {faster}"
    elif is_faster(eager, compiled):
        yield f"{not_now}: {faster}, so it gets slower"
    elif ratio < _WORTH_IT:
        yield f"{not_now}: {faster}, so there is nothing to gain"
    else:
        yield f"measure it with more --runs: {faster}, but single calls vary more than that"
