"""Finds the snapshots of a kernel's notebook when the extension loads, restores and writes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from nbcache.core import errors
from nbcache.core.errors import NbcacheError
from nbcache.core.files import read
from nbcache.core.log import logger
from nbcache.core.model import Environment, Level, Manifest, Packed, SnapshotRestored, SnapshotTaken
from nbcache.core.text import one_line
from nbcache.core.threads import ForkSafeEvent, ForkSafeLock, start_thread
from nbcache.kernel.explain.plan import cells_of
from nbcache.kernel.reasons import Elsewhere, unusable
from nbcache.kernel.session import Session
from nbcache.sharing.provenance import Judge
from nbcache.sharing.snapshots import sources
from nbcache.sharing.snapshots.build import Draft, Origin, Taken, admitted_part, build_snapshot, makers
from nbcache.sharing.snapshots.named import Place
from nbcache.sharing.snapshots.verify import Received, is_vouched
from nbcache.sharing.trust import Keyring, Standing
from nbcache.storage import compatibility
from nbcache.storage.history import asked_for

_MOST_PROBLEMS = 10
_MOST_SHOWN = 4
_LOCATE_SECONDS = 2.0
_LOOK_SECONDS = 5.0
"""The longest wait of reading ahead for the search for snapshots."""


@dataclass(frozen=True, slots=True)
class Stranger:
    fingerprint: str
    name: str
    """The name that they claim, or empty."""
    received: Received
    """A snapshot that they have signed, or compiled a part of."""


class Sharing:
    """Finds the snapshots of a session's notebook, and makes the session use the permitted ones."""

    def __init__(
        self,
        session: Session,
        foreseen: Callable[[], Environment | None] = lambda: None,
        locate: Callable[[], str] | None = None,
    ) -> None:
        """`foreseen` returns the environment expected before torch is imported, `locate` the notebook."""
        self._session = session
        self._foreseen = foreseen
        self._locate = locate or partial(session.notebook, _LOCATE_SECONDS)
        self._looked = ForkSafeEvent()
        self._lock = ForkSafeLock()
        self._received: dict[str, Received] = {}
        self._problems: list[NbcacheError] = []
        self.cells: frozenset[str] = frozenset()
        """Digests of the notebook's code cells, as they were at the search for snapshots."""
        self._ignored: set[str] = set()
        """Fingerprints of signers whom the user does not want to be asked about in this kernel."""
        session.snapshots = self
        self.judge = session.judge

    @property
    def keyring(self) -> Keyring:
        return Keyring(self._session.settings.trust_dir)

    def look(self) -> None:
        """Start a thread that searches for the notebook's snapshots."""
        self._looked.clear()
        if start_thread(self._search, "look") is None:
            self._looked.set()

    def wait_for_look(self, timeout: float | None) -> bool:
        """Wait until the search for snapshots has ended; False if `timeout` seconds are too few."""
        return self._looked.wait(timeout)

    def _search(self) -> None:
        try:
            if notebook := self._session.notebook(timeout=_LOCATE_SECONDS):
                self._search_beside(Path(notebook))
        except Exception as error:  # a file in that folder must not stop the user's cells
            self._session.report_fault("looking for snapshots", error)
        finally:
            self._looked.set()

    def _search_beside(self, notebook: Path) -> None:
        content = b""
        try:
            content = read(notebook, max_bytes=sources.MAX_NOTEBOOK_BYTES) if notebook.exists() else b""
        except NbcacheError as error:
            self._problems.append(error)
        self.cells = _digests(content)
        snapshots, problems = sources.of_notebook(notebook, content, self.keyring)
        self._problems += problems
        self._add(snapshots)

    def _add(self, snapshots: Iterable[Received]) -> None:
        with self._lock:
            for received in snapshots:
                self._received.setdefault(received.version, received)

    def problems(self) -> list[NbcacheError]:
        """Return the errors of snapshots that are not used, up to a bound."""
        return self._problems[:_MOST_PROBLEMS]

    def snapshots(self) -> list[Received]:
        """Return the received snapshots, each with the present standing of its signer."""
        with self._lock:
            received = list(self._received.values())
        return [self._with_standing(version) for version in received]

    def shown_snapshots(self) -> list[Received]:
        muted = self._ignored
        return [
            one for one in self.snapshots() if one.standing is not Standing.UNKNOWN or one.signer not in muted
        ]

    def forget(self) -> None:
        with self._lock:
            self._received.clear()
            self._problems.clear()

    def unusable_graphs(self) -> Iterator[Elsewhere]:
        """Yield the graphs of received snapshots that are not used, with the reason."""
        if (environment := self._session.environment) is None:
            return
        try:
            snapshots = self.snapshots()
        except NbcacheError:  # keys cannot be read, as another notice says
            return
        for received in snapshots:
            where, manifests = f"in {received.name}", received.snapshot.manifests
            if is_vouched(received.standing):
                yield from unusable(manifests, environment, where)
                continue
            graphs = tuple(graph for manifest in manifests for graph in manifest.graphs)
            whose = "signed by somebody whom you do not trust" if received.standing else "not signed"
            yield Elsewhere(graphs, f"{where}, {whose}")

    def receive(self, source: str | os.PathLike[str]) -> list[Received]:
        """Receive the snapshots at `source` without using them; NbcacheError if all are invalid."""
        snapshots, problems = sources.versions(source, self.keyring)
        if problems and not snapshots:
            raise problems[0]
        self._add(snapshots)
        for problem in problems[:_MOST_PROBLEMS]:
            self._session.notice(f"a version is not used: {problem.with_next_step()}", "refused")
        return snapshots

    def restore(self, snapshots: Sequence[Received]) -> list[tuple[Received, Manifest | None]]:
        """Restore snapshots, at once or when torch is imported; return each with the part that fits."""
        self.follow_cpu_baseline(snapshots)
        environment = self._session.environment
        restored: list[tuple[Received, Manifest | None]] = []
        problems: list[NbcacheError] = []
        for received in map(self._with_standing, snapshots):
            try:
                received.unlock(self._session.settings.trust)
                fits = None if environment is None else self._adopt(received, environment)
                restored.append((received, fits))
            except NbcacheError as error:
                problems.append(error)
        if problems and not restored:
            raise min(problems, key=lambda error: isinstance(error, errors.UntrustedSigner))
        self._session.cache.start_reading_ahead()
        return restored

    def restore_all(self, environment: Environment) -> None:
        """Restore all received snapshots that may be used."""
        self.wait_for_look(_LOOK_SECONDS)
        for received in self.snapshots():
            try:
                manifest = self._adopt(received, environment)
                logger.debug("%s: %d artifacts may be used", received.name, len(manifest.artifacts))
            except errors.EnvironmentMismatch as error:
                logger.debug("%s is not used: %s", received.name, error)
            except errors.TrustError as error:  # the line at load has the reason
                logger.debug("%s is not used: %s", received.name, error)
                continue
            except NbcacheError as error:  # a statement in it does not match; go on with others
                self._session.notice(str(error), "refused")
                continue
            if (line := self.unfit_line(received)) and not self._foresaw(received):
                self._session.notice(f"{one_line(received.name)}: {line}", "snapshot")

    def _foresaw(self, received: Received) -> bool:
        """Return whether the line at load named the differences, although torch was not imported then."""
        foreseen, manifests = self._foreseen(), received.snapshot.manifests
        differ = compatibility.foreseen_differences
        return foreseen is not None and all(differ(manifest, foreseen) for manifest in manifests)

    def _adopt(self, received: Received, environment: Environment) -> Manifest:
        packed = received.unlock(self._session.settings.trust)
        manifest, wrong = usable(received, environment, self.judge)
        for error in wrong:
            self._session.notice(f"{received.name}: part of it is not used: {error}", "refused")
        self._session.cache.adopt(environment, manifest, packed, (Level.L2, received.name))
        return manifest

    def unfit_line(self, received: Received) -> str:
        """Return a line on the graphs of unchanged cells that do not fit here; empty if all fit."""
        current = self._session.environment
        return compatibility.unfit_line(received.snapshot.manifests, current, self.cells) if current else ""

    def follow_cpu_baseline(self, snapshots: Sequence[Received]) -> None:
        """Make the kernel compile for a baseline if snapshots need it, unless the user set `portable`."""
        settings = self._session.settings
        environment = self._session.environment or self._foreseen()
        if environment is None or settings.origin("portable") != "default":
            return
        for received in snapshots:
            with suppress(NbcacheError):  # of a stranger, or for a baseline that this CPU cannot run
                self._with_standing(received).unlock(settings.trust)
                if (name := compatibility.baseline_for(received.snapshot.manifests, environment)) is not None:
                    cause = f"the snapshot {received.name}"
                    self._session.configure(settings.with_value("portable", name, origin=cause))
                    self._session.notice(
                        f"this kernel compiles for any {name} CPU from now on, as {cause} was "
                        "(%nbcache config portable=off)",
                        "portable",
                    )
                    return

    def restore_from(self, src: str | os.PathLike[str] | None) -> list[SnapshotRestored]:
        restored = self.restore(self.receive(self.of_notebook() if src is None else src))
        return [
            SnapshotRestored(received.where, len(fits.graphs), len(fits.digests))
            if fits
            else SnapshotRestored(received.where, 0, 0, pending=True)
            for received, fits in restored
        ]

    def strangers(self) -> list[Stranger]:
        """Return the untrusted signers of snapshots, and the untrusted makers in those of trusted signers."""
        strangers: dict[str, Stranger] = {}
        for received in self.snapshots():
            if received.standing is Standing.UNKNOWN:
                stranger = Stranger(received.signer, received.snapshot.user, received)
                strangers.setdefault(received.signer, stranger)
            elif received.standing is not None:
                for fingerprint, maker in makers(received.snapshot).items():
                    if fingerprint and self.judge.standing(fingerprint) is Standing.UNKNOWN:
                        strangers.setdefault(fingerprint, Stranger(fingerprint, maker.user, received))
        return [stranger for stranger in strangers.values() if stranger.fingerprint not in self._ignored]

    def ignore(self, fingerprint: str) -> None:
        """Stop mentioning an untrusted signer, for as long as this kernel runs."""
        self._ignored.add(fingerprint)

    def trust(self, stranger: Stranger, name: str) -> None:
        """Trust a signer from now on, called `name`, and restore the snapshots that they have signed."""
        self.keyring.add(stranger.fingerprint, name)
        self._ignored.discard(stranger.fingerprint)
        self.judge.forget()
        self.follow_cpu_baseline([stranger.received])
        if (environment := self._session.environment) is not None:
            self.restore_all(environment)
            self._session.cache.start_reading_ahead()

    def _with_standing(self, received: Received) -> Received:
        standing = self.keyring.standing(received.signer) if received.signer else None
        return replace(received, standing=standing)

    def build(
        self, origin: Origin, stored: Mapping[str, Packed] = MappingProxyType({}), *, everything: bool = False
    ) -> Draft:
        """Return a snapshot of present cells' artifacts, or of `everything`; SnapshotError if it is empty."""
        manifest = self._session.cache.manifest()
        if manifest is None or not manifest.artifacts:
            raise errors.SnapshotError(
                "there is nothing to take a snapshot of: no compiled graph of this notebook is stored",
                next_step="run a cell that compiles first",
            )
        if not everything and (present := self._current()(manifest)).graphs:
            manifest = present
        return build_snapshot(self._session.artifacts, manifest, origin, stored)

    def _current(self) -> Callable[[Manifest], Manifest]:
        """Return a function that restricts a manifest to the graphs of the notebook's present cells."""
        if not (cells := present_cells(self._locate())):
            return lambda manifest: manifest  # the file is unknown
        cells |= self._session.program.present()
        return partial(asked_for, cells=cells, runs=self._session.cache.history.runs())

    def write(self, target: Path | Place, origin: Origin, *, everything: bool = False) -> Taken:
        """Write a snapshot to `target`; the notebook's own keeps graphs of present cells, or `everything`."""
        notebook = self._locate()
        is_its_own = bool(notebook) and target == sources.beside(Path(notebook))
        current = self._current() if is_its_own and not everything else None
        build = partial(self.build, origin, everything=everything)
        return sources.write(target, build, origin, self.keyring, current)

    def snapshot(self, dest: str | os.PathLike[str] | None) -> SnapshotTaken:
        if dest == "notebook":
            raise errors.ConfigError(
                "a snapshot gets into a notebook only as the output of a cell",
                where="snapshot",
                next_step="%nbcache snapshot notebook, or name a file",
            )
        notebook = self._locate()
        target = self.beside_notebook(notebook) if dest is None else sources.destination(dest)
        return self.write(target, self.origin(notebook)).summary()

    def beside_notebook(self, notebook: str) -> Path:
        """Return the path of the notebook's snapshot; ConfigError if `notebook` is empty."""
        step = "name a file, or set %nbcache config notebook=PATH"
        return sources.beside(_path_of(notebook, "where its snapshot goes", "snapshot", step))

    def of_notebook(self) -> Path:
        """Return the notebook, whose snapshots are to be restored; ConfigError if it is unknown."""
        step = "name a snapshot: a file, a notebook, a URL, or URL#NAME in a store"
        return _path_of(self._locate(), "what to restore", "restore", step)

    def origin(self, notebook: str) -> Origin:
        return sources.origin(os.path.basename(notebook), self._session.settings)


def _path_of(notebook: str, purpose: str, verb: str, next_step: str) -> Path:
    if not notebook:
        text = f"nbcache does not know which notebook this is, so it cannot tell {purpose}"
        raise errors.ConfigError(text, where=verb, next_step=next_step)
    return Path(notebook)


def present_cells(notebook: str) -> frozenset[str]:
    """Return the digests of the code cells in a notebook's file; empty if it cannot be read."""
    try:
        return _digests(read(Path(notebook), max_bytes=sources.MAX_NOTEBOOK_BYTES) if notebook else b"")
    except (NbcacheError, OSError):
        return frozenset()


def _digests(content: bytes) -> frozenset[str]:
    try:
        return frozenset(cell.digest for cell in cells_of(content))
    except errors.FormatError:
        return frozenset()


def usable(received: Received, environment: Environment, judge: Judge) -> tuple[Manifest, list[NbcacheError]]:
    """Return the part of a snapshot that fits and has trusted makers, and the faults of other parts.

    Raises EnvironmentMismatch, a TrustError or a FormatError if no part may be used.
    """
    manifest = compatibility.fitting(received.snapshot.manifests, environment)
    if manifest is None:
        differing: list[str] = []
        for stored in received.snapshot.manifests[:_MOST_SHOWN]:
            baseline = compatibility.baseline_for([stored], environment)
            differing += compatibility.fit_lines(compatibility.differences(stored, environment), baseline)
        problem = "no graph in this snapshot fits this machine"
        raise errors.EnvironmentMismatch(problem, differing, where=received.where)
    admitted, problems = admitted_part(manifest, judge)
    if problems and not admitted.artifacts:
        problems[0].where = received.where
        raise problems[0]
    faults = (errors.FormatError, errors.BadSignature)
    return admitted, [problem for problem in problems if isinstance(problem, faults)]
