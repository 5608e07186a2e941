"""The places of snapshots: a file, a notebook, a name in a store, a web address."""

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
from nbcache.core.version import __version__
from nbcache.sharing.snapshots import in_notebook
from nbcache.sharing.snapshots.build import Draft, Origin, Taken, add_to_file
from nbcache.sharing.snapshots.file import MAX_SNAPSHOT_BYTES
from nbcache.sharing.snapshots.named import Place, open_named, place
from nbcache.sharing.snapshots.verify import Received, check_file
from nbcache.sharing.trust import Keyring

MAX_NOTEBOOK_BYTES = 2 * MAX_SNAPSHOT_BYTES
_READ_SECONDS, _DOWNLOAD_SECONDS = 20.0, 600.0
_CHUNK_BYTES = 1 << 20
_MOST_FILES = 100


def beside(notebook: Path) -> Path:
    return notebook.with_suffix(".nbcache")


Versions: TypeAlias = tuple[list[Received], list[NbcacheError]]
"""Valid versions of snapshots by any signer, without duplicates; and the errors of others."""


def versions(source: str | os.PathLike[str], keyring: Keyring) -> Versions:
    """Return the versions of the snapshots at `source`: a file, a notebook, a URL, a name in a store.

    A notebook has the snapshots inside it, and the one beside it. NbcacheError without any. In a store, a
    version's signature is checked before its artifacts are fetched.
    """
    path = _parse(source)
    if isinstance(path, str):  # a web address
        return _check_files([(_fetch(path), redacted(path))], keyring)
    if isinstance(path, Place):
        with open_named(path.url, keyring) as snapshots:
            return snapshots.read_all(path.name)
    if path.suffix != ".ipynb":
        return _check_files([(read(path, max_bytes=MAX_SNAPSHOT_BYTES), str(path))], keyring)
    unsaved = not path.exists() and beside(path).exists()
    valid, problems = of_notebook(path, b"" if unsaved else read(path, max_bytes=MAX_NOTEBOOK_BYTES), keyring)
    if not valid and not problems:
        raise SnapshotError(
            "there is no snapshot in this notebook or beside it",
            where=str(path),
            next_step="`%nbcache snapshot` in the notebook takes one",
        )
    return valid, problems


def _check_files(files: Sequence[tuple[bytes, str]], keyring: Keyring) -> Versions:
    by_version: dict[str, Received] = {}
    problems: list[NbcacheError] = []
    for data, where in files:
        try:
            in_file, errors = check_file(data, keyring, where=where)
            for received in in_file:
                by_version.setdefault(received.version, received)
            problems += errors
        except NbcacheError as error:
            problems.append(error)
    return [*by_version.values()], problems


def destination(dest: str | os.PathLike[str]) -> Path | Place:
    target = _parse(dest)
    if isinstance(target, str):
        raise ConfigError(
            "a snapshot cannot be written to a web address",
            where=redacted(target),
            next_step="name a file, or URL#NAME in a store, as in redis://host/0#team/gpt",
        )
    return target


def write(
    target: Path | Place,
    build: Callable[[Mapping[str, Packed]], Draft],
    origin: Origin,
    keyring: Keyring,
    current: Callable[[Manifest], Manifest] | None = None,
) -> Taken:
    """Add the draft of `build` to the user's version at `target`; `current` selects what a file keeps."""
    if isinstance(target, Place):
        with open_named(target.url, keyring) as snapshots:
            return snapshots.write(target.name, build, origin)
    results: list[Taken] = []

    def change(content: bytes | None) -> bytes:
        results.append(add_to_file(content, build, origin, keyring, where=str(target), current=current))
        return results[-1].data

    update(target, change, max_bytes=MAX_SNAPSHOT_BYTES)
    return results[-1]


def of_notebook(notebook: Path, data: bytes, keyring: Keyring) -> Versions:
    """Return the versions in a notebook's bytes, and in the file beside it or the one an output names."""
    embedded, errors = in_notebook.snapshots_of(data)
    files = [(snapshot, str(notebook)) for snapshot in embedded]
    problems: list[NbcacheError] = [*errors]
    near = beside(notebook)
    if near.exists():
        try:
            files.append((read(near, max_bytes=MAX_SNAPSHOT_BYTES), str(near)))
        except NbcacheError as error:
            problems.append(error)
    elif wanted := in_notebook.referenced_digests(data):
        budget = MAX_SNAPSHOT_BYTES
        for file in sorted(notebook.parent.glob("*.nbcache"))[:_MOST_FILES]:
            with suppress(SnapshotError):
                content = read(file, max_bytes=budget)
                budget -= len(content)
                if sha256(content) in wanted:
                    files.append((content, str(file)))
    received, file_errors = _check_files(files, keyring)
    return received, problems + file_errors


def _parse(source: str | os.PathLike[str]) -> str | Place | Path:
    """Return a web address as it is, `URL#NAME` as a place in a store, and anything else as a path."""
    if isinstance(source, str):
        if source.startswith(("https://", "http://")):
            return source
        if (named := place(source)) is not None:
            return named
    try:
        return Path(source).expanduser()
    except RuntimeError as error:  # `~name` of an unknown user
        raise SnapshotError(f"the path cannot be used: {error}", where=os.fspath(source)) from error


def origin(notebook: str, settings: Settings) -> Origin:
    user = host = ""
    if settings.tell_origin:
        host = platform.node()
        with suppress(KeyError, ModuleNotFoundError, OSError):  # users without names, as in some containers
            user = getpass.getuser()
    return Origin(notebook, time.time(), f"nbcache {__version__}", user, host)


def _fetch(url: str) -> bytes:
    """Return the content of a URL; SnapshotError if it is too long, or takes over `_DOWNLOAD_SECONDS`."""
    download = partial(_download, url, time.monotonic() + _DOWNLOAD_SECONDS)
    try:
        # In a thread, because DNS has no time-out, and a server may send its headers slowly.
        return within(_DOWNLOAD_SECONDS, download, "fetch")
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or f"not whole after {_DOWNLOAD_SECONDS:g} s"
        raise SnapshotError(
            f"the snapshot cannot be fetched: {str(reason)[:_LONGEST_REASON]}",
            where=redacted(url),
            next_step="check the URL, or download the file",
        ) from error


def _download(url: str, deadline: float) -> bytes:
    with urllib.request.urlopen(url, timeout=_READ_SECONDS) as answer:
        if not isinstance(answer, HTTPResponse):
            raise ValueError("it redirects to a URL of another scheme than http or https")
        expected = answer.length
        if expected is not None and expected > MAX_SNAPSHOT_BYTES:
            raise ValueError(f"it has {expected:,} bytes; at most {MAX_SNAPSHOT_BYTES:,} are read")
        data = bytearray()
        while chunk := answer.read1(_CHUNK_BYTES):  # `read` would wait until a chunk is full
            data += chunk
            if len(data) > MAX_SNAPSHOT_BYTES:
                raise ValueError(f"the snapshot has more than {MAX_SNAPSHOT_BYTES:,} bytes, the limit")
            if time.monotonic() > deadline:
                raise TimeoutError
    if expected is not None and len(data) < expected:
        raise ValueError(f"the connection ended after {len(data):,} of {expected:,} bytes")
    return bytes(data)


_LONGEST_REASON = 200
