"""`%nbcache snapshot`, `restore` and `trust`: snapshots of the notebook that runs."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.display import display as _display

from nbcache.errors import NbcacheError, SnapshotError
from nbcache.kernel_session import Session
from nbcache.key import sha256
from nbcache.model import Environment
from nbcache.notebook.attachment import MANIFEST_MIME, MIME
from nbcache.notebook.snapshot_report import arrival_line, held, snapshot_lines, taken_parts
from nbcache.notebook.wording import counted, one_line, size
from nbcache.sharing import Sharing, Taken, beside, destination
from nbcache.snapshot import Received, signed
from nbcache.trust import Policy, Standing, short

__all__ = ["ShareMagics"]

_MAX_OUTPUT_BYTES = 5 * 10**6
"""The longest snapshot that is put into an output: longer ones freeze the page for seconds."""
_LOOK_SECONDS = 0.5
"""How long `%load_ext nbcache` waits to say what came along: the notebook may have to be asked for."""
_MEANS = "What a trusted signer has compiled runs as you, with all your rights, as their code would."


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

    def start(self) -> None:
        """Look for snapshots and say what came along."""
        self._sharing.look()
        if self._sharing.looked(_LOOK_SECONDS):
            with self._following():
                with suppress(NbcacheError):  # keys that cannot be read, as a line will say
                    self._sharing.follow(self._sharing.known())
                for line in self._arrived():
                    print(line)
                self._ask()
            return

        def tell_later() -> None:
            self._sharing.looked(None)
            for line in self._arrived():
                self._session.notice(line.removeprefix("nbcache: "))

        threading.Thread(target=tell_later, name="nbcache-tell", daemon=True).start()

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Say so where what is done in here has the kernel compile for other CPUs as well."""
        before = self._session.settings.portable
        yield
        settings = self._session.settings
        if settings.portable != before:
            print(
                f"nbcache: this kernel compiles for any {settings.portable} CPU from now on, as "
                f"{settings.origin('portable')} was (%nbcache config portable=off)"
            )

    def _ask(self) -> None:
        """Ask for each stranger's snapshot, where the policy is to ask."""
        if self._session.settings.trust is not Policy.ASK:
            return
        try:
            for received in self._strangers():
                if _confirmed(f"{_MEANS} Trust {short(received.signer)} from now on? [y/N] "):
                    self._sharing.trust(received, received.snapshot.user)
        except UsageError:
            pass  # nobody can be asked here, and the line has said what to do
        except NbcacheError as error:  # keys cannot be read or written
            print("\n".join(error.diagnostics()))

    def _strangers(self) -> list[Received]:
        return [each for each in self._sharing.known() if each.standing is Standing.UNKNOWN]

    def _arrived(self) -> list[str]:
        """Return a line for each snapshot that came along, and what is wrong with those that are not used."""
        lines = [f"nbcache: {error}" for error in self._sharing.problems()]
        try:
            for received in self._sharing.known():
                here = self._session.environment or self._foreseen()
                lines.append(arrival_line(received, here, self._session.settings.trust))
        except NbcacheError as error:  # keys that cannot be read: nothing is trusted, and the cells run
            lines += [f"nbcache: {line}" for line in error.diagnostics()]
        return lines

    def autosnapshot(self) -> None:
        """Write the snapshot beside the notebook, in the background; what stops that becomes a notice."""
        self._writing = threading.Thread(target=self._autosnapshot, name="nbcache-snapshot", daemon=True)
        with suppress(RuntimeError):  # no more threads for this process
            self._writing.start()

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
        if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
            raise UsageError("%nbcache snapshot takes one FILE or URL#NAME, or `notebook`, or nothing")
        notebook = self._locate()
        if arguments == ["notebook"]:
            self._into_output(notebook)
            return
        target = destination(arguments[0]) if arguments else self._sharing.beside_notebook(notebook)
        taken = self._sharing.write(target, self._sharing.origin(notebook))
        name = target.name if isinstance(target, Path) else taken.where
        said = f"nbcache: {one_line(name)} holds {held(taken.draft.snapshot)}"
        said += "".join(f"; {each}" for each in taken_parts(taken.summary()))
        if isinstance(target, Path):
            _show(said, MANIFEST_MIME, _reference(target, taken))
        else:
            print(said)

    def restore(self, arguments: list[str]) -> None:
        """Use the snapshots at a SOURCE, by default those of this notebook."""
        if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
            raise UsageError("%nbcache restore takes one SOURCE: a file, a notebook, a URL, or URL#NAME")
        source = arguments[0] if arguments else self._sharing.of_notebook()
        taken_in = self._sharing.receive(source)
        with self._following():
            self._ask()
            restored = self._sharing.restore(taken_in)
        for received, manifest in restored:
            if manifest is None:
                print(f"nbcache: {one_line(received.where)} is restored as soon as torch is imported")
            else:
                artifacts = counted(len(manifest.digests), "artifact")
                graphs = counted(len(manifest.graphs), "graph")
                print(f"nbcache: restored {graphs}, {artifacts}, of {one_line(received.where)}")

    def trust(self, arguments: list[str]) -> None:
        """Show who signed what came along, and trust them if the user says so, or with --yes."""
        if arguments not in ([], ["--yes"]):
            raise UsageError(
                "%nbcache trust takes --yes, or nothing; `nbcache trust` in a terminal does more"
            )
        strangers = self._strangers()
        if not strangers:
            print("nbcache: nothing came along whose signer is not trusted")
            return
        for received in strangers:
            print("\n".join(snapshot_lines(received, self._session.environment)))
            print(f"\n{_MEANS}\nSigner: {received.signer}")
            if arguments or _confirmed("Trust this signer from now on? [y/N] "):
                with self._following():
                    self._sharing.trust(received, received.snapshot.user)
                    print(f"nbcache: {short(received.signer)} is trusted")

    def _into_output(self, notebook: str) -> None:
        draft = self._sharing.take(self._sharing.origin(notebook))
        data = signed(draft, self._sharing.keyring)
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
    _display({"text/plain": said, mime: content}, raw=True)  # type: ignore[no-untyped-call]


def _reference(path: Path, taken: Taken) -> dict[str, Any]:
    """Return what lets the file be found again after a rename: a small part of an output."""
    return {
        "file": path.name,
        "digest": sha256(taken.data),
        "environments": [manifest.environment.values for manifest in taken.draft.snapshot.manifests],
    }


def _confirmed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        return False
    except Exception as error:  # this frontend cannot ask
        raise UsageError("%nbcache trust: nobody can be asked here; if you are sure, add --yes") from error
