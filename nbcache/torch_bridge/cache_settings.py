"""Settings of torch that keep its caches from working: those that are in force now.

Once the module of an attribute is imported, the environment variables do nothing; before, they decide.
Tested on torch 2.13.0 and 2.11.0.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

__all__ = ["SwitchedOff", "switched_off"]


@dataclass(frozen=True, slots=True)
class _Switch:
    module: str
    attribute: str
    on: bool
    """Its value where the cache works."""
    variables: tuple[str, ...]
    """Environment variables that set it, the strongest first."""
    means: str
    hits: bool = False
    """Whether graphs can hit in spite of it."""


_SWITCHES = (
    _Switch(
        "torch.compiler.config",
        "force_disable_caches",
        False,
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCH_COMPILE_FORCE_DISABLE_CACHES"),
        "no graph can hit",
    ),
    _Switch(
        "torch._inductor.config",
        "fx_graph_cache",
        True,
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT"),
        "no graph can hit",
    ),
    _Switch(
        "torch._functorch.config",
        "enable_autograd_cache",
        True,
        ("TORCHINDUCTOR_AUTOGRAD_CACHE",),
        "graphs can hit, but AOTAutograd works on each anew",
        hits=True,
    ),
)


@dataclass(frozen=True, slots=True)
class SwitchedOff:
    """A setting that keeps a cache of torch's from working."""

    setting: str
    """As one would write it: `torch._inductor.config.fx_graph_cache = False`, `TORCHINDUCTOR_…=0`."""
    means: str
    remedy: str
    hits: bool
    """Whether graphs can hit in spite of it."""


def switched_off() -> list[SwitchedOff]:
    """Return the settings that keep torch's caches from working now, without importing anything of torch."""
    return [found for switch in _SWITCHES if (found := _off(switch)) is not None]


def _off(switch: _Switch) -> SwitchedOff | None:
    variable = next((name for name in switch.variables if name in os.environ), "")
    given = os.environ.get(variable)
    chosen = switch.on if given is None else given not in ("", "0")  # as torch reads them
    setting = f"{switch.module}.{switch.attribute}"
    module = sys.modules.get(switch.module)
    value = chosen if module is None else bool(getattr(module, switch.attribute, switch.on))
    if value is switch.on:
        return None
    # torch ignores what is assigned to an attribute whose variable was set when it was imported.
    by_variable = chosen is not switch.on
    return SwitchedOff(
        f"{variable}={given}" if by_variable else f"{setting} = {value}",
        switch.means,
        f"unset {variable}, and restart the kernel" if by_variable else f"{setting} = {switch.on}",
        switch.hits,
    )
