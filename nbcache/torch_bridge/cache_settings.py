"""torch's cache settings, by the names of its caching guide: what is in force now and why, and to switch it.

Before torch is imported the environment variables decide; afterwards attributes do, and the variables do
nothing, but for the folder, which the bridge looks after. What a variable said when torch was imported can
be assigned over for the remote caches. For the others torch goes on to take what the variable said, and
ignores assignments without a word. An assignment counts where cells run; on 2.13 a thread that a cell starts
does not see it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from nbcache.core.errors import ConfigError, UnsupportedTorch

__all__ = ["FOLDER", "NAMES", "ORIGIN", "CacheSetting", "CacheSettings", "SwitchedOff", "switched_off"]

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
ORIGIN = "%nbcache config"
"""The origin of what was switched through nbcache."""
_FX = "TORCHINDUCTOR_FX_GRAPH_CACHE"
_AUTOGRAD = "TORCHINDUCTOR_AUTOGRAD_CACHE"
_FX_REMOTE = "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE"
_AUTOGRAD_REMOTE = "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE"
_AUTOTUNE_REMOTE = "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE"
_FORCE_DISABLE = "TORCHINDUCTOR_FORCE_DISABLE_CACHES"
_WORDS = {
    **dict.fromkeys(("1", "on", "true", "yes"), True),
    **dict.fromkeys(("0", "off", "false", "no"), False),
}


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    """The environment variable that sets it."""
    module: str
    attribute: str
    default: bool | None
    """None where torch decides: off, but for its makers' own machines."""
    help: str
    others: tuple[str, ...] = ()
    """Further variables that set it, where that of its name does not."""
    means: str = ""
    """What it means for graphs where the value is not the default; empty where nothing is off then."""
    hits: bool = False
    """Whether graphs can hit in spite of that."""

    @property
    def is_remote(self) -> bool:
        return self.default is None

    def given(self) -> tuple[str, str] | None:
        """Return the variable that counts and its text; None where the environment has none."""
        variables = (self.name, *self.others)
        return next(((each, os.environ[each]) for each in variables if each in os.environ), None)

    def read(self, text: str) -> bool | None:
        """Return what torch takes a variable's text for."""
        if text in ("0", "1"):
            return text == "1"
        return None if self.is_remote else bool(text)

    def is_off(self) -> bool:
        """Tell whether the value keeps a cache from working."""
        return bool(self.means) and self.value() is not self.default

    def value(self) -> bool | None:
        """Return the value that is in force, without importing anything of torch."""
        module = sys.modules.get(self.module)
        if module is None:
            given = self.given()
            return self.default if given is None else self.read(given[1])
        value = getattr(module, self.attribute, self.default)
        return None if value is None else bool(value)


_SETTINGS = {
    each.name: each
    for each in (
        _Setting(
            _FX,
            "torch._inductor.config",
            "fx_graph_cache",
            True,
            "torch's cache of compiled graphs, in its folder",
            others=("TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT",),
            means="no graph can hit",
        ),
        _Setting(
            _AUTOGRAD,
            "torch._functorch.config",
            "enable_autograd_cache",
            True,
            "torch's cache of what AOTAutograd makes of a graph, in its folder; needs a cache of graphs",
            means="graphs can hit, but AOTAutograd works on each anew",
            hits=True,
        ),
        _Setting(
            _FX_REMOTE,
            "torch._inductor.config",
            "fx_graph_remote_cache",
            None,
            "torch's cache of compiled graphs on a Redis",
        ),
        _Setting(
            _AUTOGRAD_REMOTE,
            "torch._functorch.config",
            "enable_remote_autograd_cache",
            None,
            "torch's cache of what AOTAutograd makes of a graph, on a Redis; needs that of graphs",
        ),
        _Setting(
            _AUTOTUNE_REMOTE,
            "torch._inductor.config",
            "autotune_remote_cache",
            None,
            "torch's cache of Triton kernels' best configurations, on a Redis",
        ),
        _Setting(
            _FORCE_DISABLE,
            "torch.compiler.config",
            "force_disable_caches",
            False,
            "turn all of torch's caches off, whatever else is set",
            others=("TORCH_COMPILE_FORCE_DISABLE_CACHES",),
            means="no graph can hit",
        ),
    )
}
NAMES = (*_SETTINGS, FOLDER)
"""Every setting's name: that of its environment variable."""


@dataclass(frozen=True, slots=True)
class SwitchedOff:
    """A setting that keeps a cache of torch's from working."""

    setting: str
    """As one would write it: `torch._inductor.config.fx_graph_cache = False`, `TORCHINDUCTOR_…=0`."""
    means: str
    remedy: str
    hits: bool
    """Whether graphs can hit in spite of it."""


def switched_off(switched: Collection[str] = ()) -> list[SwitchedOff]:
    """Return the settings that keep torch's caches from working now, without importing anything of torch.

    `switched` are the names of those that were switched through nbcache.
    """
    return [_switched_off(each, each.name in switched) for each in _SETTINGS.values() if each.is_off()]


def _switched_off(setting: _Setting, by_us: bool) -> SwitchedOff:
    given, hits, means = setting.given(), setting.hits, setting.means
    if setting.name == _FX and _SETTINGS[_FX_REMOTE].value():
        hits, means = True, "graphs are kept and looked up in torch's remote cache only"
    # torch ignores what is assigned to an attribute whose variable was set when it was imported.
    if given is not None and setting.read(given[1]) is not setting.default:
        written, remedy = "=".join(given), f"unset {given[0]}, and restart the kernel"
    else:
        attribute = f"{setting.module}.{setting.attribute}"
        written, remedy = f"{attribute} = {setting.value()}", f"{attribute} = {setting.default}"
    if by_us:
        remedy = f"{ORIGIN} {setting.name}={_in_words(setting.default)}"
    return SwitchedOff(written, means, remedy, hits)


@dataclass(frozen=True, slots=True)
class CacheSetting:
    """One of torch's cache settings, as it is now."""

    name: str
    value: str
    origin: str
    """Where the value comes from, in words."""
    help: str
    note: str = ""
    """What keeps the value from meaning what it seems to mean; empty where nothing does."""


@dataclass(frozen=True, slots=True)
class _Switched:
    """What `CacheSettings.switch` has made of a setting."""

    value: bool | None
    before: bool | None
    """The value that was in force before."""
    by_variable: bool
    """Whether the environment was changed, too: torch was not imported yet."""
    variable: str | None
    """The variable before; None where it was not there."""


class CacheSettings:
    """Shows torch's cache settings, but for the folder, and switches them until `restore`."""

    def __init__(self) -> None:
        self._switched: dict[str, _Switched] = {}
        self._forced: list[tuple[Any, Any]] = []
        """Entries of torch's that have a value forced on them, each with the one before."""

    @property
    def switched(self) -> list[str]:
        """The names of those that `switch` has switched, and nobody else since."""
        return [name for name, done in self._switched.items() if _SETTINGS[name].value() is done.value]

    def rows(self, *, shares: bool = False) -> list[CacheSetting]:
        """Return the settings, without importing anything of torch.

        While the session `shares`, nbcache answers torch's remote caches.
        """
        return [self._row(each, shares) for each in _SETTINGS.values()]

    def why_disabled(self) -> str | None:
        """Return why torch asks no cache for a graph, naming the setting; None where it is none of them."""
        for setting in (_SETTINGS[_FORCE_DISABLE], _SETTINGS[_FX]):
            if setting.is_off():
                origin = self._origin(setting).removesuffix(f", {setting.name}")
                return f"torch's caches are off: {setting.name} is {_in_words(setting.value())} ({origin})"
        return None

    def switch(self, name: str, text: str) -> None:
        """Switch a setting; ConfigError, and nothing changes, where torch would ignore that.

        Once torch is imported this imports what holds the attribute: most of the compiler.
        """
        setting = _SETTINGS[name]
        if (value := _WORDS.get(text.lower())) is None:
            raise ConfigError(
                f"{name}={text!r} cannot be used: on or off is needed",
                where=ORIGIN,
                next_step=f"{name} takes on or off; it is: {setting.help}",
            )
        # Off is None there: False would be part of AOTAutograd's keys, so that nothing stored is found.
        chosen = value or (None if setting.is_remote else False)
        module = importlib.import_module(setting.module) if "torch" in sys.modules else None
        done = self._switched.get(name) or _Switched(
            chosen, setting.value(), by_variable=module is None, variable=os.environ.get(name)
        )
        if module is not None:
            if done.by_variable:
                _take_assignments(module, setting.attribute)
            before = getattr(module, setting.attribute)
            setattr(module, setting.attribute, chosen)
            if setting.value() is not chosen:
                setattr(module, setting.attribute, before)
                raise _ignored(setting, text)
        if done.by_variable:
            _set_variable(name, _as_variable(chosen))
        self._switched[name] = replace(done, value=chosen)

    def forbid_autograd_cache(self) -> None:
        """Turn AOTAutograd's caches off on all threads until `restore`, whatever was set."""
        config: Any = importlib.import_module("torch._functorch.config")
        for name in ("enable_autograd_cache", "enable_remote_autograd_cache"):
            entry = config._config[name]
            self._forced.append((entry, entry.env_value_force))
            entry.env_value_force = False
            if getattr(config, name):
                raise UnsupportedTorch(f"torch ignores {name}=False")

    def restore(self) -> None:
        """Switch back what was switched, unless somebody else has switched it since."""
        still = self.switched
        for name, done in self._switched.items():
            setting = _SETTINGS[name]
            if done.by_variable and os.environ.get(name) == _as_variable(done.value):
                _set_variable(name, done.variable)
            module = sys.modules.get(setting.module)
            if module is not None and name in still:
                if done.by_variable:
                    _take_assignments(module, setting.attribute)
                setattr(module, setting.attribute, done.before)
        self._switched.clear()
        while self._forced:
            entry, value = self._forced.pop()
            entry.env_value_force = value

    def _row(self, setting: _Setting, shares: bool) -> CacheSetting:
        notes = "; ".join(self._notes(setting, shares))
        return CacheSetting(
            setting.name, _in_words(setting.value()), self._origin(setting), setting.help, notes
        )

    def _origin(self, setting: _Setting) -> str:
        value, given = setting.value(), setting.given()
        if setting.name in self.switched:
            return ORIGIN
        if given is not None and value is not None and setting.read(given[1]) is value:
            return f"environment, {given[0]}"
        return "default" if value is setting.default else "set in this kernel"

    def _notes(self, setting: _Setting, shares: bool) -> Iterator[str]:
        value, given = setting.value(), setting.given()
        if value:
            yield from _limits(setting.name, shares)
        if setting.name == _AUTOGRAD_REMOTE and value is not None:
            yield "it is part of AOTAutograd's keys: what was kept where it is not set is not found"
        if given is None or setting.name in self.switched:
            return
        if (taken := setting.read(given[1])) is not value:
            yield f"{'='.join(given)} is not in force: torch reads it when it is imported"
        elif given[1] not in ("0", "1"):
            counts = "as not set" if taken is None else f"as {_in_words(taken)}"
            yield f"torch knows 1 and 0 only: {'='.join(given)} counts {counts}"


def _limits(name: str, shares: bool) -> Iterator[str]:
    """Yield what limits a setting that is on, and whom a remote cache asks."""
    on = {each.name for each in _SETTINGS.values() if each.value()}
    if name == _FORCE_DISABLE:
        yield "every graph is compiled anew, and its outcome is disabled"
    elif _FORCE_DISABLE in on:
        yield f"without effect: {_FORCE_DISABLE} is on"
    elif name in (_AUTOGRAD, _AUTOGRAD_REMOTE) and not on & {_FX, _FX_REMOTE}:
        yield f"without effect: it needs {_FX}"
    elif name == _AUTOTUNE_REMOTE and find_spec("triton") is None:
        yield "without effect: there is no Triton"
    elif _SETTINGS[name].is_remote and shares:
        yield "nbcache answers it while a shared level is connected: torch asks no Redis"
    elif _SETTINGS[name].is_remote:
        yield f"torch asks {_redis()}"
        if name == _AUTOGRAD_REMOTE and _FX_REMOTE not in on:
            yield f"it hits where the graphs are in torch's folder: {_FX_REMOTE} shares them, too"


def _redis() -> str:
    """Return which Redis torch asks; its URL may hold a password."""
    if "TORCHINDUCTOR_REDIS_URL" in os.environ:
        return "the Redis of TORCHINDUCTOR_REDIS_URL"
    host = os.environ.get("TORCHINDUCTOR_REDIS_HOST", "localhost")
    port = os.environ.get("TORCHINDUCTOR_REDIS_PORT", "6379")
    return f"the Redis at {host}:{port} (TORCHINDUCTOR_REDIS_URL names another)"


def _ignored(setting: _Setting, text: str) -> ConfigError:
    given = setting.given()
    variable, written = (setting.name, setting.name) if given is None else (given[0], "=".join(given))
    return ConfigError(
        f"torch ignores {setting.name}={text}, since {written} was in the environment when it was imported: "
        "nothing is changed",
        where=ORIGIN,
        next_step=f"unset {variable}, and restart the kernel",
    )


def _take_assignments(module: ModuleType, attribute: str) -> None:
    """Have torch take what is assigned to an attribute, though a variable of ours was set at its import.

    torch keeps what it read there as `env_value_force`. Where it is built otherwise, nothing changes.
    """
    with contextlib.suppress(AttributeError, ImportError, KeyError):
        from torch.utils._config_module import _UNSET_SENTINEL

        module._config[attribute].env_value_force = _UNSET_SENTINEL


def _as_variable(value: bool | None) -> str | None:
    return None if value is None else str(int(value))


def _set_variable(name: str, text: str | None) -> None:
    if text is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = text


def _in_words(value: bool | None) -> str:
    return {True: "on", False: "off", None: "off (torch decides)"}[value]
