"""`%nbcache stats` and `plan`: what restoring came to, and what the next kernel will find."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from nbcache.artifacts.history import MAX_RUNS, Run, missed_unchanged
from nbcache.core.errors import NbcacheError, StoreError
from nbcache.core.model import Environment, Outcome
from nbcache.core.text import counted
from nbcache.core.trust import short
from nbcache.explain.stats import Refusal, Stats, audited, by_type, lifetime, tally
from nbcache.explain.timeline import Timeline, timeline
from nbcache.kernel.reasons import LOST
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.stats import render_stats
from nbcache.ui.display.timeline import render_timeline
from nbcache.ui.ipython.planning import Planner
from nbcache.ui.ipython.session_magics import only_json, show

__all__ = ["HistoryMagics"]


class HistoryMagics:
    """The verbs, for one session; `foreseen` tells what of the environment is known before torch is there."""

    def __init__(
        self, session: Session, foreseen: Callable[[], Environment | None], sharing: Sharing
    ) -> None:
        self._session = session
        self._sharing = sharing
        self._planner = Planner(session, foreseen, sharing)

    @property
    def planner(self) -> Planner:
        """What foresees the next run."""
        return self._planner

    def stats(self, arguments: list[str]) -> None:
        """Say what restoring came to, in this kernel and in all that are remembered."""
        as_json = only_json("stats", arguments)
        show(self.figures(), as_json)

    def figures(self) -> Rendered:
        """Return what `stats` shows."""
        session, notebook = self._session, self._session.notebook(timeout=1.0)
        graphs, cache = session.graphs, session.cache
        stored = cache.summaries()
        missed = [graph for graph in graphs if graph.outcome is Outcome.MISS]
        cache.history.read(notebook)
        here = cache.history.runs()
        everywhere = {run.identity: run for run in (*self._everything(), *here)}
        found = Stats(
            session=tally(graphs),
            stored=audited(
                stored,
                graphs,
                (graph.explanation for graph in missed),
                lost={graph.key for graph in missed if graph.key and graph.reason in LOST},
                ran={report.cell.digest for report in session.reports if report.cell},
            ),
            types=by_type(cache.refs(), cache.restored().keys()),
            refused=tuple(self._refused()),
            overhead_seconds=session.overhead_seconds,
            notebook=lifetime(here, most=MAX_RUNS),
            store=lifetime(
                [replace(run, reason="") for run in sorted(everywhere.values(), key=lambda run: run.time)]
            ),
            traces=Counter(graph.trace for graph in graphs if graph.trace),
            missed_unchanged=missed_unchanged(here, cache.history.kernel),
        )
        return render_stats(found, os.path.basename(notebook))

    def plan(self, arguments: list[str]) -> None:
        """Say what the next run of each cell will hit, and what it will take."""
        as_json = only_json("plan", arguments)
        show(self._planner.rendered(self._session.notebook(timeout=1.0)), as_json)

    def timeline(self, arguments: list[str]) -> None:
        """Show where the seconds of this kernel's cells went, and how the notebook's kernels followed."""
        as_json = only_json("timeline", arguments)
        show(self.bars(), as_json)

    def bars(self) -> Rendered:
        """Return what `timeline` shows."""
        notebook = self._session.notebook(timeout=1.0)
        return render_timeline(self.times(notebook), os.path.basename(notebook))

    def times(self, notebook: str) -> Timeline:
        """Return where the seconds of this kernel's cells went, and how the notebook's kernels followed."""
        session, history = self._session, self._session.cache.history
        history.read(notebook)
        return timeline(session.reports, history.runs(), history.kernel, session.environment)

    def _everything(self) -> tuple[Run, ...]:
        try:
            return self._session.artifacts.history.everything()
        except StoreError as error:
            self._session.notice(str(error))
            return ()

    def _refused(self) -> Iterator[Refusal]:
        for why, count in Counter(self._session.cache.refused().values()).items():
            yield Refusal(counted(count, "artifact"), why)
        try:
            for error in self._sharing.problems():
                yield Refusal("a snapshot", error.what)
            for stranger in self._sharing.strangers():
                who = f"{short(stranger.fingerprint)} is not trusted (%nbcache trust)"
                yield Refusal(stranger.received.name, who)
        except NbcacheError as error:  # keys that cannot be read: nothing is trusted
            yield Refusal("all snapshots", error.what)
