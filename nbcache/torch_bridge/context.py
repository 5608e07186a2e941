"""The bridge, as the parts of nbcache see it that hook torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nbcache.kernel.prewarming import Steps

if TYPE_CHECKING:
    from nbcache.core.cpu_levels import Baseline
    from nbcache.kernel.session import Session


@dataclass(frozen=True, slots=True)
class Context:
    session: Session
    serving: Callable[[], bool]
    """Return whether torch looks where nbcache puts what it restores, and may find it there."""
    owned: Callable[[], bool]
    """Return whether torch's folder holds only what was made in this environment."""
    baseline: Callable[[], Baseline | None]
    """Return what C++ kernels are compiled for instead of the CPU that is here."""
    is_lost: Callable[[str], bool] = lambda name: False
    """Return whether the part of this name is off: torch has no place for it, or it has failed."""
    disown: Callable[[], None] = lambda: None
    """From now on, treat artifacts in torch's folder as foreign."""
    why_disabled: Callable[[], str | None] = lambda: None
    """Return why torch asks no cache for a graph, where a setting is the reason."""
    settle: Callable[[], None] = lambda: None
    """Make torch's settings follow to the thread that compiles."""


class Keys(Protocol):
    off: bool


class Traces(Protocol):
    def off_because(self) -> str:
        """Return why this kernel has no traces whatever its setting is; empty where it has."""

    def steps(self, run_sample: Callable[[], float | None]) -> Steps:
        """Yield what is done while no cell runs."""
