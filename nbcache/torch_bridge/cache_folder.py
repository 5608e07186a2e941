"""The folder that torch's caches are in: which one it is, and whose code may lie there."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nbcache.core.errors import StoreUnavailable
from nbcache.core.key import digest
from nbcache.core.model import Environment
from nbcache.core.trust import Policy
from nbcache.torch_bridge import folders
from nbcache.torch_bridge.cache_settings import FOLDER
from nbcache.torch_bridge.folders import OWN, DefaultFolder
from nbcache.torch_bridge.providers.cpp_kernels import KERNELS

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["CacheFolder"]

_TRITON_FOLDER = "TRITON_CACHE_DIR"
_HOLDS_OTHERS = "it may hold what was compiled by signers who are not trusted any more"
_CACHES = ("aotautograd", "dynamo", "fxgraph")
"""Folders of torch's cache folder that are looked things up in; others hold what a compile works on."""
_DEFAULT = "default"
"""Folder, beside those for environments, that stands for torch's default one where that is not safe."""
_IN_USE_SECONDS = 60.0


class CacheFolder:
    """Gives torch a cache folder of its own for each environment, unless the user has set one.

    torch's CPU keys leave the CPU out, and its default folder is shared by all: a folder for each
    environment keeps that sound and leaves torch's keys as they are. Once a signer is trusted no more
    there is another one: what they have compiled may be in the one before.
    """

    def __init__(self) -> None:
        self.default = DefaultFolder(self._default)
        self.session: Session | None = None
        """Whose settings and trust decide, while the bridge is installed."""
        self._roots = folders.Roots()
        self._given: Path | None = None
        """The folder that we gave torch; None where the user has set one, or torch is not there.

        Where none could be made it is not there, and `_expected` is None.
        """
        self._expected: str | None = None
        """The folder that nbcache serves: the one that is given, or the user's."""
        self._removed: dict[str, str] = {}
        """Variables of the user's that `leave` has removed."""
        self._before: dict[str, str | None] = {}
        """The environment variables that were changed, and their values from before."""
        self._disowned = False
        """Whether what others have compiled was put where torch looks, or is about to be."""

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
        """Have torch use the folder of the environment `current`, unless the user has set one.

        `portable` says that code is compiled for a baseline, which torch's keys hold.
        """
        set_by_user = os.environ.get(FOLDER)
        if set_by_user and _is_nobodys_choice(Path(set_by_user)):
            set_by_user = None
        if set_by_user and _holds_others(session, Path(set_by_user)):
            session.notice(f"{FOLDER}={set_by_user} is not used: {_HOLDS_OTHERS}. Next: empty it")
            set_by_user = None
        if set_by_user and self._given is None:
            self._expected = os.path.abspath(set_by_user)
            if not portable:
                _warn_of_other_cpus(session, Path(self._expected), current)
            return
        before = self._given
        try:
            folder, said = self._roots.folder(_name(session, current), self._own())
        except (OSError, StoreUnavailable) as error:
            # Not torch's default folder: its name can be foreseen, and what somebody put there would run.
            self._given, self._expected = self._roots.nowhere(), None
            if not set_by_user:
                self._set(str(self._given))
            session.notice(f"no folder can be made for torch's cache: {error}. nbcache only watches")
            return
        for each in said:
            session.notice(each)
        self._given, self._expected = folder, str(folder)
        if not set_by_user:  # else within `fresh_cache()`, or set by a cell since
            self._set(str(folder))
        _move_triton(before, folder)
        _leave_tritons_folder(session, folder)

    def take_back(self) -> None:
        """Put the variables back that gave torch a folder, unless the user has set them since."""
        ours = str(self._given)
        for name, value in self._before.items():
            if not (os.environ.get(name, "") + os.sep).startswith(ours + os.sep):
                continue
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        for name, value in self._removed.items():
            os.environ.setdefault(name, value)
        self._before.clear()
        self._removed.clear()
        self._given = self._expected = None

    def leave(self) -> None:
        """Give torch the folder that it has without nbcache, unless others' code may lie there.

        Torch then looks up keys that leave something out. `fresh_cache()` puts back what it has replaced.
        """
        value = os.environ.get(FOLDER)
        if value and (folders.is_below_root(Path(value)) or folders.has_others(Path(value))):
            self._removed[FOLDER] = os.environ.pop(FOLDER)
            if os.environ.get(_TRITON_FOLDER, "").startswith(value + os.sep):
                self._removed[_TRITON_FOLDER] = os.environ.pop(_TRITON_FOLDER)
        if self.session is not None:
            self.default.check()

    def give_again(self) -> None:
        """Set the folder that we gave once more, where `fresh_cache()` has put back another environment's."""
        value = os.environ.get(FOLDER, "")
        if self._given is not None and value != str(self._given) and _is_nobodys_choice(Path(value)):
            os.environ[FOLDER] = str(self._given)

    def is_lost(self) -> bool:
        """Return whether the folder that we gave is not ours any more: others clean temp folders, too."""
        given = self._given
        return given is not None and self._expected is not None and not folders.is_private(given)

    def is_due(self, session: Session, current: Environment) -> bool:
        """Return whether another folder is due: other signers' code may be used now than in this one."""
        if self._given is None:
            return self._expected is not None and _holds_others(session, Path(self._expected))
        return self._given.name != _name(session, current)

    def clear(self) -> None:
        """Empty the folders that we give torch, for all environments; the user's own is not ours to clean."""
        for root in self._roots.all(self._own()):
            with contextlib.suppress(OSError):
                for folder in root.iterdir():
                    if folder.name != _DEFAULT and folder.is_dir() and not folder.is_symlink():
                        _empty(folder)

    def _set(self, folder: str) -> None:
        for name in (FOLDER, _TRITON_FOLDER):  # Triton's is set below it at the first use
            self._before.setdefault(name, os.environ.get(name))
        os.environ[FOLDER] = folder

    def _own(self) -> Path:
        """Return nbcache's own folder."""
        return Path(os.devnull) if self.session is None else self.session.settings.dir

    def _default(self) -> Path:
        """Return what stands for torch's default folder where that is not safe."""
        try:
            return self._roots.folder(_DEFAULT, self._own())[0]
        except (OSError, StoreUnavailable):
            return self._roots.nowhere()

    # --- whose code lies there ------------------------------------------------------------------

    def disown(self) -> None:
        """Have nothing that torch finds in its folder count as made here, from now on and in any folder.

        The folder says so before anything comes: `may_get` sees to that.
        """
        self._disowned = True

    def is_own(self) -> bool:
        """Return whether torch's folder holds only what was made in this environment."""
        return self._given is not None and not self._disowned and (self._given / OWN).exists()

    def may_get(self) -> bool:
        """Return whether anything may be put there: once others' code comes, the folder says so first."""
        return not self._disowned or self._has_told_of_others()

    def _has_told_of_others(self) -> bool:
        """Have torch's folder say that it gets others' code; False where it cannot, and must not get any."""
        assert self._expected is not None
        try:
            if self._given is not None:
                (self._given / OWN).unlink(missing_ok=True)
            mark = "" if self.session is None else self.session.judge.mark()
            for folder in (self._expected, os.environ.get(_TRITON_FOLDER)):
                if folder and not folders.is_below_root(Path(folder)):
                    folders.note_others(Path(folder), mark)
        except OSError:
            return False
        return True


def _holds_others(session: Session, folder: Path) -> bool:
    """Return whether a folder may hold what was compiled by signers whose code may not be used any more."""
    return session.settings.trust is not Policy.OFF and folders.others_since(folder, session.judge.mark())


def _leave_tritons_folder(session: Session, folder: Path) -> None:
    """Give Triton a folder of ours where the user's may hold what must not be used any more."""
    value = os.environ.get(_TRITON_FOLDER)
    if value and _holds_others(session, Path(value)):
        session.notice(f"{_TRITON_FOLDER}={value} is not used: {_HOLDS_OTHERS}. Next: empty it")
        os.environ[_TRITON_FOLDER] = str(folder / "triton")


def _empty(folder: Path) -> None:
    """Remove what torch would look up in one of our folders, and what no kernel is working on.

    What says whether all was made there stays as it is: C++ kernels do, and running kernels may put others'.
    """
    for name in _CACHES:
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if KERNELS in path.parts or path == folder / OWN:  # kernels that run may store theirs anew
            continue
        with contextlib.suppress(OSError):  # another kernel may be compiling there just now
            if time.time() - path.stat().st_mtime > _IN_USE_SECONDS:
                path.unlink()


def _is_nobodys_choice(folder: Path) -> bool:
    """Tell from the user's own choice of a folder torch's, and ours in the process that started this one.

    Both are in the environment, which child processes inherit.
    """
    if folders.is_root(folder.parent):
        return True
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    default = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    return folder == Path(tempfile.gettempdir(), default)


def _name(session: Session, current: Environment) -> str:
    return f"{current.digest[:16]}{session.judge.mark()}"


def _move_triton(before: Path | None, folder: Path) -> None:
    """Have Triton follow torch into another folder; it has remembered one below the first."""
    value = os.environ.get(_TRITON_FOLDER, "")
    if before not in (None, folder) and value.startswith(f"{before}{os.sep}"):
        os.environ[_TRITON_FOLDER] = f"{folder}{value.removeprefix(str(before))}"


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
