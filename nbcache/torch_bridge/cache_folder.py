"""Choose the folder for torch's caches, and track whose code it may hold.

torch runs code from that folder, so no other user may have written to it. nbcache gives torch folders below a
*root*: `nbcache_<user id>` in the temp folder, a name that anybody can foresee. If that cannot be used, the
root is a folder of the same name in nbcache's own folder.
"""

from __future__ import annotations

import contextlib
import getpass
import grp
import os
import pwd
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbcache.core.errors import StoreUnavailable
from nbcache.core.key import digest
from nbcache.core.model import Environment
from nbcache.core.patches import Patches
from nbcache.core.settings import Policy
from nbcache.kernel.session import Session
from nbcache.torch_bridge.cache_settings import FOLDER
from nbcache.torch_bridge.hooks import Context
from nbcache.torch_bridge.providers.cpp_kernels import CLEARED, KERNELS

OWN = "nbcache_own"
"""Name of a file in a folder below a root. It states that all artifacts in the folder were compiled there.

It is created with the folder, and deleted before the folder gets others' artifacts. If a cleaner of temp
folders deletes it, torch still uses the folder, and nbcache stores nothing from there.
"""
_OTHERS_CODE = "nbcache_foreign"
"""Folder in one that the user has set. When others' code is added, it gets a file `Judge.folder_suffix`."""
_NAME = f"nbcache_{os.geteuid()}"
_REMEDY = "have it removed, or set TMPDIR to a folder of your own, and restart the kernel"
_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_CODECACHE = "torch._inductor.codecache"
_HEADERS = "precompiled_headers"
_ALWAYS_USED = (_HEADERS, "cache")
"""Folders in torch's default one that it reads whatever TORCHINDUCTOR_CACHE_DIR says; one has pickles."""
_HEADER_FOLDERS = {"_HEADER_DIR": (_HEADERS,), "_HEADER_LOCK_DIR": (_HEADERS, "locks")}
_TRITON_FOLDER = "TRITON_CACHE_DIR"
_CACHES = ("aotautograd", "dynamo", "fxgraph")
"""Folders that torch looks artifacts up in; others hold the files of running compiles."""
_DEFAULT = "default"
"""Name of the folder below a root that replaces torch's default folder if that is unsafe."""
_IN_USE_SECONDS = 60.0


class CacheFolder:
    """Gives torch a separate cache folder for each environment, unless the user has set one.

    torch's keys leave the CPU out, and all environments share its default folder. Separate folders make that
    sound, and torch's keys stay as they are. When the trusted signers change, torch gets another folder,
    since a signer's code may be in the first.
    """

    def __init__(self) -> None:
        self.default = DefaultFolder(self._default)
        self.session: Session | None = None
        """Its settings and trust decide, while the bridge is installed."""
        self._random = Path(tempfile.gettempdir()) / f"{_NAME}_{secrets.token_hex(8)}"
        """The last resort. Others cannot foresee its name, unlike that of torch's default folder."""
        self._given: Path | None = None
        """nbcache's folder for torch; None if the user has set one, or torch is not imported."""
        self._expected: str | None = None
        """The folder that nbcache serves, its own or the user's; None if torch got the last resort."""
        self._originals: dict[str, str | None] = {}
        """Changed environment variables → their original values."""
        self._unset_by_leave: set[str] = set()
        self._disowned = False
        """True once others' code is, or is about to be, where torch looks."""

    def where(self) -> tuple[str, str]:
        """Return torch's folder, empty if it is unknown, and who chooses it, for reports."""
        if value := os.environ.get(FOLDER):
            ours = Path(value) == self._given
            return value, "nbcache, for this environment" if ours else f"environment, {FOLDER}"
        if "torch" in sys.modules:
            return "", "torch, when it first compiles"
        return "", "not known before torch is imported"

    def is_served(self) -> bool:
        """Return whether torch uses the folder that nbcache serves; False before torch is imported."""
        return self._expected is not None and os.path.abspath(os.environ.get(FOLDER, "")) == self._expected

    def give(self, session: Session, current: Environment, *, portable: bool) -> None:
        """Give torch the folder of the environment `current`, unless the user has set one."""
        value = os.environ.get(FOLDER, "")
        is_users = bool(value) and not _is_automatic(Path(value))
        set_by_user = is_users and not _may_hold_others(session, FOLDER, value)
        if set_by_user and self._given is None:
            self._expected = os.path.abspath(value)
            if not portable:  # else the baseline is in torch's keys
                _warn_of_other_cpus(session, Path(self._expected), current)
            return
        folder, notices = choose_folder(_folder_name(session, current), self._own_folder())
        for notice in notices:
            session.notice(notice, "torch-folder")
        earlier, self._given = self._given, folder or self._last_resort()
        self._expected = None if folder is None else str(folder)
        if not set_by_user:  # else a cell or `fresh_cache()` has set it since
            for name in (FOLDER, _TRITON_FOLDER):  # torch sets Triton's below it at the first use
                self._originals.setdefault(name, os.environ.get(name))
            os.environ[FOLDER] = str(self._given)
        if folder is not None:
            _settle_triton(session, earlier, folder)

    def take_back(self) -> None:
        """Restore the environment variables that name torch's folder, unless the user has set them since."""
        for name, value in self._originals.items():
            current = os.environ.get(name)
            is_ours = name in self._unset_by_leave if current is None else _is_below(current, self._given)
            if is_ours and value is not None:
                os.environ[name] = value
            elif is_ours:
                os.environ.pop(name, None)
        self._originals.clear()
        self._unset_by_leave.clear()
        self._given = self._expected = None

    def leave(self) -> None:
        """Give torch the folder that it has without nbcache, unless that may hold others' code.

        torch then uses its own keys, which are incomplete. `fresh_cache()` restores variables at its end.
        """
        value = os.environ.get(FOLDER)
        folder = Path(value or os.devnull)
        if value and (_is_below_root(folder) or os.path.lexists(folder / _OTHERS_CODE)):
            for name in (FOLDER, _TRITON_FOLDER):
                if _is_below(os.environ.get(name, ""), value):
                    self._originals.setdefault(name, os.environ.pop(name))
                    self._unset_by_leave.add(name)
        if self.session is not None:
            self.default.check()

    def give_again(self) -> None:
        """Set nbcache's folder again if the end of a `fresh_cache()` has restored another environment's."""
        value = os.environ.get(FOLDER, "")
        if self._given is not None and value != str(self._given) and _is_automatic(Path(value)):
            os.environ[FOLDER] = str(self._given)

    def is_lost(self) -> bool:
        """Return whether nbcache's folder is missing or not private: programs clean temp folders."""
        return self._given is not None and self._expected is not None and not is_private(self._given)

    def is_outdated(self, session: Session, current: Environment) -> bool:
        """Return whether the trusted signers have changed, so that torch needs another folder."""
        if self._given is None:
            return self._expected is not None and _holds_others(session, Path(self._expected))
        return self._given.name != _folder_name(session, current)

    def clear(self) -> None:
        """Empty nbcache's folders for torch, for all environments."""
        for root in (usual_root(), self._own_folder() / _NAME):
            with contextlib.suppress(OSError):
                is_ours = refusal(root) is None and _has_private_mode(root)
                for folder in root.iterdir() if is_ours else ():
                    if folder.name != _DEFAULT and folder.is_dir() and not folder.is_symlink():
                        _empty(folder)

    def _own_folder(self) -> Path:
        return Path(os.devnull) if self.session is None else self.session.settings.dir

    def _default(self) -> Path:
        return choose_folder(_DEFAULT, self._own_folder())[0] or self._last_resort()

    def _last_resort(self) -> Path:
        """Return a folder for torch that nbcache does not serve; it is private if possible."""
        with contextlib.suppress(OSError):
            self._random.mkdir(mode=0o700)
        return self._random / "none"

    def disown(self) -> None:
        """From now on, treat artifacts in torch's current folder as foreign: see `may_get`."""
        self._disowned = True

    def is_own(self) -> bool:
        """Return whether this user compiled all artifacts in torch's folder, as its file `OWN` states."""
        return self._given is not None and not self._disowned and (self._given / OWN).exists()

    def may_get(self) -> bool:
        """Return whether nbcache may write artifacts there; mark the folder before it gets others' code."""
        if not self._disowned:
            return True
        assert self._expected is not None
        try:
            if self._given is not None:
                (self._given / OWN).unlink(missing_ok=True)
            suffix = "" if self.session is None else self.session.judge.folder_suffix()
            for folder in (self._expected, os.environ.get(_TRITON_FOLDER)):
                if folder and not _is_below_root(Path(folder)):
                    note_others(Path(folder), suffix)
        except OSError:
            return False
        return True


def note_others(folder: Path, suffix: str) -> None:
    """Mark a folder that the user has set before it gets others' code; raises OSError."""
    note = folder / _OTHERS_CODE / (suffix or "-")
    if not note.exists():
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def _holds_others(session: Session, folder: Path) -> bool:
    """Return whether a folder may hold code of signers whom the user no longer trusts."""
    if session.settings.trust is Policy.OFF:
        return False
    try:
        notes = os.listdir(folder / _OTHERS_CODE)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return bool({*notes} - {session.judge.folder_suffix() or "-"})


def _may_hold_others(session: Session, variable: str, folder: str) -> bool:
    """Return `_holds_others` for the folder in an environment variable; if it is True, give a notice."""
    if not _holds_others(session, Path(folder)):
        return False
    why = "it may hold code of signers who are no longer trusted"
    session.notice(f"{variable}={folder} is not used: {why}. Next: empty it", "torch-folder")
    return True


def _settle_triton(session: Session, earlier: Path | None, folder: Path) -> None:
    """Move Triton's folder with torch's, and out of a user's folder that may hold others' code."""
    value = os.environ.get(_TRITON_FOLDER, "")
    if earlier not in (None, folder) and value.startswith(f"{earlier}{os.sep}"):
        os.environ[_TRITON_FOLDER] = f"{folder}{value.removeprefix(str(earlier))}"
    elif value and _may_hold_others(session, _TRITON_FOLDER, value):
        os.environ[_TRITON_FOLDER] = str(folder / "triton")


def _empty(folder: Path) -> None:
    """Remove torch's artifacts, and files that no kernel is using; C++ kernels and the file `OWN` stay."""
    for name in _CACHES:
        shutil.rmtree(folder / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / KERNELS / CLEARED).touch()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        with contextlib.suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > _IN_USE_SECONDS
            if is_old and KERNELS not in path.parts and path != folder / OWN:
                path.unlink()


def _is_automatic(folder: Path) -> bool:
    """Return whether torch chose this folder, or nbcache in the parent process, but no user."""
    if _is_root(folder.parent):
        return True
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    default = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    return folder == Path(tempfile.gettempdir(), default)


def _folder_name(session: Session, current: Environment) -> str:
    return f"{current.digest[:16]}{session.judge.folder_suffix()}"


def _is_below(path: str, folder: Path | str | None) -> bool:
    return (path + os.sep).startswith(f"{folder}{os.sep}")


def _warn_of_other_cpus(session: Session, folder: Path, current: Environment) -> None:
    """Warn if a folder that the user has set was used with another CPU: torch's keys leave the CPU out."""
    cpu = digest(part for part in current.components if part.label.startswith("cpu."))[:16]
    stamps = folder / "nbcache_cpus"
    with contextlib.suppress(OSError):
        stamps.mkdir(parents=True, exist_ok=True)
        (stamps / cpu).touch()
        if any(stamp.name != cpu for stamp in stamps.iterdir()):
            session.notice(
                f"{FOLDER}={folder} was also used with another CPU, or another ATEN_CPU_CAPABILITY: torch "
                "does not tell their code apart, so results may be wrong. Unset it: nbcache keeps it apart",
                "other-cpu",
            )


# --- folders that no other user can have written to --------------------------------------------------


def choose_folder(name: str, own: Path) -> tuple[Path | None, list[str]]:
    """Return the folder `name` in the first usable root, or None, with notices; `own` is nbcache's folder."""
    notices: list[str] = []
    why = ""
    torch_can_use_own = not any(map(str.isspace, str(own)))  # torch cannot compile in a path with spaces
    for root in (usual_root(), *([own / _NAME] if torch_can_use_own else [])):
        try:
            root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _foreign_parent(root) is not None:  # common in containers, so only the doctor reports it
                continue
            emptied = [path for path in (root, root / name) if secure(path)]
        except StoreUnavailable as error:
            why = why or f"{error}, and what torch finds there would run as you. Next: {error.next_step}"
        except OSError as error:
            why = why or f"{root} cannot be used: {error.strerror or error}"
        else:
            if why:
                notices.append(f"torch's cache is in {root}. {why}")
            removed = "was open to others: nbcache has removed its contents"
            return root / name, [*notices, *(f"{path} {removed}" for path in emptied)]
    why = why or f"others can replace folders in {tempfile.gettempdir()}"
    return None, [f"no folder can be made for torch's cache: {why}. nbcache only watches"]


def usual_root() -> Path:
    return Path(tempfile.gettempdir(), _NAME)


def refusal(root: Path) -> StoreUnavailable | None:
    """Return the error of a `root` that cannot be used; None if it can be used or made."""
    if (fault := _foreign_parent(root)) is not None:
        return StoreUnavailable(fault, next_step=_REMEDY)
    if not os.path.lexists(root) or (fault := _fault(root)) is None:
        return None
    return _error(root, fault)


def is_private(folder: Path) -> bool:
    """Return whether a folder and its root exist, and only this user can enter them."""
    return all(_fault(path) is None and _has_private_mode(path) for path in (folder.parent, folder))


def is_safe(folder: Path) -> bool:
    """Return whether a folder exists, perhaps as a link, and only this user can have written to it."""
    try:
        target = folder.resolve(strict=True)
        is_ours = folder.lstat().st_uid == os.geteuid() and _fault(target) is None
        return is_ours and not target.stat().st_mode & _OTHERS_WRITE and _foreign_parent(folder) is None
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        return False


def _is_safe_below(folder: Path, name: str) -> bool:
    """Return the same for the entry `name` of a safe folder; True if there is no such entry."""
    inner = folder / name
    if not os.path.lexists(inner):
        return True
    if inner.is_symlink() or not _has_private_mode(folder.resolve()):
        return is_safe(inner)
    return _fault(inner) is None  # others cannot enter the folder, so the mode does not matter


def secure(folder: Path) -> bool:
    """Make a private `folder`; True if it replaces one that is not private. StoreUnavailable if it fails."""
    _make(folder)
    fault = _fault(folder)
    if fault is not None and _is_root(folder):
        raise _error(folder, fault)
    if fault is None and _has_private_mode(folder):
        return False
    # Moved away first, so that no other kernel trusts it, and torch finds no leftovers of the removal.
    aside = folder.with_name(f"{folder.name}_{secrets.token_hex(8)}")
    folder.rename(aside)
    _make(folder)
    _remove(aside)
    fault = _fault(folder)
    if fault is not None or not _has_private_mode(folder):
        raise _error(folder, fault or "cannot be made private: its filesystem has no permissions")
    return True


def _is_root(folder: Path) -> bool:
    """Return whether a folder has the name of a root, or of a last resort."""
    return folder.name == _NAME or folder.name.startswith(f"{_NAME}_")


def _is_below_root(folder: Path) -> bool:
    return any(map(_is_root, folder.parents))


def _fault(folder: Path) -> str | None:
    """Return why a path is no folder of this user, as the end of a sentence; None if it is one."""
    try:
        status = folder.lstat()
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to you"
    return None


def _has_private_mode(folder: Path) -> bool:
    return not folder.lstat().st_mode & _OTHERS


def _foreign_parent(folder: Path) -> str | None:
    """Return a sentence on the parent folder whose content others can replace; None without one."""
    absolute = Path(os.path.abspath(folder))
    for parent in dict.fromkeys((*absolute.parents, *absolute.parent.resolve().parents)):
        try:
            status = parent.stat()
        except OSError as error:
            return f"{parent} cannot be looked at: {error.strerror}"
        if status.st_uid not in (0, os.geteuid()):
            return f"{parent} belongs to user {status.st_uid}, who can replace what is in it"
        writable = status.st_mode & _OTHERS_WRITE
        is_own = writable == stat.S_IWGRP and _is_own_group(status.st_gid)
        if writable and not is_own and not status.st_mode & stat.S_ISVTX:
            why = "can be written to by others, who can replace what is in it: it has no sticky bit"
            return f"{parent} {why}"
    return None


def _is_own_group(group: int) -> bool:
    """Return whether a group is the user's own: many systems give each user a group of the same name."""
    try:
        return grp.getgrgid(group).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


def _make(folder: Path) -> None:
    """Make a private folder unless the path exists; below a root, create it together with `OWN`."""
    if _is_root(folder):
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


def _error(folder: Path, fault: str) -> StoreUnavailable:
    return StoreUnavailable(f"{folder} {fault}", next_step=_REMEDY)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o700)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            folder.unlink()


# --- torch's default folder --------------------------------------------------------------------------


class DefaultFolder:
    """Replaces torch's default folder with the result of `other` if others can have written to it.

    Despite TORCHINDUCTOR_CACHE_DIR, torch keeps some files in its default folder: pickles and precompiled
    headers, which are part of every kernel. Anybody can foresee that folder's name in the temp folder.
    """

    def __init__(self, other: Callable[[], Path]) -> None:
        self._other = other
        self._patches: Patches | None = None
        self._usual: Callable[[], str] | None = None
        self._hooked: list[Callable[[], str]] = []

    def replace_name(self, module: Any, context: Context, patches: Patches) -> None:
        """Hook a module that defines `default_cache_dir`, or that imported it from a hooked module."""

        def default_cache_dir(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
            return self._safe_folder(original(*args, **kwargs))

        if module.default_cache_dir in self._hooked:
            module.default_cache_dir = self._usual
        self._usual = self._usual or module.default_cache_dir
        patches.hook(module, "default_cache_dir", default_cache_dir)
        self._hooked.append(module.default_cache_dir)

    def replace_headers(self, codecache: Any, context: Context | None, patches: Patches) -> None:
        self._patches = patches
        usual = (self._usual or codecache.default_cache_dir)()
        safe = self._safe_folder(usual)
        if safe != usual and not hasattr(codecache, "_HEADER_DIR"):
            raise AttributeError("_HEADER_DIR")
        for name, parts in _HEADER_FOLDERS.items():
            if hasattr(codecache, name):
                setattr(codecache, name, os.path.join(usual, *parts))  # it may be nbcache's already
                patches.set(codecache, name, os.path.join(safe, *parts))

    def check(self) -> None:
        """Move the headers if their folder has changed: after a cleanup, others could create the old one."""
        codecache: Any = sys.modules.get(_CODECACHE)
        if self._patches is None or not hasattr(codecache, "_HEADER_DIR"):
            return
        if os.path.dirname(codecache._HEADER_DIR) != codecache.default_cache_dir():
            self.replace_headers(codecache, None, self._patches)

    def _safe_folder(self, usual: str) -> str:
        folder = Path(usual)
        with contextlib.suppress(OSError):  # its first creator owns it
            folder.mkdir(mode=0o700)
        if is_safe(folder) and all(_is_safe_below(folder, name) for name in _ALWAYS_USED):
            return usual
        return str(self._other())
