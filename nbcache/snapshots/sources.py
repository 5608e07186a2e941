"""Where snapshots are read and written: a file, a notebook, a name in a store, an address."""

from __future__ import annotations

import getpass
import os
import platform
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from nbcache.core.errors import ConfigError, NbcacheError, SnapshotError
from nbcache.core.files import read, update
from nbcache.core.key import sha256
from nbcache.core.model import Manifest, Packed
from nbcache.core.settings import Settings
from nbcache.core.text import redacted
from nbcache.core.threads import start_thread
from nbcache.core.trust import Keyring
from nbcache.core.version import __version__
from nbcache.snapshots import in_notebook
from nbcache.snapshots.build import Draft, Origin, Taken, added
from nbcache.snapshots.file import MAX_SNAPSHOT_BYTES
from nbcache.snapshots.named import Place, opened, place
from nbcache.snapshots.verify import Received, judged_file

MAX_NOTEBOOK_BYTES = 2 * MAX_SNAPSHOT_BYTES


_SILENT_SECONDS, _DOWNLOAD_SECONDS = 20.0, 600.0
"""How long a server may say nothing, and how long it may take in all."""


_CHUNK_BYTES = 1 << 20


_MOST_FILES = 100
"""Files of a folder among which one that was renamed is looked for."""


def beside(notebook: Path) -> Path:
    """Return where the snapshot of a notebook lies: beside it, under its name."""
    return notebook.with_suffix(".nbcache")


def sources(source: str | os.PathLike[str], keyring: Keyring) -> list[tuple[bytes, str]]:
    """Return bytes and names of the snapshots at `source`: a file, a notebook, a URL, a name in a store.

    A notebook's are those that it carries, and the one beside it. NbcacheError where there is none that is
    whole. Of one in a store the signature is checked before anything else of it is fetched.
    """
    found, problems = _sources(source, keyring)
    if not found:
        raise problems[0]
    return found


def versions(source: str | os.PathLike[str], keyring: Keyring) -> tuple[list[Received], list[NbcacheError]]:
    """Return all versions of the snapshots at `source`, whoever signed them; and what is wrong with others.

    NbcacheError where there is nothing.
    """
    files, problems = _sources(source, keyring)
    found: dict[str, Received] = {}
    for data, where in files:
        try:
            of_file, wrong = judged_file(data, keyring, where=where)
            found = {each.version: each for each in of_file} | found
            problems += wrong
        except NbcacheError as error:
            problems.append(error)
    return [*found.values()], problems


def _sources(
    source: str | os.PathLike[str], keyring: Keyring
) -> tuple[list[tuple[bytes, str]], list[NbcacheError]]:
    """Return what is at `source`, and what is wrong with some of it; NbcacheError where nothing is there."""
    if isinstance(source, str):
        if source.startswith(("https://", "http://")):
            return [(_fetch(source), redacted(source))], []
        if (named := place(source)) is not None:
            with opened(named.url, keyring) as snapshots:
                return snapshots.read_all(named.name)
    path = _path(os.fspath(source))
    if path.suffix != ".ipynb":
        return [(read(path, max_bytes=MAX_SNAPSHOT_BYTES), str(path))], []
    unsaved = not path.exists() and beside(path).exists()
    found, problems = _of(path, b"" if unsaved else read(path, max_bytes=MAX_NOTEBOOK_BYTES))
    if not found and not problems:
        raise SnapshotError(
            "there is no snapshot in this notebook, nor beside it",
            where=str(path),
            next_step="`%nbcache snapshot` in the notebook takes one",
        )
    return found, problems


def destination(dest: str | os.PathLike[str]) -> Path | Place:
    """Return where a snapshot is to be written: a file, or a name in a store, else ConfigError."""
    if isinstance(dest, str):
        if dest.startswith(("https://", "http://")):
            raise ConfigError(
                "a snapshot cannot be put at a web address",
                where=redacted(dest),
                next_step="name a file, or URL#NAME in a store, as in redis://host/0#team/gpt",
            )
        if (named := place(dest)) is not None:
            return named
    return _path(os.fspath(dest))


def write(
    target: Path | Place,
    build: Callable[[Mapping[str, Packed]], Draft],
    origin: Origin,
    keyring: Keyring,
    current: Callable[[Manifest], Manifest] | None = None,
) -> Taken:
    """Write what `build` returns into the user's version at `target`; those of others stand beside it.

    `build` gets the user's artifacts that are there, by digest. A file keeps what `current` returns of them.
    """
    if isinstance(target, Place):
        with opened(target.url, keyring) as snapshots:
            return snapshots.write(target.name, build, origin)
    path = target
    taken: list[Taken] = []

    def change(before: bytes | None) -> bytes:
        data, draft, changed, left = added(before, build, origin, keyring, where=str(path), current=current)
        taken.append(Taken(str(path), draft, data, changed, left=left))
        return data

    update(path, change, max_bytes=MAX_SNAPSHOT_BYTES)
    return taken[-1]


def _of(notebook: Path, data: bytes) -> tuple[list[tuple[bytes, str]], list[NbcacheError]]:
    """Return the snapshots that a notebook's bytes carry, and the one that lies beside it; and what is wrong.

    One that was renamed, or whose notebook was, is found by the digest that an output tells.
    """
    inside, broken = in_notebook.carried(data)
    found = [(each, str(notebook)) for each in inside]
    problems: list[NbcacheError] = [*broken]
    near = beside(notebook)
    if near.exists():
        try:
            found.append((read(near, max_bytes=MAX_SNAPSHOT_BYTES), str(near)))
        except NbcacheError as error:
            problems.append(error)
        return found, problems
    wanted, left = in_notebook.referred(data), MAX_SNAPSHOT_BYTES
    for file in sorted(notebook.parent.glob("*.nbcache"))[:_MOST_FILES] if wanted else ():
        with suppress(SnapshotError):
            content = read(file, max_bytes=left)
            left -= len(content)
            if sha256(content) in wanted:
                found.append((content, str(file)))
    return found, problems


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # `~somebody` who is nobody here
        raise SnapshotError(f"the path cannot be used: {error}", where=text) from error


def origin(notebook: str, settings: Settings) -> Origin:
    """Return what a snapshot that is taken now says of where it comes from."""
    user = host = ""
    if settings.tell_origin:
        host = platform.node()
        with suppress(KeyError, ModuleNotFoundError, OSError):  # users without names, as in some containers
            user = getpass.getuser()
    return Origin(notebook, time.time(), f"nbcache {__version__}", user, host)


def _fetch(url: str) -> bytes:
    """Return what is at a URL; SnapshotError where it is too long, or takes more than `_DOWNLOAD_SECONDS`."""
    fetched: Future[bytes] = Future()

    def fetch() -> None:
        try:
            fetched.set_result(_download(url, time.monotonic() + _DOWNLOAD_SECONDS))
        except Exception as error:
            fetched.set_exception(error)

    # A thread, because looking the name up has no time-out, and a server may drip its headers as well.
    if start_thread(fetch, "fetch") is None:
        fetch()
    try:
        return fetched.result(_DOWNLOAD_SECONDS)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or f"not whole after {_DOWNLOAD_SECONDS:g} s"
        raise SnapshotError(
            f"the snapshot cannot be fetched: {str(reason)[:_LONGEST_REASON]}",
            where=redacted(url),
            next_step="check the URL, or download the file",
        ) from error


def _download(url: str, deadline: float) -> bytes:
    with urllib.request.urlopen(url, timeout=_SILENT_SECONDS) as answer:
        if not isinstance(answer, HTTPResponse):
            raise ValueError("it leads away from the web")
        expected = answer.length
        if expected is not None and expected > MAX_SNAPSHOT_BYTES:
            raise ValueError(f"it has {expected:,} bytes; at most {MAX_SNAPSHOT_BYTES:,} are read")
        data = bytearray()
        while chunk := answer.read1(_CHUNK_BYTES):  # `read` would wait until a chunk is full
            data += chunk
            if len(data) > MAX_SNAPSHOT_BYTES:
                raise ValueError(f"it has more than the {MAX_SNAPSHOT_BYTES:,} bytes that are read")
            if time.monotonic() > deadline:
                raise TimeoutError
    if expected is not None and len(data) < expected:
        raise ValueError(f"the connection ended after {len(data):,} of {expected:,} bytes")
    return bytes(data)


_LONGEST_REASON = 200
"""Characters of what a server says that an error quotes."""
