"""Reads files up to a bound, and replaces them atomically."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nbcache.core.errors import SnapshotError

_LOCK_SECONDS = 30.0
"""The longest wait for another writer; any user who can read the folder can hold its lock."""
_LOCK_PAUSE = 0.01
_ABANDONED_SECONDS = 3600.0
"""After this time a temporary file belongs to a writer that was killed."""


def read(path: Path, *, max_bytes: int) -> bytes:
    """Return the bytes of the file at `path`; SnapshotError if it is unreadable or longer."""
    try:
        # O_NONBLOCK: a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SnapshotError("this is not a file", where=str(path), next_step="check the path")
            # A file that is too long is not read; another one may grow meanwhile.
            data = stream.read(max_bytes + 1) if status.st_size <= max_bytes else None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        step = "check the path and its permissions"
        raise _file_error("the file cannot be read", error, path, step) from error
    if data is None or len(data) > max_bytes:
        raise SnapshotError(f"the file is longer than {max_bytes:,} bytes", where=str(path))
    return data


def _file_error(
    problem: str, cause: OSError | ValueError, path: Path, next_step: str | None = None
) -> SnapshotError:
    text = f"{problem}: {getattr(cause, 'strerror', None) or cause}"
    return SnapshotError(text, where=str(path), next_step=next_step)


def update(path: Path, change: Callable[[bytes | None], bytes], *, max_bytes: int) -> bool:
    """Replace the file at `path` by `change(bytes)`, or by `change(None)` for a new file.

    One process of this machine writes at a time. A reader finds the old or the new file whole, even if the
    writer is killed. Return whether the content changed; SnapshotError if the file cannot be written.
    """
    try:
        path = path.resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a name too long, a NUL
        raise SnapshotError(f"the path cannot be used: {error}", where=str(path)) from error
    with _folder_lock(path.parent):
        content = read(path, max_bytes=max_bytes) if path.exists() else None
        new_content = change(content)
        if new_content == content:
            return False
        try:
            _replace(path, new_content)
        except OSError as error:
            step = "free disk space or choose another path; the earlier content is unchanged"
            raise _file_error("the file cannot be written", error, path, step) from error
        return True


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder's lock. On a filesystem without locks, the last of two writers wins."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        step = "choose a folder that exists and is yours"
        raise _file_error("no file can be stored there", error, folder, step) from error
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise SnapshotError(
                    f"another process has been writing there for {_LOCK_SECONDS:g} s",
                    where=str(folder),
                    next_step="try again, or choose another folder",
                )
            time.sleep(_LOCK_PAUSE)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock a file or folder; return False where another descriptor has the lock, in any process."""
    try:
        # flock, not lockf: it holds between threads too, and goes with the process.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # its filesystem has no locks
    return True


def _replace(path: Path, data: bytes) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # by a writer that was killed
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                left.unlink()
    mode = None
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(path.stat().st_mode)
    write_whole(path, data, mode=mode, durable=True)


def write_whole(
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    durable: bool = False,
    replace: bool = True,
    folder: Path | None = None,
    descriptors: tuple[int | None, int | None] = (None, None),
) -> None:
    """Write a file atomically: every reader finds the old or the new one whole; OSError on failure.

    `mode`: permissions, by default the process's. `durable`: wait until the file is on the disk. Without
    `replace`, an existing file stays. `folder`: the folder of the temporary file, by default the file's.
    `descriptors`: of the folders to which the temporary path and the file's path are relative.
    """
    source, target = descriptors
    unique = f"{os.getpid()}-{secrets.token_hex(8)}"
    temporary = folder / unique if folder else path.with_name(f".{path.name}.{unique}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600, dir_fd=source)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(descriptor)
            if mode is not None:
                os.fchmod(descriptor, mode)
        if replace:
            os.replace(temporary, path, src_dir_fd=source, dst_dir_fd=target)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=source)
