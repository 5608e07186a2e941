"""Read files safely for stores, and convert OSErrors into store errors.

A read accepts only a regular file of limited length, and follows no link: others who can write to the folder
can put a pipe, a link to an endless device, or a file of a terabyte there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from nbcache.core.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_ABANDONED_SECONDS = 3600.0
"""The age of a temporary file at which its writer must be dead."""
_ABSENT = frozenset({errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG})
_COLLISION = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = frozenset({errno.EDQUOT, errno.ENOSPC})


class LinkInTheWay(NotADirectoryError):
    """A link is in place of a folder; `filename` is its path."""


@contextlib.contextmanager
def folder_of(root: Path, key: str, *, mode: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of a key's folder, and the file name. With `mode`, make missing folders."""
    *folders, name = key.split("/")
    descriptor = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for number, folder in enumerate(folders):
            try:
                inner = _open_folder(folder, descriptor, mode)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP) and stat.S_ISLNK(
                    os.stat(folder, dir_fd=descriptor, follow_symlinks=False).st_mode
                ):
                    path = root.joinpath(*folders[: number + 1])
                    raise LinkInTheWay(errno.ENOTDIR, "a link is in the way", str(path)) from error
                raise
            os.close(descriptor)
            descriptor = inner
        yield descriptor, name
    finally:
        os.close(descriptor)


def _open_folder(folder: str, parent: int, mode: int | None) -> int:
    """Return a new descriptor of `folder` in the folder of the descriptor `parent`."""
    try:
        return os.open(folder, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if mode is None:
            raise
    try:
        os.mkdir(folder, dir_fd=parent)
    except FileExistsError:  # another process was faster, and sets its mode
        return os.open(folder, _FOLDER, dir_fd=parent)
    descriptor = os.open(folder, _FOLDER, dir_fd=parent)
    try:
        os.fchmod(descriptor, mode)  # by descriptor, since somebody may have replaced the folder meanwhile
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular_file(root: Path, key: str, *, max_bytes: int, used: bool = False) -> bytes | None:
    """Return a key's value; None if it is missing, too long or no regular file. `used` sets its time."""
    try:
        with folder_of(root, key) as (folder, name):
            descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        # ENXIO: a socket, or a device that is missing.
        if is_absence(error) or error.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = stream.read(status.st_size)  # excludes bytes that somebody appends meanwhile
        if used:
            with contextlib.suppress(OSError):  # a read-only folder keeps its times
                os.utime(descriptor)
        return content
    finally:
        os.close(descriptor)


def is_regular_file(root: Path, key: str) -> bool:
    try:
        with folder_of(root, key) as (folder, name):
            return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError as error:
        if is_absence(error):
            return False
        raise


def files_below(root: Path, prefix: str) -> Iterator[str]:
    """Yield the paths of the regular files below `prefix`, relative to `root`; follow no links."""
    folders = [prefix]
    while folders:
        folder = folders.pop()
        try:
            with folder_of(root, f"{folder}.") as (descriptor, _), os.scandir(descriptor) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{folder}{entry.name}/")
                    elif entry.is_file(follow_symlinks=False):
                        yield f"{folder}{entry.name}"
        except OSError as error:
            if not is_absence(error):
                raise


def clean_temporary(folder: int) -> None:
    """Remove the temporary files of dead writers; `folder` is a descriptor."""
    oldest = time.time() - _ABANDONED_SECONDS
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # its writer was faster, or another user owns it
            if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < oldest:
                os.unlink(name, dir_fd=folder)


def is_absence(error: BaseException) -> bool:
    """Return whether the file is missing or impossible. Services raise errors without an errno."""
    kinds = FileNotFoundError, IsADirectoryError, NotADirectoryError
    return isinstance(error, kinds) or _errno(error) in _ABSENT


def is_forbidden(error: BaseException) -> bool:
    return isinstance(error, PermissionError) or _errno(error) in _FORBIDDEN


def store_error(
    error: Exception, failure: str, name: str, where: str, *, writing: bool = False
) -> StoreError:
    """Return the error of the store `name` at `where`; `failure` is a clause such as `cannot be read`."""
    number = _errno(error)
    # Not the message: a service may quote credentials there.
    reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
    if writing and number in _FULL:
        return StoreFull(
            f"{name} has no room: {reason}",
            where=where,
            next_step="free space there; %nbcache clear --all empties the local store",
        )
    if writing and (isinstance(error, NotImplementedError) or is_forbidden(error)):
        return StoreReadOnly(
            f"{name} cannot be written to",
            where=where,
            next_step="choose a place that you can write to, or use this one for reading only",
        )
    if writing and (isinstance(error, FileExistsError | IsADirectoryError) or number in _COLLISION):
        return StoreError("this key is also the folder of other keys", where=where)
    if number == errno.ENAMETOOLONG:
        return StoreError("a key is longer than this filesystem's names can be", where=where)
    return StoreUnavailable(
        f"{name} {failure}: {reason}",
        where=where,
        next_step="check that the place exists, and that you may use it",
    )


def _errno(error: BaseException) -> int | None:
    number: int | None = getattr(error, "errno", None)
    return number
