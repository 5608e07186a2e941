"""torch's cache settings, by the names of its caching guide: values, origins and switches.

If a variable was set when torch was imported, torch silently ignores assignments to the attribute, but for
the remote caches. On 2.13 a thread that a cell starts does not see an assignment.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from nbcache.core.errors import ConfigError, UnsupportedTorch

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
ORIGIN = "%nbcache config"
_VALUES = {
    **dict.fromkeys(("1", "on", "true", "yes"), True),
    **dict.fromkeys(("0", "off", "false", "no"), False),
}
_WORDS = {True: "on", False: "off", None: "off (torch decides)"}


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    place: str
    help: str
    default: bool | None = None
    """None for the remote caches: torch decides."""
    other: str = ""
    """A further variable, which torch reads without the first one."""
    means: str = ""
    """The consequence of another value than the default, if that turns a cache off."""

    def variable(self) -> tuple[str, str] | None:
        names = (name for name in (self.name, self.other) if name in os.environ)
        return next(((name, os.environ[name]) for name in names), None)

    def read(self) -> bool | None:
        """Return the value that torch takes from the environment when it is imported."""
        if (variable := self.variable()) is None:
            return self.default
        if variable[1] in ("0", "1"):
            return variable[1] == "1"
        return None if self.default is None else bool(variable[1])

    def value(self) -> bool | None:
        """Return the value that is in force, without importing torch."""
        name, _, attribute = self.place.rpartition(".")
        module = sys.modules.get(name)
        value = self.read() if module is None else getattr(module, attribute, self.default)
        return None if value is None else bool(value)

    def is_off(self) -> bool:
        return bool(self.means) and self.value() is not self.default


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
    means="graphs can hit, but AOTAutograd works on each anew",
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
_SETTINGS = {
    setting.name: setting
    for setting in (_FX, _AUTOGRAD, _FX_REMOTE, _AUTOGRAD_REMOTE, _AUTOTUNE_REMOTE, _DISABLE)
}
NAMES = (*_SETTINGS, FOLDER)


@dataclass(frozen=True, slots=True)
class SwitchedOff:
    setting: str
    """As in code or a shell: `torch._inductor.config.fx_graph_cache = False`, `TORCHINDUCTOR_…=0`."""
    means: str
    remedy: str
    hits: bool


def switched_off(switched: Collection[str] = ()) -> Iterator[SwitchedOff]:
    """Yield the settings that turn torch's caches off; `switched` are the names that nbcache changed."""
    for setting in filter(_Setting.is_off, _SETTINGS.values()):
        hits, means = setting is _AUTOGRAD, setting.means
        if setting is _FX and _FX_REMOTE.value():
            hits, means = True, "graphs are kept and looked up in torch's remote cache only"
        text, remedy = f"{setting.place} = {setting.value()}", f"{setting.place} = {setting.default}"
        if setting.name in switched:
            remedy = f"{ORIGIN} {setting.name}={_WORDS[setting.default]}"
        elif (variable := setting.variable()) is not None and setting.read() is not setting.default:
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


class CacheSettings:
    """Shows torch's cache settings, but for the folder, and switches them until `restore`."""

    def __init__(self) -> None:
        self._switched: dict[str, tuple[bool | None, bool | None]] = {}
        """Name → the value that `switch` assigned, and the one before the first switch."""
        self._forced: list[tuple[Any, Any]] = []
        """Entries of torch's configuration with forced values, and their values from before."""

    @property
    def switched(self) -> list[str]:
        return [name for name, (value, _) in self._switched.items() if _SETTINGS[name].value() is value]

    def rows(self) -> list[CacheSetting]:
        return [
            CacheSetting(name, _WORDS[it.value()], self._origin(it), it.help, "; ".join(self._notes(it)))
            for name, it in _SETTINGS.items()
        ]

    def why_disabled(self) -> str | None:
        """Return the setting because of which torch asks no cache for a graph, in words."""
        for setting in (_DISABLE, _FX):
            if setting.is_off():
                origin = self._origin(setting).removesuffix(f", {setting.name}")
                return f"torch's caches are off: {setting.name} is {_WORDS[setting.value()]} ({origin})"
        return None

    def switch(self, name: str, text: str) -> None:
        """Import a setting's module, and assign to it; ConfigError if torch would ignore that."""
        if name == FOLDER:
            what = "torch's folder is chosen before the kernel starts"
            next_step = f"set {FOLDER} in the environment, and restart the kernel"
            raise ConfigError(what, where=ORIGIN, next_step=next_step)
        setting = _SETTINGS[name]
        if (value := _VALUES.get(text.lower())) is None:
            what = f"{name}={text!r} cannot be used: on or off is needed"
            raise ConfigError(what, where=ORIGIN, next_step=f"{name} takes on or off")
        # None turns a remote cache off; False would be part of AOTAutograd's keys, and entries would miss.
        assigned = value or (None if setting.default is None else False)
        module_name, _, attribute = setting.place.rpartition(".")
        module = importlib.import_module(module_name)
        before = getattr(module, attribute)
        setattr(module, attribute, assigned)
        if setting.value() is not assigned:
            setattr(module, attribute, before)
            variable, words = setting.variable() or (name, text)
            what = (
                f"torch ignores {name}={text}, since {variable}={words} was in the environment when it was "
                "imported: nothing is changed"
            )
            raise ConfigError(what, where=ORIGIN, next_step=f"unset {variable}, and restart the kernel")
        self._switched[name] = assigned, self._switched.get(name, (None, before))[1]

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
        """Switch all settings back, unless another value was assigned since."""
        for name in self.switched:
            module, _, attribute = _SETTINGS[name].place.rpartition(".")
            setattr(sys.modules[module], attribute, self._switched[name][1])
        self._switched.clear()
        while self._forced:
            entry, value = self._forced.pop()
            entry.env_value_force = value

    def _origin(self, setting: _Setting) -> str:
        value, variable = setting.value(), setting.variable()
        if setting.name in self.switched:
            return ORIGIN
        if variable is not None and value is not None and setting.read() is value:
            return f"environment, {variable[0]}"
        return "default" if value is setting.default else "set in this kernel"

    def _notes(self, setting: _Setting) -> Iterator[str]:
        value, variable = setting.value(), setting.variable()
        if setting is _DISABLE and value:
            yield "every graph is compiled anew, and its outcome is disabled"
        elif value and _DISABLE.value():
            yield f"without effect: {_DISABLE.name} is on"
        elif value and setting in (_AUTOGRAD, _AUTOGRAD_REMOTE) and not (_FX.value() or _FX_REMOTE.value()):
            yield f"without effect: it needs {_FX.name}"
        if setting is _AUTOGRAD_REMOTE and value is not None:
            yield "it is part of AOTAutograd's keys: what was kept where it is not set is not found"
        if variable is not None and setting.name not in self.switched:
            text = "=".join(variable)
            if setting.read() is not value:
                yield f"{text} is not in force: torch reads it when it is imported"
            elif variable[1] not in ("0", "1"):
                yield f"torch knows 1 and 0 only: with {text} it is {_WORDS[value]}"
