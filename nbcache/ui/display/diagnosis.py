"""Shows what came of running an expression eager and compiled."""

from __future__ import annotations

from collections.abc import Iterator

from nbcache.core.text import DOT, NOTHING, aligned, counted, duration, one_line, size
from nbcache.explain.diagnosis import (
    Agreement,
    Comparison,
    Diagnosis,
    Resized,
    Spot,
    Timing,
    Variant,
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
_NUMBERS = ("per call", "middle half", "speed-up", "compiling", "pays after")


def render_diagnosis(found: Diagnosis) -> Rendered:
    """Return the table of modes, what was found, and the recommendation."""
    ran = [each.timing for each in found.variants if each.timing is not None] or [found.eager]
    timed = max(len(each.seconds) for each in ran)
    parts = [one_line(found.expression, 60), found.device, counted(timed, "timed call")]
    headers, rows = _table(found)
    right = range(1, len(headers))
    lines = [DOT.join([_TITLE, *parts])]
    lines += [f"  {line}" for line in aligned([headers, *rows], right)]
    boxes = [_tag("div", "", _head(_TITLE, parts))]
    columns = [(headers[0], CELL), *((header, NUMBER) for header in headers[1:-1]), (headers[-1], LAST)]
    boxes.append(_rows(columns, [[_text(row[0], style=CODE), *map(_text, row[1:])] for row in rows]))
    for label, text, details in _findings(found):
        lines += _wrapped(f"{label}: {text}" if text else f"{label}:", 2)
        depths = [2 if each.startswith(_FIX) else 1 for each in details]
        for each, depth in zip(details, depths, strict=True):
            lines += _wrapped(each, 2 + 2 * depth)
        inner = [
            _tag("div", f"padding-left:{14 * depth}px", _text(each))
            for each, depth in zip(details, depths, strict=True)
        ]
        boxes.append(_tag("div", "", _text(f"{label}:", style=FAINT), " ", _text(text), *inner))
    last = recommendation(found)
    lines += _wrapped(f"next: {last}", 2)
    boxes.append(_tag("div", "margin:4px 0", "<b>next:</b> ", _text(last)))
    return Rendered("\n".join(lines), _tag("div", BOX, *boxes), found.to_json(), _MIME)


def per_call(seconds: float) -> str:
    """Return the seconds of a call for people: `42 us`, `1.24 ms`, `31.2 ms`, `2.1 s`."""
    if seconds >= 0.9995:
        return duration(seconds)
    amount, unit = (seconds * 1e3, "ms") if seconds >= 0.9995e-3 else (seconds * 1e6, "us")
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    return f"{amount:.{digits}f} {unit}" if unit == "ms" else f"{amount:.0f} {unit}"


def _table(found: Diagnosis) -> tuple[list[str], list[list[str]]]:
    """Return the headers and a row for eager and each mode."""
    on_gpu = found.eager_peak_bytes is not None
    headers = ["", *_NUMBERS, *(["GPU memory"] if on_gpu else [])]
    rows = [["eager", *_seconds(found.eager), NOTHING, NOTHING, NOTHING]]
    rows += [[each.mode, *_figures(found.eager, each)] for each in found.variants]
    if on_gpu:
        peaks = [found.eager_peak_bytes, *(each.peak_bytes for each in found.variants)]
        rows = [
            [*row, NOTHING if peak is None else size(peak)] for row, peak in zip(rows, peaks, strict=True)
        ]
    return headers, rows


def _figures(eager: Timing, variant: Variant) -> list[str]:
    if variant.timing is None:
        return ["failed", *[NOTHING] * (len(_NUMBERS) - 1)]
    calls = calls_to_pay(eager, variant)
    return [
        *_seconds(variant.timing),
        times(speed_up(variant.eager or eager, variant.timing)),
        duration(variant.cold_seconds),
        NOTHING if calls is None else counted_calls(calls),
    ]


def _seconds(timing: Timing) -> list[str]:
    low, high = timing.spread
    return [per_call(timing.median), f"{per_call(low)} to {per_call(high)}"]


def _findings(found: Diagnosis) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what was found, as (label, text, details)."""
    for each in found.variants:
        if each.failure:
            yield f"{each.mode} failed", each.failure, []
    if any(each.timing is not None for each in found.variants):
        details = [text for each in found.breaks for text in (each.reason, _FIX + each.action)]
        into = f"{len(found.breaks) or 'none'} ({counted(found.graphs, 'graph')})"
        yield "graph breaks", into, details
        yield from _recompiles(found)
        yield from _sizes(found)
        yield from _results(found)
        yield from _stored(found)
    for note in found.notes:
        yield "note", note, []


def _recompiles(found: Diagnosis) -> Iterator[tuple[str, str, list[str]]]:
    if not found.recompiles:
        return
    details = []
    for each in found.recompiles:
        until = "then no more" if each.settled else "and it goes on"
        details.append(f"{each.function}: {counted(each.times, 'time')}, {until}: {each.guard}")
        if not each.settled:
            details.append(_FIX + each.action)
    yield "recompiles with the same arguments", str(sum(each.times for each in found.recompiles)), details


def _sizes(found: Diagnosis) -> Iterator[tuple[str, str, list[str]]]:
    if found.size is None:
        yield "other sizes", "not tried: no argument is a tensor with a first dimension", []
        return
    if not found.resized:
        return
    details = []
    for each in found.resized:
        details.append(f"{each.size}: {_resized(each)}")
        if each.action:
            details.append(_FIX + each.action)
    again = sum(bool(each.guards) for each in found.resized)
    refused = sum(bool(each.refused) for each in found.resized)
    if refused == len(found.resized):
        told = "none is taken, also eager"
    else:
        told = f"{again or 'none'} of {len(found.resized) - refused} recompiled"
    yield f"sizes other than {found.size}", told, details


def _resized(each: Resized) -> str:
    if each.refused:
        return f"not taken, also eager: {each.refused}"
    if each.failure:
        return f"fails compiled: {each.failure}"
    if each.guards:
        return f"recompiled in {duration(each.seconds)}: {'; '.join(each.guards)}"
    return "runs as it is"


def _results(found: Diagnosis) -> Iterator[tuple[str, str, list[str]]]:
    """Yield how results compare; once, where that is alike in all modes."""
    told: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for each in found.variants:
        if each.timing is not None:
            text, details = _compared(each.comparison)
            told.setdefault((text, tuple(details)), []).append(each.mode)
    for (text, spots), modes in told.items():
        which = "" if len(told) == 1 else f" of {', '.join(modes)}"
        yield f"results{which}", text, list(spots)


def _compared(comparison: Comparison) -> tuple[str, list[str]]:
    dtype, allowed = comparison.dtype, f"{comparison.ratio:.2g} times what torch.testing allows"
    text = {
        Agreement.EQUAL: "equal, bit for bit",
        Agreement.USUAL: f"as usual for {dtype}: within what torch.testing allows",
        Agreement.LARGER: f"{allowed} for {dtype}, as another order of sums may give",
        Agreement.DIFFERENT: comparison.mismatch or f"different: {allowed} for {dtype}",
        Agreement.UNKNOWN: f"not compared: {comparison.unknown}",
    }[comparison.agreement]
    if comparison.unknown or comparison.mismatch:
        return text, []
    spots = (("absolute", comparison.absolute), ("relative", comparison.relative))
    return text, [_spot(kind, spot) for kind, spot in spots if spot is not None]


def _spot(kind: str, spot: Spot) -> str:
    values = f"{spot.eager:.7g} eager, {spot.compiled:.7g} compiled"
    return f"largest {kind} difference {spot.difference:.2g} at {spot.place}: {values}"


def _stored(found: Diagnosis) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what of the compiling was there already."""
    restored = [each for each in found.variants if each.saved_seconds >= 0.1]
    if restored:
        spent = DOT.join(f"{each.mode} took {duration(each.compile_seconds)}" for each in restored)
        yield "from caches", f"{spent} now; the table has what it takes where nothing is stored", []
