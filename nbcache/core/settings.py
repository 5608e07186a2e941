"""nbcache's settings, their values, and the origin of each value."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nbcache.core.cpu_levels import BASELINES, OFF
from nbcache.core.errors import ConfigError
from nbcache.core.log import LEVELS
from nbcache.core.text import redacted


class Policy(enum.StrEnum):
    STRICT = "strict"
    """Artifacts run if the user or a trusted signer has signed them."""
    ASK = "ask"
    """Like `strict`; nbcache also asks the user whether to trust the signer of a notebook's snapshot."""
    OFF = "off"
    """Artifacts of anybody run, unsigned ones included; a signature must be valid."""


_TORCHS_REMOTE_CACHES = [
    f"TORCHINDUCTOR_{name}_REMOTE_CACHE" for name in ("FX_GRAPH", "AUTOGRAD", "AUTOTUNE")
]
"""If one of these is set, the user shares by the Redis that torch's other variables name."""
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _parse_folder(text: str) -> Path:
    if not text:
        raise ValueError("a folder is needed")
    return Path(text).expanduser().absolute()


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)  # GiB means GB
    if not match:
        raise ValueError("a size is needed, such as 500MB or 5GB")
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size < 10**6:
        raise ValueError("at least 1MB is needed")
    return size


def _parse_switch(text: str) -> bool:
    if text.lower() in ("1", "on", "true", "yes"):
        return True
    if text.lower() in ("0", "off", "false", "no"):
        return False
    raise ValueError("on or off is needed")


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text.strip().removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 600:
        raise ValueError("seconds from 0.01 to 600 are needed")
    return seconds


def _count(text: str) -> int:
    if not re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII):
        raise ValueError("a whole number is needed")
    return int(text)


@dataclass(frozen=True)
class _OneOf:
    values: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...] = ()

    def __call__(self, text: str) -> str:
        text = dict(self.aliases).get(text, text)
        if text not in self.values:
            raise ValueError(f"{', '.join(self.values[:-1])} or {self.values[-1]} is needed")
        return self.values[self.values.index(text)]  # the member of an enumeration


def _setting(default: Any, parse: Callable[[str], Any], help: str, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"parse": parse, "help": help}, repr=not secret)


def torch_redis_url(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the URL, without options, of the Redis for torch's remote caches, and its variable."""
    if url := environ.get("TORCHINDUCTOR_REDIS_URL"):
        return url.partition("?")[0], "TORCHINDUCTOR_REDIS_URL"
    host, port = (environ.get(f"TORCHINDUCTOR_REDIS_{name}") for name in ("HOST", "PORT"))
    variable = "TORCHINDUCTOR_REDIS_HOST" if host else "TORCHINDUCTOR_REDIS_PORT"
    host = f"[{host}]" if host and ":" in host else host or "localhost"  # an IPv6 address
    return f"redis://{host}:{port or 6379}", variable


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of nbcache. Each is also an environment variable: `NBCACHE_MAX_BYTES`."""

    dir: Path = _setting(
        Path("~/.cache/nbcache"), _parse_folder, "folder of the local store (read when the extension loads)"
    )
    max_bytes: int = _setting(
        5 * 10**9, _parse_size, "size bound of the local store; the least recently used artifacts go first"
    )
    save: bool = _setting(True, _parse_switch, "store compiled code")
    prefetch: bool = _setting(
        True, _parse_switch, "read this notebook's artifacts in the background, before cells need them"
    )
    prewarm: bool = _setting(True, _parse_switch, "import and initialize torch's compiler while no cell runs")
    trace: str = _setting(
        "on",
        _OneOf(("off", "on", "audit"), aliases=(("rerun", "on"),)),
        "keep traces, so that a restored function is not traced again where a kernel has run the same cells "
        "(on); trace it all the same, and compare (audit)",
    )
    audit: int = _setting(
        20,
        _count,
        "with traces, one of this many kernels audits one of them, and tries again to record functions "
        "that had none; 0 for none",
    )
    report: str = _setting(
        "always",
        _OneOf(("always", "magic", "never")),
        "report after each cell that compiles (always), after %%compile_cached only (magic), never",
    )
    live: bool = _setting(True, _parse_switch, "show a live line while a cell compiles")
    trust: Policy = _setting(
        Policy.STRICT,
        _OneOf(tuple(Policy)),
        "whose artifacts may run: yours and trusted signers' (strict), others' snapshots after asking (ask), "
        "anyone's (off)",
    )
    trust_dir: Path = _setting(
        Path("~/.config/nbcache"), _parse_folder, "folder of your key and of the signers that you trust"
    )
    autosnapshot: bool = _setting(
        False, _parse_switch, "write the snapshot beside the notebook after each cell that compiles"
    )
    tell_origin: bool = _setting(
        True, _parse_switch, "write your user and host into snapshots and shared entries"
    )
    portable: str = _setting(
        OFF, _OneOf((OFF, *BASELINES)), "compile CPU code for all CPUs of this kind, instead of for this one"
    )
    shared_url: str = _setting(
        "",
        str,
        "store that this kernel shares what it compiles with, from the next %nbcache connect on: redis://…, "
        "s3://…, a folder",
        secret=True,
    )
    shared_timeout: float = _setting(2.0, _parse_seconds, "seconds that the shared store may take to answer")
    shared_connect_timeout: float = _setting(
        0.25, _parse_seconds, "seconds that connecting to the shared store may take"
    )
    log: str = _setting(
        "off", _OneOf(LEVELS), "print lookups, and the reasons why entries are used or not (debug)"
    )
    notebook: str = _setting("", str, "path of this notebook, if nbcache does not find it")
    origins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("dir", "trust_dir"):
            object.__setattr__(self, name, getattr(self, name).expanduser().absolute())
        object.__setattr__(self, "origins", MappingProxyType(dict(self.origins)))

    @classmethod
    def names(cls) -> list[str]:
        return [*cls._fields()]

    @classmethod
    def _fields(cls) -> dict[str, Field[Any]]:
        return {field.name: field for field in fields(cls) if field.name != "origins"}

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Return the settings in `environ`: the variables `NBCACHE_<NAME>`, or the defaults."""
        settings = cls()
        for name in cls.names():
            variable = f"NBCACHE_{name.upper()}"
            if value := environ.get(variable, "").strip():
                settings = settings.with_value(name, value, origin=f"environment, {variable}")
        enabled = [name for name in _TORCHS_REMOTE_CACHES if environ.get(name) == "1"]
        if enabled and "NBCACHE_SHARED_URL" not in environ:  # an empty value turns sharing off
            url, variable = torch_redis_url(environ)
            variable = variable if variable in environ else enabled[0]
            settings = settings.with_value("shared_url", url, origin=f"environment, {variable}")
        return settings

    def with_value(self, name: str, text: str, *, origin: str, more: Sequence[str] = ()) -> Settings:
        """Return these settings with `name` parsed from `text`; errors suggest names, also of `more`."""
        settings = self._fields()
        if name not in settings:
            near = get_close_matches(name, settings, n=1) or get_close_matches(name.upper(), more, n=1)
            raise ConfigError(
                f"there is no setting {name!r}",
                where=origin,
                next_step=f"did you mean {near[0]!r}?"
                if near
                else f"the settings are: {', '.join(settings)}",
            )
        try:
            value = settings[name].metadata["parse"](text)
        except ValueError as error:
            raise ConfigError(
                f"{name}={text!r} cannot be used: {error}",
                where=origin,
                next_step=f"{name} is: {self.help(name)}",
            ) from None
        change: dict[str, Any] = {name: value}
        return replace(self, **change, origins={**self.origins, name: origin})

    def to_env(self) -> dict[str, str]:
        values = {name: self.text(name) for name in self.names() if name in self.origins}
        if "shared_url" in values:
            values["shared_url"] = self.shared_url
        return {f"NBCACHE_{name.upper()}": text for name, text in values.items()}

    def origin(self, name: str) -> str:
        return self.origins.get(name, "default")

    @classmethod
    def help(cls, name: str) -> str:
        return str(cls._fields()[name].metadata["help"])

    @classmethod
    def choices(cls, name: str) -> tuple[str, ...]:
        """Return the values of a setting that has few; else an empty tuple, also for unknown names."""
        parse = cls._fields()[name].metadata["parse"] if name in cls.names() else None
        if parse is _parse_switch:
            return ("on", "off")
        return parse.values if isinstance(parse, _OneOf) else ()

    def text(self, name: str) -> str:
        """Return the value of `name` as a user would write it, without secrets."""
        value = getattr(self, name)
        if name == "shared_url":
            return redacted(self.shared_url)
        if isinstance(value, float):
            return f"{value:g}"
        if isinstance(value, bool):
            return "on" if value else "off"
        if name == "max_bytes":  # at least 1 MB
            unit = max((unit for unit in _UNITS if value >= _UNITS[unit]), key=_UNITS.__getitem__)
            return f"{value / _UNITS[unit]:g}{unit}B"
        return str(value)
