"""Leases on Redis, stored beside the values of a `RedisStore`, on its connections.

A lease shows the kernels that share a store which of them compiles a graph. One kernel holds a lease at a
time. The lease expires, so that no kernel waits for a dead one. If a kernel is suspended for longer than its
lease, it compiles in parallel with the next holder, and the store keeps both results.

`<prefix>:lock:<name>` is redis-py's `Lock`: a string of 16 random bytes and the holder's statement, which
expires when the lease ends, by the server's clock. (A replica that takes over may lack the last claims: then
two kernels may hold a lease until the first asks.) At the server's memory limit a lease cannot be claimed.

A Redis user needs the commands GET SET DEL PEXPIRE EVALSHA SCRIPT LOAD, on a Cluster also CLUSTER and
COMMAND, and the keys `<prefix>:*`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nbcache.storage.backends.base import check_key
from nbcache.storage.backends.redis.client import deadline
from nbcache.storage.backends.redis.store import RedisStore

_T = TypeVar("_T")

HOLDER_BYTES = 16 * 1024
_MOST_BYTES = 1 << 20
_NONCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Lease:
    name: str
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Claim:
    lease: Lease | None
    holder: bytes | None
    """The other kernel's statement; also None if that kernel has just released the lease."""


class RedisLeases:
    """Leases, named by store keys, on a store's connections. Thread-safe."""

    def __init__(self, store: RedisStore):
        self._store = store

    def claim(self, name: str, holder: bytes, seconds: float) -> Claim:
        """Take the lease `name` for `seconds`, or return its holder's statement.

        After a StoreError this kernel may still hold the lease, until it expires.
        """
        lease = Lease(name, secrets.token_bytes(_NONCE_BYTES) + holder)

        def claim(lock: Any) -> Claim:
            if lock.acquire(blocking=False, token=lease.token):
                return Claim(lease, None)
            current = lock.redis.get(lock.name)
            if current == lease.token:  # the first answer was lost, and redis-py sent the claim again
                return Claim(lease, None)
            if current is None:
                return Claim(None, None)
            if not isinstance(current, bytes) or len(current) < _NONCE_BYTES:
                raise TypeError("no token of a lease")
            return Claim(None, current[_NONCE_BYTES:])

        return self._run(claim, name, seconds=seconds)

    def extend(self, lease: Lease, seconds: float) -> bool:
        return self._run(lambda lock: _succeeds(lock.reacquire), lease.name, lease.token, seconds)

    def release(self, lease: Lease) -> bool:
        return self._run(lambda lock: _succeeds(lock.release), lease.name, lease.token)

    def _run(
        self, ask: Callable[[Any], _T], name: str, token: bytes | None = None, seconds: float = 1.0
    ) -> _T:
        key = f"{self._store.address.prefix}:lock:{check_key(name)}"

        def ask_lock(client: Any) -> _T:
            from redis.lock import Lock

            lock = Lock(client, key, timeout=seconds, thread_local=False)
            lock.local.token = token
            with deadline(self._store.timeout, _MOST_BYTES):
                return ask(lock)

        return self._store.exchange(ask_lock)


def _succeeds(action: Callable[[], object]) -> bool:
    """Call `action`; return False if the lease has expired, or is another kernel's."""
    from redis.exceptions import LockError

    try:
        action()
    except LockError:
        return False
    return True
