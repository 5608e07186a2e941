"""Folders for torch's caches that nobody else can have written to: what torch finds there, it runs.

All are below a *root*: `nbcache_<user id>` in the temp folder, whose name anybody can foresee. Where that
cannot be used, it is a folder of the same name in nbcache's own, or a new one with a random name.
"""

from __future__ import annotations

import atexit
import contextlib
import grp
import os
import pwd
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbcache.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = [
    "OWN",
    "DefaultFolder",
    "Roots",
    "has_others",
    "is_below_root",
    "is_private",
    "is_root",
    "is_safe",
    "is_safe_below",
    "note_others",
    "others_since",
    "refusal",
    "secure",
    "usual_root",
]

OWN = "nbcache_own"
"""A file that says of a folder below a root: all that torch finds there was compiled there.

It is there from the first moment, and goes before anything of others comes. Where a cleaner of temp folders
takes it, what torch finds there is still used, and not taken for the user's own any more.
"""
_OTHERS_CODE = "nbcache_foreign"
"""A folder in one that the user has set: a file for each `Judge.mark` under which others' code came there."""

_REMEDY = "have it removed, or set TMPDIR to a folder of your own, and restart the kernel"
_OTHERS = 0o077
"""Mode bits by which anybody but the owner may read, write or enter."""
_OTHERS_WRITE = 0o022
_CODECACHE = "torch._inductor.codecache"
_HEADERS = "precompiled_headers"
_USED = (_HEADERS, "cache")
"""Folders in it that torch reads from, whatever TORCHINDUCTOR_CACHE_DIR says; the second has pickles."""
_HEADER_FOLDERS = {"_HEADER_DIR": (_HEADERS,), "_HEADER_LOCK_DIR": (_HEADERS, "locks")}


def usual_root() -> Path:
    """Return the root in the temp folder, whatever is there."""
    return Path(tempfile.gettempdir()) / _name()


def is_root(folder: Path) -> bool:
    """Tell by its name whether a folder is a root of this user's, wherever it is."""
    return folder.name == _name() or folder.name.startswith(f"{_name()}_")


def is_below_root(folder: Path) -> bool:
    """Return whether a folder is below a root of this user's, and so for one environment and mark."""
    return any(map(is_root, folder.parents))


def is_private(folder: Path) -> bool:
    """Return whether a folder and its root are there, and this user's alone."""
    return all(_fault(each) is None and not _mode(each) & _OTHERS for each in (folder.parent, folder))


def is_safe(folder: Path) -> bool:
    """Return whether a folder that is there holds only what this user has put there; it may be a link."""
    try:
        if folder.lstat().st_uid != os.geteuid() or _foreign_parent(folder) is not None:
            return False
        status = folder.stat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not stat.S_IMODE(status.st_mode) & _OTHERS_WRITE
    )


def is_safe_below(folder: Path, name: str) -> bool:
    """Tell the same of what a safe folder has under `name`, where it has that.

    In a folder that nobody else can enter, others write to nothing, whatever modes torch has made it with.
    """
    inner = folder / name
    if not os.path.lexists(inner):
        return True
    if _mode(folder.resolve()) & _OTHERS or inner.is_symlink():
        return is_safe(inner)
    return _fault(inner) is None


def secure(folder: Path) -> bool:
    """Make `folder` for this user only; return whether another was there, that others may have written to.

    That one is removed. StoreUnavailable where a root is not this user's, OSError where nothing can be made.
    """
    _make(folder)
    fault = _fault(folder)
    if fault is not None and is_root(folder):
        raise _refused(folder, fault)
    if fault is None and not _mode(folder) & _OTHERS:
        return False
    # It is moved away at once: so no other kernel takes it for private in between, and what cannot be
    # removed, as folders of others in it, is not where torch looks.
    aside = folder.with_name(f"{folder.name}_{secrets.token_hex(8)}")
    folder.rename(aside)
    _make(folder)
    _remove(aside)
    if (fault := _fault(folder)) is not None:
        raise _refused(folder, fault)
    if _mode(folder) & _OTHERS:
        raise _refused(folder, "cannot be closed to others: its filesystem keeps no permissions")
    return True


def note_others(folder: Path, mark: str) -> None:
    """Note in a folder that the user has set that it gets what others have compiled; OSError as it comes."""
    note = folder / _OTHERS_CODE / (mark or "-")
    if not note.exists():
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def others_since(folder: Path, mark: str) -> bool:
    """Return whether a folder may hold what was compiled by others who may not be used under `mark`."""
    try:
        notes = os.listdir(folder / _OTHERS_CODE)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return bool({*notes} - {mark or "-"})


def has_others(folder: Path) -> bool:
    """Return whether a folder that the user has set has got what others have compiled."""
    return os.path.lexists(folder / _OTHERS_CODE)


def refusal(root: Path) -> StoreUnavailable | None:
    """Return why `root` cannot be used as it is; None where it can, or is not there and can be made."""
    if (fault := _foreign_parent(root)) is not None:
        return StoreUnavailable(fault, next_step=_REMEDY)
    if not os.path.lexists(root):
        return None
    return None if (fault := _fault(root)) is None else _refused(root, fault)


class Roots:
    """The roots that one process has used."""

    def __init__(self) -> None:
        self._new: Path | None = None
        self._nowhere = Path(tempfile.gettempdir()) / f"{_name()}_{secrets.token_hex(8)}" / "none"
        self._used: dict[Path, None] = {}

    def folder(self, name: str, own: Path) -> tuple[Path, list[str]]:
        """Return the folder `name` in the first root that can be used, and what is to be said of that.

        `own` is nbcache's own folder. OSError where no folder can be made anywhere.
        """
        said: list[str] = []
        instead = ""
        for root in (usual_root(), *([own / _name()] if _is_for_torch(own) else [])):
            try:
                root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if _foreign_parent(root) is not None:  # so it is in many containers: only the doctor says so
                    continue
                emptied = [each for each in (root, root / name) if secure(each)]
            except StoreUnavailable as error:
                why = f"{error}, and what torch finds there would run as you. Next: {error.next_step}"
                instead = instead or why
                continue
            except OSError as error:
                instead = instead or f"{root} cannot be used: {error.strerror or error}"
                continue
            said += [
                f"{each} was open to others: what was in it is not used, and removed" for each in emptied
            ]
            break
        else:
            root = self._random()
            secure(root / name)
        if instead:
            said.insert(0, f"torch's cache is in {root}. {instead}")
        self._used[root] = None
        return root / name, said

    def all(self, own: Path) -> list[Path]:
        """Return those roots that are there and this user's alone."""
        roots = dict.fromkeys((usual_root(), own / _name(), *self._used))
        return [
            root for root in roots if refusal(root) is None and root.is_dir() and not _mode(root) & _OTHERS
        ]

    def nowhere(self) -> Path:
        """Return a folder that is not there, by a name that nobody can foresee."""
        return self._nowhere

    def _random(self) -> Path:
        """Return a root that ends with this process."""
        if self._new is None or _fault(self._new) is not None:
            self._new = Path(tempfile.mkdtemp(prefix=f"{_name()}_"))
            atexit.register(_end, self._new, os.getpid())
        return self._new


def _is_for_torch(folder: Path) -> bool:
    """Return whether torch can compile below a folder: not where a name has a space."""
    return not any(character.isspace() for character in str(folder))


def _fault(folder: Path) -> str | None:
    """Return why a folder is not this user's own; None where it is."""
    try:
        status = folder.lstat()
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to you"
    return None


def _foreign_parent(folder: Path) -> str | None:
    """Return which folder above is one where others could put another in its place, and why; None if none."""
    absolute = Path(os.path.abspath(folder))
    for parent in dict.fromkeys((*absolute.parents, *absolute.parent.resolve().parents)):
        try:
            status = parent.stat()
        except OSError as error:
            return f"{parent} cannot be looked at: {error.strerror}"
        if status.st_uid not in (0, os.geteuid()):
            return f"{parent} belongs to user {status.st_uid}, who can replace what is in it"
        writable = status.st_mode & _OTHERS_WRITE
        if writable == stat.S_IWGRP and _is_own_group(status.st_gid):
            writable = 0
        if writable and not status.st_mode & stat.S_ISVTX:
            return (
                f"{parent} can be written to by others, who can replace what is in it: it has no sticky bit"
            )
    return None


def _is_own_group(group: int) -> bool:
    """Return whether a group is the user's own, as many systems make one for each user, of the same name."""
    try:
        return grp.getgrgid(group).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


def _make(folder: Path) -> None:
    """Make a folder for this user only, unless something is there already; with `OWN`, below a root."""
    if is_root(folder):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        return
    if os.path.lexists(folder):
        return
    new = folder.with_name(f"{folder.name}_{secrets.token_hex(8)}")
    new.mkdir(mode=0o700)
    (new / OWN).touch()
    try:
        new.rename(folder)
    except OSError:  # another kernel was first
        _remove(new)
        if not os.path.lexists(folder):
            raise


def _mode(folder: Path) -> int:
    return stat.S_IMODE(folder.lstat().st_mode)


def _refused(folder: Path, fault: str) -> StoreUnavailable:
    return StoreUnavailable(f"{folder} {fault}", next_step=_REMEDY)


def _remove(folder: Path) -> None:
    """Remove a folder, or what stands in its place, as far as that is possible."""
    with contextlib.suppress(OSError):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o700)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            folder.unlink()


def _end(folder: Path, process: int) -> None:
    if os.getpid() == process:  # and no forked child
        _remove(folder)


def _name() -> str:
    return f"nbcache_{os.geteuid()}"


# --- torch's default folder --------------------------------------------------------------------------


class DefaultFolder:
    """Has torch use its default folder only where nobody else can have put anything there.

    torch keeps some files there whatever TORCHINDUCTOR_CACHE_DIR says, such as precompiled headers, which are
    part of every kernel. Anybody can foresee the folder's name in the temp folder. If somebody else made it
    first, or can write to it, torch uses the folder that `other` returns.
    """

    def __init__(self, other: Callable[[], Path]) -> None:
        self._other = other
        self._patches: Patches | None = None
        self._originals: dict[Any, Any] = {}
        """What our functions stand for: what torch has imported from another module may be ours already."""

    def replace_name(self, module: Any, context: Context, patches: Patches) -> None:
        """Hook a module that defines `default_cache_dir`, or has imported it."""

        def default_cache_dir(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
            return self._safe(original(*args, **kwargs))

        original = module.default_cache_dir = self._original(module)
        patches.hook(module, "default_cache_dir", default_cache_dir)
        self._originals[module.default_cache_dir] = original

    def _original(self, module: Any) -> Any:
        return self._originals.get(module.default_cache_dir, module.default_cache_dir)

    def replace_headers(self, codecache: Any, context: Context, patches: Patches) -> None:
        """Hook the module that compiles headers once more: it has remembered where they go."""
        self._replace_headers(codecache, patches)

    def _replace_headers(self, codecache: Any, patches: Patches) -> None:
        self._patches = patches
        usual = next(iter(self._originals.values()))()
        safe = self._safe(usual)
        if safe != usual and not hasattr(codecache, "_HEADER_DIR"):
            raise AttributeError("_HEADER_DIR")
        for name, parts in _HEADER_FOLDERS.items():
            if hasattr(codecache, name):
                setattr(codecache, name, os.path.join(usual, *parts))  # it may be ours already
                patches.set(codecache, name, os.path.join(safe, *parts))

    def check(self) -> None:
        """Look again where headers are: where others have cleaned the temp folder, anybody can make them."""
        codecache: Any = sys.modules.get(_CODECACHE)
        if self._patches is None or not hasattr(codecache, "_HEADER_DIR"):
            return
        if os.path.dirname(codecache._HEADER_DIR) != codecache.default_cache_dir():
            self._replace_headers(codecache, self._patches)

    def _safe(self, usual: str) -> str:
        with contextlib.suppress(OSError):  # it belongs to who makes it first
            os.mkdir(usual, mode=0o700)
        if is_safe(Path(usual)) and all(is_safe_below(Path(usual), name) for name in _USED):
            return usual
        return str(self._other())
