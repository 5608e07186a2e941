"""`%nbcache plan`, `stats` and `timeline`, and the line at load: what is stored, and history."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nbcache.artifacts import compatibility
from nbcache.artifacts.compatibility import fitting, foreseen_differences
from nbcache.artifacts.history import MAX_RUNS, Run, asked_for, missed_unchanged
from nbcache.artifacts.manifests import union
from nbcache.artifacts.types import type_of
from nbcache.core.errors import FormatError, NbcacheError, StoreError
from nbcache.core.files import read
from nbcache.core.model import Environment, GraphSummary, Level, Manifest, Outcome
from nbcache.core.text import ago, counted, duration, one_line
from nbcache.core.trust import short
from nbcache.explain.plan import Place, Plan, Unfit, cells_of, planned
from nbcache.explain.stats import Refusal, Stats, audited, by_type, lifetime, tally
from nbcache.explain.timeline import timeline
from nbcache.kernel.reasons import LOST
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing, present_cells, usable
from nbcache.snapshots.sources import MAX_NOTEBOOK_BYTES
from nbcache.snapshots.verify import Received
from nbcache.ui.display.plan import plan_parts, render_plan
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.stats import render_stats
from nbcache.ui.display.timeline import render_timeline

_FLUSH_SECONDS = 5.0
_LOOK_SECONDS = 0.5
"""The longest wait for the search for the notebook's snapshots."""
_NOTEBOOK_SECONDS = 2.0
"""The longest wait of the greeting for the notebook; loading waits much less for the greeting."""
_MOST_AT_ONCE = 2 << 20
"""Bytes of a notebook that is read while the extension loads: parsing 2 MB takes some 20 ms."""
_NAME = 60
"""Characters of the notebook's name in the greeting."""


class Planner:
    """Plans and sums up; `foreseen` returns what is known of the environment before torch is imported."""

    def __init__(
        self, session: Session, foreseen: Callable[[], Environment | None], sharing: Sharing
    ) -> None:
        self._session = session
        self._foreseen = foreseen
        self.sharing = sharing

    def plan(self) -> Rendered:
        """Return what the next run of each cell will hit, and how long it will take."""
        notebook = self._session.notebook(timeout=1.0)
        plan, notes, problem = self.planned(notebook)
        return render_plan(plan, os.path.basename(notebook), notes, problem=problem)

    def stats(self) -> Rendered:
        """Return the effect of restoring, in this kernel and in all that the history has."""
        session, notebook = self._session, self._session.notebook(timeout=1.0)
        graphs, cache = session.graphs, session.cache
        missed = [graph for graph in graphs if graph.outcome is Outcome.MISS]
        cache.history.read(notebook)
        here = cache.history.runs()
        everywhere = {run.identity: run for run in (*self._all_runs(), *here)}
        by_time = sorted(everywhere.values(), key=lambda run: run.time)
        stats = Stats(
            session=tally(graphs),
            stored=audited(
                cache.summaries(),
                graphs,
                (graph.explanation for graph in missed),
                lost={graph.key for graph in missed if graph.key and graph.reason in LOST},
                ran={report.cell.digest for report in session.reports if report.cell},
            ),
            types=by_type(cache.refs(), cache.restored().keys()),
            refused=tuple(self._refused()),
            overhead_seconds=session.overhead_seconds,
            notebook=lifetime(here, most=MAX_RUNS),
            store=lifetime([replace(run, reason="") for run in by_time]),
            traces=Counter(graph.trace for graph in graphs if graph.trace),
            missed_unchanged=missed_unchanged(here, cache.history.kernel),
        )
        return render_stats(stats, os.path.basename(notebook))

    def timeline(self) -> Rendered:
        """Return where the seconds of this kernel's cells went, and how the notebook's kernels followed."""
        notebook = self._session.notebook(timeout=1.0)
        session, history = self._session, self._session.cache.history
        history.read(notebook)
        times = timeline(session.reports, history.runs(), history.kernel, session.environment)
        return render_timeline(times, os.path.basename(notebook))

    def planned(self, notebook: str) -> tuple[Plan, list[str], str]:
        """Return the plan of the notebook at this path, remarks on it, and the reason if there is no plan."""
        if not notebook:
            return Plan((), 0), [], "this kernel cannot tell its notebook: %nbcache config notebook=PATH"
        try:
            cells = cells_of(read(Path(notebook), max_bytes=MAX_NOTEBOOK_BYTES))
            saved = os.stat(notebook).st_mtime
        except FormatError as error:
            return Plan((), 0), [], f"{error.what}: {error.next_step}"
        except (NbcacheError, OSError):
            return Plan((), 0), [], "there is no such file: save the notebook first"
        session, age = self._session, ago(time.time() - saved)
        session.cache.flush(_FLUSH_SECONDS)
        session.cache.history.read(notebook)
        here = session.environment
        places, unfit = self._stored(notebook)
        places += self._restored(unfit)
        places += self._shared()
        whose = {here.digest} if here else {place.manifest.environment.digest for place in places}
        plan = planned(cells, places, session.cache.history.runs(), whose, unfit)
        if session.cell is not None and session.cell.digest not in {cell.digest for cell in cells}:
            notes = [f"the file was saved {age}, without this cell: save the notebook, and ask again"]
        else:
            notes = [f"by the file as it was saved {age}"]
        if here is None and session.shares:
            notes.append("the shared store is asked as soon as torch is imported")
        return plan, notes, ""

    def _restored(self, unfit: list[Unfit]) -> list[Place]:
        """Return what snapshots that came along hold, and fits; add to `unfit` those that do not."""
        places: list[Place] = []
        self.sharing.looked(_LOOK_SECONDS)
        try:
            snapshots = self.sharing.told()
        except NbcacheError as error:  # keys that cannot be read: nobody is trusted
            unfit.append(Unfit("snapshots", 0, (error.with_next_step(),)))
            return places
        for received in snapshots:
            manifests = received.snapshot.manifests
            try:
                received.unlock(self._session.settings.trust)
                fits = self._fitting(received)
            except NbcacheError as error:
                graphs = len({graph.identity for manifest in manifests for graph in manifest.graphs})
                unfit.append(Unfit(received.name, graphs, (error.with_next_step(),)))
                continue
            places += [Place(Level.L2, received.name, fit, fit.digests) for fit in fits]
            if not fits:
                unfit += [self._unfit(received.name, manifest) for manifest in manifests]
        return places

    def _fitting(self, received: Received) -> list[Manifest]:
        """Return what of a snapshot may be used here, by what is known; raises as `usable` does."""
        manifests, here = received.snapshot.manifests, self._session.environment
        if here is None:
            foreseen = self._foreseen()
            return [manifest for manifest in manifests if not self._differs(manifest, foreseen)]
        return [] if fitting(manifests, here) is None else [usable(received, here, self.sharing.judge)[0]]

    def _shared(self) -> list[Place]:
        """Return what others have published of the notebook, and fits."""
        here, shared_client = self._session.environment, self._session.shared_client
        if here is None or shared_client is None:
            return []
        level = shared_client.level
        fits = [fitting([publication.manifest], here) for publication in shared_client.publications()]
        everyones = union(here, "", [manifest for manifest in fits if manifest is not None])
        graphs = [ref for ref in everyones.artifacts if type_of(ref.type).is_graph]
        present = {ref.digest for ref in level.present(here, graphs)} if graphs else set()
        return [Place(Level.L3, level.name, everyones, present)] if graphs else []

    def _all_runs(self) -> tuple[Run, ...]:
        try:
            return self._session.artifacts.history.everything()
        except StoreError as error:
            self._session.notice(str(error))
            return ()

    def _refused(self) -> Iterator[Refusal]:
        for why, count in Counter(self._session.cache.refused().values()).items():
            yield Refusal(counted(count, "artifact"), why)
        try:
            for error in self.sharing.problems():
                yield Refusal("a snapshot", error.what)
            for stranger in self.sharing.strangers():
                who = f"{short(stranger.fingerprint)} is not trusted (%nbcache trust)"
                yield Refusal(stranger.received.name, who)
        except NbcacheError as error:  # keys that cannot be read: nothing is trusted
            yield Refusal("all snapshots", error.what)

    def greeting(self) -> list[str]:
        """Return what is stored of the notebook, and what that saves; StoreError if the store fails."""
        notebook = self._session.notebook(timeout=_NOTEBOOK_SECONDS)
        places, unfit = self._stored(notebook)
        of = f" of {one_line(os.path.basename(notebook), _NAME)}" if notebook else ""
        runs = self._session.artifacts.history.read(notebook)
        manifests = [place.manifest for place in places]
        graphs: tuple[GraphSummary, ...] = ()
        if manifests:
            whole, present = union(manifests[0].environment, notebook, manifests), present_cells(notebook)
            graphs = (asked_for(whole, present, runs).graphs if present else ()) or whole.graphs
        if not graphs:
            count = sum(place.graphs for place in unfit)
            if not count:
                return [f"nothing{of} is stored here yet"]
            words = "is stored here, and does not fit" if count == 1 else "are stored here, and none fits"
            return [f"{counted(count, 'graph')}{of} {words} (%nbcache plan)"]
        line = f"{counted(len(graphs), 'graph')}{of} {'is' if len(graphs) == 1 else 'are'} stored here"
        with suppress(NbcacheError, OSError):  # the notebook cannot be read, or is large
            cells = cells_of(read(Path(notebook), max_bytes=_MOST_AT_ONCE)) if notebook else []
            whose = {manifest.environment.digest for manifest in manifests}
            if (plan := planned(cells, places, runs, whose)).graphs and cells:
                return [line, *plan_parts(plan)]
        return [line, f"saves about {duration(sum(graph.seconds for graph in graphs))}"]

    def _stored(self, notebook: str) -> tuple[list[Place], list[Unfit]]:
        """Return what the local store has of a notebook for this environment, and for others."""
        stored, here, places, unfit = self._session.artifacts, self._here(), [], []
        for manifest in stored.manifests(notebook).values():
            if self._differs(manifest, here):
                unfit.append(self._unfit(stored.store.name, manifest))
                continue
            admitted = stored.admitted(manifest)
            present = stored.present(admitted.digests)
            places.append(Place(Level.L1, stored.store.name, admitted, present))
        return places, unfit

    def _here(self) -> Environment | None:
        """Return the environment, before torch is imported what is known of it."""
        return self._session.environment or self._foreseen()

    def _differs(self, manifest: Manifest, here: Environment | None) -> bool:
        """Return whether a manifest is of another environment than this one, as far as that is known."""
        if here is None or here is self._session.environment:
            return here is not None and manifest.environment.digest != here.digest
        return bool(foreseen_differences(manifest, here))

    def _unfit(self, name: str, manifest: Manifest) -> Unfit:
        if (here := self._here()) is None:
            return Unfit(name, len(manifest.graphs), ())
        labels = {part.label for part in here.components}
        differing = [part for part in compatibility.differences(manifest, here) if part.label in labels]
        lines = compatibility.fit_lines(differing, compatibility.baseline_for([manifest], here))
        return Unfit(name, len(manifest.graphs), tuple(lines), tuple(differing))
