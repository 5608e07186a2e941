"""The bridge: installs every hook when torch is there, and takes every one back."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.baseline import OFF, Baseline
from nbcache.errors import ConfigError, StoreUnavailable, UnsupportedTorch
from nbcache.key import digest, sha256
from nbcache.model import Environment
from nbcache.prewarming import Steps
from nbcache.torch_bridge import (
    artifacts,
    cpp_kernels,
    environment,
    events,
    garbage,
    gemm_autotune,
    gpus,
    portable,
    prewarm,
    remote,
    triton_kernels,
    triton_modules,
)
from nbcache.torch_bridge.cache_settings import FOLDER, ORIGIN, CacheSetting, CacheSettings
from nbcache.torch_bridge.cpp_kernels import CLEARED, KERNELS
from nbcache.torch_bridge.hooks import ImportHook, Patches

if TYPE_CHECKING:
    from nbcache.kernel_session import Session

__all__ = ["TorchBridge"]

_TRITON_FOLDER = "TRITON_CACHE_DIR"
_FOREIGN = "nbcache_foreign"
"""File in torch's folder that says: not all in here was made in this environment."""
_CACHES = ("aotautograd", "dynamo", "fxgraph")
"""Folders of torch's cache folder that are looked things up in; others hold what a compile works on."""
_IN_USE_SECONDS = 60.0
_LARGE = ("torch", "torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.compile_fx")
"""What takes tenths of a second to import."""


class TorchBridge:
    """Implements `CompilerBridge` for torch. Importing it imports no torch."""

    def __init__(self, user_has_torch: Callable[[], bool] = lambda: False) -> None:
        self._user_has_torch = user_has_torch
        self._patches = Patches()
        self._imports: ImportHook | None = None
        self._session: Session | None = None
        self._folder: Path | None = None
        """The cache folder that we gave torch; None where the user has set one, or torch is not there."""
        self._chosen: str | None = None
        """The cache folder that the user has chosen through us."""
        self._expected: str | None = None
        self._requested: tuple[str | None, ...] = ()
        self._before: dict[str, str | None] = {}
        self._baseline: Baseline | None = None
        self._tag = portable.KeyTag()
        self._profile: str | None = None
        """The job id that we gave torch for this notebook's profile; None where the user has set one."""
        self._caches = CacheSettings()

    def install(self, session: Session) -> None:
        """Hook what is imported already, and the rest when it is."""
        self._session = session
        try:
            self._baseline = portable.chosen(session.settings.portable)
        except ConfigError as error:
            session.notice(f"{error}. What is compiled here is for this CPU only")
            because = f"{session.settings.origin('portable')}, of a value that cannot be used here"
            session.settings = session.settings.with_value("portable", OFF, origin=because)

        def when(follow: Callable[..., None], *more: Any) -> Callable[[ModuleType], None]:
            def hook(module: ModuleType) -> None:
                self._hook(follow, module, *more)

            return hook

        serving = self._serving
        self._imports = ImportHook(
            {
                "torch": self._torch_module,
                "torch._dynamo.utils": when(events.follow_spans, self._caches.why_disabled, self._settle),
                "torch.compiler._cache": when(artifacts.record, self._owned, self._disown),
                "torch._dynamo.pgo": self._pgo_module,
                "torch._inductor.codecache": self._codecache_module,
                "torch._inductor.cpu_vec_isa": self._instructions_module,
                "torch._inductor.cpp_builder": partial(self._restrict, portable.restrict_flags),
                "torch._inductor.remote_cache": self._remote_cache_module,
                "torch._functorch._aot_autograd.autograd_cache": when(remote.renew_autograd_cache),
                "torch._inductor.runtime.autotune_cache": when(artifacts.provide_autotune, serving),
                "torch._inductor.runtime.triton_heuristics": self._heuristics_module,
                "torch._inductor.async_compile": self._async_compile_module,
                "triton.backends.nvidia.driver": when(triton_modules.provide_modules, serving, self._owned),
                "torch._inductor.fx_passes.pad_mm": when(
                    gemm_autotune.provide_decisions, serving, self._owned
                ),
            },
            around=dict.fromkeys(_LARGE, garbage.paused),
        )
        self._imports.install()

    def uninstall(self) -> None:
        """Take every hook back, and put torch's settings and folders back as they were."""
        if self._imports is not None:
            self._imports.uninstall()
        self._patches.restore()
        self._tag.set(None)
        self._caches.restore()
        self._take_folder_back()
        self._session = self._baseline = None

    def configure(self) -> None:
        """Follow the session's settings, which have changed; ConfigError where that is impossible."""
        if self._session is None:
            return
        baseline = portable.chosen(self._session.settings.portable)
        if baseline == self._baseline:
            return
        with _nothing_compiles():
            self._compile_for(baseline, self._session)

    def _compile_for(self, baseline: Baseline | None, session: Session) -> None:
        self._baseline = baseline
        if (module := sys.modules.get("torch._inductor.cpu_vec_isa")) is not None:
            portable.choose_again(module)
        if session.environment is not None:
            self._environment_changed(session)

    def foreseen(self) -> Environment | None:
        """Return what is known of the environment before torch is imported; None where it is not there."""
        return environment.foreseen(self._baseline)

    def prewarm(self, *, compiling_for: str | None = None) -> Steps:
        """Return what can be done before the first compile.

        With `compiling_for`, a device, return what compiles and stores the sample that others restore.
        """
        if self._session is None:
            return iter(())
        if compiling_for is not None:
            return prewarm.compile_steps(self._session, compiling_for)
        return prewarm.steps(self._session, self._serving, self._user_has_torch)

    def clear(self) -> None:
        """Empty the folders that we give torch, for all environments; the user's own is not ours to clean."""
        try:
            folders = [folder for folder in _own_folder(_own_root()).iterdir() if folder.is_dir()]
        except (OSError, StoreUnavailable):
            return
        for folder in folders:
            _empty(folder)

    def cache_folder(self) -> tuple[str, str]:
        """Return torch's cache folder and who chose it, in words."""
        if value := os.environ.get(FOLDER):
            if value == self._chosen:
                return value, ORIGIN
            ours = Path(value) == self._folder
            return value, "nbcache, for this environment" if ours else f"environment, {FOLDER}"
        if "torch" in sys.modules:
            return "", "torch, when it first compiles"
        return "", "not known before torch is imported"

    def cache_settings(self) -> list[CacheSetting]:
        """Return torch's cache settings, as they are in force now."""
        note = ""
        if self._session is not None and self._session.environment is not None and not self.serves_folder():
            note = "nbcache only watches there, and restores nothing"
        folder = CacheSetting(
            FOLDER, *self.cache_folder(), help="folder of torch's caches on this machine", note=note
        )
        shares = self._session is not None and self._session.shares
        return [*self._caches.rows(shares=shares), folder]

    def switched_caches(self) -> list[str]:
        """Return the names of torch's cache settings that were switched by `switch_cache`."""
        return self._caches.switched

    def switch_cache(self, name: str, text: str) -> None:
        """Change one of torch's cache settings until `uninstall`; ConfigError where that is impossible."""
        if name == FOLDER:
            self._choose_folder(text)
        else:
            self._caches.switch(name, text)

    def serves_folder(self) -> bool:
        """Tell whether torch looks where nbcache puts what it restores; False before torch is imported."""
        return self._expected is not None and os.path.abspath(os.environ.get(FOLDER, "")) == self._expected

    def _hook(self, follow: Callable[..., None], module: ModuleType, *more: Any) -> bool:
        """Install one hook; where this torch is built otherwise, go without it, say so, and return False."""
        if self._session is None:
            return False
        try:
            follow(module, self._session, self._patches, *more)
            return True
        except Exception as error:  # whatever it is, the user's import goes on
            version = getattr(sys.modules.get("torch"), "__version__", "?")
            problem = UnsupportedTorch(
                f"part of nbcache is off, because {module.__name__} of torch {version} is not as it knows it",
                where=repr(error),
            )
            self._session.notice(str(problem))
            return False

    def _codecache_module(self, module: ModuleType) -> None:
        if self._session is not None:
            prewarm.prefetch_keys(module, self._session)
        self._hook(events.follow_lookups, module)
        self._hook(artifacts.provide_graphs, module, self._serving)
        self._hook(gemm_autotune.provide_times, module, self._serving, self._owned)
        self._hook(cpp_kernels.provide_kernels, module, self._serving, self._owned, self._current_baseline)

    def _remote_cache_module(self, module: ModuleType) -> None:
        self._hook(artifacts.provide_autotune, module, self._serving)
        self._hook(remote.replace_backends, module, self._serving)

    def _async_compile_module(self, module: ModuleType) -> None:
        self._hook(triton_kernels.settle_assembler, module)
        self._hook(events.follow_kernels, module)
        self._hook(artifacts.provide_tuning_to_workers, module, self._serving)
        self._hook(remote.keep_workers_apart, module)

    def _heuristics_module(self, module: ModuleType) -> None:
        self._hook(triton_kernels.keep_tuned, module)
        self._hook(triton_kernels.bundle_what_runs, module)
        self._hook(triton_kernels.provide_tuned, module, self._serving, self._owned)

    def _instructions_module(self, module: ModuleType) -> None:
        self._restrict(portable.restrict_features, module)
        self._hook(cpp_kernels.provide_probes, module, self._serving)

    def _restrict(self, follow: Callable[..., None], module: ModuleType) -> None:
        """Hook what makes code portable; where that is impossible, it is for this CPU, and counts as such."""
        hooked = self._hook(follow, module, self._current_baseline)
        if not hooked and self._baseline is not None and self._session is not None:
            self._compile_for(None, self._session)

    def _current_baseline(self) -> Baseline | None:
        return self._baseline

    def _torch_module(self, torch: ModuleType) -> None:
        if self._session is not None:
            self._session.attempt("finding out the environment", partial(self._begin, torch, self._session))

    def _begin(self, torch: ModuleType, session: Session) -> None:
        if environment.torch_release() < environment.MINIMUM_TORCH:
            needed = ".".join(map(str, environment.MINIMUM_TORCH))
            session.notice(f"torch {torch.__version__} is older than {needed}: nbcache does nothing with it")
            self.uninstall()
            return
        self._environment_changed(session)

    def _environment_changed(self, session: Session) -> None:
        self._requested = environment.requested()
        self._tag.set(self._baseline)
        current = environment.current(self._baseline)
        self._give_folder(session, current)
        session.environment_ready(current)

    def _give_folder(self, session: Session, current: Environment) -> None:
        """Give torch a cache folder of its own for this environment, unless the user has set one.

        torch's CPU keys leave the CPU out, and its default folder is shared by all: a folder for each
        environment keeps that sound and leaves torch's keys as they are.
        """
        set_by_user = os.environ.get(FOLDER)
        if set_by_user and set_by_user != self._chosen and _is_nobodys_choice(Path(set_by_user)):
            set_by_user = None
        if set_by_user and self._folder is None:
            self._expected = os.path.abspath(set_by_user)
            if self._baseline is None:  # torch's keys hold a baseline
                _warn_of_other_cpus(session, Path(self._expected), current)
            return
        try:
            folder = _own_folder(_own_root()) / current.digest[:16]
            folder.mkdir(mode=0o700, exist_ok=True)
        except (OSError, StoreUnavailable) as error:
            self._take_folder_back()
            session.notice(f"{error}. torch keeps its usual cache folder, and nbcache only watches")
            return
        self._folder, self._expected = folder, str(folder)
        if not set_by_user:  # else within `fresh_cache()`, or chosen by a cell since
            self._set_folder(str(folder))

    def _set_folder(self, folder: str) -> None:
        for name in (FOLDER, _TRITON_FOLDER):  # Triton's is set below it at the first use
            self._before.setdefault(name, os.environ.get(name))
        os.environ[FOLDER] = folder

    def _choose_folder(self, text: str) -> None:
        """Have torch use a folder that the user names, as if set before the kernel began; "" takes that back.

        What Triton keeps goes there as well, unless the user has set its folder.
        """
        chosen = _folder_for_torch(text) if text else None
        self._take_folder_back()
        if chosen is not None:
            self._chosen = chosen
            self._set_folder(chosen)
        if self._session is not None and self._session.environment is not None:
            self._give_folder(self._session, self._session.environment)

    def _take_folder_back(self) -> None:
        """Put the variables back that gave torch a folder, unless the user has set them since."""
        ours = self._chosen or str(self._folder)
        for name, value in self._before.items():
            if not (os.environ.get(name, "") + os.sep).startswith(ours + os.sep):
                continue
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        self._before.clear()
        self._folder = self._expected = self._chosen = None

    def _serving(self) -> bool:
        """Tell whether torch uses its caches as we found them: not within `fresh_cache()`, not disabled."""
        import torch

        if environment.requested() != self._requested and self._session is not None:
            self._environment_changed(self._session)
        if torch.cuda.is_initialized():
            gpus.settle()
        if torch.compiler.config.force_disable_caches:
            return False
        value = os.environ.get(FOLDER, "")
        if self._folder is not None and value != str(self._folder) and _is_nobodys_choice(Path(value)):
            os.environ[FOLDER] = str(self._folder)  # it was another environment's when `fresh_cache()` began
        if self._folder is not None and not self._folder.is_dir():  # temp folders are cleaned by others, too
            (_own_folder(_own_root()) / self._folder.name).mkdir(mode=0o700, exist_ok=True)
        return self.serves_folder()

    def _owned(self) -> bool:
        """Tell whether torch's folder holds only what was made in this environment."""
        return self._folder is not None and self._serving() and not (self._folder / _FOREIGN).exists()

    def _disown(self) -> None:
        """Remember that torch's folder holds what came from elsewhere."""
        if self._folder is not None:
            (self._folder / _FOREIGN).touch()

    def _pgo_module(self, pgo: ModuleType) -> None:
        if self._session is not None:
            self._session.attempt("naming the profile", partial(self._name_profile, self._session))
        self._hook(artifacts.provide_profile, pgo, self._serving)

    def _settle(self) -> None:
        """Have torch's settings be in this context what they are in that where we set them."""
        self._tag.settle()
        if self._profile is not None:
            import torch.compiler.config as config

            if config.job_id is None:
                config.job_id = self._profile

    def _name_profile(self, session: Session) -> None:
        """Have torch keep a dynamic-shape profile for this notebook: it needs a job id for that."""
        import torch.compiler.config as config

        if config.job_id is not None:
            return
        notebook = os.path.basename(session.notebook(timeout=1.0))  # the same on a colleague's machine
        ours = f"nbcache-{sha256(notebook.encode())[:16]}" if notebook else "nbcache"
        config.job_id = self._profile = ours

        def undo() -> None:
            self._profile = None
            if config.job_id == ours:
                config.job_id = None

        self._patches.undo(undo)


@contextlib.contextmanager
def _nothing_compiles() -> Iterator[None]:
    """Keep compiles in other threads out; ConfigError where there is one: it would be half of either kind."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    if module is None:
        yield
        return
    if not module.compile_lock.acquire(blocking=False):
        raise ConfigError(
            "another thread is compiling a graph just now",
            where="the setting `portable`",
            next_step="set it again when that is done",
        )
    try:
        yield
    finally:
        module.compile_lock.release()


def _empty(folder: Path) -> None:
    """Remove what torch would look up in one of our folders, and what no kernel is working on."""
    for name in _CACHES:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / _FOREIGN).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (folder / KERNELS / CLEARED).touch()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if KERNELS in path.parts:  # running kernels have loaded them, and may store them anew
            continue
        with contextlib.suppress(OSError):  # another kernel may be compiling there just now
            if time.time() - path.stat().st_mtime > _IN_USE_SECONDS:
                path.unlink()


def _is_nobodys_choice(folder: Path) -> bool:
    """Tell from the user's own choice of a folder torch's, and ours in the process that started this one.

    Both are in the environment, which child processes inherit.
    """
    if folder.parent.name == _own_root().name:
        return True
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{_user()}"
    default = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    return folder == Path(tempfile.gettempdir(), default)


def _folder_for_torch(text: str) -> str:
    """Return the absolute path of a folder, and make it; ConfigError where torch cannot use it."""
    folder = Path(os.path.abspath(Path(text).expanduser()))
    why = None
    if any(character.isspace() for character in str(folder)):
        why = "torch cannot compile where a name has a space"
    elif _own_root() in (folder, *folder.parents):
        why = "that is nbcache's own, for one environment each"
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = error.strerror or str(error)
    if why is not None:
        raise ConfigError(
            f"{FOLDER}={text} cannot be used: {why}",
            where=ORIGIN,
            next_step=f"name another folder; `{ORIGIN} {FOLDER}=` takes the one from before",
        )
    return str(folder)


def _own_root() -> Path:
    return Path(tempfile.gettempdir()) / f"nbcache_{_user()}"


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


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "user"


def _own_folder(folder: Path) -> Path:
    """Make `folder` for its owner only, or raise StoreUnavailable where somebody else made it first."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
        raise StoreUnavailable(
            "the folder for torch's cache is not ours",
            where=str(folder),
            next_step="remove it, or set TMPDIR or TORCHINDUCTOR_CACHE_DIR to a folder of your own",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder
