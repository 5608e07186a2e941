"""The folder that torch's caches are in: which one it is, and whose code may lie there.

torch runs what it finds there, so nobody else may have written to it. All folders that nbcache gives torch
are below a *root*: `nbcache_<user id>` in the temp folder, whose name anybody can foresee. Where that cannot
be used, it is a folder of the same name in nbcache's own, or a new one with a random name.
"""

from __future__ import annotations

import atexit
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
from typing import TYPE_CHECKING, Any

from nbcache.core.errors import StoreUnavailable
from nbcache.core.key import digest
from nbcache.core.model import Environment
from nbcache.core.trust import Policy
from nbcache.torch_bridge.cache_settings import FOLDER
from nbcache.torch_bridge.providers.cpp_kernels import CLEARED, KERNELS

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches


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
"""Mode bits by which anybody but the owner may read, write or enter; by which they may write."""
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
    """Gives torch a cache folder of its own for each environment, unless the user has set one.

    torch's CPU keys leave the CPU out, and all environments share its default folder. A folder for each
    keeps that sound and leaves torch's keys as they are. Once the user trusts a signer no more, torch gets
    another one: the signer's code may be in the first.
    """

    def __init__(self) -> None:
        self.default = DefaultFolder(self._default)
        self.session: Session | None = None
        """Its settings and trust decide, while the bridge is installed."""
        self._roots = Roots()
        self._given: Path | None = None
        """The folder that nbcache gave torch; None where the user has set one, or torch is not there.

        Where none could be made it is not there, and `_expected` is None.
        """
        self._expected: str | None = None
        """The folder that nbcache serves: the one that it gave, or the user's."""
        self._before: dict[str, str | None] = {}
        """The environment variables that were changed, and their values from before."""
        self._left: set[str] = set()
        """Those that `leave` has removed."""
        self._disowned = False
        """True once others' code was put where torch looks, or is about to be."""

    # --- which it is ----------------------------------------------------------------------------

    def where(self) -> tuple[str, str]:
        """Return torch's cache folder and who chose it, in words."""
        if value := os.environ.get(FOLDER):
            ours = Path(value) == self._given
            return value, "nbcache, for this environment" if ours else f"environment, {FOLDER}"
        if "torch" in sys.modules:
            return "", "torch, when it first compiles"
        return "", "not known before torch is imported"

    def is_served(self) -> bool:
        """Return whether torch looks where nbcache puts what it restores; False before torch is imported."""
        return self._expected is not None and os.path.abspath(os.environ.get(FOLDER, "")) == self._expected

    def give(self, session: Session, current: Environment, *, portable: bool) -> None:
        """Give torch the folder of the environment `current`, unless the user has set one.

        `portable` says that code is compiled for a baseline, which torch's keys hold.
        """
        set_by_user = os.environ.get(FOLDER)
        if set_by_user and _is_nobodys_choice(Path(set_by_user)):
            set_by_user = None
        if set_by_user and _may_hold_others(session, FOLDER, set_by_user):
            set_by_user = None
        if set_by_user and self._given is None:
            self._expected = os.path.abspath(set_by_user)
            if not portable:
                _warn_of_other_cpus(session, Path(self._expected), current)
            return
        earlier = self._given
        folder, notices = self._roots.folder(_name(session, current), self._own())
        self._expected = None if folder == self._roots.nowhere else str(folder)
        for notice in notices:
            session.notice(notice)
        self._given = folder
        if not set_by_user:  # else within `fresh_cache()`, or set by a cell since
            for name in (FOLDER, _TRITON_FOLDER):  # Triton's is set below it at the first use
                self._before.setdefault(name, os.environ.get(name))
            os.environ[FOLDER] = str(folder)
        if self._expected is not None:
            _settle_triton(session, earlier, folder)

    def take_back(self) -> None:
        """Put the variables back that gave torch a folder, unless the user has set them since."""
        for name, value in self._before.items():
            current = os.environ.get(name)
            is_ours = name in self._left if current is None else _is_below(current, self._given)
            if not is_ours:
                continue
            if value is not None:
                os.environ[name] = value
            elif current is not None:
                del os.environ[name]
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
        """Set nbcache's folder once more, where `fresh_cache()` has put back another environment's."""
        value = os.environ.get(FOLDER, "")
        if self._given is not None and value != str(self._given) and _is_nobodys_choice(Path(value)):
            os.environ[FOLDER] = str(self._given)

    def is_lost(self) -> bool:
        """Return whether others have taken nbcache's folder away: they clean temp folders, too."""
        return self._given is not None and self._expected is not None and not is_private(self._given)

    def is_due(self, session: Session, current: Environment) -> bool:
        """Return whether another folder is due: other signers' code may be used now than in this one."""
        if self._given is None:
            return self._expected is not None and _holds_others(session, Path(self._expected))
        return self._given.name != _name(session, current)

    def clear(self) -> None:
        """Empty nbcache's folders for torch, for all environments; the user's own is not ours to clean."""
        for root in self._roots.all(self._own()):
            with contextlib.suppress(OSError):
                for folder in root.iterdir():
                    if folder.name != _DEFAULT and folder.is_dir() and not folder.is_symlink():
                        _empty(folder)

    def _own(self) -> Path:
        """Return nbcache's own folder."""
        return Path(os.devnull) if self.session is None else self.session.settings.dir

    def _default(self) -> Path:
        """Return the substitute for torch's default folder, used where that is not safe."""
        return self._roots.folder(_DEFAULT, self._own())[0]

    # --- whose code lies there ------------------------------------------------------------------

    def disown(self) -> None:
        """From now on, treat artifacts in torch's folder, whichever it is, as foreign.

        The folder is marked before anything comes: `may_get` sees to that.
        """
        self._disowned = True

    def is_own(self) -> bool:
        """Return whether torch's folder holds only artifacts that were compiled in this environment."""
        return self._given is not None and not self._disowned and (self._given / OWN).exists()

    def may_get(self) -> bool:
        """Return whether anything may be put there: before others' code comes, the folder is marked."""
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
    """Mark a folder that the user has set: it gets code that others have compiled. OSError as it comes."""
    note = folder / _OTHERS_CODE / (mark or "-")
    if not note.exists():
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def _holds_others(session: Session, folder: Path) -> bool:
    """Return whether a folder may hold code that was compiled by signers whom the user trusts no more."""
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
    """Return the same of a folder that a variable names, and say so."""
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
    """Remove what torch would look up in one of our folders, and what no kernel is working on.

    The mark `OWN` stays as it is: C++ kernels stay, and running kernels may put others'.
    """
    for name in _CACHES:
        shutil.rmtree(folder / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / KERNELS / CLEARED).touch()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if KERNELS in path.parts or path == folder / OWN:  # running kernels may store theirs again
            continue
        with contextlib.suppress(OSError):  # another kernel may be compiling there just now
            if time.time() - path.stat().st_mtime > _IN_USE_SECONDS:
                path.unlink()


def _is_nobodys_choice(folder: Path) -> bool:
    """Return whether a folder is torch's choice, or that of nbcache in the process that started this one.

    Both are in the environment, which child processes inherit, like the user's choice.
    """
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
    """Say so where a folder that the user has set was used with another CPU: torch's keys leave it out."""
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


class Roots:
    """The roots that one process has used."""

    def __init__(self) -> None:
        self._new: Path | None = None
        self.nowhere = Path(tempfile.gettempdir()) / f"{_NAME}_{secrets.token_hex(8)}" / "none"
        """A folder that is not there, by a name that nobody can foresee.

        It serves where none can be made. Anybody can foresee torch's default one, and put code there.
        """
        self._used: dict[Path, None] = {}

    def folder(self, name: str, own: Path) -> tuple[Path, list[str]]:
        """Return the folder `name` in the first root that can be used, and notices about it.

        `own` is nbcache's own folder. Where no folder can be made anywhere, it is `nowhere`.
        """
        notices: list[str] = []
        instead = ""
        is_for_torch = not any(map(str.isspace, str(own)))  # torch cannot compile where a name has a space
        for root in (usual_root(), *([own / _NAME] if is_for_torch else [])):
            try:
                root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if _foreign_parent(root) is not None:  # so it is in many containers: only the doctor says so
                    continue
                emptied = [path for path in (root, root / name) if secure(path)]
            except StoreUnavailable as error:
                why = f"{error}, and what torch finds there would run as you. Next: {error.next_step}"
                instead = instead or why
            except OSError as error:
                instead = instead or f"{root} cannot be used: {error.strerror or error}"
            else:
                why = "was open to others: what was in it is not used, and removed"
                notices += [f"{path} {why}" for path in emptied]
                break
        else:
            try:
                root = self._random()
                secure(root / name)
            except (OSError, StoreUnavailable) as error:
                why = f"no folder can be made for torch's cache: {error}. nbcache only watches"
                return self.nowhere, [why]
        if instead:
            notices.insert(0, f"torch's cache is in {root}. {instead}")
        self._used[root] = None
        return root / name, notices

    def all(self, own: Path) -> list[Path]:
        """Return those roots that are there and this user's alone."""
        roots = dict.fromkeys((usual_root(), own / _NAME, *self._used))
        return [root for root in roots if refusal(root) is None and root.is_dir() and _is_closed(root)]

    def _random(self) -> Path:
        """Return a root that ends with this process."""
        if self._new is None or _fault(self._new) is not None:
            self._new = Path(tempfile.mkdtemp(prefix=f"{_NAME}_"))
            atexit.register(_end, self._new, os.getpid())
        return self._new


def usual_root() -> Path:
    """Return the root in the temp folder, whatever is there."""
    return Path(tempfile.gettempdir(), _NAME)


def refusal(root: Path) -> StoreUnavailable | None:
    """Return why `root` cannot be used as it is; None where it can, or is not there and can be made."""
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
    """Return the same of the entry `name` of a safe folder, or True where it has none.

    In a folder that nobody else can enter, others write to nothing, whatever modes torch has made it with.
    """
    inner = folder / name
    if os.path.lexists(inner) and (inner.is_symlink() or not _is_closed(folder.resolve())):
        return is_safe(inner)
    return not os.path.lexists(inner) or _fault(inner) is None


def secure(folder: Path) -> bool:
    """Make `folder` for this user only; return whether another was there, that others may have written to.

    That one is removed. StoreUnavailable where a root is not this user's, OSError where nothing can be made.
    """
    _make(folder)
    fault = _fault(folder)
    if fault is not None and _is_root(folder):
        raise _refused(folder, fault)
    if fault is None and _is_closed(folder):
        return False
    # It is moved away at once: so no other kernel takes it for private in between, and what cannot be
    # removed, as folders of others in it, is not where torch looks.
    aside = folder.with_name(f"{folder.name}_{secrets.token_hex(8)}")
    folder.rename(aside)
    _make(folder)
    _remove(aside)
    fault = _fault(folder)
    if fault is None and not _is_closed(folder):
        fault = "cannot be closed to others: its filesystem keeps no permissions"
    if fault is not None:
        raise _refused(folder, fault)
    return True


def _is_root(folder: Path) -> bool:
    """Return whether a folder is a root of this user's, judging by its name."""
    return folder.name == _NAME or folder.name.startswith(f"{_NAME}_")


def _is_below_root(folder: Path) -> bool:
    """Return whether a folder is below a root of this user's, and so for one environment and mark."""
    return any(map(_is_root, folder.parents))


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


def _is_closed(folder: Path) -> bool:
    return not folder.lstat().st_mode & _OTHERS


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
        if not writable or status.st_mode & stat.S_ISVTX:
            continue
        if writable != stat.S_IWGRP or not _is_own_group(status.st_gid):
            why = "can be written to by others, who can replace what is in it: it has no sticky bit"
            return f"{parent} {why}"
    return None


def _is_own_group(group: int) -> bool:
    """Return whether a group is the user's own, as many systems make one for each user, of the same name."""
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
        self._usual: Callable[[], str] | None = None
        """torch's own function."""
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

    def replace_headers(self, codecache: Any, context: Context, patches: Patches) -> None:
        """Hook the module that compiles headers once more: it has remembered where they go."""
        self._patches = patches
        self._replace_headers(codecache, patches)

    def _replace_headers(self, codecache: Any, patches: Patches) -> None:
        usual = (self._usual or codecache.default_cache_dir)()
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
        folder = Path(usual)
        with contextlib.suppress(OSError):  # it belongs to who makes it first
            folder.mkdir(mode=0o700)
        if is_safe(folder) and all(_is_safe_below(folder, name) for name in _USED):
            return usual
        return str(self._other())
