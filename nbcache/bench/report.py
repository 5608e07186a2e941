"""The variants, the figures of their runs, and the table and JSON values that show them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbcache.core.text import DOT, NOTHING, aligned, counted, one_line

if TYPE_CHECKING:
    from nbformat import NotebookNode

FULL = "full"
Idle = float | str
"""Seconds of idle time before a cell, or `FULL`: until prewarming is done."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A kind of kernel to measure: whether it loads nbcache, its caches, its environment variables."""

    name: str
    loads: bool = False
    stores: bool = False
    """True if nothing is cached. Afterwards its store is copied, for variants that restore it."""
    restores: str = ""
    """Name of the variant whose store this one restores; empty for none."""
    home: str = ""
    """Name of the variant whose emptied folders this one uses; empty for its own folders."""
    keeps_torchs: bool = False
    """True if it keeps torch's own cache folder of an earlier kernel of this variant."""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def idles(self) -> bool:
        """Return whether idle time makes a difference, because nbcache prewarms before hits."""
        return self.loads and not self.stores


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("cold", loads=True, stores=True),
        Variant("torch-warm", keeps_torchs=True),
        Variant("restart", loads=True, restores="cold", home="cold"),
        Variant("fresh", loads=True, restores="cold"),
    )
}


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one fresh kernel, in seconds, and the texts that its cells printed."""

    variant: str
    number: int
    """Number of the run of this variant, from 1."""
    idle: Idle | None
    """Idle time before each cell; None if it makes no difference."""
    cells: Mapping[str, float]
    """Title → seconds from sending the cell to its result."""
    cell_seconds: float
    """Seconds of the measured cell, or of all cells of a notebook."""
    start_seconds: float
    """From the start of the process to the last result, idle time included."""
    printed: Sequence[str]
    ready_seconds: float
    """From the start of the process to its first answer."""
    prewarm: str | None = None
    """State of prewarming at the end of the wait for it; None without a wait."""
    reports: Sequence[Mapping[str, Any]] | None = None
    """nbcache's reports of the cells (`CellReport.to_json`); None without nbcache."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further figures of the project's own benchmarks."""

    @property
    def graphs(self) -> list[Mapping[str, Any]]:
        return [graph for report in self.reports or () for graph in report["graphs"]]

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(graph["outcome"] for graph in self.graphs)


@dataclass(slots=True)
class Subject:
    """A notebook or a function, and its runs, to which the runner appends."""

    label: str
    values: Mapping[str, Any]
    """The subject as JSON values."""
    measured: str | None = None
    """Title of the cell that is compared; None for all cells together."""
    sources: Mapping[str, NotebookNode] = field(default_factory=dict)
    """Its cells by title, from top to bottom."""
    kernel: str | None = None
    """Name of the Jupyter kernel; None for a kernel of this interpreter."""
    cwd: Path = field(default_factory=Path.cwd)
    runs: list[Run] = field(default_factory=list)
    error: str | None = None
    """The error because of which a part could not be measured."""
    environment: dict[str, str] = field(default_factory=dict)


def medians(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return one row for each variant and idle time, as JSON values."""
    groups: dict[tuple[str, Idle | None], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.variant, run.idle), []).append(run)
    texts = next((group[0].printed for (name, _), group in groups.items() if name.startswith("cold")), None)
    rows = [_row(group, texts) for group in groups.values()]
    warm = next((row["cell_seconds"] for row in rows if row["variant"] == "torch-warm"), None)
    for row in rows:
        row["times_torch_warm"] = None if warm is None else warm / row["cell_seconds"]
    return rows


def _row(group: Sequence[Run], texts: Sequence[str] | None) -> dict[str, Any]:
    seconds = [run.cell_seconds for run in group]
    fewest_hits = min(group, key=lambda run: run.outcomes["hit"])
    has_nbcache = fewest_hits.reports is not None
    compiled = [sum(graph.get("kernels_compiled", 0) for graph in run.graphs) for run in group]
    return {
        "variant": fewest_hits.variant,
        "idle": fewest_hits.idle,
        "runs": len(group),
        "cell_seconds": statistics.median(seconds),
        "cell_fastest": min(seconds),
        "cell_slowest": max(seconds),
        "cells": {title: statistics.median(run.cells[title] for run in group) for title in fewest_hits.cells},
        "start_seconds": statistics.median(run.start_seconds for run in group),
        "agrees": all(run.printed == texts for run in group) if texts else None,
        "graphs": len(fewest_hits.graphs) if has_nbcache else None,
        "outcomes": dict(fewest_hits.outcomes),
        "kernels_compiled": max(compiled) if has_nbcache else None,
    }


def report_json(
    subjects: Sequence[Subject], options: Mapping[str, Any], machine: Mapping[str, Any], *, interrupted: bool
) -> dict[str, Any]:
    rows = [
        {
            **subject.values,
            "error": subject.error,
            "medians": medians(subject.runs),
            "runs": [asdict(run) for run in subject.runs],
        }
        for subject in subjects
    ]
    environment = {**machine, **subjects[0].environment}
    about = {"format": "nbcache.bench", "version": 1, "interrupted": interrupted}
    return {**about, "environment": environment, "options": dict(options), "subjects": rows}


def report_text(subject: Subject, runs: int, machine: Mapping[str, Any]) -> str:
    """Return the table of one subject: a column for each variant, a line for each cell."""
    about = {**machine, **subject.environment}
    parts = [f"{name} {about[name]}" for name in ("nbcache", "torch", "python") if name in about]
    parts += [about["cpu"], counted(about["cores"], "core"), *filter(None, [about.get("gpu")])]
    parts.append("one fresh kernel each" if runs == 1 else f"medians of {runs} fresh kernels")
    lines = [DOT.join(parts), *(_table(subject) if subject.runs else ())]
    lines += [] if subject.error is None else [f"FAILED {one_line(subject.error, 400)}"]
    return "\n  ".join([subject.label, *lines])


def _table(subject: Subject) -> list[str]:
    rows, measured = medians(subject.runs), subject.measured or "all cells"
    longest_first = sorted(rows, key=lambda row: -len(row["cells"]))
    titles = dict.fromkeys(title for row in longest_first for title in row["cells"])
    lines = [["seconds", *(row["variant"] for row in rows)]]
    if any(idles := [_idle_text(row["idle"]) for row in rows]):
        lines.append(["", *idles])
    lines += [[title, *(_seconds(row["cells"].get(title)) for row in rows)] for title in titles]
    if subject.measured is None:
        lines.append([measured, *(_seconds(row["cell_seconds"]) for row in rows)])
    starts = (NOTHING if row["idle"] else _seconds(row["start_seconds"]) for row in rows)
    lines.append(["start of the kernel to its end", *starts])
    ratios = [None if row["variant"] == "torch-warm" else row["times_torch_warm"] for row in rows]
    if any(ratios):
        lines.append([f"{measured}, against torch-warm", *map(_times, ratios)])
    outcomes = (", ".join(f"{count} {name}" for name, count in row["outcomes"].items()) for row in rows)
    lines.append(["graphs", *(text or NOTHING for text in outcomes)])
    compiled = (NOTHING if row["graphs"] is None else str(row["kernels_compiled"]) for row in rows)
    lines.append(["kernels compiled", *compiled])
    if any(row["agrees"] is not None for row in rows):
        answers = {True: "same", False: "DIFFER", None: NOTHING}
        lines.append(["printed text", *(answers[row["agrees"]] for row in rows)])
    return aligned(lines, right=range(1, len(rows) + 1))


def label(variant: str, idle: Idle | None) -> str:
    """Return a variant and its idle time in words: `restart, idle full`."""
    return ", ".join(filter(None, (variant, _idle_text(idle))))


def _idle_text(idle: Idle | None) -> str:
    return "" if idle is None else f"idle {idle}" if isinstance(idle, str) else f"idle {idle:g} s"


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _times(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.2g}×"
