"""Snapshots of one kernel's notebook: found when the extension loads, restored if trusted, taken."""

from __future__ import annotations

import getpass
import platform
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from nbcache import __version__
from nbcache.container import MAX_SNAPSHOT_BYTES
from nbcache.errors import EnvironmentMismatch, NbcacheError, SnapshotError, TrustError
from nbcache.files import read, update
from nbcache.kernel_session import Session
from nbcache.key import sha256
from nbcache.model import Environment
from nbcache.notebook import attachment
from nbcache.settings import Settings
from nbcache.snapshot import (
    Draft,
    Origin,
    Received,
    differences,
    fitting,
    merge,
    receive,
    signed,
    take,
)
from nbcache.trust import Keyring, Standing

__all__ = ["MAX_NOTEBOOK_BYTES", "Sharing", "Taken", "beside", "origin", "sources"]

MAX_NOTEBOOK_BYTES = 2 * MAX_SNAPSHOT_BYTES
_URL_SECONDS = 20.0
_MOST_FILES = 100
"""Files of a folder among which one that was renamed is looked for."""
_LOOK_SECONDS = 5.0
"""How long reading ahead waits until snapshots have been looked for."""


def beside(notebook: Path) -> Path:
    """Return where the snapshot of a notebook lies: beside it, under its name."""
    return notebook.with_suffix(".nbcache")


def sources(source: str) -> list[tuple[bytes, str]]:
    """Return bytes and names of the snapshots at `source`: a file, a notebook or a URL; or SnapshotError.

    A notebook's are those that it carries, and the one beside it.
    """
    if source.startswith(("https://", "http://")):
        return [(_fetch(source), source.partition("?")[0])]
    path = Path(source).expanduser()
    if path.suffix != ".ipynb":
        return [(read(path, max_bytes=MAX_SNAPSHOT_BYTES), str(path))]
    read(path, max_bytes=MAX_NOTEBOOK_BYTES)  # says what is wrong with the path
    found = _of(str(path))
    if not found:
        raise SnapshotError(
            "there is no snapshot in this notebook, nor beside it",
            where=source,
            next_step="`%nbcache snapshot` in the notebook takes one",
        )
    return found


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that was just taken."""

    draft: Draft
    data: bytes
    """The file."""
    changed: bool
    """False where all of it was in the file already."""


class Sharing:
    """Looks for the snapshots of a session's notebook, and has the session use those that it may."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._looked = threading.Event()
        self._lock = threading.Lock()
        self._received: dict[str, Received] = {}
        self._problems: list[NbcacheError] = []
        session.reading_ahead.append(self._restore_known)

    @property
    def keyring(self) -> Keyring:
        """One's own key and the trusted signers, where the settings say now."""
        return Keyring(self._session.settings.trust_dir)

    def look(self) -> None:
        """Look, in the background, for the snapshots that the notebook carries and the one beside it."""
        threading.Thread(target=self._look, name="nbcache-look", daemon=True).start()

    def problems(self) -> list[NbcacheError]:
        """Return what was wrong with snapshots that were found, and are not used."""
        return list(self._problems)

    def looked(self, timeout: float | None) -> bool:
        """Wait until snapshots have been looked for; False where `timeout` seconds are too few."""
        return self._looked.wait(timeout)

    def known(self) -> list[Received]:
        """Return the snapshots that are here, whoever signed them."""
        with self._lock:
            return list(self._received.values())

    def restore(self, source: str) -> list[Received]:
        """Take in the snapshots at `source`, and restore them: at once, or when torch is imported.

        Raises NbcacheError where one is broken, is not to be trusted, or does not fit.
        """
        taken_in = [self._take_in(data, where) for data, where in sources(source)]
        environment = self._session.environment
        for received in taken_in:
            received.unlock(self._session.settings.trust)
            if environment is not None:
                self._adopt(received, environment)
        self._session.read_again()
        return taken_in

    def trust(self, received: Received, name: str) -> None:
        """Trust the signer of `received` from now on, and restore what they have signed."""
        self.keyring.add(received.signer, name)
        self._restand(received, Standing.TRUSTED)

    def confirm(self, received: Received) -> None:
        """Restore what the signer of `received` has signed, in this kernel only."""
        self._restand(received, Standing.CONFIRMED)

    def _restand(self, received: Received, standing: Standing) -> None:
        with self._lock:
            self._received = {
                where: replace(each, standing=standing) if each.signer == received.signer else each
                for where, each in self._received.items()
            }
        self._session.read_again()

    def take(self, origin: Origin, known: Mapping[str, bytes] = MappingProxyType({})) -> Draft:
        """Return a snapshot of what is stored of this notebook here; SnapshotError where that is nothing."""
        manifest = self._session.manifest()
        if manifest is None or not manifest.artifacts:
            raise SnapshotError(
                "there is nothing to take a snapshot of: nothing compiled is stored for this notebook",
                next_step="run a cell that compiles first",
            )
        return take(self._session.artifacts, manifest, origin, known)

    def write(self, path: Path, origin: Origin) -> Taken:
        """Write a snapshot to `path`, with all that is in the file already.

        Raises TrustError where that is a stranger's: signing it anew would be to answer for it.
        """
        taken: list[Taken] = []

        def change(before: bytes | None) -> bytes:
            earlier = []
            if before is not None:
                received = receive(before, self.keyring, where=str(path))
                earlier = [Draft(received.snapshot, received.unlock(self._session.settings.trust))]
            new = self.take(origin, earlier[0].packed if earlier else {})
            draft = merge([*earlier, new], origin)
            changed = not earlier or draft.snapshot.manifests != earlier[0].snapshot.manifests
            data = before if before is not None and not changed else signed(draft, self.keyring)
            taken.append(Taken(draft, data, changed))
            return data

        update(path, change, max_bytes=MAX_SNAPSHOT_BYTES)
        return taken[-1]

    def _look(self) -> None:
        session = self._session
        try:
            if notebook := session.notebook(timeout=2.0):
                for data, where in session.attempt("looking for snapshots", partial(_of, notebook)) or ():
                    try:
                        self._take_in(data, where)
                    except NbcacheError as error:
                        self._problems.append(error)
        finally:
            self._looked.set()

    def _take_in(self, data: bytes, where: str) -> Received:
        received = receive(data, self.keyring, where=where)
        with self._lock:
            self._received[where] = received
        return received

    def _restore_known(self, environment: Environment) -> None:
        self.looked(_LOOK_SECONDS)
        for received in self.known():
            with suppress(TrustError, EnvironmentMismatch):  # said when the extension was loaded
                self._adopt(received, environment)

    def _adopt(self, received: Received, here: Environment) -> None:
        packed = received.unlock(self._session.settings.trust)
        manifest = fitting(received.snapshot.manifests, here)
        if manifest is None:
            differing = [
                f"{each.label}: there {each.old or '-'}, here {each.new or '-'}"
                for manifest in received.snapshot.manifests
                for each in differences(manifest, here)
            ]
            raise EnvironmentMismatch(
                "nothing in this snapshot fits this machine", differing, where=received.where
            )
        self._session.adopt(here, manifest, packed, Path(received.where).name)


def _of(notebook: str) -> list[tuple[bytes, str]]:
    """Return the snapshots that a notebook carries, and the one that lies beside it, if any.

    One that was renamed, or whose notebook was, is found by the digest that an output tells.
    """
    path = Path(notebook)
    data = read(path, max_bytes=MAX_NOTEBOOK_BYTES) if path.exists() else b""
    found = [(each, notebook) for each in attachment.carried(data)]
    if beside(path).exists():
        return [*found, (read(beside(path), max_bytes=MAX_SNAPSHOT_BYTES), str(beside(path)))]
    wanted = attachment.referred(data)
    for file in sorted(path.parent.glob("*.nbcache"))[:_MOST_FILES] if wanted else ():
        with suppress(SnapshotError):
            content = read(file, max_bytes=MAX_SNAPSHOT_BYTES)
            if sha256(content) in wanted:
                found.append((content, str(file)))
    return found


def origin(notebook: str, settings: Settings) -> Origin:
    """Return what a snapshot that is taken now says of where it comes from."""
    user = host = ""
    if settings.tell_origin:
        host = platform.node()
        with suppress(KeyError, ModuleNotFoundError, OSError):  # users without names, as in some containers
            user = getpass.getuser()
    return Origin(notebook, time.time(), f"nbcache {__version__}", user, host)


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_URL_SECONDS) as answer:
            data: bytes = answer.read(MAX_SNAPSHOT_BYTES + 1)
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise SnapshotError(
            f"the snapshot cannot be fetched: {getattr(error, 'reason', error)}",
            where=url.partition("?")[0],
            next_step="check the URL, or download the file",
        ) from error
    return data
