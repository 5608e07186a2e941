"""The bridge between the session and torch: it installs all hooks, and removes them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from nbcache.core.cpu_levels import OFF, Baseline
from nbcache.core.errors import ConfigError, UnsupportedTorch
from nbcache.core.model import Environment
from nbcache.core.patches import ImportHook, Patches
from nbcache.kernel.prewarming import Steps
from nbcache.kernel.session import Session
from nbcache.torch_bridge import cache_settings, environment, gc_pause, gpus, portable, prewarm
from nbcache.torch_bridge.cache_folder import CacheFolder
from nbcache.torch_bridge.cache_settings import FOLDER, CacheSetting
from nbcache.torch_bridge.hooks import Context, Hooks, Loss, Part, Traces
from nbcache.torch_bridge.torch_behavior import MINIMUM, TORCHBEHAVIOR, spelled

_PLAIN = (
    "This kernel goes on as plain torch, and nbcache stores and restores nothing in it. Next: restart the "
    "kernel; if that does not help, please report this line"
)
_LARGE = ("torch", "torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.compile_fx")


class TorchBridge:
    """Implements `CompilerBridge` for torch. This module does not import torch."""

    def __init__(
        self,
        parts: Sequence[Part],
        keys: Callable[..., Any],
        traces: Callable[..., Traces],
        user_has_torch: Callable[[], bool] = lambda: False,
    ) -> None:
        self._user_has_torch = user_has_torch
        self._make_keys, self._make_traces = keys, traces
        self._keys: Any = None
        self.traces: Traces | None = None
        self.folder = CacheFolder()
        self.disown = self.folder.disown
        owners: Mapping[str, Callable[[], Any]] = {
            "folder": lambda: self.folder.default,
            "keys": lambda: self._keys,
            "traces": lambda: self.traces,
        }
        self.hooks = Hooks(parts, owners, self._do_without)
        self._imports: ImportHook | None = None
        self._session: Session | None = None
        self._variables: tuple[str | None, ...] = ()
        self._baseline: Baseline | None = None
        self._tag = portable.KeyTag()
        self._caches = Patches()
        """Changes of torch's cache settings."""
        self._late = False
        """True if torch was imported before nbcache was loaded."""
        self._sound = False
        """True if torch's keys cover all that graphs depend on; else nbcache stores and serves nothing."""
        self.plain_because = ""
        """The reason why this kernel runs as plain torch; empty if it does not."""

    def install(self, session: Session) -> None:
        self._session = self.folder.session = session
        try:
            self._baseline = portable.baseline_of(session.settings.portable)
        except ConfigError as error:
            session.notice(f"{error}. What is compiled here is for this CPU only", "portable")
            _set_portable_off(session, "of a value that cannot be used here")
        context = Context(
            session,
            self._serving,
            self._folder_is_own,
            lambda: self._baseline,
            is_lost=self.hooks.lost.__contains__,
            disown=self.disown,
            why_disabled=cache_settings.why_disabled,
            settle=self._tag.settle,
        )
        self._late = "torch" in sys.modules
        actions = {**self.hooks.actions(context), "torch": self._torch_module}
        self._imports = ImportHook(actions, around=dict.fromkeys(_LARGE, gc_pause.pause))
        self._imports.install()

    def uninstall(self) -> None:
        if self._imports is not None:
            self._imports.uninstall()
        self.hooks.restore()
        self._tag.set(None)
        self._caches.restore()
        self.folder.take_back()
        self._session = self.folder.session = self._baseline = None

    def configure(self) -> None:
        """Apply the session's changed settings; ConfigError if that is impossible."""
        if (session := self._session) is None:
            return
        portable_parts = [part.name for part in self.hooks.parts if part.loss is Loss.PORTABLE]
        lost = [name for name in portable_parts if name in self.hooks.lost]
        if lost and session.settings.portable != OFF:
            raise ConfigError(
                f"portable={session.settings.portable} cannot be used: part of nbcache ({lost[0]}) is off",
                where="the setting `portable`",
                next_step="%nbcache doctor says why",
            )
        baseline, current = portable.baseline_of(session.settings.portable), session.environment
        if baseline != self._baseline:
            with _nothing_compiles():
                self._compile_for(baseline, session)
        elif current and self.folder.is_outdated(session, current):
            with _nothing_compiles():
                self.folder.take_back()
                self._give_folder(session, current)

    def _compile_for(self, baseline: Baseline | None, session: Session) -> None:
        self._baseline = baseline
        if (module := sys.modules.get("torch._inductor.cpu_vec_isa")) is not None:
            portable.choose_isa_again(module)
        if session.environment is not None:
            self._adopt_environment(session)

    def foreseen(self) -> Environment | None:
        return environment.foreseen(self._baseline)

    def prewarm(self, *, compiling_for: str | None = None) -> Steps:
        """Return the steps that prepare the first compile, or those that compile the sample for a device."""
        if self._session is None:
            return iter(())
        if compiling_for is not None:
            return prewarm.compile_steps(self._session, compiling_for)
        return prewarm.steps(self._session, self._serving, self._user_has_torch, lambda: self.traces)

    def clear(self) -> None:
        self.folder.clear()

    def cache_settings(self) -> list[CacheSetting]:
        has_torch = self._session is not None and self._session.environment is not None
        only_watches = has_torch and not self.folder.is_served()
        note = "nbcache only watches there, and restores nothing" if only_watches else ""
        help = "folder of torch's caches on this machine"
        return [*cache_settings.rows(), CacheSetting(FOLDER, *self.folder.where(), help=help, note=note)]

    def _do_without(self, loss: Loss, problem: UnsupportedTorch) -> None:
        """Go on without portable code, AOTAutograd's entries or all of nbcache, as `loss` says."""
        consequence, session = None, self._session
        if loss is Loss.PORTABLE and self._baseline is not None and session is not None:
            _set_portable_off(session, "because it needs a part of nbcache that is off")
            self._compile_for(None, session)
        elif loss is Loss.ENTRIES:
            try:
                cache_settings.forbid_autograd_cache(self._caches)
            except Exception as error:
                consequence = self._run_as_plain_torch(error)
        elif loss is Loss.ALL:
            consequence = self._run_as_plain_torch(problem)
        if session is not None:
            words = ". ".join(filter(None, (str(problem), consequence)))
            session.notice(words, "plain-torch" if consequence else "lost-part")

    def _run_as_plain_torch(self, error: Exception) -> str | None:
        """Run as plain torch, since keys may be incomplete; return the consequence at the first call."""
        if self._keys is None or not self._sound:
            return None
        self._sound, self.plain_because = False, repr(error)
        self._keys.off = True
        self.hooks.switch_off("keys")
        if self._session is not None:
            self._session.cache.environment = None
        self.folder.take_back()
        self.folder.leave()
        return _PLAIN

    def _fall_back(self, error: Exception) -> None:
        if (consequence := self._run_as_plain_torch(error)) and self._session is not None:
            self._session.notice(
                f"nbcache failed to find out what code a graph depends on: {error!r}. {consequence}",
                "plain-torch",
            )

    def _torch_module(self, torch: ModuleType) -> None:
        if self._session is not None:
            self._session.attempt("finding out the environment", partial(self._begin, torch, self._session))

    def _begin(self, torch: ModuleType, session: Session) -> None:
        if not TORCHBEHAVIOR.is_supported:
            needed = spelled(MINIMUM)
            session.notice(
                f"torch {torch.__version__} is older than {needed}: nbcache does nothing with it", "old-torch"
            )
            self.uninstall()
            return
        keys = self._keys = self._make_keys(torch, late=self._late, on_fault=self._fall_back)
        self._sound, self.plain_because = True, ""
        self.traces = self._make_traces(torch, session, self._serves_traces, keys)
        self.hooks.on_import(torch)
        self.hooks.install_waiting()
        self._adopt_environment(session)

    def _adopt_environment(self, session: Session) -> None:
        """Find out the environment, and give it to the session's cache with a folder for torch."""
        self._variables = environment.variables()
        self._tag.set(self._baseline)
        if self._sound:
            current = environment.current(self._baseline)
            self._give_folder(session, current)
            session.cache.set_environment(current)

    def _give_folder(self, session: Session, current: Environment) -> None:
        self.folder.give(session, current, portable=self._baseline is not None)

    def _serving(self) -> bool:
        """Follow changes; return whether torch uses its caches, which settings or `fresh_cache()` prevent."""
        import torch

        if not self._sound:
            self.folder.leave()
            return False
        if (session := self._session) is not None:
            if environment.variables() != self._variables:
                self._adopt_environment(session)
            self.folder.default.check()
            if session.environment is not None and self.folder.is_lost():
                self._give_folder(session, session.environment)
        if torch.cuda.is_initialized():
            gpus.fix_variables()
        if torch.compiler.config.force_disable_caches:
            return False
        self.folder.give_again()
        return self.folder.is_served() and self.folder.may_get()

    def _serves_traces(self) -> bool:
        return self._serving() and "trace_frames" not in self.hooks.lost

    def _folder_is_own(self) -> bool:
        # The part `record` marks the folder when the user loads a bundle.
        marks = "record" in self.hooks.on and "record" not in self.hooks.lost
        return marks and self._serving() and self.folder.is_own()


def _set_portable_off(session: Session, because: str) -> None:
    origin = f"{session.settings.origin('portable')}, {because}"
    session.settings = session.settings.with_value("portable", OFF, origin=origin)


@contextlib.contextmanager
def _nothing_compiles() -> Iterator[None]:
    """Block compiles in other threads; ConfigError if one runs, since its graph would mix both kinds."""
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
