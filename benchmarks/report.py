"""The tables of docs/benchmark.md: one for each model, and one of all models."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.standard import ModelRunner, Sizes
from nbcache.bench.report import Run, report_text
from nbcache.bench.report import label as label_of
from nbcache.core.reports import PHASES
from nbcache.core.text import NOTHING, aligned, size

__all__ = ["call_text", "figures_of", "overview_text", "subject_text"]

_BESIDE = {
    **dict.fromkeys(("restart", "traced", "forked", "forked-traced"), "torch-warm"),
    "fresh": "mega-cache",
    "shared": "torch-redis",
}
"""The variant that each of nbcache's is compared with."""


def subject_text(runner: ModelRunner, runs: int, machine: Mapping[str, Any]) -> str:
    """Return the table of one model, and further figures of its variants."""
    lines = [report_text(runner.subject, runs, machine), ""]
    groups = _groups(runner.subject.runs)
    if groups:
        lines += [f"  {line}" for line in aligned([*_figures(groups)], right=range(1, 99))]
    for name, sizes in runner.sizes.items():
        lines += [f"  {name}: {text}" for text in _sizes_lines(sizes)]
    for name, contents in runner.on_server.items():
        values, memory, common = (size(contents[f"{key}_bytes"]) for key in ("value", "memory", "common"))
        lines.append(
            f"  in the Redis, {name}: {contents['keys']} keys, {values} of values, {memory} of memory, "
            f"{common} of graphs; the kernel that filled it took {contents['asked']['round_trips']} round "
            f"trips: {_commands(contents['asked'])}"
        )
    for label, group in groups.items():
        asked = [run.more["asked"] for run in group if "asked" in run.more]
        if asked:
            most = max(asked, key=lambda traffic: traffic["round_trips"])
            lines.append(f"  {label}: {most['round_trips']} round trips in the cell: {_commands(most)}")
    return "\n".join(lines)


def figures_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Return medians of further figures of the runs of one variant."""
    figures: dict[str, Any] = {}
    for name in ("hot_seconds", "overhead_seconds", "explaining_seconds", "private_bytes"):
        values = [run.more[name] for run in runs if run.more.get(name) is not None]
        figures[name] = statistics.median(values) if values else None
    figures["ready_seconds"] = statistics.median(run.ready_seconds for run in runs)
    for name in PHASES:
        figures[name] = statistics.median(
            sum(graph["seconds"].get(name, 0.0) for graph in run.graphs) for run in runs
        )
    figures["agrees"] = all(run.more["agrees"] for run in runs)
    figures["difference"] = max(run.more["difference"] for run in runs)
    figures["compared_with"] = min((run.more["compared_with"] for run in runs), key=len)
    figures["benchmarked"] = any(run.more["benchmarked"] for run in runs)
    return figures


def overview_text(runners: Sequence[ModelRunner]) -> str:
    """Return one line for each variant, and one column for each model: seconds, and how much faster."""
    columns = [_groups(runner.subject.runs) for runner in runners if runner.subject.runs]
    table = [["seconds in the cell", *(runner.model.name for runner in runners if runner.subject.runs)]]
    for label in dict.fromkeys(label for column in columns for label in column):
        table.append([label, *(_cell(column, label) for column in columns)])
    for title, name in (("hot call", "hot_seconds"), ("of restart, idle full: tracing", "dynamo")):
        table.append([title, *(_median(column, name) for column in columns)])
    for label in ("restart, idle 0 s", "traced, idle 0 s", "forked, idle 0 s", "forked-traced, idle 0 s"):
        if any(label in column for column in columns):
            starts = [_start_ratio(column, label) for column in columns]
            table.append([f"start to result, {label}, as a part of torch-warm's", *starts])
    return "\n".join(aligned(table, right=range(1, len(columns) + 1)))


def call_text(seconds: float) -> str:
    """Return the seconds of a call that may be short: `0.042 ms`, `3.1 ms`, `1200.0 ms`."""
    return f"{seconds * 1000:.{3 if seconds < 0.000995 else 1}f} ms"


def _groups(runs: Iterable[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(label_of(run.variant, run.idle), []).append(run)
    return groups


def _cell(column: Mapping[str, Sequence[Run]], label: str) -> str:
    """Return the seconds in the cell and, in brackets, how many times faster than the other variant."""
    if label not in column:
        return NOTHING
    seconds = _seconds(column[label])
    other = column.get(_BESIDE.get(label.partition(",")[0], ""))
    faster = f" ({_seconds(other) / seconds:.2g}×)" if other else ""
    return f"{seconds:.2f}{faster}"


def _seconds(runs: Sequence[Run]) -> float:
    return statistics.median(run.cell_seconds for run in runs)


def _median(column: Mapping[str, Sequence[Run]], name: str) -> str:
    """Return a figure: of hot calls over all variants that compile, of a phase in the last one."""
    labels = [label for label in column if label != "eager"]
    values = [figures_of(column[label])[name] for label in labels]
    if not values:
        return NOTHING
    if name == "hot_seconds":
        return call_text(statistics.median(values))
    restarts = [value for label, value in zip(labels, values, strict=True) if label == "restart, idle full"]
    return f"{restarts[0]:.2f}" if restarts else NOTHING


def _start_ratio(column: Mapping[str, Sequence[Run]], label: str) -> str:
    if label not in column or "torch-warm" not in column:
        return NOTHING
    ours, torchs = (
        statistics.median(run.start_seconds for run in column[name]) for name in (label, "torch-warm")
    )
    return f"{ours / torchs:.2f}"


def _figures(groups: Mapping[str, Sequence[Run]]) -> Iterator[list[str]]:
    """Yield the lines of the table of figures: a column for each, and one for each phase that took time."""
    figures = {label: figures_of(runs) for label, runs in groups.items()}
    phases = [name for name in PHASES if any(row[name] for row in figures.values())]
    yield ["", "as eager", "hot", "ready", "import torch", "private", "recording", "explaining", *phases]
    for label, row in figures.items():
        agrees = f"{'yes' if row['agrees'] else 'NO'} ±{row['difference']:.0e}"
        if row["compared_with"] == "float64":
            agrees += " (float64)"
        imports = statistics.median(run.cells["import torch"] for run in groups[label])
        costs = [row["overhead_seconds"], row["explaining_seconds"]]
        yield [
            f"{label} (tuned)" if row["benchmarked"] else label,
            agrees,
            call_text(row["hot_seconds"]),
            f"{row['ready_seconds']:.2f}",
            f"{imports:.3f}",
            NOTHING if row["private_bytes"] is None else size(int(row["private_bytes"])),
            *(NOTHING if cost is None else call_text(cost) for cost in costs),
            *(f"{row[name]:.3f}" for name in phases),
        ]


def _sizes_lines(sizes: Sizes) -> Iterator[str]:
    yield (
        f"{sizes.artifacts} artifacts, {size(sizes.artifact_bytes)} of content, {size(sizes.trace_bytes)} "
        f"of it traces; a snapshot of them is {size(sizes.snapshot_bytes)}, "
        f"{size(sizes.components_bytes)} of it for explaining"
    )
    if sizes.bundle_bytes:
        part = sizes.common_bytes / sizes.bundle_bytes
        yield (
            f"{size(sizes.common_bytes)} of what Mega-Cache can hold, too: {part:.2f} of its bundle's "
            f"{size(sizes.bundle_bytes)}"
        )


def _commands(traffic: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {name}" for name, count in traffic["commands"].items()) or NOTHING
