"""The verbs of one kernel. Each returns the answer that its magic, or a button of a panel, shows."""

from __future__ import annotations

import base64
import os
import re
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from nbcache.core import errors, log
from nbcache.core.errors import ConfigError, FormatError, NbcacheError, SnapshotError, StoreError
from nbcache.core.files import read
from nbcache.core.key import sha256
from nbcache.core.model import Environment, GraphSummary, Level, Manifest, Outcome
from nbcache.core.reports import CellReport
from nbcache.core.settings import Policy, Settings, torch_redis_url
from nbcache.core.text import DOT, ago, clean, counted, duration, one_line, redacted, size
from nbcache.core.threads import start_thread
from nbcache.kernel.explain.plan import Place, Plan, Unfit, cells_of, make_plan
from nbcache.kernel.explain.stats import Refusal, Stats, by_type, find_fates, lifetime, tally
from nbcache.kernel.explain.timeline import timeline
from nbcache.kernel.reasons import LOST
from nbcache.kernel.session import Session
from nbcache.kernel.shared_client import SharedClient
from nbcache.kernel.snapshots import Sharing, Stranger, present_cells, usable
from nbcache.launcher.forked import parent
from nbcache.sharing.live.level import Publication, SharedLevel
from nbcache.sharing.live.signing import Signer
from nbcache.sharing.provenance import Judge
from nbcache.sharing.snapshots.build import attributed, makers, signed
from nbcache.sharing.snapshots.in_notebook import MANIFEST_MIME, MIME
from nbcache.sharing.snapshots.sources import MAX_NOTEBOOK_BYTES, beside, destination, origin
from nbcache.sharing.snapshots.verify import Received, is_vouched
from nbcache.sharing.trust import Keyring, is_called, short, spelled
from nbcache.storage import compatibility
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.open import open_shared
from nbcache.storage.compatibility import fitting
from nbcache.storage.history import MAX_RUNS, asked_for, missed_unchanged
from nbcache.storage.manifests import Clearing, union
from nbcache.storage.types import type_of
from nbcache.torch_bridge import cache_settings
from nbcache.torch_bridge.bridge import TorchBridge
from nbcache.torch_bridge.cache_settings import CacheSetting
from nbcache.torch_bridge.graph_contents import contents_of
from nbcache.ui import doctor
from nbcache.ui.display import panel as pages
from nbcache.ui.display import snapshots as display
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.reports import render_checks, render_graph, render_settings, render_status, render_why
from nbcache.ui.display.snapshots import COMPARE, MEANS
from nbcache.ui.display.stats import plan_parts, render_plan, render_stats, render_timeline
from nbcache.ui.display.words import StoreFigures, shared_parts, store_parts
from nbcache.ui.ipython.cells import Cells
from nbcache.ui.locate import Location
from nbcache.ui.terminal import commands
from nbcache.ui.terminal.shown import Shown, cell_titles, write

_WAIT_SECONDS = 60.0
"""The longest wait of `%nbcache flush`."""
_NOTEBOOK_SECONDS = 1.0
"""The longest wait of a verb for the notebook's path."""
_MOST_NAMED, _MOST_SHOWN, _MOST_MAKERS = 8, 5, 3
"""Functions that `why` suggests, publications that are listed, and foreign makers in each of these."""
_MAX_OUTPUT_BYTES = 5 * 10**6
"""The longest snapshot that an output may carry: a longer one freezes the page for seconds."""
_LOOK_SECONDS = 0.5
"""The longest wait for the search for snapshots, which sends requests to Jupyter servers."""
_MOST_ARRIVED = 10
"""The most versions of snapshots, and signers, that loading lists: a file may hold many more."""
_TRUST = "%nbcache trust"
_FLUSH_SECONDS = 5.0
_GREETING_SECONDS = 2.0
"""The longest wait of the greeting for the notebook; loading waits much less for the greeting."""
_MOST_AT_ONCE = 2 << 20
"""The longest notebook, in bytes, that loading reads: parsing 2 MB takes some 20 ms."""


class Planner:
    """Plan, stats and timeline; `foreseen` returns the environment's part known without torch."""

    def __init__(
        self, session: Session, foreseen: Callable[[], Environment | None], sharing: Sharing
    ) -> None:
        self._session = session
        self._foreseen = foreseen
        self.sharing = sharing

    def plan(self) -> Rendered:
        notebook = self._session.notebook(timeout=_NOTEBOOK_SECONDS)
        return render_plan(self.plan_of(notebook), os.path.basename(notebook))

    def stats(self) -> Rendered:
        session, notebook = self._session, self._session.notebook(timeout=_NOTEBOOK_SECONDS)
        graphs, cache, moment = session.graphs, session.cache, time.time()
        missed = [graph for graph in graphs if graph.outcome is Outcome.MISS]
        cache.history.read(notebook)
        runs = cache.history.runs()
        everywhere = {run.identity: run for run in (*session.artifacts.history.everything(), *runs)}
        by_time = sorted(everywhere.values(), key=lambda run: run.time)
        stats = Stats(
            session=tally(graphs),
            stored=find_fates(
                cache.summaries(),
                graphs,
                (graph.explanation for graph in missed),
                lost={graph.key for graph in missed if graph.key and graph.reason in LOST},
                ran={report.cell.digest for report in session.reports if report.cell},
            ),
            types=by_type(cache.refs(), cache.origins().keys()),
            refused=tuple(self._refusals()),
            overhead_seconds=session.overhead_seconds,
            notebook=lifetime(runs, most=MAX_RUNS, now=moment),
            store=lifetime([replace(run, reason="") for run in by_time], now=moment),
            traces=Counter(graph.trace for graph in graphs if graph.trace),
            missed_unchanged=missed_unchanged(runs, cache.history.kernel),
        )
        return render_stats(stats, os.path.basename(notebook))

    def timeline(self) -> Rendered:
        notebook = self._session.notebook(timeout=_NOTEBOOK_SECONDS)
        session, history = self._session, self._session.cache.history
        history.read(notebook)
        times = timeline(session.reports, history.runs(), history.kernel, session.environment)
        return render_timeline(times, os.path.basename(notebook))

    def plan_of(self, notebook: str) -> Plan:
        """Return the plan of the notebook at this path; StoreError if the store fails."""
        if not notebook:
            return Plan(problem="nbcache does not know this kernel's notebook: %nbcache config notebook=PATH")
        try:
            cells = cells_of(read(Path(notebook), max_bytes=MAX_NOTEBOOK_BYTES))
            saved = os.stat(notebook).st_mtime
        except FormatError as error:
            return Plan(problem=f"{error.what}: {error.next_step}")
        except (NbcacheError, OSError):
            return Plan(problem="there is no such file: save the notebook first")
        session, age = self._session, ago(time.time() - saved)
        session.cache.flush(_FLUSH_SECONDS)
        session.cache.history.read(notebook)
        current = session.environment
        places, unfit = self._from_store(notebook)
        places += self._from_snapshots(unfit)
        places += self._from_others()
        whose = {current.digest} if current else {place.manifest.environment.digest for place in places}
        plan = make_plan(cells, places, session.cache.history.runs(), whose, unfit)
        if session.cell is not None and session.cell.digest not in {cell.digest for cell in cells}:
            notes = [f"the file was saved {age}, without this cell: save the notebook, and ask again"]
        else:
            notes = [f"by the file as it was saved {age}"]
        if current is None and session.shares:
            notes.append("nbcache asks the shared store when torch is imported")
        return replace(plan, notes=tuple(notes))

    def _from_snapshots(self, unfit: list[Unfit]) -> list[Place]:
        """Return the fitting parts of received snapshots; add snapshots that do not fit to `unfit`."""
        places: list[Place] = []
        current = self._session.environment
        self.sharing.wait_for_look(_LOOK_SECONDS)
        try:
            snapshots = self.sharing.shown_snapshots()
        except NbcacheError as error:  # the keys are unreadable: no signer is trusted
            unfit.append(Unfit("snapshots", 0, (error.with_next_step(),)))
            return places
        for received in snapshots:
            manifests = received.snapshot.manifests
            try:
                received.unlock(self._session.settings.trust)
                if current is None:
                    fits = [manifest for manifest in manifests if not self._differs(manifest)]
                elif fitting(manifests, current) is not None:
                    fits = [usable(received, current, self.sharing.judge)[0]]
                else:
                    fits = []
            except NbcacheError as error:
                graphs = len({graph.identity for manifest in manifests for graph in manifest.graphs})
                unfit.append(Unfit(received.name, graphs, (error.with_next_step(),)))
                continue
            places += [Place(Level.L2, received.name, fit, fit.digests) for fit in fits]
            if not fits:
                unfit += [self._unfit(received.name, manifest) for manifest in manifests]
        return places

    def _from_others(self) -> list[Place]:
        current, shared_client = self._session.environment, self._session.shared_client
        if current is None or shared_client is None:
            return []
        level = shared_client.level
        fits = [fitting([publication.manifest], current) for publication in shared_client.publications()]
        everyones = union(current, "", [manifest for manifest in fits if manifest is not None])
        graphs = [ref for ref in everyones.artifacts if type_of(ref.type).is_graph]
        present = {ref.digest for ref in level.present(current, graphs)} if graphs else set()
        return [Place(Level.L3, level.name, everyones, present)] if graphs else []

    def _refusals(self) -> Iterator[Refusal]:
        for why, count in Counter(self._session.cache.refusals().values()).items():
            yield Refusal(counted(count, "artifact"), why)
        try:
            for error in self.sharing.problems():
                yield Refusal("a snapshot", error.what)
            for stranger in self.sharing.strangers():
                who = f"{short(stranger.fingerprint)} is not trusted (%nbcache trust)"
                yield Refusal(stranger.received.name, who)
        except NbcacheError as error:  # the keys are unreadable: no signer is trusted
            yield Refusal("all snapshots", error.what)

    def greeting(self) -> list[str]:
        """Return the notebook's stored graphs and the seconds they save; StoreError if the store fails."""
        notebook = self._session.notebook(timeout=_GREETING_SECONDS)
        places, unfit = self._from_store(notebook)
        of = f" of {one_line(os.path.basename(notebook), 60)}" if notebook else ""
        runs = self._session.artifacts.history.read(notebook)
        manifests = [place.manifest for place in places]
        graphs: tuple[GraphSummary, ...] = ()
        if manifests:
            merged, present = union(manifests[0].environment, notebook, manifests), present_cells(notebook)
            graphs = (asked_for(merged, present, runs).graphs if present else ()) or merged.graphs
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
            if (plan := make_plan(cells, places, runs, whose)).graphs and cells:
                return [line, *plan_parts(plan)]
        return [line, f"saves about {duration(sum(graph.seconds for graph in graphs))}"]

    def _from_store(self, notebook: str) -> tuple[list[Place], list[Unfit]]:
        """Return the local store's manifests of a notebook: those for this environment, and the others."""
        stored, places, unfit = self._session.artifacts, [], []
        for manifest in stored.manifests(notebook).values():
            if self._differs(manifest):
                unfit.append(self._unfit(stored.store.name, manifest))
                continue
            admitted = stored.admitted(manifest)
            present = stored.present(admitted.digests)
            places.append(Place(Level.L1, stored.store.name, admitted, present))
        return places, unfit

    def _environment(self) -> Environment | None:
        """Return the environment; before torch is imported, its foreseen part."""
        return self._session.environment or self._foreseen()

    def _differs(self, manifest: Manifest) -> bool:
        """Return whether a manifest's environment differs from this one, or from its foreseen part."""
        if (current := self._session.environment) is not None:
            return manifest.environment.digest != current.digest
        foreseen = self._foreseen()
        return foreseen is not None and bool(compatibility.foreseen_differences(manifest, foreseen))

    def _unfit(self, name: str, manifest: Manifest) -> Unfit:
        if (current := self._environment()) is None:
            return Unfit(name, len(manifest.graphs), ())
        labels = {part.label for part in current.components}
        differing = [part for part in compatibility.differences(manifest, current) if part.label in labels]
        lines = compatibility.fit_lines(differing, compatibility.baseline_for([manifest], current))
        return Unfit(name, len(manifest.graphs), tuple(lines), tuple(differing))


class SnapshotVerbs(Planner):
    """The verbs on the notebook's snapshots; `locate` returns its path, empty if it is unknown."""

    def __init__(
        self, session: Session, locate: Callable[[], str], foreseen: Callable[[], Environment | None]
    ) -> None:
        super().__init__(session, foreseen, Sharing(session, foreseen, locate))
        self._locate = locate
        self._writing: threading.Thread | None = None

    # --- arrived snapshots ----------------------------------------------------------------------

    def start(self, greet: Callable[[], None] = lambda: None) -> None:
        """Search for snapshots, call `greet`, and print a line for each received snapshot."""
        self.sharing.look()
        looked = self.sharing.wait_for_look(_LOOK_SECONDS)
        greet()
        if not looked:
            start_thread(self._notice_later, "tell")
            return
        with suppress(NbcacheError):  # the keys are unreadable; a line below says so
            self.sharing.follow_cpu_baseline(self.sharing.snapshots())
        for line in self.arrivals():
            write(f"nbcache: {line}")
        self._ask()

    def _notice_later(self) -> None:
        self.sharing.wait_for_look(None)
        for line in self.arrivals():
            self._session.notice(line, "snapshot")

    def arrivals(self) -> list[str]:
        """Return a line for each received snapshot, and one for each problem with a snapshot."""
        lines = [str(error) for error in self.sharing.problems()]
        try:
            return lines + self._lines(self.sharing.shown_snapshots())
        except NbcacheError as error:  # the keys are unreadable: no signer is trusted, and the cells run
            return lines + error.diagnostics()

    def _lines(self, received: list[Received]) -> list[str]:
        """Return a line for each version of a snapshot, those of trusted signers first."""
        ordered = sorted(received, key=lambda version: not is_vouched(version.standing))
        context = (self._environment(), self._session.judge, self.sharing.cells)
        lines = [display.arrival_line(version, *context) for version in ordered[:_MOST_ARRIVED]]
        if (more := len(ordered) - _MOST_ARRIVED) > 0:
            lines.append(f"{counted(more, 'more version')} found (nbcache inspect)")
        return lines

    # --- taking ---------------------------------------------------------------------------------

    def autosnapshot(self) -> None:
        """Write the snapshot beside the notebook, in the background; an error becomes a notice."""

        def take() -> None:
            try:
                if notebook := self._locate():
                    self.sharing.write(beside(Path(notebook)), self.sharing.origin(notebook))
            except NbcacheError as error:
                self._session.notice(f"autosnapshot: {error}", "autosnapshot")
            except Exception as error:  # this thread has no other way to report it
                self._session.report_fault("autosnapshot", error)

        self._writing = start_thread(take, "snapshot")

    def finish(self, timeout: float) -> None:
        if self._writing is not None:
            self._writing.join(timeout)

    def take(self, dest: str = "", *, everything: bool = False) -> dict[str, Any]:
        """Write a snapshot into a file, a store or this output; return the MIME bundle to display."""
        notebook = self._locate()
        origin, keyring = self.sharing.origin(notebook), self.sharing.keyring
        if dest == "notebook":
            draft = attributed(self.sharing.build(origin, everything=everything), [], origin, keyring)
            data = signed(draft, keyring)
            if len(data) > _MAX_OUTPUT_BYTES:
                raise SnapshotError(
                    f"the snapshot takes {size(len(data))}, and an output of more than "
                    f"{size(_MAX_OUTPUT_BYTES)} freezes the page",
                    where="%nbcache snapshot notebook",
                    next_step="%nbcache snapshot writes it into a file beside the notebook",
                )
            carried = display.contents_words(draft.snapshot)
            line = f"this output carries {carried}. It is kept once the notebook is saved."
            return {"text/plain": line, MIME: base64.b64encode(data).decode("ascii")}
        target = destination(dest) if dest else self.sharing.beside_notebook(notebook)
        written = self.sharing.write(target, origin, everything=everything)
        name = target.name if isinstance(target, Path) else written.where
        bundle: dict[str, Any] = {"text/plain": display.written_words(name, written)}
        if isinstance(target, Path):  # with this reference, a renamed file is found again
            environments = [manifest.environment.values for manifest in written.draft.snapshot.manifests]
            reference = {"file": name, "digest": sha256(written.data), "environments": environments}
            bundle[MANIFEST_MIME] = reference
        return bundle

    def attach(self) -> list[str]:
        """Update the snapshot beside the notebook; return the steps that put it into the notebook."""
        notebook = self._locate()
        written = self._session.snapshot(self.sharing.beside_notebook(notebook))
        holds = f"{one_line(Path(written.where).name)} holds {counted(written.graphs, 'graph')}"
        return [
            f"{holds}. Only Jupyter writes {one_line(Path(notebook).name)} while it is open.",
            "Save and close the notebook, then run in a terminal:",
            f"nbcache attach {shlex.quote(notebook)}",
            f"Or leave it open, run this in a cell of its own, and save (up to {size(_MAX_OUTPUT_BYTES)}):",
            "%nbcache snapshot notebook",
        ]

    # --- using ----------------------------------------------------------------------------------

    def restore(self, source: str = "", *, ask: bool = False) -> list[str]:
        """Restore the snapshots at `source`, by default the notebook's; `ask` allows questions."""
        taken_in = self.sharing.receive(source or self.sharing.of_notebook())
        restored: list[tuple[Received, Manifest | None]] = []
        if ask:
            self._ask()
        with suppress(errors.Unsigned, errors.UntrustedSigner):  # a line below says so, with the next step
            restored = self.sharing.restore(taken_in)
        lines = []
        for received, manifest in restored:
            where = one_line(received.where)
            if manifest is None:
                lines.append(f"{where} is restored when torch is imported")
            else:
                graphs, artifacts = len(manifest.graphs), len(manifest.digests)
                counts = f"{counted(graphs, 'graph')}, {counted(artifacts, 'artifact')}"
                lines.append(f"restored {counts}, of {where}")
                if unfit := self.sharing.unfit_line(received):
                    lines.append(f"  {unfit}")
            omitted = display.left_out(received, self._session.judge)
            lines += [f"  {why} ({next_step})" for why, next_step in omitted]
        used = {received.version for received, _ in restored}
        unused = {received.version for received in taken_in} - used
        return lines + self._lines([new for new in self.sharing.snapshots() if new.version in unused])

    def _ask(self) -> None:
        """Ask whether to trust each untrusted signer, if the policy is `ask`."""
        if self._session.settings.trust is not Policy.ASK:
            return
        try:
            for stranger in islice(self._strangers(), _MOST_ARRIVED):
                question = f"{MEANS} {COMPARE} Trust {spelled(stranger.fingerprint)} from now on? [y/N] "
                if confirm(question, _TRUST):
                    self.sharing.trust(stranger, _ask_name(stranger))
        except UsageError:
            pass  # this front end cannot ask; the line has named the next step
        except NbcacheError as error:  # keys cannot be read or written
            write("\n".join(error.diagnostics()))

    def _strangers(self) -> Iterator[Stranger]:
        """Yield each untrusted signer once. The makers in a snapshot follow once its signer is trusted."""
        shown: set[str] = set()
        while new := [who for who in self.sharing.strangers() if who.fingerprint not in shown]:
            shown.add(new[0].fingerprint)
            yield new[0]

    def trust_strangers(self, *, sure: bool, name: str) -> bool:
        """Show untrusted signers, and trust those that the user accepts; return whether there were any."""
        if not (shown := self.sharing.strangers()):
            return False
        if sure and name and len(shown) > 1:
            raise UsageError(
                f"{_TRUST}: a name is for one signer, and {len(shown)} are not trusted; name one by the "
                f"fingerprint: {_TRUST} add SIGNER --name NAME"
            )
        # --yes trusts only these, not makers who become visible once a signer is trusted.
        for stranger in shown if sure else self._strangers():
            received = stranger.received
            context = (self._session.environment, self._session.judge, cell_titles(received))
            write("\n".join(display.snapshot_lines(received, *context)))
            role = "Signer" if stranger.fingerprint == received.signer else "Compiled a part of it"
            write(f"\n{MEANS} {COMPARE}\n{role}: {spelled(stranger.fingerprint)}")
            if sure or confirm("Trust this signer from now on? [y/N] ", _TRUST):
                chosen = name if sure else name or _ask_name(stranger)
                self.sharing.trust(stranger, chosen)
                write(f"nbcache: {short(stranger.fingerprint)} is trusted{f' as {chosen}' if chosen else ''}")
        return True

    def ignore(self, signer: str) -> list[str]:
        """Ignore an untrusted signer in this kernel, named by at least 8 digits of the fingerprint."""
        fingerprints = [stranger.fingerprint for stranger in self.sharing.strangers()]
        matches = [fingerprint for fingerprint in fingerprints if is_called(fingerprint, signer)]
        if len(matches) != 1:
            raise ConfigError(
                "no untrusted signer of this notebook has this fingerprint",
                where=f"{_TRUST} ignore",
                next_step="%nbcache trust shows the signers",
            )
        self.sharing.ignore(matches[0])
        name = spelled(matches[0])
        line = f"{name} is ignored in this kernel: nbcache neither uses nor shows their artifacts"
        return [line, "to trust them after all:", f"{_TRUST} add {name}"]


class KernelVerbs(SnapshotVerbs):
    """All verbs; they raise NbcacheError or UsageError. `problem`: why the store is in memory, or None."""

    def __init__(
        self,
        session: Session,
        bridge: TorchBridge,
        cells: Cells,
        location: Callable[[], Location],
        problem: StoreError | None,
    ) -> None:
        super().__init__(session, lambda: location().path, bridge.foreseen)
        self._bridge = bridge
        self._cells = cells
        self._location = location
        self._problem = problem
        session.connector = self.connect_to
        self._used: Settings | None = None
        """The settings with which this kernel connected; the session's may have changed since."""
        self._handed_over: list[str] = []
        """The lines that a colleague pastes to restore the last shared snapshot."""

    # --- reports --------------------------------------------------------------------------------

    def status(self) -> Rendered:
        session, figures = self._session, []
        try:
            figures.append(self._figures())
        except StoreError as error:
            session.notice(str(error), "store")
        reports = session.reports
        reported = {id(graph) for report in reports for graph in report.graphs}
        if outside := tuple(graph for graph in session.graphs if id(graph) not in reported):
            reports.append(CellReport(None, outside, seconds=0.0))
        shared = None if session.shared_client is None else session.shared_client.level.figures()
        return render_status(reports, figures, session.prewarm, shared, parent())

    def why(self, name: str | None = None) -> Rendered:
        """Return why the last cell's graphs, or the graphs called `name`, missed, and what to do."""
        session = self._session
        rows = session.why(name)
        last = [report for report in session.reports if report.graphs or report.notices][-1:]
        notices = [text for report in last for text in report.notices]
        remark = ""
        if name is not None:  # a notice on a function begins with its name
            notices = [text for text in session.notices if text.startswith(f"{name} ")]
            if not rows and (functions := dict.fromkeys(graph.function for graph in session.graphs)):
                shown = ", ".join(one_line(function, 40) for function in list(functions)[-_MOST_NAMED:])
                remark = f"no graph is called `{one_line(name, 40)}`: this kernel has compiled {shown}"
        elif rows and ((raised := self._cells.last_raised) or not last[0].graphs):
            report = session.reports[-1] if raised else last[0]
            cell, compiled = (cell.label if cell else "" for cell in (report.cell, rows[0].graph.cell))
            parts = ["raised an exception"] if raised else []
            if not report.graphs:
                parts.append(f"compiled no graph; what follows is of {compiled or 'an earlier one'}")
            remark = f"{cell or 'the last cell'} {' and '.join(parts)}"
        return render_why(rows, notices, remark)

    def graph(self, name: str) -> list[Rendered]:
        """Return the graphs of a function, or the graph with a compile id, with all their details."""
        rows = self._session.why(name)
        if not rows:
            raise UsageError(f"%nbcache graphs: no graph of this kernel is called `{one_line(name, 40)}`")
        return [render_graph(why, contents_of(why.graph, self._session)) for why in rows]

    def doctor(self) -> Rendered:
        checks = doctor.in_kernel(self._session, self._bridge, self.sharing, self._location, self._problem)
        return render_checks(checks)

    # --- settings -------------------------------------------------------------------------------

    def config(self) -> Rendered:
        return render_settings(*self.setting_rows())

    def change(self, name: str, value: str) -> list[str]:
        """Change one setting; return a line that says so."""
        self.change_all([f"{name}={value}"])
        return [f"{name} is {redacted(value) or 'empty'} for this kernel"]

    def change_all(self, changes: list[str]) -> None:
        """Change settings, each a NAME=VALUE."""
        settings = self._session.settings
        for change in changes:
            name, _, value = change.partition("=")
            if name == "dir":
                raise ConfigError(
                    "the folder of the local store is read when the extension loads",
                    where="%nbcache config",
                    next_step="set NBCACHE_DIR, then run `%unload_ext nbcache` and `%load_ext nbcache`",
                )
            if name in cache_settings.NAMES:
                raise cache_settings.refusal(name)
            settings = settings.with_value(name, value, origin="%nbcache config", more=cache_settings.NAMES)
        self._session.configure(settings)
        log.show(settings.log)
        if not settings.prewarm:
            self._session.prewarm.stop()
        if any(change.startswith("notebook=") for change in changes):
            self._session.locator.start()
            self.sharing.forget()
            self.sharing.look()

    def setting_rows(self) -> tuple[list[CacheSetting], list[CacheSetting]]:
        settings, where = self._session.settings, self._location()
        rows = [row for row in commands.setting_rows(settings) if row.name != "notebook"]
        rows.append(CacheSetting("notebook", where.path, where.found_by, settings.help("notebook")))
        return rows, self._bridge.cache_settings()

    # --- snapshots and trust --------------------------------------------------------------------

    def snapshot(self) -> Sequence[str]:
        return [self.take()["text/plain"]]

    def verify(self, source: str = "") -> Shown:
        """Check all of the snapshots at `source`, by default the notebook's."""
        return commands.verify(source or str(self.sharing.of_notebook()), self._session.settings)

    def trust(self, signer: str, name: str) -> list[str]:
        """Trust a signer, use their received snapshots, and return lines that confirm it."""
        answer = commands.trust("add", signer, name, self._session.settings)
        trusted, called = answer.data["fingerprint"], answer.data["name"]
        for received in self.sharing.snapshots():
            if trusted == received.signer or trusted in makers(received.snapshot):
                self.sharing.trust(Stranger(trusted, called, received), called)
        return answer.lines

    # --- the store ------------------------------------------------------------------------------

    def flush(self) -> list[str]:
        began = time.perf_counter()
        done = self._session.flush(_WAIT_SECONDS)
        client, seconds = self._session.shared_client, f"{time.perf_counter() - began:.2f} s"
        if done or client is None:
            is_stored = "everything is stored" if done else "some graphs are not stored yet"
            return [f"{is_stored}{' and shared' if client else ''} ({seconds})"]
        why = f": {size(waiting)} wait to be written" if (waiting := client.level.figures().waiting) else ""
        if (failure := client.level.failure) is not None:
            why = f": off for now: {one_line(failure.what)}"
        return [f"some graphs are not yet shared with {client.level.name} ({seconds}){why}"]

    def going(self, *, everything: bool = False) -> tuple[str, Callable[[], Sequence[str]]]:
        """Return what `clear` or `clear --all` removes, and a function that removes just that."""
        if everything:
            return f"This would be removed: {self.all_words()}", self.clear_all
        shown = self._session.clearing()

        def remove() -> Sequence[str]:
            if _identity(only := self._session.clearing()) != _identity(shown):
                raise NbcacheError(
                    "nothing was removed: this notebook's artifacts have changed since they were shown",
                    next_step="ask again, and look at what would go now",
                )
            return self.clear_all(only)

        return f"This would be removed: {_going_words(shown)}", remove

    def all_words(self) -> str:
        self._session.flush(_WAIT_SECONDS)
        stored = self._session.artifacts
        notebooks = {manifest.notebook for manifest in stored.manifests().values()} - {""}
        name, _, used = store_parts(self._figures())
        return f"all of the {name}, {used} of {counted(len(notebooks), 'notebook')} and more"

    def clear_all(self, only: Clearing | None = None) -> list[str]:
        """Remove all stored artifacts, or `only` one notebook's; return lines on removed and kept parts."""
        session = self._session
        self.sharing.forget()
        removed = session.clear(only)
        number = counted(removed, "entry", "entries") if only is None else counted(removed, "artifact")
        lines = [f"removed {number} from the {session.artifacts.store.name}"]
        if (notebook := session.notebook(timeout=0.0)) and (near := beside(Path(notebook))).exists():
            lines.append(f"  {one_line(near.name)} stays, and is restored when the extension is loaded again")
        if session.shared_client:
            lines.append(f"  shared graphs stay on {session.shared_client.level.name}")
        return lines

    def _figures(self) -> StoreFigures:
        return doctor.store_figures(self._session.artifacts.store, self._session.settings.max_bytes)

    # --- the shared level -----------------------------------------------------------------------

    def connect_at_load(self) -> None:
        """Connect to the shared level that the environment names; an error becomes a notice."""
        settings = self._session.settings
        if settings.shared_url:
            try:
                self._join(settings, open_shared(settings))
            except NbcacheError as error:
                named = settings.origin("shared_url")
                self._session.notice(
                    f"no shared store ({named}), so only the local one is used: {error.with_next_step()}",
                    "shared-store",
                )

    def connect(self, url: str = "") -> list[str]:
        """Connect to the store at `url`, by default the settings'; return a line for each publication."""
        client, settings = self._session.shared_client, self._session.settings
        if url or client is None or settings != (self._used or settings):
            client = self.connect_to(url)
        client.level.ask()
        lines = self.people(client)
        if (failure := client.level.failure) is not None:
            lines += [f"off for now: {one_line(failure.what)}", f"next: {one_line(failure.next_step or '')}"]
        nobody = ["no trusted signer has published graphs of this notebook there"]
        return [f"connected to {client.level.name}", *(f"  {line}" for line in lines or nobody)]

    def connect_to(self, url: str) -> SharedClient:
        """Connect to the store at `url`, by default the one that the settings or torch's variables name."""
        settings = self._session.settings
        if url:
            settings = settings.with_value("shared_url", url, origin="%nbcache connect")
        elif not settings.shared_url:
            torchs, variable = torch_redis_url(os.environ)
            if variable not in os.environ:
                raise ConfigError(
                    "there is no URL to connect to",
                    where="%nbcache connect",
                    next_step="name one, as in %nbcache connect redis://host, or set NBCACHE_SHARED_URL",
                )
            settings = settings.with_value("shared_url", torchs, origin=f"environment, {variable}")
        store = open_shared(settings)
        try:
            store.get("probe")  # the user asked to connect, so an error is raised here
        except StoreError:
            store.close()
            raise
        return self._join(settings, store)

    def _join(self, settings: Settings, store: Store) -> SharedClient:
        session, me = self._session, origin("", settings)
        keyring, policy = lambda: Keyring(session.settings.trust_dir), lambda: session.settings.trust
        signer = Signer(keyring, policy, me.user, me.host)
        shared = SharedLevel(store, signer, wait_seconds=settings.shared_timeout, say=session.notice)
        session.configure(settings)
        self._used = settings
        return session.join(shared)

    def disconnect(self) -> list[str]:
        client = self._session.shared_client
        if client is None:
            return ["not connected to a shared level"]
        self._session.disconnect()
        return [f"disconnected from {client.level.name}"]

    def people(self, client: SharedClient) -> list[str]:
        return publication_lines(client.publications(), self._session.environment, self._session.judge)

    def share(self, name: str = "") -> list[str]:
        """Write a snapshot to the shared store or beside the notebook; return lines for a colleague."""
        session, chosen = self._session, name or Path(self._locate()).stem
        if session.shared_client is None:
            if name:
                raise ConfigError(
                    "a NAME needs a shared store, and this kernel is not connected to one",
                    where="%nbcache share",
                    next_step="connect first: %nbcache connect redis://host, or share without a NAME",
                )
            written = session.snapshot()
            source = Path(written.where).name
            how = f"gets the file {source}, and pastes"
        elif not chosen:
            raise ConfigError(
                "nbcache does not know which notebook this is, so it has no name for the snapshot",
                where="%nbcache share",
                next_step="give it a name: %nbcache share NAME",
            )
        else:
            written = session.snapshot(f"{(self._used or session.settings).shared_url}#{chosen}")
            source = written.where
            how = "pastes this, with user and password in the URL if it needs them"
        self._handed_over = self._paste_lines(f"A colleague {how}:", source)
        graphs, artifacts = counted(written.graphs, "graph"), counted(written.artifacts, "artifact")
        first, *more = self._handed_over
        return [f"{one_line(source)} holds {graphs}, {artifacts}. {first}", *more]

    def _paste_lines(self, first: str, source: str) -> list[str]:
        settings = self._session.settings
        signer, user = Keyring(settings.trust_dir).own() or "", origin("", settings).user
        named = f" --name {_as_word(user)}" if user else ""
        return [
            first,
            f"%nbcache restore {_as_word(source)}",
            "and, once, trusts your key:",
            f"%nbcache trust add {spelled(signer)}{named}",
        ]

    # --- panels ---------------------------------------------------------------------------------

    def later(self, action: Callable[[], None]) -> str:
        """Call `action` after the running cell, and return its label; some kernels run buttons meanwhile."""
        if self._cells.are_running:
            self._cells.waiting.append(action)
            cell = self._session.cell
            return cell.label if cell else "the running cell"
        action()
        return ""

    def now(self) -> pages.Now:
        session, cell = self._session, self._session.cell
        shared = session.shared_client
        return pages.Now(
            session.graphs,
            session.activity() if cell else None,
            cell.label if cell else "",
            time.monotonic() - self._cells.began,
            () if shared is None else tuple(shared_parts(shared.level.figures())),
        )

    def facts(self) -> pages.Facts:
        session = self._session
        notebook = session.notebook(timeout=_NOTEBOOK_SECONDS)
        current = self._environment()
        shared = session.shared_client
        try:
            plan = self.plan_of(notebook)
        except StoreError as error:
            plan = Plan(problem=str(error))
        settings, torch_settings = self.setting_rows()
        store = None
        with suppress(StoreError):
            store = self._figures()
        strangers: list[pages.Stranger] = []
        snapshots: list[str] = []
        paste = self._handed_over  # for the last shared snapshot, else the one beside the notebook
        with suppress(OSError, ValueError, NbcacheError):  # no file, no notebook, or unreadable keys
            near = beside(Path(notebook))
            stat = near.stat()
            written = ago(max(0.0, time.time() - stat.st_mtime))
            snapshots.append(DOT.join([one_line(near.name, 60), size(stat.st_size), f"written {written}"]))
            head = f"A colleague gets the file {one_line(near.name)}, and pastes:"
            paste = paste or self._paste_lines(head, near.name)
        with suppress(NbcacheError):
            for stranger in self.sharing.strangers():
                name, manifests = stranger.received.name, stranger.received.snapshot.manifests
                fit = display.fit_words(manifests, current)
                strangers.append(pages.Stranger(spelled(stranger.fingerprint), stranger.name, name, fit))
        return pages.Facts(
            notebook=os.path.basename(notebook),
            machine=pages.machine_parts(current, session.graphs),
            plan=plan,
            people=[] if shared is None else self.people(shared),
            strangers=strangers,
            snapshots=[*snapshots, *self.arrivals()],
            paste=paste,
            settings=settings,
            torch_settings=torch_settings,
            store=store,
            time=time.time(),
        )


def _going_words(only: Clearing) -> str:
    """Return in words what clearing a notebook removes, and what stays because others use it, too."""
    whose = one_line(os.path.basename(only.notebook)) or "kernels without a known notebook"
    going = f"{counted(only.graphs, 'graph')}, {counted(only.artifacts, 'artifact')}"
    shared = f"; kept: {counted(only.kept, 'artifact')} that others use as well" if only.kept else ""
    return f"{going} of {whose}{shared}. torch's folder is emptied for all notebooks"


def _identity(only: Clearing) -> tuple[object, ...]:
    """Return the values by which removals are compared; the times of last use are not among them."""
    refs = {(digest, *ref.identity) for digest, ref in only.refs}
    return only.notebook, only.graphs, only.kept, set(only.manifests), refs


def _as_word(source: str) -> str:
    """Return a source as one word of a line magic, quoted if it has spaces, quotes or backslashes."""
    return shlex.quote(source) if re.search(r"[\s'\"\\]", source) else source


def publication_lines(publications: list[Publication], env: Environment | None, judge: Judge) -> list[str]:
    """Return a line for each of the newest publications, with the makers of its graphs and their fit."""
    names = {
        publication.found.signer: judge.introduce(
            publication.found.signer, publication.user, publication.host
        )
        for publication in publications
    }
    lines = []
    for publication in publications[:_MOST_SHOWN]:
        signer, manifest = publication.found.signer, publication.manifest
        own = [graph for graph in manifest.graphs if graph.maker in ("", signer)]
        foreign = Counter(graph.maker for graph in manifest.graphs if graph.maker not in ("", signer))
        parts = [names[signer]]
        if own or not foreign:
            parts += [counted(len(own), "graph"), f"saves about {duration(sum(g.seconds for g in own))}"]
        parts += [
            f"has {counted(count, 'graph')} of {names.get(maker) or judge.introduce(maker)}"
            for maker, count in foreign.most_common(_MOST_MAKERS)
        ]
        parts += [ago(time.time() - publication.published), display.fit_words([manifest], env)]
        lines.append(DOT.join(filter(None, parts)))
    if (more := len(publications) - _MOST_SHOWN) > 0:
        lines.append(f"and {more} more")
    return lines


def _ask_name(stranger: Stranger) -> str:
    """Ask for the user's name of a signer; the name that the signer chose is only shown."""
    calls = f" (calls itself {one_line(stranger.name, 40)})" if stranger.name else ""
    try:
        return input(clean(f"Which name do you give this signer?{calls} ")).strip()
    except Exception:  # some front ends answer only once; a name can be set later
        return ""


def confirm(question: str, command: str) -> bool:
    """Ask in the notebook; UsageError if nobody can be asked."""
    try:
        return input(clean(question)).strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        return False
    except Exception as error:  # this frontend cannot ask
        raise UsageError(
            f"{command}: nbcache cannot ask for your answer here; if you are sure, add --yes"
        ) from error
