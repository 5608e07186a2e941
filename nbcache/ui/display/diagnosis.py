"""Shows the result of running a call eager and compiled."""

from __future__ import annotations

from collections.abc import Iterator

from nbcache.core.text import DOT, NOTHING, aligned, counted, duration, one_line, size
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
from nbcache.ui.display.html import BOX, CELL, CODE, FAINT, LAST, NUMBER, _head, _rows, _tag, _text
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.text import _wrapped

__all__ = ["per_call", "render_diagnosis"]

_MIME = "application/vnd.nbcache.diagnosis+json"
_TITLE = "nbcache diagnose"
_FIX = "fix: "
_NUMBERS = ["per call", "middle half", "speed-up", "compiling", "pays after"]


def render_diagnosis(diagnosis: Diagnosis) -> Rendered:
    """Return the table of eager and compiled calls, the findings, and the recommendation."""
    timing = diagnosis.compiled.timing or diagnosis.eager
    parts = [
        one_line(diagnosis.expression, 60),
        diagnosis.device,
        counted(len(timing.seconds), "measurement"),
    ]
    headers, rows = _table(diagnosis)
    lines = [DOT.join([_TITLE, *parts])]
    lines += [f"  {line}" for line in aligned([headers, *rows], range(1, len(headers)))]
    columns = [(headers[0], CELL), *((header, NUMBER) for header in headers[1:-1]), (headers[-1], LAST)]
    table = _rows(columns, [[_text(row[0], style=CODE), *map(_text, row[1:])] for row in rows])
    boxes = [_tag("div", "", _head(_TITLE, parts)), table]
    for label, text, details in _findings(diagnosis):
        lines += _wrapped(f"{label}: {text}", 2)
        inner = []
        for detail in details:
            depth = 2 if detail.startswith(_FIX) else 1
            lines += _wrapped(detail, 2 + 2 * depth)
            inner.append(_tag("div", f"padding-left:{14 * depth}px", _text(detail)))
        boxes.append(_tag("div", "", _text(f"{label}:", style=FAINT), " ", _text(text), *inner))
    advice = recommendation(diagnosis)
    lines += _wrapped(f"next: {advice}", 2)
    boxes.append(_tag("div", "margin:4px 0", "<b>next:</b> ", _text(advice)))
    return Rendered("\n".join(lines), _tag("div", BOX, *boxes), diagnosis.to_json(), _MIME)


def per_call(seconds: float) -> str:
    """Return the seconds of a call for people: `42 us`, `1.24 ms`, `31.2 ms`, `2.1 s`."""
    if seconds >= 0.9995:
        return duration(seconds)
    amount, unit = (seconds * 1e3, "ms") if seconds >= 0.9995e-3 else (seconds * 1e6, "us")
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    return f"{amount:.{digits}f} {unit}" if unit == "ms" else f"{amount:.0f} {unit}"


def _table(diagnosis: Diagnosis) -> tuple[list[str], list[list[str]]]:
    """Return the headers and the rows."""
    eager, compiled, calls = diagnosis.eager, diagnosis.compiled, calls_to_pay(diagnosis)
    rows = [["eager", *_seconds(eager), NOTHING, NOTHING, NOTHING]]
    if compiled.timing is None:
        rows.append([compiled.mode, "failed", *[NOTHING] * (len(_NUMBERS) - 1)])
    else:
        ratio = times(speed_up(eager, compiled.timing))
        pays = NOTHING if calls is None else counted_calls(calls)
        rows.append([compiled.mode, *_seconds(compiled.timing), ratio, duration(compiled.cold_seconds), pays])
    if diagnosis.eager_peak_bytes is None:
        return ["", *_NUMBERS], rows
    for row, peak in zip(rows, (diagnosis.eager_peak_bytes, compiled.peak_bytes), strict=True):
        row.append(NOTHING if peak is None else size(peak))
    return ["", *_NUMBERS, "GPU memory"], rows


def _seconds(timing: Timing) -> list[str]:
    low, high = timing.spread
    return [per_call(timing.median), f"{per_call(low)} to {per_call(high)}"]


def _findings(diagnosis: Diagnosis) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the findings, as (label, text, details)."""
    compiled, breaks = diagnosis.compiled, diagnosis.breaks
    if compiled.timing is None:
        yield f"{compiled.mode} failed", compiled.failure, []
    else:
        details = [text for graph_break in breaks for text in (graph_break.reason, _FIX + graph_break.action)]
        yield "graph breaks", f"{len(breaks) or 'none'} ({counted(diagnosis.graphs, 'graph')})", details
        yield from _recompiles(diagnosis)
        yield from _sizes(diagnosis)
        yield "results", _results(compiled.comparison), []
        if compiled.saved_seconds >= 0.1:
            spent = f"it took {duration(compiled.compile_seconds)} now"
            yield "from caches", f"{spent}; the table has the time that it takes where nothing is stored", []
    yield from (("note", note, []) for note in diagnosis.notes)


def _recompiles(diagnosis: Diagnosis) -> Iterator[tuple[str, str, list[str]]]:
    details = []
    for recompile in diagnosis.recompiles:
        end = "then no more" if recompile.settled else "and it goes on"
        details.append(f"{recompile.function}: {counted(recompile.times, 'time')}, {end}: {recompile.guard}")
        if not recompile.settled:
            details.append(_FIX + recompile.action)
    if details:
        total = sum(recompile.times for recompile in diagnosis.recompiles)
        yield "recompiles with the same arguments", str(total), details


def _sizes(diagnosis: Diagnosis) -> Iterator[tuple[str, str, list[str]]]:
    if diagnosis.size is None:
        yield "other sizes", "not tried: no argument is a tensor with a first dimension", []
    elif calls := diagnosis.resized:
        details = []
        for call in calls:
            details.append(f"{call.size}: {_size_words(call)}")
            if call.action:
                details.append(_FIX + call.action)
        accepted = len([call for call in calls if not call.refused])
        recompiled = len([call for call in calls if call.guards])
        text = f"{recompiled or 'none'} of {accepted} recompiled" if accepted else "refused, also eager"
        yield f"sizes other than {diagnosis.size}", text, details


def _size_words(call: Resized) -> str:
    if call.refused:
        return f"refused, also eager: {call.refused}"
    if call.failure:
        return f"fails compiled: {call.failure}"
    if call.guards:
        return f"recompiled in {duration(call.seconds)}: {'; '.join(call.guards)}"
    return "runs as it is"


def _results(comparison: Comparison) -> str:
    text = {
        Agreement.EQUAL: "equal",
        Agreement.USUAL: "as usual: within what torch.testing allows",
        Agreement.LARGER: "beyond what torch.testing allows, as another order of sums may give",
        Agreement.DIFFERENT: "different",
        Agreement.UNKNOWN: "not compared",
    }[comparison.agreement]
    detail = ": ".join(filter(None, (comparison.place, comparison.message)))
    return f"{text}; {detail}" if detail else text
