"""The history of this kernel's notebook: read in the background, added to after each cell."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable

from nbcache.artifacts.history import HistoryStore, Run, merged, run_of
from nbcache.core.reports import GraphRecord
from nbcache.core.threads import ForkSafeLock
from nbcache.kernel.events import INTERRUPTED


class History:
    """What became of the notebook's graphs, in this kernel and in earlier ones.

    Methods are safe to call from any thread, and nothing but `read` and `save` reads or writes disks.
    """

    def __init__(self, store: HistoryStore) -> None:
        self.kernel = secrets.token_hex(8)
        """Tells this kernel's runs from those of others."""
        self._store = store
        self._lock = ForkSafeLock()
        self._runs: dict[tuple[str, int], Run] = {}
        self._number = self._saved = 0
        """How many runs this kernel has had, and how many of them are stored."""

    def runs(self) -> tuple[Run, ...]:
        with self._lock:
            return merged(self._runs.values())

    def read(self, notebook: str) -> None:
        stored = self._store.read(notebook)
        with self._lock:
            own = [run for run in self._runs.values() if run.kernel == self.kernel]
            self._runs = {run.identity: run for run in (*stored, *own)}

    def add(
        self, graphs: Iterable[GraphRecord], environment_digest: str, *, unfinished: bool = False
    ) -> None:
        """Add the graphs of a cell that has just ended; an `unfinished` cell raised.

        A graph whose compile was interrupted has no run.
        """
        now = time.time()
        with self._lock:
            for graph in graphs:
                if graph.reason == f"not compiled: {INTERRUPTED}":
                    continue
                run = run_of(
                    graph,
                    time=now,
                    kernel=self.kernel,
                    number=self._number,
                    environment=environment_digest,
                    unfinished=unfinished,
                )
                self._runs[run.identity] = run
                self._number += 1
            self._runs = {run.identity: run for run in merged(self._runs.values())}

    def save(self, notebook: str) -> None:
        """Store this kernel's new runs; those that cannot be written wait for the next time."""
        with self._lock:
            own = [run for run in self._runs.values() if run.kernel == self.kernel]
            runs, number = [run for run in own if run.number >= self._saved], self._number
        if runs and self._store.write(notebook, runs):
            self._saved = number

    def forget(self) -> None:
        with self._lock:
            self._runs = {}
