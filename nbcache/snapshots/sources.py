"""Where snapshots are read and written: a file, a notebook, a name in a store, an address."""

from __future__ import annotations

import getpass
import os
import platform
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TypeAlias

from nbcache.core.errors import ConfigError, NbcacheError, SnapshotError
from nbcache.core.files import read, update
from nbcache.core.key import sha256
from nbcache.core.model import Manifest, Packed
from nbcache.core.settings import Settings
from nbcache.core.text import redacted
from nbcache.core.threads import within
from nbcache.core.trust import Keyring
from nbcache.core.version import __version__
from nbcache.snapshots import in_notebook
from nbcache.snapshots.build import Draft, Origin, Taken, added
from nbcache.snapshots.file import MAX_SNAPSHOT_BYTES
from nbcache.snapshots.named import Place, opened, place
from nbcache.snapshots.verify import Received, judged_file

MAX_NOTEBOOK_BYTES = 2 * MAX_SNAPSHOT_BYTES
_SILENT_SECONDS, _DOWNLOAD_SECONDS = 20.0, 600.0
"""The longest silence of a server, and the longest download."""
_CHUNK_BYTES = 1 << 20
_MOST_FILES = 100
"""Files of a folder among which one that was renamed is looked for."""


def beside(notebook: Path) -> Path:
    """Return where the snapshot of a notebook lies: beside it, under its name."""
    return notebook.with_suffix(".nbcache")


Versions: TypeAlias = tuple[list[Received], list[NbcacheError]]
"""Versions of snapshots that are whole, each once, whoever signed them; and what is wrong with others."""


def versions(source: str | os.PathLike[str], keyring: Keyring) -> Versions:
    """Return the versions of the snapshots at `source`: a file, a notebook, a URL, a name in a store.

    A notebook's are those that it carries, and the one beside it. NbcacheError where there is nothing. Of one
    in a store the signature is checked before anything else of it is fetched.
    """
    if isinstance(source, str):
        if source.startswith(("https://", "http://")):
            return _judge_files([(_fetch(source), redacted(source))], keyring)
        if (named := place(source)) is not None:
            with opened(named.url, keyring) as snapshots:
                return snapshots.read_all(named.name)
    path = _path(os.fspath(source))
    if path.suffix != ".ipynb":
        return _judge_files([(read(path, max_bytes=MAX_SNAPSHOT_BYTES), str(path))], keyring)
    unsaved = not path.exists() and beside(path).exists()
    found, problems = of_notebook(path, b"" if unsaved else read(path, max_bytes=MAX_NOTEBOOK_BYTES), keyring)
    if not found and not problems:
        raise SnapshotError(
            "there is no snapshot in this notebook, nor beside it",
            where=str(path),
            next_step="`%nbcache snapshot` in the notebook takes one",
        )
    return found, problems


def _judge_files(files: Sequence[tuple[bytes, str]], keyring: Keyring) -> Versions:
    """Return the versions in files, which are given with their places in words."""
    found: dict[str, Received] = {}
    problems: list[NbcacheError] = []
    for data, where in files:
        try:
            of_file, wrong = judged_file(data, keyring, where=where)
            for received in of_file:
                found.setdefault(received.version, received)
            problems += wrong
        except NbcacheError as error:
            problems.append(error)
    return [*found.values()], problems


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
    """Add what `build` returns to the user's version at `target`; a file keeps what `current` returns."""
    if isinstance(target, Place):
        with opened(target.url, keyring) as snapshots:
            return snapshots.write(target.name, build, origin)
    taken: list[Taken] = []

    def change(before: bytes | None) -> bytes:
        taken.append(added(before, build, origin, keyring, where=str(target), current=current))
        return taken[-1].data

    update(target, change, max_bytes=MAX_SNAPSHOT_BYTES)
    return taken[-1]


def of_notebook(notebook: Path, data: bytes, keyring: Keyring) -> Versions:
    """Return the versions in a notebook's bytes, and in the file beside it or named by an output."""
    inside, broken = in_notebook.carried(data)
    found = [(each, str(notebook)) for each in inside]
    problems: list[NbcacheError] = [*broken]
    near = beside(notebook)
    if near.exists():
        try:
            found.append((read(near, max_bytes=MAX_SNAPSHOT_BYTES), str(near)))
        except NbcacheError as error:
            problems.append(error)
    elif wanted := in_notebook.referred(data):
        left = MAX_SNAPSHOT_BYTES
        for file in sorted(notebook.parent.glob("*.nbcache"))[:_MOST_FILES]:
            with suppress(SnapshotError):
                content = read(file, max_bytes=left)
                left -= len(content)
                if sha256(content) in wanted:
                    found.append((content, str(file)))
    whole, wrong = _judge_files(found, keyring)
    return whole, problems + wrong


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
    download = partial(_download, url, time.monotonic() + _DOWNLOAD_SECONDS)
    try:
        # A thread, because looking the name up has no time-out, and a server may drip its headers as well.
        return within(_DOWNLOAD_SECONDS, download, "fetch")
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
