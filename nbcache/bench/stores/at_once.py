"""Part `processes` of `nbcache bench --stores`: one notebook in several kernels, on an empty Redis."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nbcache.bench.kernels import Home, environment, kernel, link_package
from nbcache.bench.options import Options, Variant
from nbcache.bench.redis_server import Server
from nbcache.bench.variants import (
    LOAD,
    Subject,
    measured_cell,
    setup_cell,
    subjects,
    variables,
)
from nbcache.core.text import DOT, aligned, duration

__all__ = ["AtOnce", "Start", "start_of", "starts_text"]

_SMALL = "nbcache.bench.models:pieces"
_MEASURED = 3
"""Which cell of the notebook is measured, from 1."""
_REPORT = """\
import json, nbcache, pathlib
pathlib.Path({file!r}).write_text(json.dumps(nbcache.session().report({cell}).to_json()))"""
_TITLES = {True: "nbcache shared", False: "nbcache, each alone"}


@dataclass(frozen=True, slots=True)
class Start:
    """One notebook, started in all kernels at once."""

    model: str
    shared: bool
    """Whether the kernels share a Redis, which was empty; else each has nothing but itself."""
    number: int
    """Which run of that, from 1."""
    processes: int
    graphs: int
    """Of the notebook: as many as the kernel with the most has."""
    outcomes: Mapping[str, int]
    """How many graphs had which outcome, over all kernels."""
    kernels_compiled: int
    """C++ kernels, over all kernels of Jupyter."""
    seconds: float
    """From sending the cells to the last result."""
    cell_seconds: float
    """The measured cell, the median of all kernels."""
    waited_seconds: float
    """How long graphs waited for another kernel that compiled them, the median of all kernels."""


def start_of(
    model: str, reports: Sequence[Mapping[str, Any]], *, shared: bool, number: int, seconds: float
) -> Start:
    """Return what the kernels' reports of the measured cell come to."""
    graphs = [graph for report in reports for graph in report["graphs"]]
    return Start(
        model=model,
        shared=shared,
        number=number,
        processes=len(reports),
        graphs=max(len(report["graphs"]) for report in reports),
        outcomes=dict(Counter(graph["outcome"] for graph in graphs)),
        kernels_compiled=sum(graph["kernels_compiled"] for graph in graphs),
        seconds=seconds,
        cell_seconds=statistics.median(report["seconds"] for report in reports),
        waited_seconds=statistics.median(
            sum(graph["seconds"].get("wait", 0.0) for graph in report["graphs"]) for report in reports
        ),
    )


class AtOnce:
    """`processes`: shared and each alone, alternating."""

    def __init__(
        self, options: Options, folder: Path, say: Callable[[str], None], server: Server | None
    ) -> None:
        assert server is not None
        self._options = options
        self._folder = folder
        self._say = say
        self._server = server
        self._path = link_package(folder)
        self._starts: list[Start] = []

    def measure(self) -> None:
        for subject in subjects(self._options, default=(_SMALL,)):
            for number in range(1, self._options.runs + 1):
                for shared in (True, False):
                    start = self._start(subject, shared, number)
                    self._starts.append(start)
                    compiled = f"{start.outcomes.get('miss', 0)} compiles of {start.graphs} graphs"
                    who = "shared" if shared else "each alone"
                    self._say(
                        f"{subject.label}: run {number} of {self._options.runs}{DOT}{start.processes} "
                        f"kernels, {who}: {compiled}, {duration(start.seconds)}"
                    )

    @property
    def complete(self) -> bool:
        return True

    def text(self) -> str:
        return starts_text(self._starts)

    def to_json(self) -> Mapping[str, Any]:
        return {"starts": [asdict(start) for start in self._starts]}

    def _start(self, subject: Subject, shared: bool, number: int) -> Start:
        self._server.clear()
        cells = [LOAD, setup_cell(subject), measured_cell(subject, Variant.SHARED)]
        with contextlib.ExitStack() as ending:
            homes = [Home(self._folder / f"kernel-{each}") for each in range(self._options.processes)]
            running = []
            for home in homes:
                home.empty()
                running.append(
                    ending.enter_context(
                        kernel(sys.executable, home, self._variables(home, shared), Path.cwd())
                    )
                )
            sent = [[each.send(cell) for cell in cells] for each in running]  # as Run All does
            ended = [
                [each.result(cell) for cell in of_kernel][-1].ended
                for each, of_kernel in zip(running, sent, strict=True)
            ]
            reports = []
            for each, home in zip(running, homes, strict=True):
                file = home.root / "report.json"
                each.run(_REPORT.format(file=str(file), cell=_MEASURED))
                reports.append(json.loads(file.read_text()))
        seconds = max(ended) - sent[0][0].began
        return start_of(subject.model, reports, shared=shared, number=number, seconds=seconds)

    def _variables(self, home: Home, shared: bool) -> dict[str, str]:
        ours = variables(Variant.SHARED, self._server.url, self._folder / "keys") if shared else {}
        # Where each kernel has a machine of its own, one that is idle takes nothing from the others.
        return {**environment(home, os.environ, self._path), "NBCACHE_PREWARM": "off", **ours}


def starts_text(starts: Sequence[Start]) -> str:
    """Return a table for each model."""
    blocks = []
    for model in dict.fromkeys(start.model for start in starts):
        groups: dict[bool, list[Start]] = {}
        for start in starts:
            if start.model == model:
                groups.setdefault(start.shared, []).append(start)
        first = next(iter(groups.values()))[0]
        rows = [["", "runs", "compiled", "hits", "C++ kernels compiled", "cell", "waiting", "all done after"]]
        for shared, group in groups.items():
            most = max(group, key=lambda start: start.outcomes.get("miss", 0))
            medians = [
                statistics.median(getattr(start, name) for start in group)
                for name in ("cell_seconds", "waited_seconds", "seconds")
            ]
            counts = [most.outcomes.get("miss", 0), most.outcomes.get("hit", 0), most.kernels_compiled]
            rows.append([_TITLES[shared], str(len(group)), *map(str, counts), *map(duration, medians)])
        head = f"{model}: {first.graphs} graphs, in {first.processes} kernels at once, on an empty Redis"
        blocks.append("\n".join([head, *(f"  {line}" for line in aligned(rows, right=range(1, 8)))]))
    if blocks:
        blocks[-1] += "\n  (graphs of the run that compiled most; seconds: medians of runs, and of kernels)"
    return "\n\n".join(blocks)
