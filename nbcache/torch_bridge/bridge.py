"""The bridge: installs every hook when torch is there, and takes every one back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.cpu_levels import OFF, Baseline
from nbcache.core.errors import ConfigError, UnsupportedTorch
from nbcache.core.model import Environment
from nbcache.kernel.prewarming import Steps
from nbcache.torch_bridge import (
    contents,
    environment,
    events,
    gc_pause,
    gpus,
    kernels,
    lookups,
    portable,
    prewarm,
    recording,
    templates,
)
from nbcache.torch_bridge.cache_folder import CacheFolder
from nbcache.torch_bridge.cache_settings import FOLDER, CacheSetting, CacheSettings
from nbcache.torch_bridge.compile_lock import nothing_compiles
from nbcache.torch_bridge.dependencies.keys import Dependencies
from nbcache.torch_bridge.dependencies.tables import GENERATORS, TABLES
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
from nbcache.torch_bridge.providers.context import Context
from nbcache.torch_bridge.traces.lane import Traces

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["TorchBridge"]

_PLAIN = (
    "This kernel goes on as plain torch, and nbcache stores and restores nothing in it. Next: restart the "
    "kernel; if that does not help, please report this line [plain-torch]"
)
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
        self.folder = CacheFolder()
        """The folder that torch's caches are in."""
        self._requested: tuple[str | None, ...] = ()
        self._baseline: Baseline | None = None
        self._tag = portable.KeyTag()
        self._caches = CacheSettings()
        self._dependencies: Dependencies | None = None
        self.traces: Traces | None = None  # until torch is imported
        self._late = False
        """Whether torch was imported before nbcache was loaded."""
        self._waiting: list[Callable[[], None]] = []
        """What depends on more of torch than there is while it is being imported."""
        self._sound = False
        """Whether torch's keys hold all that graphs depend on; if not, nothing is stored nor served."""
        self.plain_because = ""
        """Why this kernel goes on as plain torch; empty where it does not."""

    def install(self, session: Session) -> None:
        """Hook what is imported already, and the rest when it is."""
        self._session = self.folder.session = session
        try:
            self._baseline = portable.chosen(session.settings.portable)
        except ConfigError as error:
            session.notice(f"{error}. What is compiled here is for this CPU only")
            because = f"{session.settings.origin('portable')}, of a value that cannot be used here"
            session.settings = session.settings.with_value("portable", OFF, origin=because)

        def when(follow: Callable[..., None], *more: Any) -> Callable[[ModuleType], None]:
            return lambda module: self._hook(follow, module, *more)

        self._late = "torch" in sys.modules
        self._imports = ImportHook(
            {
                "torch": self._torch_module,
                "torch._inductor.runtime.cache_dir_utils": when(self.folder.default.replace_in_utils),
                "torch._inductor.runtime.runtime_utils": when(self.folder.default.replace_in_runtime),
                "torch._dynamo.utils": self._dynamo_module,
                "torch.compiler._cache": when(recording.record, self._owned, self.disown, self._lost),
                "torch._dynamo.pgo": partial(self._provide, profile.provide_profile),
                "torch._dynamo.convert_frame": partial(self._trace, "trace_frames"),
                "torch._dynamo.output_graph": partial(self._trace, "trace_graphs"),
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
                "torch._functorch._aot_autograd.autograd_cache": self._autograd_cache_module,
                "torch._inductor.runtime.autotune_cache": partial(self._provide, autotune.provide_autotune),
                "torch._inductor.runtime.triton_heuristics": self._heuristics_module,
                "torch._inductor.async_compile": self._async_compile_module,
                "torch._inductor.select_algorithm": partial(self._hook, kernels.follow_candidates),
                "triton.backends.nvidia.driver": partial(self._provide, triton_modules.provide_modules),
                "torch._inductor.fx_passes.pad_mm": partial(self._provide, gemm_autotune.provide_decisions),
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
        self.folder.take_back()
        self._session = self.folder.session = self._baseline = None

    def configure(self) -> None:
        """Follow the session's settings, which have changed; ConfigError where that is impossible."""
        if self._session is None:
            return
        baseline = portable.chosen(self._session.settings.portable)
        if baseline != self._baseline:
            with nothing_compiles():
                self._compile_for(baseline, self._session)
        elif (current := self._session.environment) and self.folder.is_due(self._session, current):
            with nothing_compiles():
                self.folder.take_back()
                self._give_folder(self._session)

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
        return prewarm.steps(self._session, self._serving, self._user_has_torch, lambda: self.traces)

    def clear(self) -> None:
        """Empty the folders that we give torch, for all environments."""
        self.folder.clear()

    def cache_settings(self) -> list[CacheSetting]:
        """Return torch's cache settings, as they are in force now."""
        session = self._session
        watches = session is not None and session.environment is not None and not self.folder.is_served()
        note = "nbcache only watches there, and restores nothing" if watches else ""
        words = "folder of torch's caches on this machine"
        folder = CacheSetting(FOLDER, *self.folder.where(), help=words, note=note)
        return [*self._caches.rows(shares=session is not None and session.shares), folder]

    def switched_caches(self) -> list[str]:
        """Return the names of torch's cache settings that were switched by `switch_cache`."""
        return self._caches.switched

    def switch_cache(self, name: str, text: str) -> None:
        """Change one of torch's cache settings until `uninstall`; ConfigError where that is impossible."""
        if name == FOLDER:
            self.folder.choose(text)
            if self._session is not None:
                self._give_folder(self._session)
        else:
            self._caches.switch(name, text)

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
        given: Context | None = None,
        otherwise: Callable[[Exception], str | None] = lambda error: None,
    ) -> None:
        """Hook one part of nbcache, whole or not at all: `follow(module, session, patches, *more)`.

        Where this torch has no place for it, or where it fails later, go without that part, and say so once;
        `otherwise` is then done, and adds to that. A provider is `given` its context in place of the session.
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
                self._session.notice(". ".join(filter(None, (str(problem), otherwise(error)))))

        part = Patches(partial(lose, "has called it as it does not know"))
        try:
            follow(module, given or self._session, part, *more)
        except Exception as error:  # whatever it is, the user's import goes on
            part.restore()
            lose("is not as it knows it", error)
            return
        self._parts[follow.__name__ if part.replaced else f"{follow.__name__} of {module.__name__}"] = part
        self._patches.undo(part.restore)

    def _provide(
        self,
        provide: Callable[[ModuleType, Context, Patches], None],
        module: ModuleType,
        *,
        serving: Callable[[], bool] | None = None,
    ) -> None:
        """Hook a provider of artifacts."""
        if self._session is not None:
            context = Context(self._session, serving or self._serving, self._owned, self._current_baseline)
            self._hook(provide, module, given=context)

    def _is_on(self, *names: str) -> bool:
        """Tell whether these parts are hooked, and have not failed."""
        return all(name in self._parts and name not in self._lost for name in names)

    def _dynamo_module(self, module: ModuleType) -> None:
        more = (self._caches.why_disabled, self._tag.settle)
        # Where settings do not follow to the thread that compiles, neither does what tells portable code.
        self._hook(events.follow_spans, module, *more, otherwise=self._not_portable)

    def _codecache_module(self, module: ModuleType) -> None:
        if self._session is not None:
            prewarm.prefetch_keys(module, self._session)
        self._hook(self.folder.default.replace_in_codecache, module)
        self._hook(self.folder.default.replace_headers, module)
        self._depends("follow_keys", module)
        self._hook(lookups.follow_lookups, module)
        self._hook(contents.follow_code, module)
        self._provide(graphs.provide_graphs, module, serving=self._serving_graphs)
        self._provide(gemm_autotune.provide_times, module)
        self._provide(cpp_kernels.provide_kernels, module)

    def _common_module(self, module: ModuleType) -> None:
        self._hook(templates.compile_when_rendered, module)
        for follow in ("note_tables", "note_generators", "follow_devices"):
            self._depends(follow, module)

    def _remote_cache_module(self, module: ModuleType) -> None:
        self._provide(autotune.provide_autotune, module)
        self._provide(remote_caches.replace_backends, module)

    def _autograd_cache_module(self, module: ModuleType) -> None:
        self._hook(remote_caches.renew_autograd_cache, module)
        self._depends("follow_entries", module)
        self._trace("trace_keys", module)

    def _async_compile_module(self, module: ModuleType) -> None:
        self._hook(triton_kernels.settle_assembler, module)
        self._hook(kernels.follow_kernels, module)
        self._provide(autotune.provide_tuning_to_workers, module)
        self._hook(remote_caches.keep_workers_apart, module)

    def _heuristics_module(self, module: ModuleType) -> None:
        self._hook(triton_kernels.keep_tuned, module)
        self._hook(triton_kernels.bundle_what_runs, module)
        self._provide(triton_kernels.provide_tuned, module)

    def _instructions_module(self, module: ModuleType) -> None:
        self._hook(portable.restrict_features, module, self._current_baseline, otherwise=self._not_portable)
        self._provide(probes.provide_probes, module)

    def _builder_module(self, module: ModuleType) -> None:
        self._hook(portable.restrict_flags, module, self._current_baseline, otherwise=self._not_portable)

    def _not_portable(self, error: Exception) -> None:
        """Compile for this CPU from now on, and have it count as such: what makes code portable is lost."""
        if self._baseline is not None and self._session is not None:
            self._compile_for(None, self._session)

    def _depends(self, follow: str, module: ModuleType) -> None:
        """Hook what torch's keys leave out. Where a part is lost that is not spare, go on as plain torch."""
        if self._dependencies is None:  # torch imports this module while it is being imported itself
            self._waiting.append(partial(self._depends, follow, module))
        else:
            otherwise = self._not_sound if follow not in Dependencies.SPARE else lambda error: None
            self._hook(getattr(self._dependencies, follow), module, otherwise=otherwise)

    def _trace(self, follow: str, module: ModuleType) -> None:
        """Hook what keeps traces."""
        if self.traces is None:
            self._waiting.append(partial(self._trace, follow, module))
        else:
            self._hook(getattr(self.traces, follow), module)

    def _not_sound(self, error: Exception) -> str | None:
        """Go on as plain torch: what graphs depend on cannot be told. Return what to say of it, once."""
        if self._dependencies is None or not self._sound:
            return None
        self._sound, self.plain_because = False, repr(error)
        self._dependencies.off = True
        if self._session is not None:
            self._session.cache.environment = None
        self.folder.take_back()
        self.folder.leave()
        return _PLAIN

    def _fall_back(self, error: Exception) -> None:
        """Go on as plain torch after a fault in what finds dependencies."""
        if (consequence := self._not_sound(error)) and self._session is not None:
            self._session.notice(f"nbcache failed to find what a graph depends on: {error!r}. {consequence}")

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
        self._dependencies = Dependencies(torch, late=self._late, on_fault=self._fall_back)
        self._sound, self.plain_because = True, ""
        self.traces = Traces(torch, session, self._serving_graphs, self._dependencies)
        self._depends("follow_operators", torch)
        self._depends("follow_attributes", torch)
        while self._waiting:
            self._waiting.pop()()
        self._environment_changed(session)

    def _environment_changed(self, session: Session) -> None:
        self._requested = environment.requested()
        self._tag.set(self._baseline)
        if self._sound:
            current = environment.current(self._baseline)
            self.folder.give(session, current, portable=self._baseline is not None)
            session.cache.environment_ready(current)

    def _give_folder(self, session: Session) -> None:
        """Have torch use the folder for what compiled code is bound to here, once that is known."""
        if session.environment is not None:
            self.folder.give(session, session.environment, portable=self._baseline is not None)

    def _serving(self) -> bool:
        """Follow what has changed since, and tell whether torch uses its caches as we found them.

        It does not within `fresh_cache()`, nor where they are disabled.
        """
        import torch

        if not self._sound:
            self.folder.leave()
            return False
        if (session := self._session) is not None:
            if environment.requested() != self._requested:
                self._environment_changed(session)
            self.folder.default.check(session)
            if self.folder.is_lost():
                self._give_folder(session)
        if torch.cuda.is_initialized():
            gpus.settle()
        if torch.compiler.config.force_disable_caches:
            return False
        self.folder.give_again()
        return self.folder.is_served() and self.folder.may_get()

    def _serving_graphs(self) -> bool:
        """Tell whether graphs may be made present: only where their C++ kernels are loaded as stored, too."""
        return self._serving() and self._is_on("follow_lookups", "provide_kernels")

    def _owned(self) -> bool:
        """Tell whether torch's folder holds only what was made in this environment."""
        # Recording tells of what comes from elsewhere.
        return self._is_on("record") and self._serving() and self.folder.is_own()

    def disown(self) -> None:
        """Have nothing that torch finds in its folder count as made here, from now on and in any folder.

        The folder says so before anything comes: `_serving` sees to that.
        """
        self.folder.disown()
