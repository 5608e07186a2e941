"""A store in a folder that belongs to the user: one file for each key; evicts the least recently used first.

Layout, below the store's folder::

    v2/<key>     the value; the key's parts are folders
    v2/.tmp/     temporary files; renamed to their keys once complete
    v2/.lock     lock of the kernel that evicts
    v2/*.sqlite  other modules' files (`nbcache.storage.history`)

Keys have no dots, so the last three cannot be mistaken for keys. A file's modification time is its last use.

Values are not synced to the disk, so a power cut may truncate one. Readers verify each entry
(`decode_entry`), so that costs a miss; syncing would slow down every write.
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
    clean_temporary,
    files_below,
    folder_of,
    is_absence,
    is_forbidden,
    is_regular_file,
    read_regular_file,
    store_error,
)

_VERSION = "v2"
_TEMPORARY = ".tmp"
_LOCK = ".lock"

_EVICT_TO = 0.9
"""Eviction stops at this share of the bound, so that the next few puts need no eviction."""
_ATTEMPTS = 100
"""Attempts of a put to make its folder. In tests, three threads that put and delete the only keys of a
folder removed it under a put ten times in a row."""

_MAX_BYTES = MAX_CONTENT_BYTES + 4096
"""Longest value: an entry of the longest content. nbcache writes no longer file."""


class DirectoryStore:
    """Values in files of a folder that only its owner can enter; all of the user's kernels share it.

    Raises StoreUnavailable if the folder belongs to another user: whoever can write to it can make every
    kernel run their code. A folder that others can write to is emptied and made private (0700). A folder
    without write permission is `read_only`. StoreError if a key is also a folder of other keys.
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
            return read_regular_file(self.root, check_key(key), max_bytes=_MAX_BYTES, used=True)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        return {key: value for key in keys if (value := self.get(key)) is not None}

    def present(self, keys: Iterable[str]) -> set[str]:
        return {key for key in keys if self._is_there(key)}

    def put(self, key: str, value: bytes) -> None:
        file = self._file(key)
        with self._writing():
            for attempt in range(_ATTEMPTS):
                try:
                    if attempt:  # another thread or process has removed the folder, or the whole store
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
        """Return whether `key` is stored, and mark it as used now."""
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
        # FileNotFoundError: somebody has removed the whole store.
        with self._writing(), contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # On a filesystem without locks, simultaneous evictions only remove too much.
                if try_lock(descriptor):
                    with folder_of(self.root, f"{_TEMPORARY}/.") as (folder, _):
                        clean_temporary(folder)
                    return self._evict(prefix, max_bytes)
            finally:
                os.close(descriptor)
        return []

    def _file(self, key: str) -> Path:
        return self.root / check_key(key)

    def _is_there(self, key: str) -> bool:
        with self._errors("cannot be read"):
            return is_regular_file(self.root, check_key(key))

    def _prepare(self) -> None:
        with self._errors("cannot be used"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            others_write = self._ensure_folder(self.path)
            try:
                if others_write or (os.path.lexists(self.root) and self._ensure_folder(self.root)):
                    self._close_to_others()
                self._ensure_folder(self.root)
                (self.root / _TEMPORARY).mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                if not is_forbidden(error):
                    raise

    def _ensure_folder(self, folder: Path) -> bool:
        """Make a missing folder, or refuse one of another user; return whether others can write to it."""
        try:
            status = folder.lstat()
        except FileNotFoundError:
            # With its final mode from the start, so that others can never enter.
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
        """Drop all values, since others may have written them, and make the folder private."""
        self._drop_values()  # before `chmod`, so that no other kernel trusts them
        self.path.chmod(0o700)
        self._drop_values()  # values that others wrote meanwhile
        if self._ensure_folder(self.path):
            raise self._refusal(self.path, "cannot be made private: its filesystem has no permissions")

    def _drop_values(self) -> None:
        """Rename the folder of values, so that no kernel finds them any longer, and delete it."""
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
        self.was_emptied |= any(path.name not in (_TEMPORARY, _LOCK) for path in aside.iterdir())
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
        moment = time.time()
        # A time in the future comes from a wrong clock, and is treated as the oldest.
        last_use = {key: st.st_mtime if st.st_mtime <= moment else 0.0 for key, st in statuses.items()}
        for key, status in sorted(statuses.items(), key=lambda pair: last_use[pair[0]]):
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
    def _errors(self, failure: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise store_error(error, failure, self.name, str(self.path), writing=writing) from error

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
