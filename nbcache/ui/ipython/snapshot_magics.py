"""`%nbcache snapshot`, `restore` and `trust`: snapshots of the notebook that runs."""

from __future__ import annotations

import base64
import json
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.display import display as _display

from nbcache.core.errors import ConfigError, NbcacheError, SnapshotError, Unsigned, UntrustedSigner
from nbcache.core.key import sha256
from nbcache.core.model import Environment, Manifest
from nbcache.core.text import clean, counted, one_line, size
from nbcache.core.threads import start_thread
from nbcache.core.trust import Policy, is_called, short, spelled
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing, Stranger
from nbcache.snapshots.build import Taken, attributed, makers, signed
from nbcache.snapshots.in_notebook import MANIFEST_MIME, MIME
from nbcache.snapshots.sources import beside, destination
from nbcache.snapshots.verify import Received, is_vouched
from nbcache.ui.display.snapshots import (
    COMPARE,
    MEANS,
    arrival_line,
    held,
    left_out,
    pending_words,
    restored_words,
    snapshot_lines,
    taken_parts,
)
from nbcache.ui.terminal.shown import Shown, cell_titles, write
from nbcache.ui.terminal.snapshots import verify

__all__ = ["ShareMagics", "confirmed"]

_MAX_OUTPUT_BYTES = 5 * 10**6
"""The longest snapshot that is put into an output: longer ones freeze the page for seconds."""
_LOOK_SECONDS = 0.5
"""How long `%load_ext nbcache` waits to say what came along: the notebook may have to be asked for."""
_MOST_TOLD = 10
"""Versions of snapshots that came along, and signers, that loading tells of and asks for: a file has many."""
_TRUST = "%nbcache trust"


class ShareMagics:
    """The verbs, for one session.

    `locate` returns the notebook's path, empty where it is not to be found; `foreseen` what is known of the
    environment before torch is imported.
    """

    def __init__(
        self, session: Session, locate: Callable[[], str], foreseen: Callable[[], Environment | None]
    ) -> None:
        self._session = session
        self._locate = locate
        self._foreseen = foreseen
        self._sharing = Sharing(session, foreseen, locate)
        self._writing: threading.Thread | None = None

    @property
    def sharing(self) -> Sharing:
        """The snapshots that came along."""
        return self._sharing

    def start(self, greet: Callable[[], None] = lambda: None) -> None:
        """Look for snapshots, `greet`, and say what came along."""
        self._sharing.look()
        looked = self._sharing.looked(_LOOK_SECONDS)
        greet()
        if looked:
            with self._following():
                with suppress(NbcacheError):  # keys that cannot be read, as a line will say
                    self._sharing.follow(self._sharing.known())
                for line in self.arrived():
                    write(line)
                self._ask()
            return

        def tell_later() -> None:
            self._sharing.looked(None)
            for line in self.arrived():
                self._session.notice(line.removeprefix("nbcache: "))

        start_thread(tell_later, "tell")

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Say so where what is done in here has the kernel compile for other CPUs as well."""
        before = self._session.settings.portable
        yield
        settings = self._session.settings
        if settings.portable != before:
            write(
                f"nbcache: this kernel compiles for any {settings.portable} CPU from now on, as "
                f"{settings.origin('portable')} was (%nbcache config portable=off)"
            )

    def _ask(self) -> None:
        """Ask for each stranger's snapshot, where the policy is to ask."""
        if self._session.settings.trust is not Policy.ASK:
            return
        try:
            for stranger in islice(self._strangers(), _MOST_TOLD):
                question = f"{MEANS} {COMPARE} Trust {spelled(stranger.fingerprint)} from now on? [y/N] "
                if confirmed(question, _TRUST):
                    self._sharing.trust(stranger, _named(stranger))
        except UsageError:
            pass  # nobody can be asked here, and the line has said what to do
        except NbcacheError as error:  # keys cannot be read or written
            write("\n".join(error.diagnostics()))

    def _strangers(self) -> Iterator[Stranger]:
        """Yield each stranger once; who compiled what another took, once that other is trusted."""
        asked: set[str] = set()
        while new := [each for each in self._sharing.strangers() if each.fingerprint not in asked]:
            asked.add(new[0].fingerprint)
            yield new[0]

    def arrived(self) -> list[str]:
        """Return a line for each snapshot that came along, and what is wrong with those that are not used."""
        lines = [f"nbcache: {error}" for error in self._sharing.problems()]
        try:
            lines += self._lines(self._sharing.told())
        except NbcacheError as error:  # keys that cannot be read: nothing is trusted, and the cells run
            lines += [f"nbcache: {line}" for line in error.diagnostics()]
        return lines

    def _lines(self, received: list[Received]) -> list[str]:
        """Return a line for each version of a snapshot, of trusted signers first; of very many, some."""
        known = sorted(received, key=lambda each: not is_vouched(each.standing))
        here = self._session.environment or self._foreseen()
        policy, judge = self._session.settings.trust, self._session.judge
        cells = self._sharing.cells
        lines = [arrival_line(each, here, policy, judge, cells) for each in known[:_MOST_TOLD]]
        if (more := len(known) - _MOST_TOLD) > 0:
            lines.append(f"nbcache: {counted(more, 'more version')} came along (nbcache inspect)")
        return lines

    def autosnapshot(self) -> None:
        """Write the snapshot beside the notebook, in the background; what stops that becomes a notice."""
        self._writing = start_thread(self._autosnapshot, "snapshot")

    def finish(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what is being written."""
        if self._writing is not None and self._writing.is_alive():
            self._writing.join(timeout)

    def look_again(self) -> None:
        """Look for the snapshots of another notebook."""
        self._sharing.forget()
        self._sharing.look()

    def forget(self) -> None:
        """Forget the snapshots that came along: they are restored no more."""
        self._sharing.forget()

    def _autosnapshot(self) -> None:
        try:
            if notebook := self._locate():
                self._sharing.write(beside(Path(notebook)), self._sharing.origin(notebook))
        except NbcacheError as error:
            self._session.notice(f"autosnapshot: {error}")
        except Exception as error:  # in a thread of its own nobody else would see it
            self._session.notice(f"autosnapshot failed unexpectedly, please report it: {error!r}")

    def snapshot(self, arguments: list[str]) -> None:
        """Take a snapshot into a file, by default the one beside the notebook, a store, or this output."""
        if arguments[:1] == ["--portable"]:
            raise UsageError(
                "%nbcache snapshot holds what is compiled already; to compile for other CPUs as well, run "
                "`%nbcache config portable=x86-64-v3` first, or `nbcache warm --portable x86-64-v3 NOTEBOOK`"
            )
        everything = "--all" in arguments
        arguments = [word for word in arguments if word != "--all"]
        if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
            raise UsageError(
                "%nbcache snapshot takes one FILE or URL#NAME, or `notebook`, and --all, or nothing"
            )
        notebook = self._locate()
        if arguments == ["notebook"]:
            self._into_output(notebook, everything=everything)
            return
        target = destination(arguments[0]) if arguments else self._sharing.beside_notebook(notebook)
        taken = self._sharing.write(target, self._sharing.origin(notebook), everything=everything)
        name = target.name if isinstance(target, Path) else taken.where
        said = f"nbcache: {one_line(name)} holds {held(taken.draft.snapshot)}"
        said += "".join(f"; {each}" for each in taken_parts(taken.summary()))
        if isinstance(target, Path):
            _show(said, MANIFEST_MIME, _reference(target, taken))
        else:
            write(said)

    def restore(self, arguments: list[str]) -> None:
        """Use the snapshots at a SOURCE, by default those of this notebook."""
        if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
            raise UsageError("%nbcache restore takes one SOURCE: a file, a notebook, a URL, or URL#NAME")
        source = arguments[0] if arguments else self._sharing.of_notebook()
        taken_in = self._sharing.receive(source)
        with self._following():
            self._ask()
            restored: list[tuple[Received, Manifest | None]] = []
            with suppress(Unsigned, UntrustedSigner):  # a line says so, and what to do
                restored = self._sharing.restore(taken_in)
        for received, manifest in restored:
            if manifest is None:
                write(f"nbcache: {pending_words(received.where)}")
            else:
                line = self._sharing.unfit_line(received)
                graphs, artifacts = len(manifest.graphs), len(manifest.digests)
                write(f"nbcache: {restored_words(graphs, artifacts, received.where)}")
                if line:
                    write(f"  {line}")
            for why, next_step in left_out(received, self._session.settings.trust, self._session.judge):
                write(f"  {why} ({next_step})")
        used = {received.version for received, _ in restored}
        here = {received.version for received in taken_in}
        for line in self._lines([each for each in self._sharing.known() if each.version in here - used]):
            write(line)

    def trust_strangers(self, *, sure: bool, name: str) -> bool:
        """Show who signed or compiled what came along, and trust them if the user says so, or where `sure`.

        `name` is what to call them; the user is asked for it where it is empty. False where all are trusted.
        """
        if not (shown := self._sharing.strangers()):
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
            lines = snapshot_lines(received, self._session.environment, self._session.judge, titles)
            write("\n".join(lines))
            role = "Signer" if stranger.fingerprint == received.signer else "Compiled part of it"
            write(f"\n{MEANS} {COMPARE}\n{role}: {spelled(stranger.fingerprint)}")
            if sure or confirmed("Trust this signer from now on? [y/N] ", _TRUST):
                chosen = name if sure else name or _named(stranger)
                self._trust(stranger, chosen)
                said = f" as {chosen}" if chosen else ""
                write(f"nbcache: {short(stranger.fingerprint)} is trusted{said}")
        if sure and (more := self._sharing.strangers()):
            signers = counted(len(more), "signer")
            write(f"nbcache: {signers} more compiled part of it (%nbcache trust)")
        return True

    def ignore(self, signer: str) -> list[str]:
        """Tell of a signer who is not trusted no more, in this kernel; return the lines that say so.

        `signer` is a fingerprint, or its first 8 digits or more.
        """
        known = [each.fingerprint for each in self._sharing.strangers()]
        found = [each for each in known if is_called(each, signer)]
        if len(found) != 1:
            raise ConfigError(
                "nobody who is not trusted, and signed what came along, has this fingerprint",
                where=f"{_TRUST} ignore",
                next_step="%nbcache trust shows who there is",
            )
        self._sharing.ignore(found[0])
        said = f"{spelled(found[0])} is ignored in this kernel: nothing of theirs is used, nor shown"
        return [said, "to trust them after all:", f"{_TRUST} add {spelled(found[0])}"]

    def verify(self, arguments: list[str]) -> None:
        """Check the snapshots of the notebook in full, or those at a SOURCE, as `nbcache verify` does."""
        sources = [word for word in arguments if word != "--json"]
        if len(sources) > 1 or any(word.startswith("-") for word in sources):
            raise UsageError("%nbcache verify takes one SOURCE, or nothing, and --json")
        found = self.verified(*sources)
        print(json.dumps(found.data, indent=2) if "--json" in arguments else found.text)

    def verified(self, source: str = "") -> Shown:
        """Return what `verify` finds."""
        return verify(source or str(self._sharing.of_notebook()), self._session.settings)

    def attach(self, arguments: list[str]) -> None:
        """Say how the snapshot gets into the notebook, which no kernel may write while it is open."""
        if arguments:
            raise UsageError("%nbcache attach takes nothing more")
        write("nbcache: " + "\n".join(self.attaching()))

    def attaching(self) -> list[str]:
        """Bring the snapshot beside the notebook up to date; return how it gets into the notebook."""
        notebook = self._locate()
        taken = self._session.snapshot(self._sharing.beside_notebook(notebook))
        holds = f"{one_line(Path(taken.where).name)} holds {counted(taken.graphs, 'graph')}"
        return [
            f"{holds}. Only Jupyter writes {one_line(Path(notebook).name)} while it is open.",
            "Save and close the notebook, then run in a terminal:",
            f"nbcache attach {shlex.quote(notebook)}",
            f"Or leave it open, run this in a cell of its own, and save (up to {size(_MAX_OUTPUT_BYTES)}):",
            "%nbcache snapshot notebook",
        ]

    def trusted(self, signer: str, name: str) -> None:
        """Use what came along of a signer whom the user has just trusted."""
        for received in self._sharing.known():
            if signer == received.signer or signer in makers(received.snapshot):
                self._trust(Stranger(signer, name, received), name)

    def _trust(self, stranger: Stranger, name: str) -> None:
        with self._following():
            self._sharing.trust(stranger, name)

    def _into_output(self, notebook: str, *, everything: bool) -> None:
        origin, keyring = self._sharing.origin(notebook), self._sharing.keyring
        draft = attributed(self._sharing.build(origin, everything=everything), [], origin, keyring)
        data = signed(draft, keyring)
        if len(data) > _MAX_OUTPUT_BYTES:
            raise SnapshotError(
                f"the snapshot takes {size(len(data))}, and an output of more than {size(_MAX_OUTPUT_BYTES)} "
                "freezes the page",
                where="%nbcache snapshot notebook",
                next_step="%nbcache snapshot writes it into a file beside the notebook",
            )
        said = f"nbcache: this output carries {held(draft.snapshot)}. It is kept once the notebook is saved."
        _show(said, MIME, base64.b64encode(data).decode("ascii"))


def _show(said: str, mime: str, content: Any) -> None:
    _display({"text/plain": clean(said), mime: content}, raw=True)  # type: ignore[no-untyped-call]


def _reference(path: Path, taken: Taken) -> dict[str, Any]:
    """Return what lets the file be found again after a rename: a small part of an output."""
    return {
        "file": path.name,
        "digest": sha256(taken.data),
        "environments": [manifest.environment.values for manifest in taken.draft.snapshot.manifests],
    }


def _named(stranger: Stranger) -> str:
    """Ask what to call a signer; the name that strangers call themselves is only shown."""
    calls = f" (calls itself {one_line(stranger.name, 40)})" if stranger.name else ""
    try:
        return input(clean(f"What do you call them?{calls} ")).strip()
    except Exception:  # a front end that answers once only: a name can be given later
        return ""


def confirmed(question: str, command: str, advice: str = "if you are sure, add --yes") -> bool:
    """Ask in the notebook; a UsageError with `command` and `advice` where nobody can be asked."""
    try:
        return input(clean(question)).strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        return False
    except Exception as error:  # this frontend cannot ask
        raise UsageError(f"{command}: nobody can be asked here; {advice}") from error
