"""A store in a folder of the user's own: one file a key, least recently used evicted first.

Layout, below the folder that is given::

    v2/<key>     the value, under the key's parts as folders
    v2/.tmp/     files being written; renamed to where they belong when whole
    v2/.lock     held by the kernel that evicts
    v2/*.sqlite  of others (`nbcache.artifacts.history`)

No key has a dot, so the last three cannot be taken for one. A file's modification time is when it was
last put, read or touched.

Values are not synced to the disk: after a power cut one may be short. Every entry is verified when it
is read (`format.decode_entry`), so that costs a miss; syncing would cost every write.
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
from nbcache.stores.base import check_key, check_prefix, is_key
from nbcache.stores.plain_files import (
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
"""How often a put makes its folder again. Three threads that do nothing but put and delete the only
keys of one folder were seen to remove it under a put ten times in a row."""

_MAX_BYTES = MAX_CONTENT_BYTES + 4096
"""The longest value: an entry of the longest content; what is longer is not ours."""


class DirectoryStore:
    """Values in files of a folder that only its owner can enter, shared by all of the user's kernels.

    Raises StoreUnavailable where the folder is not the user's own: who can write to it can make
    every kernel run what they like. A folder that others can write to is made private (0700).
    A folder that cannot be written to is served `read_only`.

    A key that is also a folder of other keys (`a` beside `a/b`) cannot be put: StoreError.
    """

    def __init__(self, path: str | os.PathLike[str], *, name: str = "local store"):
        self.name = name
        self.path = Path(path).absolute()  # a cell may change the working directory
        self.root = self.path / _VERSION
        """The folder of the values. Names with a dot are no keys, so other files may be there."""
        self.was_emptied = False
        """True if values were dropped because others could have put them there."""
        self._prepare()
        self.read_only = not os.access(
            self.root, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
        )

    def get(self, key: str) -> bytes | None:
        """Return the bytes under `key`, or None; and mark it as used now."""
        with self._errors("cannot be read"):
            return read_plain(self.root, check_key(key), max_bytes=_MAX_BYTES, used=True)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        return {key: value for key in keys if (value := self.get(key)) is not None}

    def present(self, keys: Iterable[str]) -> set[str]:
        """Return those of `keys` that are there; this marks none as used."""
        return {key for key in keys if self._is_there(check_key(key))}

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key`, whole or not at all, even if the process is killed."""
        file = self._file(key)
        with self._writing():
            try:
                self._write(file, value)
            except FileNotFoundError:
                self._prepare()  # somebody removed the whole store while it was open
                self._write(file, value)

    def delete(self, key: str) -> None:
        """Remove `key`, and the folders that this leaves empty."""
        file = self._file(key)
        with self._writing():
            self._remove(file)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`; some that come or go meanwhile may be missed."""
        with self._errors("cannot be listed"):
            return filter(is_key, [*files_below(self.root, check_prefix(prefix))])

    def close(self) -> None:
        """Do nothing: no file is held open."""

    def touch(self, key: str) -> bool:
        """Count `key` as used now, without reading it; return whether it is there."""
        file, present = self._file(key), self._is_there(key)
        if present:
            with contextlib.suppress(OSError):
                os.utime(file)
        return present

    def size(self, prefix: str = "") -> int:
        return sum(status.st_size for _, status in self._statuses(prefix))

    def evict(self, prefix: str, max_bytes: int) -> list[str]:
        """Evict the least used above `max_bytes`, unless another kernel does; return their keys."""
        if self.read_only:
            return []
        # Where somebody has removed the whole store, it is small enough.
        with self._writing(), contextlib.suppress(FileNotFoundError), self._lock() as is_held:
            if is_held:
                with folder_of(self.root, f"{_TEMPORARY}/.") as (folder, _):
                    remove_abandoned(folder)
                return self._evict(prefix, max_bytes)
        return []

    def _file(self, key: str) -> Path:
        return self.root / check_key(key)

    def _is_there(self, key: str) -> bool:
        with self._errors("cannot be read"):
            return is_plain(self.root, key)

    def _prepare(self) -> None:
        """Make the folders, or check that those that are there are the user's own."""
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

    def _write(self, file: Path, value: bytes) -> None:
        temporary = self.root / _TEMPORARY
        for attempt in range(_ATTEMPTS):
            try:
                if attempt:  # a delete elsewhere, of the folder's last key, may have removed the folder
                    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_whole(file, value, mode=0o600, folder=temporary)
                return
            except (FileNotFoundError, FileExistsError):
                if attempt == _ATTEMPTS - 1 or not temporary.exists():
                    raise

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

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool]:
        """Yield whether this call, and no other in any process, may evict."""
        descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Without locks, two evictions at once remove too much, and nothing worse.
            yield try_lock(descriptor)
        finally:
            os.close(descriptor)

    def _evict(self, prefix: str, max_bytes: int) -> list[str]:
        statuses = dict(self._statuses(prefix))
        total = sum(status.st_size for status in statuses.values())
        if total <= max_bytes:
            return []
        removed = []
        for key, status in sorted(statuses.items(), key=lambda pair: _use_time(pair[1])):
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


def _use_time(status: os.stat_result) -> float:
    """Return when a file was last used; a time in the future, of a clock that was wrong, is as old as any."""
    return status.st_mtime if status.st_mtime <= time.time() else 0.0
