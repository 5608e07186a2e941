"""What the errors of the operating system mean for stores that keep values in files."""

from __future__ import annotations

import errno

__all__ = ["is_absence", "is_collision", "is_forbidden", "is_full", "is_too_long"]

_ABSENT = frozenset({errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG})
_COLLISION = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = frozenset({errno.EDQUOT, errno.ENOSPC})


def is_absence(error: BaseException) -> bool:
    """Tell whether there is no such file, or it cannot be one."""
    return isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError) or (
        _number(error) in _ABSENT
    )


def is_collision(error: BaseException) -> bool:
    """Tell whether something else has the name of what was to be written."""
    return isinstance(error, FileExistsError | IsADirectoryError) or _number(error) in _COLLISION


def is_forbidden(error: BaseException) -> bool:
    """Tell whether the user may not do this, or nobody may."""
    return isinstance(error, PermissionError) or _number(error) in _FORBIDDEN


def is_full(error: BaseException) -> bool:
    """Tell whether there is no room."""
    return _number(error) in _FULL


def is_too_long(error: BaseException) -> bool:
    """Tell whether a name is longer than the filesystem allows."""
    return _number(error) == errno.ENAMETOOLONG


def _number(error: BaseException) -> int | None:
    number: int | None = getattr(error, "errno", None)
    return number
