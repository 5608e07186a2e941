"""Shows the result of running a call eager and compiled."""

from __future__ import annotations

from collections.abc import Iterator

from nbcache.core.text import NOTHING, counted, duration, one_line, size
from nbcache.kernel.explain.diagnosis import (
    Agreement,
    Comparison,
    Diagnosis,
    Resized,
    Timing,
    counted_calls,
    recommendation,
    times,
)
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import labelled, line
from nbcache.ui.display.render import Rendered, render

_RESULTS = {
    Agreement.EQUAL: "equal",
    Agreement.USUAL: "as usual: within what torch.testing allows",
    Agreement.LARGER: "beyond what torch.testing allows, as another order of sums may give",
    Agreement.DIFFERENT: "different",
    Agreement.UNKNOWN: "not compared",
}


def render_diagnosis(diagnosis: Diagnosis) -> Rendered:
    measurements = len((diagnosis.compiled or diagnosis.eager).seconds)
    parts = [one_line(diagnosis.expression, 60), diagnosis.device, counted(measurements, "measurement")]
    blocks: list[doc.Block] = [doc.Title("nbcache diagnose", parts), _table(diagnosis), *_findings(diagnosis)]
    blocks.append(labelled("next", recommendation(diagnosis)))
    return render(blocks, diagnosis.to_json(), "diagnosis")


def per_call(seconds: float) -> str:
    """Return the seconds of a call for people: `42 us`, `1.24 ms`, `31.2 ms`, `2.1 s`."""
    if seconds >= 0.9995:
        return duration(seconds)
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    digits = 2 if seconds < 9.995e-3 else 1 if seconds < 99.95e-3 else 0
    return f"{seconds * 1e3:.{digits}f} ms"


def _table(diagnosis: Diagnosis) -> doc.Table:
    titles = ["per call", "middle half", "speed-up", "compiling", "pays after"]
    peaks = [diagnosis.eager_peak_bytes, diagnosis.peak_bytes]
    rows = [["eager", *_seconds(diagnosis.eager)], [diagnosis.mode, "failed"]]
    if diagnosis.compiled is not None:
        calls = diagnosis.pays_after
        pays = NOTHING if calls is None else counted_calls(calls)
        cost = [times(diagnosis.speed_up or 0.0), duration(diagnosis.cold_seconds), pays]
        rows[1] = [diagnosis.mode, *_seconds(diagnosis.compiled), *cost]
    rows = [row + [NOTHING] * (len(titles) + 1 - len(row)) for row in rows]
    if diagnosis.eager_peak_bytes is not None:
        titles.append("GPU memory")
        rows = [
            [*row, NOTHING if peak is None else size(peak)] for row, peak in zip(rows, peaks, strict=True)
        ]
    return doc.Table([doc.Column(""), *(doc.Column(title, doc.Wrap.NUMBER) for title in titles)], rows)


def _seconds(timing: Timing) -> list[str]:
    low, high = timing.spread
    return [per_call(timing.median), f"{per_call(low)} to {per_call(high)}"]


def _findings(diagnosis: Diagnosis) -> Iterator[doc.Line]:
    breaks, recompiles = diagnosis.breaks, diagnosis.recompiles
    if diagnosis.compiled is None:
        yield labelled(f"{diagnosis.mode} failed", diagnosis.failure)
    else:
        yield labelled("graph breaks", f"{len(breaks) or 'none'} ({counted(diagnosis.graphs, 'graph')})")
        for graph_break in breaks:
            yield line(graph_break.reason, level=1)
            yield labelled("fix", graph_break.action, level=2)
        if recompiles:
            total = sum(recompile.times for recompile in recompiles)
            yield labelled("recompiles with the same arguments", str(total))
        for recompile in recompiles:
            end = "then no more" if recompile.settled else "and it goes on"
            text = f"{recompile.function}: {counted(recompile.times, 'time')}, {end}: {recompile.guard}"
            yield line(text, level=1)
            if not recompile.settled:
                yield labelled("fix", recompile.action, level=2)
        yield from _sizes(diagnosis)
        yield labelled("results", _results(diagnosis.comparison))
        if diagnosis.saved_seconds >= 0.1:
            spent = f"it took {duration(diagnosis.compile_seconds)} now"
            text = f"{spent}; the table has the time that it takes where nothing is stored"
            yield labelled("from caches", text)
    yield from (labelled("note", note) for note in diagnosis.notes)


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
