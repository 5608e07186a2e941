"""torch's cache settings, under their names in its caching guide, with values and origins."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from nbcache.core.errors import ConfigError, UnsupportedTorch
from nbcache.core.patches import Patches

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_WORDS = {True: "on", False: "off", None: "off (torch decides)"}


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    place: str
    help: str
    default: bool | None = None
    """None for the remote caches: torch decides."""
    other: str = ""
    """Another environment variable, which torch reads if `name` is unset."""
    means: str = ""
    """The consequence of a value other than the default, if that turns a cache off."""

    def variable(self) -> tuple[str, str] | None:
        names = (name for name in (self.name, self.other) if name in os.environ)
        return next(((name, os.environ[name]) for name in names), None)

    def read(self) -> bool | None:
        """Return the value that torch reads from the environment during its import."""
        if (variable := self.variable()) is None:
            return self.default
        if variable[1] in ("0", "1"):
            return variable[1] == "1"
        return None if self.default is None else bool(variable[1])

    def value(self) -> bool | None:
        """Return the value in force, without importing torch."""
        name, _, attribute = self.place.rpartition(".")
        module = sys.modules.get(name)
        value = self.read() if module is None else getattr(module, attribute, self.default)
        return None if value is None else bool(value)

    def is_off(self) -> bool:
        return bool(self.means) and self.value() is not self.default

    def origin(self) -> str:
        value, variable = self.value(), self.variable()
        if variable is not None and value is not None and self.read() is value:
            return f"environment, {variable[0]}"
        return "default" if value is self.default else "set in this kernel"

    def notes(self) -> Iterator[str]:
        value, variable = self.value(), self.variable()
        if self is _DISABLE and value:
            yield "torch compiles every graph again, and its outcome is disabled"
        elif value and _DISABLE.value():
            yield f"without effect: {_DISABLE.name} is on"
        elif value and self in (_AUTOGRAD, _AUTOGRAD_REMOTE) and not (_FX.value() or _FX_REMOTE.value()):
            yield f"without effect: it needs {_FX.name}"
        if self is _AUTOGRAD_REMOTE and value is not None:
            yield "it is part of AOTAutograd's keys: entries that were stored without it do not hit"
        if variable is not None:
            text = "=".join(variable)
            if self.read() is not value:
                yield f"{text} is not in force: torch reads it when it is imported"
            elif variable[1] not in ("0", "1"):
                yield f"torch knows 1 and 0 only: with {text} it is {_WORDS[value]}"


_FX = _Setting(
    "TORCHINDUCTOR_FX_GRAPH_CACHE",
    "torch._inductor.config.fx_graph_cache",
    "torch's cache of compiled graphs, in its folder",
    True,
    "TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT",
    "no graph can hit",
)
_AUTOGRAD = _Setting(
    "TORCHINDUCTOR_AUTOGRAD_CACHE",
    "torch._functorch.config.enable_autograd_cache",
    "torch's cache of AOTAutograd's results, in its folder",
    True,
    means="graphs can hit, but AOTAutograd runs again for each",
)
_FX_REMOTE = _Setting(
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "torch._inductor.config.fx_graph_remote_cache",
    "torch's cache of compiled graphs, on a Redis",
)
_AUTOGRAD_REMOTE = _Setting(
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "torch._functorch.config.enable_remote_autograd_cache",
    "torch's cache of AOTAutograd's results, on a Redis",
)
_AUTOTUNE_REMOTE = _Setting(
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "torch._inductor.config.autotune_remote_cache",
    "torch's cache of Triton kernels' best configurations, on a Redis",
)
_DISABLE = _Setting(
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "torch.compiler.config.force_disable_caches",
    "turn all of torch's caches off, whatever else is set",
    False,
    "TORCH_COMPILE_FORCE_DISABLE_CACHES",
    "no graph can hit",
)
_SETTINGS = (_FX, _AUTOGRAD, _FX_REMOTE, _AUTOGRAD_REMOTE, _AUTOTUNE_REMOTE, _DISABLE)
NAMES = (*(setting.name for setting in _SETTINGS), FOLDER)


@dataclass(frozen=True, slots=True)
class SwitchedOff:
    setting: str
    """As in code or a shell: `torch._inductor.config.fx_graph_cache = False`, `TORCHINDUCTOR_…=0`."""
    means: str
    remedy: str
    hits: bool


def switched_off() -> Iterator[SwitchedOff]:
    """Yield the settings that turn torch's caches off."""
    for setting in filter(_Setting.is_off, _SETTINGS):
        hits, means = setting is _AUTOGRAD, setting.means
        if setting is _FX and _FX_REMOTE.value():
            hits, means = True, "only torch's remote cache stores graphs"
        text, remedy = f"{setting.place} = {setting.value()}", f"{setting.place} = {setting.default}"
        if (variable := setting.variable()) is not None and setting.read() is not setting.default:
            text, remedy = "=".join(variable), f"unset {variable[0]}, and restart the kernel"
        yield SwitchedOff(text, means, remedy, hits)


@dataclass(frozen=True, slots=True)
class CacheSetting:
    name: str
    value: str
    origin: str
    help: str
    note: str = ""
    """The reason why the value has another effect than it seems."""


def rows() -> list[CacheSetting]:
    """Return torch's cache settings, except the folder."""
    return [
        CacheSetting(it.name, _WORDS[it.value()], it.origin(), it.help, "; ".join(it.notes()))
        for it in _SETTINGS
    ]


def why_disabled() -> str | None:
    """Return a sentence on the setting that keeps torch from looking graphs up; None without one."""
    for setting in (_DISABLE, _FX):
        if setting.is_off():
            origin = setting.origin().removesuffix(f", {setting.name}")
            return f"torch's caches are off: {setting.name} is {_WORDS[setting.value()]} ({origin})"
    return None


def refusal(name: str) -> ConfigError:
    """Return the error for an attempt to change a torch setting by `%nbcache config`."""
    step = f"set {FOLDER} in the environment, and restart the kernel"
    for setting in (setting for setting in _SETTINGS if setting.name == name):
        step = f"assign True or False to {setting.place}"
        if setting.default is not None and (variable := setting.variable()) is not None:
            step = f"unset {variable[0]}, and restart the kernel"  # torch ignores assignments
    message = f"{name} is a setting of torch, which nbcache only shows"
    return ConfigError(message, where="%nbcache config", next_step=step)


def forbid_autograd_cache(patches: Patches) -> None:
    """Turn AOTAutograd's caches off on all threads until `patches` are restored, despite other settings."""
    config: Any = importlib.import_module("torch._functorch.config")
    for name in ("enable_autograd_cache", "enable_remote_autograd_cache"):
        entry = config._config[name]
        patches.undo(partial(setattr, entry, "env_value_force", entry.env_value_force))
        entry.env_value_force = False
        if getattr(config, name):
            raise UnsupportedTorch(f"torch ignores {name}=False")
