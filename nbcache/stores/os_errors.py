"""Errors of the operating system, as stores that keep values in files raise them."""

from __future__ import annotations

import errno

from nbcache.core.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable

__all__ = ["is_absence", "is_forbidden", "store_error"]

_ABSENT = frozenset({errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG})
_COLLISION = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = frozenset({errno.EDQUOT, errno.ENOSPC})


def is_absence(error: BaseException) -> bool:
    """Return whether there is no such file, or there can be none."""
    return isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError) or (
        _number(error) in _ABSENT
    )


def is_forbidden(error: BaseException) -> bool:
    """Return whether the user may not do this, or nobody may."""
    return isinstance(error, PermissionError) or _number(error) in _FORBIDDEN


def store_error(error: Exception, what: str, name: str, where: str, *, writing: bool = False) -> StoreError:
    """Return the error of the store `name`, which is at `where`; `what` is a clause as `cannot be read`."""
    number = _number(error)
    # Not the message, in which a service may quote credentials.
    reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
    if writing and number in _FULL:
        return StoreFull(
            f"{name} has no room: {reason}",
            where=where,
            next_step="free space there; %nbcache clear --all removes all that is in the local store",
        )
    if writing and (isinstance(error, NotImplementedError) or is_forbidden(error)):
        return StoreReadOnly(
            f"{name} cannot be written to",
            where=where,
            next_step="choose a place that you can write to, or use this one for reading only",
        )
    if writing and (isinstance(error, FileExistsError | IsADirectoryError) or number in _COLLISION):
        return StoreError("a key cannot be a folder of other keys as well", where=where)
    if number == errno.ENAMETOOLONG:
        return StoreError("a key is longer than this filesystem's names can be", where=where)
    return StoreUnavailable(
        f"{name} {what}: {reason}",
        where=where,
        next_step="check that the place exists and works, and that you have the rights to it",
    )


def _number(error: BaseException) -> int | None:
    number: int | None = getattr(error, "errno", None)
    return number
