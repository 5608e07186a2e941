"""A store in a folder of the user's own: one file a key, least recently used evicted first.

Layout, below the store's folder::

    v2/<key>     the value, under the key's parts as folders
    v2/.tmp/     files being written; renamed to where they belong when whole
    v2/.lock     held by the kernel that evicts
    v2/*.sqlite  of others (`nbcache.storage.history`)

No key has a dot, so the last three cannot be taken for one. A file's modification time is its last use.

Values are not synced to the disk: after a power cut one may be short. Every entry is verified when it
is read (`decode_entry`), so that costs a miss; syncing would cost every write.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from nbcache.core.errors import StoreUnavailable
from nbcache.core.files import try_lock, write_whole
from nbcache.core.model import MAX_CONTENT_BYTES
from nbcache.storage.backends.base import check_key, check_prefix, is_key
from nbcache.storage.backends.plain_files import (
    files_below,
    folder_of,
    is_absence,
    is_forbidden,
    is_plain,
    read_plain,
    remove_abandoned,
    store_error,
)

_VERSION = "v2"
_TEMPORARY = ".tmp"
_LOCK = ".lock"

_EVICT_TO = 0.9
"""Evict to this part of the bound, so that the next few puts do not evict again."""
_ATTEMPTS = 100
"""Attempts of a put to make its folder. Three threads that put and delete the only keys of one folder were
seen to remove it under a put ten times in a row."""

_MAX_BYTES = MAX_CONTENT_BYTES + 4096
"""The longest value: an entry of the longest content; what is longer is not ours."""


class DirectoryStore:
    """Values in files of a folder that only its owner can enter, shared by all of the user's kernels.

    Raises StoreUnavailable where the folder is not the user's own: whoever can write to it can make every
    kernel run their code. A folder that others can write to is emptied and made private (0700). A folder
    that cannot be written to is served `read_only`. A key cannot be a folder of other keys: StoreError.
    """

    def __init__(self, path: str | os.PathLike[str], *, name: str = "local store"):
        self.name = name
        self.path = Path(path).absolute()  # a cell may change the working directory
        self.root = self.path / _VERSION
        self.was_emptied = False
        self._prepare()
        self.read_only = not os.access(
            self.root, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
        )

    def get(self, key: str) -> bytes | None:
        with self._errors("cannot be read"):
            return read_plain(self.root, check_key(key), max_bytes=_MAX_BYTES, used=True)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        return {key: value for key in keys if (value := self.get(key)) is not None}

    def present(self, keys: Iterable[str]) -> set[str]:
        return {key for key in keys if self._is_there(key)}

    def put(self, key: str, value: bytes) -> None:
        file = self._file(key)
        with self._writing():
            for attempt in range(_ATTEMPTS):
                try:
                    if attempt:  # a delete elsewhere has removed the folder, or somebody the whole store
                        self._prepare()
                        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    write_whole(file, value, mode=0o600, folder=self.root / _TEMPORARY)
                    return
                except (FileNotFoundError, FileExistsError):
                    if attempt == _ATTEMPTS - 1:
                        raise

    def delete(self, key: str) -> None:
        with self._writing():
            self._remove(self._file(key))

    def keys(self, prefix: str = "") -> Iterator[str]:
        with self._errors("cannot be listed"):
            return filter(is_key, [*files_below(self.root, check_prefix(prefix))])

    def close(self) -> None: ...

    def touch(self, key: str) -> bool:
        present = self._is_there(key)
        if present:
            with contextlib.suppress(OSError):
                os.utime(self._file(key))
        return present

    def size(self, prefix: str = "") -> int:
        return sum(status.st_size for _, status in self._statuses(prefix))

    def evict(self, prefix: str, max_bytes: int) -> list[str]:
        if self.read_only:
            return []
        # Where somebody has removed the whole store, it is small enough.
        with self._writing(), contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # On a filesystem without locks, two evictions at once remove too much, and nothing worse.
                if try_lock(descriptor):
                    with folder_of(self.root, f"{_TEMPORARY}/.") as (folder, _):
                        remove_abandoned(folder)
                    return self._evict(prefix, max_bytes)
            finally:
                os.close(descriptor)
        return []

    def _file(self, key: str) -> Path:
        return self.root / check_key(key)

    def _is_there(self, key: str) -> bool:
        with self._errors("cannot be read"):
            return is_plain(self.root, check_key(key))

    def _prepare(self) -> None:
        with self._errors("cannot be used"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            was_open = self._is_open(self.path)
            try:
                if was_open or (os.path.lexists(self.root) and self._is_open(self.root)):
                    self._close_to_others()
                self._is_open(self.root)
                (self.root / _TEMPORARY).mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                if not is_forbidden(error):
                    raise

    def _is_open(self, folder: Path) -> bool:
        """Return whether others can write to a folder of the store, which is made if it is missing."""
        try:
            status = folder.lstat()
        except FileNotFoundError:
            # The mode is given here and not set later: nobody else is ever let in.
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
        user = os.geteuid()
        if stat.S_ISLNK(status.st_mode):
            if status.st_uid != user:
                raise self._refusal(folder, f"is a link that user {status.st_uid} made, not you")
            status = folder.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise self._refusal(folder, "is not a folder")
        if status.st_uid != user:
            raise self._refusal(folder, f"belongs to user {status.st_uid}, not to you")
        return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))

    def _close_to_others(self) -> None:
        """Drop all values, which others may have put there, and make the folder private."""
        self._drop()  # first: no other kernel shall take them for private
        self.path.chmod(0o700)
        self._drop()  # what somebody has put there meanwhile
        if self._is_open(self.path):
            raise self._refusal(self.path, "cannot be closed to others: its filesystem keeps no permissions")

    def _drop(self) -> None:
        aside = self.path / f".{_VERSION}-{secrets.token_hex(8)}"
        try:
            self.root.rename(aside)
        except FileNotFoundError:
            return
        if aside.is_symlink():
            aside.unlink()
            self.was_emptied = True
            return
        aside.chmod(0o700)
        self.was_emptied |= any(each.name not in (_TEMPORARY, _LOCK) for each in aside.iterdir())
        shutil.rmtree(aside, ignore_errors=True)

    def _remove(self, file: Path) -> None:
        try:
            file.unlink()
        except OSError as error:
            if is_absence(error):
                return
            raise
        for folder in file.parents:
            if folder == self.root:
                return
            try:
                folder.rmdir()
            except OSError:
                return  # not empty

    def _statuses(self, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        for key in self.keys(prefix):
            with contextlib.suppress(FileNotFoundError):
                yield key, self._file(key).lstat()

    def _evict(self, prefix: str, max_bytes: int) -> list[str]:
        statuses = dict(self._statuses(prefix))
        total = sum(status.st_size for status in statuses.values())
        if total <= max_bytes:
            return []
        removed = []
        now = time.time()
        # A time in the future, of a clock that was wrong, is as old as any.
        used = {key: status.st_mtime if status.st_mtime <= now else 0.0 for key, status in statuses.items()}
        for key, status in sorted(statuses.items(), key=lambda pair: used[pair[0]]):
            if total <= max_bytes * _EVICT_TO:
                break
            file = self._file(key)
            with contextlib.suppress(FileNotFoundError):
                if file.stat().st_mtime_ns != status.st_mtime_ns:
                    continue  # another kernel has used it since
            self._remove(file)
            total -= status.st_size
            removed.append(key)
        return removed

    @contextlib.contextmanager
    def _errors(self, what: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise store_error(error, what, self.name, str(self.path), writing=writing) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._errors("cannot be written to", writing=True):
            if self.read_only:
                raise PermissionError
            yield

    def _refusal(self, folder: Path, reason: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.name} is refused, since its folder {reason}: cached code from there would run as you",
            where=str(folder),
            next_step=f"remove {folder}, or choose another folder that is yours alone",
        )
