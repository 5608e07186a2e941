"""`%nbcache snapshot`, `restore`, `attach` and `trust`: snapshots of the notebook that runs."""

from __future__ import annotations

import base64
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from nbcache.core.errors import ConfigError, NbcacheError, SnapshotError, Unsigned, UntrustedSigner
from nbcache.core.key import sha256
from nbcache.core.model import Environment, Manifest
from nbcache.core.text import clean, counted, one_line, size
from nbcache.core.threads import start_thread
from nbcache.core.trust import Policy, is_called, short, spelled
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing, Stranger
from nbcache.snapshots.build import attributed, makers, signed
from nbcache.snapshots.in_notebook import MANIFEST_MIME, MIME
from nbcache.snapshots.sources import beside, destination
from nbcache.snapshots.verify import Received, is_vouched
from nbcache.ui.display import snapshots as display
from nbcache.ui.display.snapshots import COMPARE, MEANS
from nbcache.ui.terminal.shown import cell_titles, write

_MAX_OUTPUT_BYTES = 5 * 10**6
"""The longest snapshot that is put into an output: longer ones freeze the page for seconds."""
_LOOK_SECONDS = 0.5
"""The longest wait of `%load_ext nbcache` for the search for snapshots, in which servers are asked."""
_MOST_TOLD = 10
"""Versions of snapshots, and signers, that loading names and asks for: a file may hold very many."""
_TRUST = "%nbcache trust"


class SnapshotVerbs:
    """The verbs, for one session.

    `locate` returns the notebook's path, empty if it cannot be found; `foreseen` returns what is known of the
    environment before torch is imported.
    """

    def __init__(
        self, session: Session, locate: Callable[[], str], foreseen: Callable[[], Environment | None]
    ) -> None:
        self._session = session
        self._locate = locate
        self._foreseen = foreseen
        self.sharing = Sharing(session, foreseen, locate)
        """The snapshots that came along."""
        self._writing: threading.Thread | None = None

    # --- arrived snapshots ----------------------------------------------------------------------

    def start(self, greet: Callable[[], None] = lambda: None) -> None:
        """Look for snapshots, `greet`, and print a line for each that came along."""
        self.sharing.look()
        looked = self.sharing.looked(_LOOK_SECONDS)
        greet()
        if not looked:
            start_thread(self._notice_later, "tell")
            return
        with self._following():
            with suppress(NbcacheError):  # keys that cannot be read, as a line will say
                self.sharing.follow(self.sharing.known())
            for line in self.arrived():
                write(f"nbcache: {line}")
            self._ask()

    def _notice_later(self) -> None:
        self.sharing.looked(None)
        for line in self.arrived():
            self._session.notice(line)

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Print a line if the kernel compiles for other CPUs as well from here on."""
        before = self._session.settings.portable
        yield
        settings = self._session.settings
        if settings.portable != before:
            write(
                f"nbcache: this kernel compiles for any {settings.portable} CPU from now on, as "
                f"{settings.origin('portable')} was (%nbcache config portable=off)"
            )

    def arrived(self) -> list[str]:
        """Return a line for each snapshot that came along, and for each that is not used its problem."""
        lines = [str(error) for error in self.sharing.problems()]
        try:
            return lines + self._lines(self.sharing.told())
        except NbcacheError as error:  # keys that cannot be read: nothing is trusted, and the cells run
            return lines + error.diagnostics()

    def _lines(self, received: list[Received]) -> list[str]:
        """Return a line for each version of a snapshot, of trusted signers first; of very many, some."""
        ordered = sorted(received, key=lambda version: not is_vouched(version.standing))
        here = self._session.environment or self._foreseen()
        policy, judge, cells = self._session.settings.trust, self._session.judge, self.sharing.cells
        lines = [
            display.arrival_line(version, here, policy, judge, cells) for version in ordered[:_MOST_TOLD]
        ]
        if (more := len(ordered) - _MOST_TOLD) > 0:
            lines.append(f"{counted(more, 'more version')} came along (nbcache inspect)")
        return lines

    def look_again(self) -> None:
        """Look for the snapshots of another notebook."""
        self.sharing.forget()
        self.sharing.look()

    # --- taking ---------------------------------------------------------------------------------

    def autosnapshot(self) -> None:
        """Write the snapshot beside the notebook, in the background; what stops that becomes a notice."""

        def take() -> None:
            try:
                if notebook := self._locate():
                    self.sharing.write(beside(Path(notebook)), self.sharing.origin(notebook))
            except NbcacheError as error:
                self._session.notice(f"autosnapshot: {error}")
            except Exception as error:  # in a thread of its own nobody else would see it
                self._session.notice(f"autosnapshot failed unexpectedly, please report it: {error!r}")

        self._writing = start_thread(take, "snapshot")

    def finish(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what is being written."""
        if self._writing is not None and self._writing.is_alive():
            self._writing.join(timeout)

    def take(self, dest: str = "", *, everything: bool = False) -> dict[str, Any]:
        """Take a snapshot into a file, by default the one beside the notebook, a store, or this output.

        Return the MIME bundle to display: a line, and the part of the snapshot that an output keeps.
        """
        notebook = self._locate()
        if dest == "notebook":
            return self._into_output(notebook, everything=everything)
        target = destination(dest) if dest else self.sharing.beside_notebook(notebook)
        taken = self.sharing.write(target, self.sharing.origin(notebook), everything=everything)
        name = target.name if isinstance(target, Path) else taken.where
        bundle: dict[str, Any] = {"text/plain": display.taken_words(name, taken)}
        if isinstance(target, Path):  # lets the file be found again after a rename
            environments = [manifest.environment.values for manifest in taken.draft.snapshot.manifests]
            reference = {"file": name, "digest": sha256(taken.data), "environments": environments}
            bundle[MANIFEST_MIME] = reference
        return bundle

    def _into_output(self, notebook: str, *, everything: bool) -> dict[str, Any]:
        origin, keyring = self.sharing.origin(notebook), self.sharing.keyring
        draft = attributed(self.sharing.build(origin, everything=everything), [], origin, keyring)
        data = signed(draft, keyring)
        if len(data) > _MAX_OUTPUT_BYTES:
            raise SnapshotError(
                f"the snapshot takes {size(len(data))}, and an output of more than {size(_MAX_OUTPUT_BYTES)} "
                "freezes the page",
                where="%nbcache snapshot notebook",
                next_step="%nbcache snapshot writes it into a file beside the notebook",
            )
        line = f"this output carries {display.held(draft.snapshot)}. It is kept once the notebook is saved."
        return {"text/plain": line, MIME: base64.b64encode(data).decode("ascii")}

    def attach(self) -> list[str]:
        """Bring the snapshot beside the notebook up to date; return how it gets into the notebook."""
        notebook = self._locate()
        taken = self._session.snapshot(self.sharing.beside_notebook(notebook))
        holds = f"{one_line(Path(taken.where).name)} holds {counted(taken.graphs, 'graph')}"
        return [
            f"{holds}. Only Jupyter writes {one_line(Path(notebook).name)} while it is open.",
            "Save and close the notebook, then run in a terminal:",
            f"nbcache attach {shlex.quote(notebook)}",
            f"Or leave it open, run this in a cell of its own, and save (up to {size(_MAX_OUTPUT_BYTES)}):",
            "%nbcache snapshot notebook",
        ]

    # --- using ----------------------------------------------------------------------------------

    def restore(self, source: str = "", *, ask: bool = False) -> list[str]:
        """Use the snapshots at `source`, by default those of this notebook; return the lines that say so.

        With `ask`, the user may be asked to trust their signers.
        """
        taken_in = self.sharing.receive(source or self.sharing.of_notebook())
        restored: list[tuple[Received, Manifest | None]] = []
        with self._following():
            if ask:
                self._ask()
            with suppress(Unsigned, UntrustedSigner):  # a line says so, and what to do
                restored = self.sharing.restore(taken_in)
        lines = []
        for received, manifest in restored:
            where = one_line(received.where)
            if manifest is None:
                lines.append(f"{where} is restored as soon as torch is imported")
            else:
                graphs, artifacts = len(manifest.graphs), len(manifest.digests)
                counts = f"{counted(graphs, 'graph')}, {counted(artifacts, 'artifact')}"
                lines.append(f"restored {counts}, of {where}")
                if unfit := self.sharing.unfit_line(received):
                    lines.append(f"  {unfit}")
            omitted = display.left_out(received, self._session.settings.trust, self._session.judge)
            lines += [f"  {why} ({next_step})" for why, next_step in omitted]
        used = {received.version for received, _ in restored}
        unused = {received.version for received in taken_in} - used
        return lines + self._lines([new for new in self.sharing.known() if new.version in unused])

    def _ask(self) -> None:
        """Ask for each stranger's snapshot, if the policy is to ask."""
        if self._session.settings.trust is not Policy.ASK:
            return
        try:
            for stranger in islice(self._strangers(), _MOST_TOLD):
                question = f"{MEANS} {COMPARE} Trust {spelled(stranger.fingerprint)} from now on? [y/N] "
                if confirmed(question, _TRUST):
                    self.sharing.trust(stranger, _named(stranger))
        except UsageError:
            pass  # nobody can be asked here, and the line has said what to do
        except NbcacheError as error:  # keys cannot be read or written
            write("\n".join(error.diagnostics()))

    def _strangers(self) -> Iterator[Stranger]:
        """Yield each stranger once; who compiled what another took, once that other is trusted."""
        shown: set[str] = set()
        while new := [who for who in self.sharing.strangers() if who.fingerprint not in shown]:
            shown.add(new[0].fingerprint)
            yield new[0]

    def trust_strangers(self, *, sure: bool, name: str) -> bool:
        """Show who signed or compiled what came along, and trust them if the user says so, or is `sure`.

        `name` is what to call them; the user is asked for it if it is empty. Return False if all are trusted.
        """
        if not (shown := self.sharing.strangers()):
            return False
        if sure and name and len(shown) > 1:
            raise UsageError(
                f"{_TRUST}: a name is for one signer, and {len(shown)} are not trusted; name one by the "
                f"fingerprint: {_TRUST} add SIGNER --name NAME"
            )
        # Who is only seen once another is trusted is shown first: --yes is for those that were.
        for stranger in shown if sure else self._strangers():
            received = stranger.received
            titles = cell_titles(received)
            write(
                "\n".join(
                    display.snapshot_lines(received, self._session.environment, self._session.judge, titles)
                )
            )
            role = "Signer" if stranger.fingerprint == received.signer else "Compiled part of it"
            write(f"\n{MEANS} {COMPARE}\n{role}: {spelled(stranger.fingerprint)}")
            if sure or confirmed("Trust this signer from now on? [y/N] ", _TRUST):
                chosen = name if sure else name or _named(stranger)
                with self._following():
                    self.sharing.trust(stranger, chosen)
                write(f"nbcache: {short(stranger.fingerprint)} is trusted{f' as {chosen}' if chosen else ''}")
        if sure and (more := self.sharing.strangers()):
            write(f"nbcache: {counted(len(more), 'signer')} more compiled part of it ({_TRUST})")
        return True

    def trusted(self, signer: str, name: str) -> None:
        """Use the snapshots of a signer whom the user has just trusted."""
        for received in self.sharing.known():
            if signer == received.signer or signer in makers(received.snapshot):
                with self._following():
                    self.sharing.trust(Stranger(signer, name, received), name)

    def ignore(self, signer: str) -> list[str]:
        """Ignore a signer who is not trusted, in this kernel; return the lines that say so.

        `signer` is a fingerprint, or its first 8 digits or more.
        """
        fingerprints = [stranger.fingerprint for stranger in self.sharing.strangers()]
        matches = [fingerprint for fingerprint in fingerprints if is_called(fingerprint, signer)]
        if len(matches) != 1:
            raise ConfigError(
                "no untrusted signer of this notebook has this fingerprint",
                where=f"{_TRUST} ignore",
                next_step="%nbcache trust shows who there is",
            )
        self.sharing.ignore(matches[0])
        name = spelled(matches[0])
        line = f"{name} is ignored in this kernel: nothing of theirs is used, nor shown"
        return [line, "to trust them after all:", f"{_TRUST} add {name}"]


def _named(stranger: Stranger) -> str:
    """Ask what to call a signer; the name that strangers call themselves is only shown."""
    calls = f" (calls itself {one_line(stranger.name, 40)})" if stranger.name else ""
    try:
        return input(clean(f"What do you call them?{calls} ")).strip()
    except Exception:  # a front end that answers once only: a name can be given later
        return ""


def confirmed(question: str, command: str, advice: str = "if you are sure, add --yes") -> bool:
    """Ask in the notebook; a UsageError with `command` and `advice` if nobody can be asked."""
    try:
        return input(clean(question)).strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        return False
    except Exception as error:  # this frontend cannot ask
        raise UsageError(f"{command}: nobody can be asked here; {advice}") from error
