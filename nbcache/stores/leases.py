"""What kernels that share a store tell each other: who is at work on what, and what is new.

A lease is held by one at a time and ends by itself, so that nobody waits for ever for one who died. Who holds
it may be stopped for longer than it lasts, and then not know that it has ended: `Coordinator.holds` before a
write, and the lease's token with what is written, keep such a one from disturbing the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

__all__ = ["HOLDER_BYTES", "LEASE_SECONDS", "MESSAGE_BYTES", "Claim", "Coordinator", "Lease", "Listener"]

HOLDER_BYTES = 16 * 1024
"""The most that a holder says of itself."""
LEASE_SECONDS = 86_400.0
"""The longest that a lease lasts unless it is extended."""
MESSAGE_BYTES = 64 * 1024
"""The longest message of a channel."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What one holds and no other, until it ends or is released."""

    name: str
    """What is held, a store key."""
    token: int
    """Greater than that of every earlier lease of this name."""
    holder: bytes = field(repr=False)
    """What the holder said of itself."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim: a lease, or who has it."""

    lease: Lease | None
    """Ours, or None where another holds it."""
    holder: bytes | None
    """What the other said of itself; None where there is none, or it ended meanwhile."""
    remaining: float
    """Seconds until the lease, ours or the other's, ends unless it is extended."""


class Listener(Protocol):
    """What listens to a channel, on a thread of its own."""

    @property
    def connected(self) -> bool:
        """False where nothing is heard now: not connected yet, connecting again, or closed."""

    def close(self) -> None:
        """End the thread; wait for that no longer than about a second. Idempotent."""


@runtime_checkable
class Coordinator(Protocol):
    """Leases and channels. Safe to call from several threads; a `StoreError` is a failure.

    Names of leases and channels are store keys; ValueError where they are not, and where a holder, a message
    or `seconds` is beyond the limits above. A lease lasts from when the server was asked.
    """

    def claim(self, name: str, holder: bytes, seconds: float) -> Claim:
        """Take the lease `name` for `seconds`, or tell who has it, in one round trip.

        After a StoreError the lease may have been taken all the same; it then ends by itself.
        """

    def extend(self, lease: Lease, seconds: float) -> bool:
        """Have `lease` end `seconds` from now; False where it is not ours any more."""

    def release(self, lease: Lease) -> bool:
        """End `lease`; False, and nothing happens, where it is not ours any more."""

    def holds(self, lease: Lease) -> bool:
        """Return whether `lease` is ours still, as the server sees it."""

    def announce(self, channel: str, message: bytes) -> None:
        """Have all who listen to `channel` now hear `message`, once or, where a connection is lost, twice."""

    def listen(self, channel: str, heard: Callable[[bytes], None]) -> Listener:
        """Call `heard` with each message of `channel`, on a thread of its own, until that is closed.

        It returns at once, connects by itself, and again whenever the connection is lost; what is announced
        meanwhile is not heard. What `heard` raises is dropped. A forked child does not listen.
        """
