"""What the bridge gives the providers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbcache.core.cpu_levels import Baseline
    from nbcache.kernel.session import Session

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    """The session, and what may be done with torch's folder now."""

    session: Session
    serving: Callable[[], bool]
    """Tells whether torch looks where nbcache puts what it restores, and may find it there."""
    owned: Callable[[], bool]
    """Tells whether torch's folder holds only what was made in this environment."""
    baseline: Callable[[], Baseline | None]
    """Returns what C++ kernels are compiled for instead of the CPU that is here."""
