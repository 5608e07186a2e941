"""Part `processes`: one model in several kernels at once, on an empty Redis and each alone."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

from benchmarks.redis_server import Server
from benchmarks.standard import ROOT, STANDARD, Model
from nbcache.bench.runner import Home, kernel
from nbcache.core.text import aligned, duration

__all__ = ["at_once_text"]

_REPORTS = """\
import json, nbcache
print(json.dumps([report.to_json() for report in nbcache.session().reports]))"""
_TITLES = {True: "nbcache shared", False: "nbcache, each alone"}


def at_once_text(
    server: Server, folder: Path, model: str, processes: int, runs: int, say: Callable[[str], None]
) -> str:
    """Start `processes` kernels at once, shared and each alone, alternating; return the table."""
    starts: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for number in range(1, runs + 1):
        for shared, group in starts.items():
            server.clear()
            group.append(_start(server.url if shared else None, folder / "kernels", model, processes))
            say(f"run {number} of {runs}: {_TITLES[shared]}: {duration(group[-1]['seconds'])}")
    rows = [["", "runs", "compiled", "hits", "C++ kernels compiled", "cell", "waiting", "all ready after"]]
    for shared, group in starts.items():
        worst = max(group, key=lambda start: start["miss"])
        counts = [str(worst[name]) for name in ("miss", "hit", "kernels_compiled")]
        names = ("cell_seconds", "waited_seconds", "seconds")
        medians = [duration(statistics.median(start[name] for start in group)) for name in names]
        rows.append([_TITLES[shared], str(len(group)), *counts, *medians])
    head = f"{model}: {starts[True][0]['graphs']} graphs, in {processes} kernels at once, on an empty Redis"
    foot = "(graphs of the run that compiled most; seconds: medians of runs, and of kernels)"
    return "\n".join([head, *(f"  {line}" for line in [*aligned(rows, right=range(1, 8)), foot])])


def _start(url: str | None, folder: Path, model: str, processes: int) -> dict[str, Any]:
    """Run the cells in all kernels at once, as Run All does, and return the figures of all."""
    barrier = Barrier(processes + 1)

    def one(number: int) -> tuple[float, list[Mapping[str, Any]]]:
        home = Home(folder / str(number))
        home.empty()
        variables = {**home.environment(os.environ), "PYTHONPATH": str(ROOT), "NBCACHE_TRACE": "off"}
        # On separate machines, an idle kernel would take nothing from the others.
        variables |= {"NBCACHE_PREWARM": "off", "NBCACHE_TRUST_DIR": str(folder / "keys")}
        variables |= {"NBCACHE_SHARED_URL": url} if url else {}
        with kernel(home, ROOT, variables) as running:
            barrier.wait()
            for cell in Model(model, "inference").cells(STANDARD["shared"]).values():
                ended = running.run(cell).ended
            return ended, json.loads(running.run(_REPORTS).printed)

    with ThreadPoolExecutor(processes) as threads:
        futures = [threads.submit(one, number) for number in range(processes)]
        barrier.wait()
        began = time.perf_counter()
        ended, reports = zip(*(future.result() for future in futures), strict=True)
    graphs = [[graph for report in of_kernel for graph in report["graphs"]] for of_kernel in reports]
    seconds = [sum(report["seconds"] for report in each if report["graphs"]) for each in reports]
    waited = [sum(graph["seconds"].get("wait", 0.0) for graph in each) for each in graphs]
    outcomes = Counter(graph["outcome"] for each in graphs for graph in each)
    return {
        "graphs": max(map(len, graphs)),
        "miss": outcomes["miss"],
        "hit": outcomes["hit"],
        "kernels_compiled": sum(graph["kernels_compiled"] for each in graphs for graph in each),
        "cell_seconds": statistics.median(seconds),
        "waited_seconds": statistics.median(waited),
        "seconds": max(ended) - began,
    }
