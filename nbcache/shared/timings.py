"""How long kernels leave a shared store alone, and wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["USUAL", "Timings"]


@dataclass(frozen=True, slots=True)
class Timings:
    """In seconds."""

    first_pause: float = 2.0
    """How long a store that fails is left alone at first; then twice as long each time."""
    longest_pause: float = 300.0
    steady: float = 60.0
    """A store that fails again within this time after it came back is left alone for longer."""
    lease: float = 10.0
    """How long after its last heartbeat a kernel that compiles is believed dead."""
    heartbeat: float = 3.0
    least_expected: float = 5.0
    """How long compiling a graph is expected to take at least."""
    usually_expected: float = 60.0
    """The same, where nothing is known."""
    most_expected: float = 1800.0
    poll: float = 0.1
    """How often who listens to others looks whether it was closed."""


USUAL = Timings()
