"""The folder that torch's caches are in: its choice, and whose code may lie there.

torch runs the code that it finds there, so nobody else may have written to it. All folders that nbcache gives
torch are below a *root*: `nbcache_<user id>` in the temp folder, whose name anybody can foresee. Where that
cannot be used, it is a folder of the same name in nbcache's own.
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
"""A file that says of a folder below a root: all that torch finds there was compiled there.

It is there from the first moment, and goes before anything of others comes. Where a cleaner of temp folders
takes it, torch still uses the folder, and nbcache stores nothing from there.
"""
_OTHERS_CODE = "nbcache_foreign"
"""A folder in one that the user has set: a file for each `Judge.mark` under which others' code came there."""
_NAME = f"nbcache_{os.geteuid()}"
_REMEDY = "have it removed, or set TMPDIR to a folder of your own, and restart the kernel"
_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_CODECACHE = "torch._inductor.codecache"
_HEADERS = "precompiled_headers"
_USED = (_HEADERS, "cache")
"""Folders in torch's default one that it reads whatever TORCHINDUCTOR_CACHE_DIR says; one has pickles."""
_HEADER_FOLDERS = {"_HEADER_DIR": (_HEADERS,), "_HEADER_LOCK_DIR": (_HEADERS, "locks")}
_TRITON_FOLDER = "TRITON_CACHE_DIR"
_CACHES = ("aotautograd", "dynamo", "fxgraph")
"""Folders of torch's cache folder in which it looks things up; others hold what a compile works on."""
_DEFAULT = "default"
"""Folder, beside those for environments, that stands for torch's default one where that is not safe."""
_IN_USE_SECONDS = 60.0


class CacheFolder:
    """Gives torch a separate cache folder for each environment, unless the user has set one.

    torch's CPU keys leave the CPU out, and all environments share its default folder. A folder for each
    keeps that sound and leaves torch's keys as they are. When the trusted signers change, torch gets another
    folder: a signer's code may be in the first.
    """

    def __init__(self) -> None:
        self.default = DefaultFolder(self._default)
        self.session: Session | None = None
        """Its settings and trust decide, while the bridge is installed."""
        self._random = Path(tempfile.gettempdir()) / f"{_NAME}_{secrets.token_hex(8)}"
        """The last resort: nobody can foresee its name, as they can that of torch's default folder."""
        self._given: Path | None = None
        """None where the user has set a folder, or torch is not there."""
        self._expected: str | None = None
        """The folder that nbcache serves, its own or the user's; None where only a last resort is given."""
        self._before: dict[str, str | None] = {}
        """Environment variables that were changed → their values from before."""
        self._left: set[str] = set()
        self._disowned = False
        """True once others' code was put where torch looks, or is about to be."""

    def where(self) -> tuple[str, str]:
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
        is_users = bool(value) and not _is_nobodys_choice(Path(value))
        set_by_user = is_users and not _may_hold_others(session, FOLDER, value)
        if set_by_user and self._given is None:
            self._expected = os.path.abspath(value)
            if not portable:  # else the baseline is in torch's keys
                _warn_of_other_cpus(session, Path(self._expected), current)
            return
        folder, notices = folder_in_root(_name(session, current), self._own())
        for notice in notices:
            session.notice(notice)
        earlier, self._given = self._given, folder or self._last_resort()
        self._expected = None if folder is None else str(folder)
        if not set_by_user:  # else within `fresh_cache()`, or set by a cell since
            for name in (FOLDER, _TRITON_FOLDER):  # Triton's is set below it at the first use
                self._before.setdefault(name, os.environ.get(name))
            os.environ[FOLDER] = str(self._given)
        if folder is not None:
            _settle_triton(session, earlier, folder)

    def take_back(self) -> None:
        """Put the variables back that gave torch a folder, unless the user has set them since."""
        for name, value in self._before.items():
            current = os.environ.get(name)
            is_ours = name in self._left if current is None else _is_below(current, self._given)
            if is_ours and value is not None:
                os.environ[name] = value
            elif is_ours:
                os.environ.pop(name, None)
        self._before.clear()
        self._left.clear()
        self._given = self._expected = None

    def leave(self) -> None:
        """Give torch the folder that it has without nbcache, unless others' code may lie there.

        Torch then looks up keys that leave something out. `fresh_cache()` puts back what it has replaced.
        """
        value = os.environ.get(FOLDER)
        folder = Path(value or os.devnull)
        if value and (_is_below_root(folder) or os.path.lexists(folder / _OTHERS_CODE)):
            for name in (FOLDER, _TRITON_FOLDER):
                if _is_below(os.environ.get(name, ""), value):
                    self._before.setdefault(name, os.environ.pop(name))
                    self._left.add(name)
        if self.session is not None:
            self.default.check()

    def give_again(self) -> None:
        """Set nbcache's folder again where `fresh_cache()` has put back another environment's."""
        value = os.environ.get(FOLDER, "")
        if self._given is not None and value != str(self._given) and _is_nobodys_choice(Path(value)):
            os.environ[FOLDER] = str(self._given)

    def is_lost(self) -> bool:
        """Return whether nbcache's folder is gone, or open to others: others clean temp folders, too."""
        return self._given is not None and self._expected is not None and not is_private(self._given)

    def is_due(self, session: Session, current: Environment) -> bool:
        """Return whether the trusted signers have changed, so that torch needs another folder."""
        if self._given is None:
            return self._expected is not None and _holds_others(session, Path(self._expected))
        return self._given.name != _name(session, current)

    def clear(self) -> None:
        """Empty nbcache's folders for torch, for all environments."""
        for root in (usual_root(), self._own() / _NAME):
            with contextlib.suppress(OSError):
                is_ours = refusal(root) is None and _is_closed(root)
                for folder in root.iterdir() if is_ours else ():
                    if folder.name != _DEFAULT and folder.is_dir() and not folder.is_symlink():
                        _empty(folder)

    def _own(self) -> Path:
        return Path(os.devnull) if self.session is None else self.session.settings.dir

    def _default(self) -> Path:
        return folder_in_root(_DEFAULT, self._own())[0] or self._last_resort()

    def _last_resort(self) -> Path:
        """Return a folder for torch that is not served, closed to others if that is possible."""
        with contextlib.suppress(OSError):
            self._random.mkdir(mode=0o700)
        return self._random / "none"

    def disown(self) -> None:
        """From now on, treat artifacts in torch's folder, whichever it is, as foreign: see `may_get`."""
        self._disowned = True

    def is_own(self) -> bool:
        return self._given is not None and not self._disowned and (self._given / OWN).exists()

    def may_get(self) -> bool:
        """Return whether artifacts may be put there; before others' code comes, mark the folder."""
        if not self._disowned:
            return True
        assert self._expected is not None
        try:
            if self._given is not None:
                (self._given / OWN).unlink(missing_ok=True)
            mark = "" if self.session is None else self.session.judge.mark()
            for folder in (self._expected, os.environ.get(_TRITON_FOLDER)):
                if folder and not _is_below_root(Path(folder)):
                    note_others(Path(folder), mark)
        except OSError:
            return False
        return True


def note_others(folder: Path, mark: str) -> None:
    """Mark a folder that the user has set, and that gets code of others; raises OSError."""
    note = folder / _OTHERS_CODE / (mark or "-")
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
    return bool({*notes} - {session.judge.mark() or "-"})


def _may_hold_others(session: Session, variable: str, folder: str) -> bool:
    if not _holds_others(session, Path(folder)):
        return False
    why = "it may hold what was compiled by signers who are not trusted any more"
    session.notice(f"{variable}={folder} is not used: {why}. Next: empty it")
    return True


def _settle_triton(session: Session, earlier: Path | None, folder: Path) -> None:
    """Move Triton along with torch, and off the user's folder where others' code may lie."""
    value = os.environ.get(_TRITON_FOLDER, "")
    if earlier not in (None, folder) and value.startswith(f"{earlier}{os.sep}"):
        os.environ[_TRITON_FOLDER] = f"{folder}{value.removeprefix(str(earlier))}"
    elif value and _may_hold_others(session, _TRITON_FOLDER, value):
        os.environ[_TRITON_FOLDER] = str(folder / "triton")


def _empty(folder: Path) -> None:
    """Remove what torch looks up and no kernel is working on; C++ kernels and the mark `OWN` stay."""
    for name in _CACHES:
        shutil.rmtree(folder / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / KERNELS / CLEARED).touch()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        with contextlib.suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > _IN_USE_SECONDS
            if is_old and KERNELS not in path.parts and path != folder / OWN:
                path.unlink()


def _is_nobodys_choice(folder: Path) -> bool:
    """Return whether a folder is torch's choice, or nbcache's in the process that started this one."""
    if _is_root(folder.parent):
        return True
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    default = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    return folder == Path(tempfile.gettempdir(), default)


def _name(session: Session, current: Environment) -> str:
    return f"{current.digest[:16]}{session.judge.mark()}"


def _is_below(path: str, folder: Path | str | None) -> bool:
    return (path + os.sep).startswith(f"{folder}{os.sep}")


def _warn_of_other_cpus(session: Session, folder: Path, current: Environment) -> None:
    """Warn where a folder that the user has set was used with another CPU: torch's keys leave it out."""
    cpu = digest(part for part in current.components if part.label.startswith("cpu."))[:16]
    stamps = folder / "nbcache_cpus"
    with contextlib.suppress(OSError):
        stamps.mkdir(parents=True, exist_ok=True)
        (stamps / cpu).touch()
        if any(stamp.name != cpu for stamp in stamps.iterdir()):
            session.notice(
                f"{FOLDER}={folder} was also used with another CPU, or another ATEN_CPU_CAPABILITY: torch "
                "does not tell their code apart, and results may be wrong. Unset it: nbcache keeps them apart"
            )


# --- folders that nobody else can have written to ----------------------------------------------------


def folder_in_root(name: str, own: Path) -> tuple[Path | None, list[str]]:
    """Return the folder `name` in the first usable root, or None, and notices."""
    notices: list[str] = []
    why = ""
    is_for_torch = not any(map(str.isspace, str(own)))  # torch cannot compile where a name has a space
    for root in (usual_root(), *([own / _NAME] if is_for_torch else [])):
        try:
            root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _foreign_parent(root) is not None:  # so it is in many containers: only the doctor says so
                continue
            emptied = [path for path in (root, root / name) if secure(path)]
        except StoreUnavailable as error:
            why = why or f"{error}, and what torch finds there would run as you. Next: {error.next_step}"
        except OSError as error:
            why = why or f"{root} cannot be used: {error.strerror or error}"
        else:
            if why:
                notices.append(f"torch's cache is in {root}. {why}")
            removed = "was open to others: what was in it is not used, and removed"
            return root / name, [*notices, *(f"{path} {removed}" for path in emptied)]
    why = why or f"others can replace folders in {tempfile.gettempdir()}"
    return None, [f"no folder can be made for torch's cache: {why}. nbcache only watches"]


def usual_root() -> Path:
    return Path(tempfile.gettempdir(), _NAME)


def refusal(root: Path) -> StoreUnavailable | None:
    """Return why `root` cannot be used; None where it can, or is not there and can be made."""
    if (fault := _foreign_parent(root)) is not None:
        return StoreUnavailable(fault, next_step=_REMEDY)
    if not os.path.lexists(root) or (fault := _fault(root)) is None:
        return None
    return _refused(root, fault)


def is_private(folder: Path) -> bool:
    """Return whether a folder and its root are there, and this user's alone."""
    return all(_fault(path) is None and _is_closed(path) for path in (folder.parent, folder))


def is_safe(folder: Path) -> bool:
    """Return whether a folder that is there holds only what this user has put there; it may be a link."""
    try:
        target = folder.resolve(strict=True)
        is_ours = folder.lstat().st_uid == os.geteuid() and _fault(target) is None
        return is_ours and not target.stat().st_mode & _OTHERS_WRITE and _foreign_parent(folder) is None
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        return False


def _is_safe_below(folder: Path, name: str) -> bool:
    """Return the same of the entry `name` of a safe folder, or True where it has none."""
    inner = folder / name
    if not os.path.lexists(inner):
        return True
    if inner.is_symlink() or not _is_closed(folder.resolve()):
        return is_safe(inner)
    return _fault(inner) is None  # nobody else can enter: torch may have made it with any mode


def secure(folder: Path) -> bool:
    """Make `folder` private; return whether it removed an open one. StoreUnavailable for another's root."""
    _make(folder)
    fault = _fault(folder)
    if fault is not None and _is_root(folder):
        raise _refused(folder, fault)
    if fault is None and _is_closed(folder):
        return False
    # Moved at once: other kernels must not take it for private, nor torch find a rest that stays.
    aside = folder.with_name(f"{folder.name}_{secrets.token_hex(8)}")
    folder.rename(aside)
    _make(folder)
    _remove(aside)
    fault = _fault(folder)
    if fault is not None or not _is_closed(folder):
        raise _refused(folder, fault or "cannot be closed to others: its filesystem keeps no permissions")
    return True


def _is_root(folder: Path) -> bool:
    return folder.name == _NAME or folder.name.startswith(f"{_NAME}_")


def _is_below_root(folder: Path) -> bool:
    return any(map(_is_root, folder.parents))


def _fault(folder: Path) -> str | None:
    try:
        status = folder.lstat()
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to you"
    return None


def _is_closed(folder: Path) -> bool:
    return not folder.lstat().st_mode & _OTHERS


def _foreign_parent(folder: Path) -> str | None:
    """Return which parent folder lets others replace what is in it, and why; None if none."""
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
    """Return whether a group is the user's own: many systems make one of the same name for each user."""
    try:
        return grp.getgrgid(group).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


def _make(folder: Path) -> None:
    """Make a folder for this user only, unless something is there already; with `OWN`, below a root."""
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


def _refused(folder: Path, fault: str) -> StoreUnavailable:
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
    """Makes torch use the folder that `other` returns where others can have written to its default one.

    torch keeps some files there whatever TORCHINDUCTOR_CACHE_DIR says, such as precompiled headers, which are
    part of every kernel. Anybody can foresee the folder's name in the temp folder.
    """

    def __init__(self, other: Callable[[], Path]) -> None:
        self._other = other
        self._patches: Patches | None = None
        self._usual: Callable[[], str] | None = None
        self._hooked: list[Callable[[], str]] = []

    def replace_name(self, module: Any, context: Context, patches: Patches) -> None:
        """Hook a module that defines `default_cache_dir`, or has imported it from a hooked module."""

        def default_cache_dir(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
            return self._safe(original(*args, **kwargs))

        if module.default_cache_dir in self._hooked:
            module.default_cache_dir = self._usual
        self._usual = self._usual or module.default_cache_dir
        patches.hook(module, "default_cache_dir", default_cache_dir)
        self._hooked.append(module.default_cache_dir)

    def replace_headers(self, codecache: Any, context: Context | None, patches: Patches) -> None:
        self._patches = patches
        usual = (self._usual or codecache.default_cache_dir)()
        safe = self._safe(usual)
        if safe != usual and not hasattr(codecache, "_HEADER_DIR"):
            raise AttributeError("_HEADER_DIR")
        for name, parts in _HEADER_FOLDERS.items():
            if hasattr(codecache, name):
                setattr(codecache, name, os.path.join(usual, *parts))  # it may be ours already
                patches.set(codecache, name, os.path.join(safe, *parts))

    def check(self) -> None:
        """Check again where headers are: in a temp folder that was cleaned, anybody can make them."""
        codecache: Any = sys.modules.get(_CODECACHE)
        if self._patches is None or not hasattr(codecache, "_HEADER_DIR"):
            return
        if os.path.dirname(codecache._HEADER_DIR) != codecache.default_cache_dir():
            self.replace_headers(codecache, None, self._patches)

    def _safe(self, usual: str) -> str:
        folder = Path(usual)
        with contextlib.suppress(OSError):  # it belongs to who makes it first
            folder.mkdir(mode=0o700)
        if is_safe(folder) and all(_is_safe_below(folder, name) for name in _USED):
            return usual
        return str(self._other())
