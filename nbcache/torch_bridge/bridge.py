"""The bridge: installs every hook when torch is there, and takes every one back."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.cpu_levels import OFF, Baseline
from nbcache.core.errors import ConfigError, StoreUnavailable, UnsupportedTorch
from nbcache.core.key import digest, sha256
from nbcache.core.model import Environment
from nbcache.core.trust import Policy
from nbcache.kernel.prewarming import Steps
from nbcache.torch_bridge import environment, events, folders, gc_pause, gpus, portable, prewarm, recording
from nbcache.torch_bridge.cache_settings import FOLDER, ORIGIN, CacheSetting, CacheSettings
from nbcache.torch_bridge.default_folder import DefaultFolder
from nbcache.torch_bridge.dependencies.keys import Dependencies
from nbcache.torch_bridge.dependencies.tables import GENERATORS, TABLES
from nbcache.torch_bridge.folders import OWN
from nbcache.torch_bridge.patches import ImportHook, Patches
from nbcache.torch_bridge.providers import (
    autotune,
    cpp_kernels,
    gemm_autotune,
    graphs,
    probes,
    profile,
    remote_caches,
    triton_kernels,
    triton_modules,
)
from nbcache.torch_bridge.providers.cpp_kernels import CLEARED, KERNELS

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["TorchBridge"]

_TRITON_FOLDER = "TRITON_CACHE_DIR"
_HOLDS_OTHERS = "it may hold what was compiled by signers who are not trusted any more"
_CACHES = ("aotautograd", "dynamo", "fxgraph")
"""Folders of torch's cache folder that are looked things up in; others hold what a compile works on."""
_DEFAULT = "default"
"""Folder, beside those for environments, that stands for torch's default one where that is not safe."""
_IN_USE_SECONDS = 60.0
_TOLD_BY = {
    "inductor": ("provide_graphs",),
    "aot_autograd": ("provide_graphs",),
    "autotune": ("provide_autotune", "replace_backends"),
    "pgo": ("provide_profile", "replace_backends"),
}
"""By type of artifact, the parts that tell what torch has found from what it has made here."""
_LARGE = ("torch", "torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.compile_fx")
"""What takes tenths of a second to import."""


class TorchBridge:
    """Implements `CompilerBridge` for torch. Importing it imports no torch."""

    def __init__(self, user_has_torch: Callable[[], bool] = lambda: False) -> None:
        self._user_has_torch = user_has_torch
        self._patches = Patches()
        self._parts: dict[str, Patches] = {}
        """What is hooked, by the names of the functions that hooked it."""
        self._lost: set[str] = set()
        """The names of those parts that this torch has no place for, or that have failed."""
        self._imports: ImportHook | None = None
        self._session: Session | None = None
        self._roots = folders.Roots()
        self._default_folder = DefaultFolder(self._default)
        self._folder: Path | None = None
        """The cache folder that we gave torch; None where the user has set one, or torch is not there.

        Where none could be made it is not there, and `_expected` is None.
        """
        self._disowned = False
        """Whether what others have compiled was put where torch looks, or is about to be."""
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
        self._dependencies: Dependencies | None = None
        self._late = False
        """Whether torch was imported before nbcache was loaded."""
        self._waiting: list[Callable[[], None]] = []
        """What depends on more of torch than there is while it is being imported."""
        self._sound = False
        """Whether torch's keys hold all that graphs depend on; if not, nothing is stored nor served."""

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
            return lambda module: self._hook(follow, module, *more)

        serving = self._serving
        self._late = "torch" in sys.modules
        self._imports = ImportHook(
            {
                "torch": self._torch_module,
                "torch._inductor.runtime.cache_dir_utils": when(self._default_folder.replace_in_utils),
                "torch._inductor.runtime.runtime_utils": when(self._default_folder.replace_in_runtime),
                "torch._dynamo.utils": self._dynamo_module,
                "torch.compiler._cache": when(recording.record, self._owned, self.disown, self._tells),
                "torch._dynamo.pgo": self._pgo_module,
                "torch._inductor.codecache": self._codecache_module,
                **{name: partial(self._depends, "note_tables") for name in TABLES},
                **{name: partial(self._depends, "note_generators") for name in GENERATORS},
                "torch._inductor.codegen.common": self._common_module,
                "torch._inductor.graph": partial(self._depends, "follow_fallbacks"),
                "torch._inductor.pattern_matcher": partial(self._depends, "follow_patterns"),
                "torch._functorch._aot_autograd.aot_autograd_result": partial(self._depends, "follow_hits"),
                "torch._inductor.cpu_vec_isa": self._instructions_module,
                "torch._inductor.cpp_builder": self._builder_module,
                "torch._inductor.remote_cache": self._remote_cache_module,
                "torch._functorch._aot_autograd.autograd_cache": when(remote_caches.renew_autograd_cache),
                "torch._inductor.runtime.autotune_cache": when(autotune.provide_autotune, serving),
                "torch._inductor.runtime.triton_heuristics": self._heuristics_module,
                "torch._inductor.async_compile": self._async_compile_module,
                "triton.backends.nvidia.driver": when(triton_modules.provide_modules, serving, self._owned),
                "torch._inductor.fx_passes.pad_mm": when(
                    gemm_autotune.provide_decisions, serving, self._owned
                ),
            },
            around=dict.fromkeys(_LARGE, gc_pause.paused),
        )
        self._imports.install()

    def uninstall(self) -> None:
        """Take every hook back, and put torch's settings and folders back as they were."""
        if self._imports is not None:
            self._imports.uninstall()
        self._patches.restore()
        self._parts.clear()
        self._lost.clear()
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
            self._renew_folder(self._session)
            return
        with _nothing_compiles():
            self._compile_for(baseline, self._session)

    def _renew_folder(self, session: Session) -> None:
        """Give torch another folder of ours, where other signers' code may be used now than in this one."""
        current, ours = session.environment, self._folder
        if current is None:
            return
        if ours is None or self._chosen:
            renewed = self._expected is not None and self._holds_others(session, Path(self._expected))
        else:
            renewed = ours.name != _name_of_folder(session, current)
        if not renewed:
            return
        with _nothing_compiles():
            self._take_folder_back()
            self._give_folder(session, current)

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
        for root in self._roots.all(self._own()):
            with contextlib.suppress(OSError):
                for folder in root.iterdir():
                    if folder.name != _DEFAULT and folder.is_dir() and not folder.is_symlink():
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

    @property
    def awaited(self) -> list[str]:
        """The modules that have something to be hooked, and are not imported yet."""
        return [] if self._imports is None else self._imports.awaited

    @property
    def parts(self) -> dict[str, Patches]:
        """The parts of nbcache that hook something of torch's now, by name."""
        return dict(self._parts)

    def _hook(
        self,
        follow: Callable[..., None],
        module: ModuleType,
        *more: Any,
        otherwise: Callable[[], None] = lambda: None,
    ) -> None:
        """Hook one part of nbcache, whole or not at all.

        Where this torch has no place for it, or where it fails later, go without that part, and say so once;
        `otherwise` is then done.
        """
        if self._session is None:
            return

        def lose(why: str, error: Exception) -> None:
            self._lost.add(follow.__name__)
            if self._session is not None:
                version = getattr(sys.modules.get("torch"), "__version__", "?")
                of = f"{module.__name__} of torch {version}"
                problem = UnsupportedTorch(
                    f"part of nbcache ({follow.__name__}) is off, because {of} {why}", where=repr(error)
                )
                self._session.notice(str(problem))
            otherwise()

        part = Patches(partial(lose, "has called it as it does not know"))
        try:
            follow(module, self._session, part, *more)
        except Exception as error:  # whatever it is, the user's import goes on
            part.restore()
            lose("is not as it knows it", error)
            return
        self._parts[follow.__name__ if part.replaced else f"{follow.__name__} of {module.__name__}"] = part
        self._patches.undo(part.restore)

    def _is_on(self, *names: str) -> bool:
        """Tell whether these parts are hooked, and have not failed."""
        return all(name in self._parts and name not in self._lost for name in names)

    def _tells(self, type: str) -> bool:
        """Tell whether it is known of artifacts of this type whether torch has made them or found them."""
        return self._lost.isdisjoint(_TOLD_BY.get(type, ()))

    def _dynamo_module(self, module: ModuleType) -> None:
        more = (self._caches.why_disabled, self._settle)
        # Where settings do not follow to the thread that compiles, neither does what tells portable code.
        self._hook(events.follow_spans, module, *more, otherwise=self._not_portable)

    def _codecache_module(self, module: ModuleType) -> None:
        if self._session is not None:
            prewarm.prefetch_keys(module, self._session)
        self._hook(self._default_folder.replace_in_codecache, module)
        self._hook(self._default_folder.replace_headers, module)
        self._depends("follow_keys", module)
        self._hook(events.follow_lookups, module)
        self._hook(graphs.provide_graphs, module, self._serving_graphs)
        self._hook(gemm_autotune.provide_times, module, self._serving, self._owned)
        self._hook(cpp_kernels.provide_kernels, module, self._serving, self._owned, self._current_baseline)

    def _common_module(self, module: ModuleType) -> None:
        for follow in ("note_tables", "note_generators", "follow_devices"):
            self._depends(follow, module)

    def _remote_cache_module(self, module: ModuleType) -> None:
        self._hook(autotune.provide_autotune, module, self._serving)
        self._hook(remote_caches.replace_backends, module, self._serving)

    def _async_compile_module(self, module: ModuleType) -> None:
        self._hook(triton_kernels.settle_assembler, module)
        self._hook(events.follow_kernels, module)
        self._hook(autotune.provide_tuning_to_workers, module, self._serving)
        self._hook(remote_caches.keep_workers_apart, module)

    def _heuristics_module(self, module: ModuleType) -> None:
        self._hook(triton_kernels.keep_tuned, module)
        self._hook(triton_kernels.bundle_what_runs, module)
        self._hook(triton_kernels.provide_tuned, module, self._serving, self._owned)

    def _instructions_module(self, module: ModuleType) -> None:
        self._hook(portable.restrict_features, module, self._current_baseline, otherwise=self._not_portable)
        self._hook(probes.provide_probes, module, self._serving)

    def _builder_module(self, module: ModuleType) -> None:
        self._hook(portable.restrict_flags, module, self._current_baseline, otherwise=self._not_portable)

    def _not_portable(self) -> None:
        """Compile for this CPU from now on, and have it count as such: what makes code portable is lost."""
        if self._baseline is not None and self._session is not None:
            self._compile_for(None, self._session)

    def _depends(self, follow: str, module: ModuleType) -> None:
        """Hook what torch's keys leave out; where that is impossible, nothing is stored nor served."""
        if self._dependencies is None:  # torch imports this module while it is being imported itself
            self._waiting.append(partial(self._depends, follow, module))
        else:
            self._hook(getattr(self._dependencies, follow), module, otherwise=self._not_sound)

    def _not_sound(self) -> None:
        """Neither store nor serve anything from now on: what graphs depend on cannot be told."""
        self._sound = False
        if self._session is not None:
            self._session.cache.environment = None

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
        self._dependencies, self._sound = Dependencies(torch, late=self._late), True
        self._depends("follow_operators", torch)
        self._depends("follow_attributes", torch)
        while self._waiting:
            self._waiting.pop()()
        self._environment_changed(session)

    def _environment_changed(self, session: Session) -> None:
        self._requested = environment.requested()
        self._tag.set(self._baseline)
        current = environment.current(self._baseline)
        self._give_folder(session, current)
        if self._sound:
            session.cache.environment_ready(current)

    def _give_folder(self, session: Session, current: Environment) -> None:
        """Give torch a cache folder of its own for this environment, unless the user has set one.

        torch's CPU keys leave the CPU out, and its default folder is shared by all: a folder for each
        environment keeps that sound and leaves torch's keys as they are. Once a signer is trusted no more
        there is another one: what they have compiled may be in the one before.
        """
        set_by_user = os.environ.get(FOLDER)
        if set_by_user and set_by_user != self._chosen and _is_nobodys_choice(Path(set_by_user)):
            set_by_user = None
        if set_by_user and self._holds_others(session, Path(set_by_user)):
            session.notice(f"{FOLDER}={set_by_user} is not used: {_HOLDS_OTHERS}. Next: empty it")
            set_by_user = None
        if set_by_user and self._folder is None:
            self._expected = os.path.abspath(set_by_user)
            if self._baseline is None:  # torch's keys hold a baseline
                _warn_of_other_cpus(session, Path(self._expected), current)
            return
        before = self._folder
        try:
            folder, said = self._roots.folder(_name_of_folder(session, current), self._own())
        except (OSError, StoreUnavailable) as error:
            # Not torch's default folder: its name can be foreseen, and what somebody put there would run.
            self._folder, self._expected = self._roots.nowhere(), None
            if not set_by_user:
                self._set_folder(str(self._folder))
            session.notice(f"no folder can be made for torch's cache: {error}. nbcache only watches")
            return
        for each in said:
            session.notice(each)
        self._folder, self._expected = folder, str(folder)
        if not set_by_user:  # else within `fresh_cache()`, or chosen by a cell since
            self._set_folder(str(folder))
        _move_triton(before, folder)
        self._leave_tritons_folder(session, folder)

    def _leave_tritons_folder(self, session: Session, folder: Path) -> None:
        """Give Triton a folder of ours where the user's may hold what must not be used any more."""
        value = os.environ.get(_TRITON_FOLDER)
        if value and self._holds_others(session, Path(value)):
            session.notice(f"{_TRITON_FOLDER}={value} is not used: {_HOLDS_OTHERS}. Next: empty it")
            os.environ[_TRITON_FOLDER] = str(folder / "triton")

    def _holds_others(self, session: Session, folder: Path) -> bool:
        """Tell whether a folder may hold what was compiled by signers whose code may not be used any more."""
        return session.settings.trust is not Policy.OFF and folders.others_since(folder, session.judge.mark())

    def _own(self) -> Path:
        """Return nbcache's own folder."""
        return Path(os.devnull) if self._session is None else self._session.settings.dir

    def _set_folder(self, folder: str) -> None:
        for name in (FOLDER, _TRITON_FOLDER):  # Triton's is set below it at the first use
            self._before.setdefault(name, os.environ.get(name))
        os.environ[FOLDER] = folder

    def _default(self) -> Path:
        """Return what stands for torch's default folder where that is not safe."""
        try:
            return self._roots.folder(_DEFAULT, self._own())[0]
        except (OSError, StoreUnavailable):
            return self._roots.nowhere()

    def _check_folders(self, session: Session) -> None:
        """Have torch use another folder where ours is not ours any more: others clean temp folders, too."""
        self._default_folder.check(session)
        given, current = self._folder, session.environment
        if given is None or self._expected is None or current is None or folders.is_private(given):
            return
        self._give_folder(session, current)

    def _choose_folder(self, text: str) -> None:
        """Have torch use a folder that the user names, as if set before the kernel began; "" takes that back.

        What Triton keeps goes there as well, unless the user has set its folder.
        """
        chosen = _folder_for_torch(text) if text else None
        if chosen and self._session is not None and self._holds_others(self._session, Path(chosen)):
            raise ConfigError(
                f"{FOLDER}={text} cannot be used: {_HOLDS_OTHERS}",
                where=ORIGIN,
                next_step=f"empty {chosen}, or name another folder",
            )
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
        if self._session is not None:
            self._check_folders(self._session)
        if torch.cuda.is_initialized():
            gpus.settle()
        if torch.compiler.config.force_disable_caches or not self._sound:
            return False
        value = os.environ.get(FOLDER, "")
        if self._folder is not None and value != str(self._folder) and _is_nobodys_choice(Path(value)):
            os.environ[FOLDER] = str(self._folder)  # it was another environment's when `fresh_cache()` began
        return self.serves_folder() and (not self._disowned or self._has_told_of_others())

    def _has_told_of_others(self) -> bool:
        """Have torch's folder say that it gets others' code; False where it cannot, and must not get any."""
        assert self._expected is not None
        try:
            if self._folder is not None:
                (self._folder / OWN).unlink(missing_ok=True)
            mark = "" if self._session is None else self._session.judge.mark()
            for folder in (self._expected, os.environ.get(_TRITON_FOLDER)):
                if folder and not folders.is_below_root(Path(folder)):
                    folders.note_others(Path(folder), mark)
        except OSError:
            return False
        return True

    def _serving_graphs(self) -> bool:
        """Tell whether graphs may be made present: only where their C++ kernels are loaded as stored, too."""
        return self._is_on("follow_lookups", "provide_kernels") and self._serving()

    def _owned(self) -> bool:
        """Tell whether torch's folder holds only what was made in this environment."""
        if self._folder is None or not self._is_on("record"):  # that tells of what comes from elsewhere
            return False
        return self._serving() and not self._disowned and (self._folder / OWN).exists()

    def disown(self) -> None:
        """Have nothing that torch finds in its folder count as made here, from now on and in any folder.

        The folder says so before anything comes: `_serving` sees to that.
        """
        self._disowned = True

    def _pgo_module(self, pgo: ModuleType) -> None:
        if self._session is not None:
            self._session.attempt("naming the profile", partial(self._name_profile, self._session))
        self._hook(profile.provide_profile, pgo, self._serving)

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
    """Remove what torch would look up in one of our folders, and what no kernel is working on.

    What says whether all was made there stays as it is: C++ kernels do, and running kernels may put others'.
    """
    for name in _CACHES:
        shutil.rmtree(folder / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / KERNELS / CLEARED).touch()
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


def _folder_for_torch(text: str) -> str:
    """Return the absolute path of a folder, and make it; ConfigError where torch cannot use it."""
    folder = Path(os.path.abspath(Path(text).expanduser()))
    why = None
    if any(character.isspace() for character in str(folder)):
        why = "torch cannot compile where a name has a space"
    elif any(map(folders.is_root, (folder, *folder.parents))):
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


def _name_of_folder(session: Session, current: Environment) -> str:
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
