"""Leases and channels: kernels that share a store see who compiles what, and hear what is new.

One kernel holds a lease at a time. The lease expires, so that no kernel waits for one that died. A kernel may
be stopped for longer than its lease lasts, and then not know that the lease has ended. So it asks
`Coordinator.holds` before it writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

__all__ = ["HOLDER_BYTES", "LEASE_SECONDS", "MESSAGE_BYTES", "Claim", "Coordinator", "Lease", "Listener"]

HOLDER_BYTES = 16 * 1024
"""The longest statement of a holder."""
LEASE_SECONDS = 86_400.0
"""The longest that a lease lasts unless it is extended."""
MESSAGE_BYTES = 64 * 1024
"""The longest message of a channel."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease of this kernel, until it ends or is released."""

    name: str
    """A store key."""
    token: bytes = field(repr=False)
    """Differs from the token of every other claim, and ends with the holder's statement."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim: a lease, or its holder's statement."""

    lease: Lease | None
    """Ours, or None where another kernel holds it."""
    holder: bytes | None
    """The other kernel's statement; None where the lease is ours, or its holder let it go meanwhile."""


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
        """Take the lease `name` for `seconds`, or return its holder's statement.

        After a StoreError this kernel may have the lease all the same; it then ends by itself.
        """

    def extend(self, lease: Lease, seconds: float) -> bool:
        """Let `lease` end `seconds` from now; return whether this kernel still holds it."""

    def release(self, lease: Lease) -> bool:
        """End `lease`; return whether this kernel still held it."""

    def holds(self, lease: Lease) -> bool:
        """Return whether this kernel holds `lease`, as the server sees it."""

    def announce(self, channel: str, message: bytes) -> None:
        """Have all who listen to `channel` now hear `message`, once or, where a connection is lost, twice."""

    def listen(self, channel: str, heard: Callable[[bytes], None]) -> Listener:
        """Call `heard` with each message of `channel`, on a thread of its own, until that is closed.

        It returns at once, connects by itself, and again whenever the connection is lost; what is announced
        meanwhile is not heard. What `heard` raises is dropped. A forked child does not listen.
        """
