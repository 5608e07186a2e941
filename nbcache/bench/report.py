"""Show what was measured as text, and as JSON values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nbcache.bench.options import FULL, Idle, Options, Variant
from nbcache.bench.results import Held, Result, Row, Sizes, median, ratio, rows_of
from nbcache.core.reports import PHASES
from nbcache.core.text import DOT, NOTHING, aligned, counted, duration, one_line, size

__all__ = ["call_text", "hot_of", "idle_text", "report_json", "report_text", "times"]

JSON_VERSION = 1
_LEGEND = """\
cell: from running the measured cell to its result. start: from the start of the process to that result.
vs warm, mega, redis: times faster than `torch warm`, `mega-cache`, `torch redis`. hot: each call after that.
as eager: the largest difference; (float64): apart by rounding, and as near to float64 as eager is."""


def report_text(results: Sequence[Result], environment: Mapping[str, Any], options: Options) -> str:
    """Return the tables: one for each subject, then, where there are several, one of all."""
    blocks = [f"{_heading(environment, options)}\n{_LEGEND}"]
    blocks += [_subject_text(result, options) for result in results]
    if sum(bool(result.runs) for result in results) > 1:
        blocks.append(_overview(results))
    return "\n\n".join(blocks)


def report_json(
    results: Sequence[Result], environment: Mapping[str, Any], options: Options, *, interrupted: bool
) -> dict[str, Any]:
    """Return everything that was measured as JSON values."""
    return {
        "format": "nbcache.bench",
        "version": JSON_VERSION,
        "interrupted": interrupted,
        "environment": dict(environment),
        "options": options.to_json(),
        "subjects": [{**result.to_json(), "hot_seconds": hot_of(rows_of(result.runs))} for result in results],
    }


def times(value: float | None) -> str:
    """Return a ratio: `13×`, `1.4×`, `0.15×`."""
    if value is None:
        return NOTHING
    return f"{value:.0f}×" if value >= 9.95 else f"{value:.1f}×" if value >= 0.95 else f"{value:.2f}×"


def call_text(seconds: float) -> str:
    """Return the seconds of a call that may be short: `0.042 ms`, `3.1 ms`, `1.2 s`."""
    if seconds >= 0.995:
        return duration(seconds)
    return f"{seconds * 1000:.{3 if seconds < 0.000995 else 1}f} ms"


def idle_text(idle: Idle | None) -> str:
    """Return idle time: `0 s`, `full`, and a dash where it is all the same."""
    if idle is None:
        return NOTHING
    return idle if isinstance(idle, str) else f"{idle:g} s"


def hot_of(rows: Sequence[Row]) -> float | None:
    """Return the seconds of a hot call: the median of all variants that compile."""
    return median(row.hot_seconds for row in rows if row.variant is not Variant.EAGER)


def _heading(environment: Mapping[str, Any], options: Options) -> str:
    parts = [f"nbcache {environment.get('nbcache', '?')}", f"torch {environment.get('torch', '?')}"]
    parts += [f"Python {environment.get('python', '?')}"]
    if environment.get("gpu"):
        parts += [f"CUDA {environment.get('cuda')}", f"Triton {environment.get('triton')}"]
    parts += [str(environment[name]) for name in ("gpu", "cpu") if environment.get(name)]
    parts += [counted(environment["cores"], "core")] if environment.get("cores") else []
    parts += [f"medians of {options.runs} fresh kernels" if options.runs > 1 else "one fresh kernel each"]
    parts += [str(environment["date"])] if environment.get("date") else []
    return DOT.join(parts)


def _subject_text(result: Result, options: Options) -> str:
    rows = rows_of(result.runs)
    lines = [result.subject.label]
    if rows:
        lines += [f"  {line}".rstrip() for line in [*_table(rows, options.runs), *_remarks(result, rows)]]
    lines += [f"  ! {note}" for note in result.notes]
    if result.error is not None:
        lines.append(f"  FAILED {one_line(result.error, 400)}")
    return "\n".join(lines)


def _table(rows: Sequence[Row], runs: int) -> list[str]:
    head = [
        "",
        "idle",
        "cell",
        "range",
        "vs warm",
        "vs mega",
        "vs redis",
        "start",
        "vs warm",
        "hot",
        "graphs",
        "as eager",
    ]
    body = [
        [
            row.variant.label,
            idle_text(row.idle),
            duration(row.cell_seconds),
            f"{row.cell_fastest:.2f}–{row.cell_slowest:.2f}",
            times(None if row.variant is Variant.EAGER else row.times_torch_warm),
            times(None if row.variant is Variant.EAGER else row.times_mega_cache),
            times(None if row.variant is Variant.EAGER else row.times_torch_redis),
            NOTHING if row.idle else duration(row.start_seconds),
            times(None if row.variant is Variant.EAGER else row.start_times_torch_warm),
            call_text(row.hot_seconds),
            ", ".join(f"{count} {name}" for name, count in row.outcomes.items()) or NOTHING,
            _agreement(row),
        ]
        for row in rows
    ]
    table = [head, *body]
    shown = [
        column
        for column, name in enumerate(head)
        if not (name == "range" and runs == 1)
        and not (name.startswith("vs") and all(row[column] == NOTHING for row in body))
    ]
    table = [[row[column] for column in shown] for row in table]
    return aligned(table, right=range(1, len(table[0]) - 2))


def _agreement(row: Row) -> str:
    if row.variant is Variant.EAGER:
        return NOTHING
    apart = "" if row.difference is None else f" ±{row.difference:.0e}" if row.difference else " exactly"
    if row.agrees and row.compared_with == "float64":
        return "yes (float64)"
    return f"{'yes' if row.agrees else 'NO'}{apart}"


def _remarks(result: Result, rows: Sequence[Row]) -> list[str]:
    lines = []
    hot = hot_of(rows)
    if hot is not None:
        ours = median(row.hot_seconds for row in rows if row.outcomes)
        plain = median(
            row.hot_seconds for row in rows if not row.outcomes and row.variant is not Variant.EAGER
        )
        both = f", {call_text(ours)} with nbcache and {call_text(plain)} without" if ours and plain else ""
        lines.append(f"hot call: {call_text(hot)}{both}")
    lines += _sizes_lines(result.sizes)
    if result.traced_sizes is not None:
        traced = result.traced_sizes
        lines.append(
            f"with traces: {size(traced.trace_bytes)} of content more; a snapshot is "
            f"{size(traced.snapshot_bytes)}"
        )
    if result.uncounted_seconds is not None:
        seconds = duration(result.uncounted_seconds)
        lines.append(f"not counted: {seconds} in the cell of the first kernel, cold and without nbcache")
    if tuned := dict.fromkeys(row.variant.label for row in rows if row.benchmarked):
        lines.append(f"torch benchmarked on the GPU, to choose what is fastest, in: {', '.join(tuned)}")
    for row in rows:
        if row.overhead_seconds is not None and row.overhead_share is not None and row.variant.is_cold:
            share = f"{100 * row.overhead_share:.2f} %"
            lines.append(
                f"recording: {row.overhead_seconds * 1000:.0f} ms of the {row.variant.label} cell, {share}"
            )
    lines += [*_explaining_lines(rows, result.sizes)]
    for row in rows:
        idle = "" if row.idle is None else f", idle {idle_text(row.idle)}"
        lines += [f"! {row.variant.label}{idle}: a hit, but {one_line(reason)}" for reason in row.reasons]
    tables = (_held_lines(result.held), _asked_lines(rows), _kernels_lines(rows), _phases_lines(rows))
    return ["", *lines, *itertools.chain.from_iterable(tables)]


def _explaining_lines(rows: Sequence[Row], sizes: Sizes | None) -> Iterator[str]:
    """Yield what it costs that graphs say why they missed."""
    for row in rows:
        if (seconds := row.explaining_seconds) is None:
            continue
        if row.variant.is_cold:
            part = f"{100 * seconds / row.cell_seconds:.2f} %"
            yield f"explaining misses: {1000 * seconds:.0f} ms of the {row.variant.label} cell, {part}"
        elif hits := row.outcomes.get("hit"):
            idle = "" if row.idle is None else f", idle {idle_text(row.idle)}"
            yield f"explaining: {1000 * seconds / hits:.1f} ms a hit of {row.variant.label}{idle}"
    if sizes is not None and sizes.snapshot_bytes:
        part = f"{100 * sizes.components_bytes / sizes.snapshot_bytes:.1f} % of a snapshot"
        yield f"kept for explaining: {size(sizes.components_bytes)}, {part}"


def _sizes_lines(sizes: Sizes | None) -> list[str]:
    if sizes is None:
        return []
    held = f"{counted(sizes.artifacts, 'artifact')}, {size(sizes.artifact_bytes)} of content"
    lines = [f"stored by the cell: {held}; a snapshot of them is {size(sizes.snapshot_bytes)}"]
    if sizes.bundle_bytes:
        part = sizes.common_bytes / sizes.bundle_bytes
        lines.append(
            f"of this, what Mega-Cache can hold: {size(sizes.common_bytes)}, "
            f"{part:.2f} of its bundle's {size(sizes.bundle_bytes)}"
        )
    return lines


def _held_lines(held: Mapping[Variant, Held]) -> list[str]:
    """Return what the Redis held for each variant, beside what it held for torch."""
    if not held:
        return []
    torchs = held.get(Variant.TORCH_REDIS)
    table = [["in the Redis", "keys", "values", "of torch's", "memory", "of torch's", "graphs", "of torch's"]]
    for variant, each in held.items():
        row = [variant.label, str(each.keys)]
        for name in ("value_bytes", "memory_bytes", "common_bytes"):
            count = getattr(each, name)
            part = None if torchs is None else ratio(count, getattr(torchs, name))
            row += [size(count), NOTHING if part is None or each is torchs else f"{part:.3f}"]
        table.append(row)
    return ["", *aligned(table, right=range(1, len(table[0])))]


def _asked_lines(rows: Sequence[Row]) -> list[str]:
    """Return what the Redis was asked by each variant; commands that are sent together are one round trip."""
    asked = [row for row in rows if row.asked is not None]
    if not asked:
        return []
    table = [["round trips", "idle", "before", "in the cell", "commands in the cell"]]
    for row in asked:
        before, within = row.asked_before, row.asked
        assert before is not None and within is not None
        commands = ", ".join(f"{count} {name}" for name, count in within.commands.items()) or NOTHING
        trips = [str(before.round_trips), str(within.round_trips)]
        table.append([row.variant.label, idle_text(row.idle), *trips, commands])
    return ["", *aligned(table, right=range(1, 4))]


def _kernels_lines(rows: Sequence[Row]) -> list[str]:
    """Return what it takes to start each kind of kernel, where forked ones are among them."""
    if not any(row.variant.is_forked for row in rows):
        return []
    table = [["kernel", "idle", "ready", "import torch", "private memory", "start", "of torch warm"]]
    for row in rows:
        seconds = [
            NOTHING if each is None else call_text(each) for each in (row.ready_seconds, row.import_seconds)
        ]
        memory = NOTHING if row.private_bytes is None else size(int(row.private_bytes))
        faster = row.start_times_torch_warm
        part = f"{1 / faster:.2f}" if faster else NOTHING
        start = NOTHING if row.idle else duration(row.start_seconds)
        table.append([row.variant.label, idle_text(row.idle), *seconds, memory, start, part])
    return ["", *aligned(table, right=range(1, len(table[0])))]


def _phases_lines(rows: Sequence[Row]) -> list[str]:
    """Return where the seconds of nbcache's cells went; phases that took no time anywhere are left out."""
    ours = [row for row in rows if row.phases]
    if not ours:
        return []
    phases = [name for name in PHASES if any(row.phases.get(name) for row in ours)]
    table = [["seconds by phase", "idle", *phases, "outside compile", "kernels compiled"]]
    for row in ours:
        spent = [f"{row.phases.get(name, 0.0):.3f}" for name in (*phases, "outside")]
        compiled = f"{row.kernels_compiled} of {row.kernels}"
        table.append([row.variant.label, idle_text(row.idle), *spent, compiled])
    return ["", *aligned(table, right=range(1, len(table[0])))]


def _overview(results: Sequence[Result]) -> str:
    """Return one line for each subject: the cell's seconds by variant, idle time as long as was given."""
    found = {id(result): _longest_idle(rows_of(result.runs)) for result in results if result.runs}
    variants = [variant for variant in Variant if any(variant in rows for rows in found.values())]
    names = [variant.label.removeprefix("nbcache ") for variant in variants]
    table = [["cell", *names, "hot", "restart/warm", "fresh/mega"]]
    for result in results:
        if not result.runs:
            continue
        rows = found[id(result)]
        restart, fresh = rows.get(Variant.RESTART), rows.get(Variant.FRESH)
        cells = [duration(rows[variant].cell_seconds) if variant in rows else NOTHING for variant in variants]
        hot = hot_of(list(rows.values()))
        table.append(
            [
                " ".join([result.subject.model, result.subject.mode.value, *result.subject.unusual]),
                *cells,
                NOTHING if hot is None else call_text(hot),
                times(restart.times_torch_warm if restart else None),
                times(fresh.times_mega_cache if fresh else None),
            ]
        )
    return "\n".join(aligned(table, right=range(1, len(table[0]))))


def _longest_idle(rows: Sequence[Row]) -> dict[Variant, Row]:
    """Return one row for each variant: of several idle times, `full` or else the longest."""
    ordered = sorted(rows, key=lambda row: float("inf") if row.idle == FULL else float(row.idle or 0.0))
    return {row.variant: row for row in ordered}
