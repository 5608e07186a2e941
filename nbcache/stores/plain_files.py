"""Files as a store reads them: regular ones, reached by no link, and no longer than a value may be.

Who else can write to a folder can put anything there: a pipe, which has nobody at its other end; a link to a
device, which never ends; a file of a terabyte.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from nbcache.stores.os_errors import is_absence

__all__ = ["LinkInTheWay", "files_below", "folder_of", "is_plain", "read_plain"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 8 << 20


class LinkInTheWay(NotADirectoryError):
    """A link is where a folder should be; `filename` is its path."""


@contextlib.contextmanager
def folder_of(root: Path, key: str, *, mode: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder that `key` is in, below `root`, and the name of its file there.

    With `mode` folders that are not there are made. LinkInTheWay where one is a link; `root` itself may be.
    """
    *folders, name = key.split("/")
    descriptor = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for number, folder in enumerate(folders):
            try:
                inner = _entered(folder, descriptor, mode)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP) and _is_link(folder, descriptor):
                    path = root.joinpath(*folders[: number + 1])
                    raise LinkInTheWay(errno.ENOTDIR, "a link is in the way", str(path)) from error
                raise
            os.close(descriptor)
            descriptor = inner
        yield descriptor, name
    finally:
        os.close(descriptor)


def _entered(folder: str, parent: int, mode: int | None) -> int:
    """Return a descriptor of a folder, which is made with `mode`, where given, if it is not there."""
    try:
        return os.open(folder, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if mode is None:
            raise
    try:
        os.mkdir(folder, dir_fd=parent)
    except FileExistsError:  # another was faster, and sets its mode
        return os.open(folder, _FOLDER, dir_fd=parent)
    descriptor = os.open(folder, _FOLDER, dir_fd=parent)
    try:
        os.fchmod(descriptor, mode)  # of what was opened: by its name it could be another's by now
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_link(name: str, parent: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def read_plain(root: Path, key: str, *, max_bytes: int, used: bool = False) -> bytes | None:
    """Return the bytes of the file of `key` below `root`; None where there is none that may be read.

    With `used` it counts as used now.
    """
    try:
        with folder_of(root, key) as (folder, name):
            descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        # ENXIO is a socket's, or a device's that is not there.
        if is_absence(error) or error.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            return None
        content = bytearray()
        while len(content) < status.st_size:  # what is appended meanwhile is not of this value
            piece = os.read(descriptor, min(_CHUNK_BYTES, status.st_size - len(content)))
            if not piece:
                break
            content += piece
        if used:
            with contextlib.suppress(OSError):  # a read-only folder keeps the order that it has
                os.utime(descriptor)
        return bytes(content)
    finally:
        os.close(descriptor)


def is_plain(root: Path, key: str) -> bool:
    """Tell whether `key` has a file below `root` that `read_plain` would read."""
    try:
        with folder_of(root, key) as (folder, name):
            return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError as error:
        if is_absence(error):
            return False
        raise


def files_below(root: Path, prefix: str) -> Iterator[str]:
    """Yield the names, relative to `root`, of the regular files below `prefix`, through no link."""
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
