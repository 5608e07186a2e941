"""Leases on Redis, beside the values of a `RedisStore` and by its connections.

Kernels that share a store see by a lease which of them compiles something. One kernel holds a lease at a
time. The lease expires, so that no kernel waits for one that died. A kernel may be stopped for longer than
its lease lasts, and then not know that the lease has ended. So it asks `holds` before it writes.

Below the prefix of the address (`nbcache.stores.redis.address`)::

    <prefix>:lock:<name>    redis-py's `Lock`: a string that expires when the lease ends
        16 random bytes, then the holder's statement

Only the server's clock counts. (A replica that takes over may lack the last claims: then two kernels may hold
a lease until the first asks.) A lease can be extended and released at the server's memory limit, though not
claimed.

A user of Redis needs the commands GET SET DEL PEXPIRE EVALSHA SCRIPT LOAD, on a Cluster also CLUSTER and
COMMAND, and the keys `<prefix>:*`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nbcache.stores.base import check_key
from nbcache.stores.redis.client import deadline
from nbcache.stores.redis.store import RedisStore

_T = TypeVar("_T")

HOLDER_BYTES = 16 * 1024
"""The longest statement of a holder that is read."""
_MOST_BYTES = 1 << 20
"""Bytes that are received for one lease."""
_NONCE_BYTES = 16


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


class RedisLeases:
    """Leases, named by store keys, on the connections of a store. Safe to call from several threads."""

    def __init__(self, store: RedisStore):
        self._store = store

    def claim(self, name: str, holder: bytes, seconds: float) -> Claim:
        """Take the lease `name` for `seconds`, or return its holder's statement.

        After a StoreError this kernel may have the lease all the same; it then expires.
        """
        lease = Lease(name, secrets.token_bytes(_NONCE_BYTES) + holder)

        def claim(lock: Any) -> Claim:
            if lock.acquire(blocking=False, token=lease.token):
                return Claim(lease, None)
            current = lock.redis.get(lock.name)
            if current == lease.token:  # the answer to this claim was lost, so it was sent again
                return Claim(lease, None)
            if current is None:
                return Claim(None, None)
            if not isinstance(current, bytes) or len(current) < _NONCE_BYTES:
                raise TypeError("no token of a lease")
            return Claim(None, current[_NONCE_BYTES:])

        return self._run(claim, name, seconds=seconds)

    def extend(self, lease: Lease, seconds: float) -> bool:
        """Let `lease` end `seconds` from now; return whether this kernel still holds it."""
        return self._run(lambda lock: _is_ours(lock.reacquire), lease.name, lease.token, seconds)

    def release(self, lease: Lease) -> bool:
        """End `lease`; return whether this kernel still held it."""
        return self._run(lambda lock: _is_ours(lock.release), lease.name, lease.token)

    def holds(self, lease: Lease) -> bool:
        """Return whether this kernel holds `lease`, as the server sees it."""
        return self._run(lambda lock: bool(lock.owned()), lease.name, lease.token)

    def _run(
        self, ask: Callable[[Any], _T], name: str, token: bytes | None = None, seconds: float = 1.0
    ) -> _T:
        """Return what `ask` returns for redis-py's lock of the lease `name`."""
        key = f"{self._store.address.prefix}:lock:{check_key(name)}"

        def ask_lock(client: Any) -> _T:
            from redis.lock import Lock

            lock = Lock(client, key, timeout=seconds, thread_local=False)
            lock.local.token = token
            with deadline(self._store.timeout, _MOST_BYTES):
                return ask(lock)

        return self._store.exchange(ask_lock)


def _is_ours(action: Callable[[], object]) -> bool:
    """Do something to a lock; return whether it is ours."""
    from redis.exceptions import LockError

    try:
        action()
    except LockError:
        return False
    return True
