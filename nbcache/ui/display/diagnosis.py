"""Shows the result of running a call eager and compiled."""

from __future__ import annotations

from collections.abc import Iterator

from nbcache.core.text import NOTHING, counted, duration, one_line, size
from nbcache.explain.diagnosis import (
    Agreement,
    Comparison,
    Diagnosis,
    Resized,
    Timing,
    calls_to_pay,
    counted_calls,
    recommendation,
    speed_up,
    times,
)
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import labelled, line
from nbcache.ui.display.render import Rendered, render

__all__ = ["per_call", "render_diagnosis"]

_NUMBERS = ["per call", "middle half", "speed-up", "compiling", "pays after"]
_RESULTS = {
    Agreement.EQUAL: "equal",
    Agreement.USUAL: "as usual: within what torch.testing allows",
    Agreement.LARGER: "beyond what torch.testing allows, as another order of sums may give",
    Agreement.DIFFERENT: "different",
    Agreement.UNKNOWN: "not compared",
}


def render_diagnosis(diagnosis: Diagnosis) -> Rendered:
    """Return the table of eager and compiled calls, the findings, and the recommendation."""
    measurements = len((diagnosis.compiled.timing or diagnosis.eager).seconds)
    parts = [one_line(diagnosis.expression, 60), diagnosis.device, counted(measurements, "measurement")]
    blocks: list[doc.Block] = [doc.Title("nbcache diagnose", parts), _table(diagnosis), *_findings(diagnosis)]
    blocks.append(labelled("next", recommendation(diagnosis)))
    return render(blocks, diagnosis.to_json(), "diagnosis")


def per_call(seconds: float) -> str:
    """Return the seconds of a call for people: `42 us`, `1.24 ms`, `31.2 ms`, `2.1 s`."""
    if seconds >= 0.9995:
        return duration(seconds)
    amount, unit = (seconds * 1e3, "ms") if seconds >= 0.9995e-3 else (seconds * 1e6, "us")
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    return f"{amount:.{digits}f} {unit}" if unit == "ms" else f"{amount:.0f} {unit}"


def _table(diagnosis: Diagnosis) -> doc.Table:
    eager, compiled, calls = diagnosis.eager, diagnosis.compiled, calls_to_pay(diagnosis)
    rows = [["eager", *_seconds(eager), NOTHING, NOTHING, NOTHING]]
    if compiled.timing is None:
        rows.append([compiled.mode, "failed", *[NOTHING] * (len(_NUMBERS) - 1)])
    else:
        ratio = times(speed_up(eager, compiled.timing))
        pays = NOTHING if calls is None else counted_calls(calls)
        rows.append([compiled.mode, *_seconds(compiled.timing), ratio, duration(compiled.cold_seconds), pays])
    titles = list(_NUMBERS)
    if diagnosis.eager_peak_bytes is not None:
        titles.append("GPU memory")
        for row, peak in zip(rows, (diagnosis.eager_peak_bytes, compiled.peak_bytes), strict=True):
            row.append(NOTHING if peak is None else size(peak))
    return doc.Table([doc.Column(""), *(doc.Column(title, doc.Wrap.NUMBER) for title in titles)], rows)


def _seconds(timing: Timing) -> list[str]:
    low, high = timing.spread
    return [per_call(timing.median), f"{per_call(low)} to {per_call(high)}"]


def _findings(diagnosis: Diagnosis) -> Iterator[doc.Line]:
    compiled, breaks = diagnosis.compiled, diagnosis.breaks
    if compiled.timing is None:
        yield labelled(f"{compiled.mode} failed", compiled.failure)
    else:
        yield labelled("graph breaks", f"{len(breaks) or 'none'} ({counted(diagnosis.graphs, 'graph')})")
        for graph_break in breaks:
            yield line(graph_break.reason, level=1)
            yield labelled("fix", graph_break.action, level=2)
        yield from _recompiles(diagnosis)
        yield from _sizes(diagnosis)
        yield labelled("results", _results(compiled.comparison))
        if compiled.saved_seconds >= 0.1:
            spent = f"it took {duration(compiled.compile_seconds)} now"
            text = f"{spent}; the table has the time that it takes where nothing is stored"
            yield labelled("from caches", text)
    yield from (labelled("note", note) for note in diagnosis.notes)


def _recompiles(diagnosis: Diagnosis) -> Iterator[doc.Line]:
    if diagnosis.recompiles:
        total = sum(recompile.times for recompile in diagnosis.recompiles)
        yield labelled("recompiles with the same arguments", str(total))
    for recompile in diagnosis.recompiles:
        end = "then no more" if recompile.settled else "and it goes on"
        text = f"{recompile.function}: {counted(recompile.times, 'time')}, {end}: {recompile.guard}"
        yield line(text, level=1)
        if not recompile.settled:
            yield labelled("fix", recompile.action, level=2)


def _sizes(diagnosis: Diagnosis) -> Iterator[doc.Line]:
    if diagnosis.size is None:
        yield labelled("other sizes", "not tried: no argument is a tensor with a first dimension")
    elif calls := diagnosis.resized:
        accepted = len([call for call in calls if not call.refused])
        recompiled = len([call for call in calls if call.guards])
        text = f"{recompiled or 'none'} of {accepted} recompiled" if accepted else "refused, also eager"
        yield labelled(f"sizes other than {diagnosis.size}", text)
        for call in calls:
            yield line(f"{call.size}: {_size_words(call)}", level=1)
            if call.action:
                yield labelled("fix", call.action, level=2)


def _size_words(call: Resized) -> str:
    if call.refused:
        return f"refused, also eager: {call.refused}"
    if call.failure:
        return f"fails compiled: {call.failure}"
    if call.guards:
        return f"recompiled in {duration(call.seconds)}: {'; '.join(call.guards)}"
    return "runs as it is"


def _results(comparison: Comparison) -> str:
    detail = ": ".join(filter(None, (comparison.place, comparison.message)))
    return "; ".join(filter(None, (_RESULTS[comparison.agreement], detail)))
