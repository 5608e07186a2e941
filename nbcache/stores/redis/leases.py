"""Leases and channels on Redis, beside the values of a `RedisStore` and by its connections.

Kernels that share a store see by a lease which of them compiles something, and hear on a channel what is new.
One kernel holds a lease at a time. The lease expires, so that no kernel waits for one that died. A kernel may
be stopped for longer than its lease lasts, and then not know that the lease has ended. So it asks `holds`
before it writes.

Below the prefix of the address (`nbcache.stores.redis.address`)::

    <prefix>:lock:<name>                       redis-py's `Lock`: a string that expires when the lease ends
        16 random bytes, then the holder's statement

    <prefix>:channel:<database>:<channel>      a channel, to which messages are published as they are

Only the server's clock counts. (A replica that takes over may lack the last claims: then two kernels may hold
a lease until the first asks.) A lease can be extended and released at the server's memory limit, though not
claimed. Channels reach all nodes of a Cluster from any. They do not belong to a database of Redis, so its
number is in their names.

A user of Redis needs the commands GET SET DEL PEXPIRE EVALSHA SCRIPT LOAD PUBLISH SUBSCRIBE PING, on a
Cluster also CLUSTER and COMMAND, the keys `<prefix>:*` and the channels `<prefix>:*`
(`~<prefix>:* &<prefix>:*`).
"""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nbcache.core.threads import renew_in_children
from nbcache.stores.base import check_key
from nbcache.stores.redis.client import deadline, disconnect
from nbcache.stores.redis.store import RedisStore

__all__ = ["HOLDER_BYTES", "Claim", "Lease", "RedisCoordinator", "RedisListener"]

_T = TypeVar("_T")

HOLDER_BYTES = 16 * 1024
"""The longest statement of a holder that is read."""
_MESSAGE_BYTES = 64 * 1024
"""The longest message of a channel that is read."""
_CLOSE_SECONDS = 1.0
_SILENCE_SECONDS = 30.0
"""After so long without a word the server is asked for one, or a connection could be dead unnoticed."""
_MOST_BYTES = 1 << 20
"""Received for one message: several short ones may come together."""
_PAUSES = (0.1, 30.0)
"""Seconds between attempts to connect again: the first, and what they grow to."""
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


class RedisCoordinator:
    """Leases and channels by the connections of a store. Safe to call from several threads.

    Names of leases and channels are store keys. A StoreError is a failure. A lease lasts from when the server
    was asked. A listener takes a connection for dead after two times `silence` seconds without a word, and
    checks every `poll` seconds whether it was closed.
    """

    def __init__(self, store: RedisStore, *, silence: float = _SILENCE_SECONDS, poll: float = 0.1):
        self._store = store
        self._silence, self._poll = silence, poll

    def __repr__(self) -> str:
        return f"RedisCoordinator({self._store.name!r})"

    def claim(self, name: str, holder: bytes, seconds: float) -> Claim:
        """Take the lease `name` for `seconds`, or return its holder's statement.

        After a StoreError this kernel may have the lease all the same; it then ends by itself.
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

    def announce(self, channel: str, message: bytes) -> None:
        """Have all who listen to `channel` now hear `message`, once or, where a connection is lost, twice."""
        name = self._channel(channel)

        def publish(client: Any) -> None:
            if not isinstance(client.execute_command("PUBLISH", name, message), int):
                raise TypeError("no number of listeners")

        self._store.exchange(publish)

    def listen(self, channel: str, heard: Callable[[bytes], None]) -> RedisListener:
        """Call `heard` with each message of `channel`, on a thread of its own, until that is closed.

        It returns at once, connects by itself, and again whenever the connection is lost; messages are lost
        meanwhile, and so is what `heard` raises. A forked child does not listen.
        """
        return RedisListener(self._store, self._channel(channel), heard, self._silence, self._poll)

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

    def _channel(self, channel: str) -> str:
        address = self._store.address
        return f"{address.prefix}:channel:{address.database}:{check_key(channel)}"


class RedisListener:
    """A daemon thread that hears what is published to one channel, by a connection of its own."""

    def __init__(
        self,
        store: RedisStore,
        channel: str,
        heard: Callable[[bytes], None],
        silence: float,
        poll: float,
    ):
        self._store = store
        self._channel = channel.encode()
        self._heard = heard
        self._silence, self._poll = silence, poll
        self._connected = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nbcache-listen", daemon=True)
        renew_in_children(self)
        self._thread.start()

    @property
    def connected(self) -> bool:
        return self._connected

    def renew(self) -> None:
        """Be closed in a forked child: the thread is the parent's, and so is its connection."""
        self._connected = False
        self._ends = threading.Event()
        self._ends.set()

    def close(self) -> None:
        """End the thread; `heard` is not called again."""
        self._ends.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        shortest, longest = _PAUSES
        pause = shortest
        while not self._ends.is_set():
            start = time.monotonic()
            with contextlib.suppress(Exception):  # nobody waits for this thread: all it can do is try again
                self._listen()
            if time.monotonic() - start > longest:
                pause = shortest
            # Not all kernels at once that a server has lost.
            self._ends.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, longest)

    def _listen(self) -> None:
        """Hear messages until closed; raise where the connection is lost or was not made."""
        with self._subscribed() as connection:
            heard_at, asked = time.monotonic(), False
            while not self._ends.is_set():
                if connection.can_read(self._poll):
                    with deadline(self._store.timeout, _MOST_BYTES):
                        answer = connection.read_response()
                    self._take(answer)
                    heard_at, asked = time.monotonic(), False
                elif time.monotonic() - heard_at > self._silence:
                    if asked:
                        raise TimeoutError
                    connection.send_command("PING")
                    heard_at, asked = time.monotonic(), True

    @contextlib.contextmanager
    def _subscribed(self) -> Iterator[Any]:
        """Yield a connection that has subscribed to the channel; close it in the end."""
        with deadline(self._store.timeout):
            client = self._store.new_client()
        try:
            with deadline(self._store.timeout):
                server = client
                if self._store.address.cluster:  # messages reach all nodes
                    server = client.get_redis_connection(client.get_random_node())
                connection = server.connection_pool.get_connection()
                connection.send_command("SUBSCRIBE", self._channel)
                if connection.read_response() != [b"subscribe", self._channel, 1]:
                    raise TypeError("no answer to SUBSCRIBE")
            self._connected = True
            yield connection
        finally:
            self._connected = False
            disconnect(client)

    def _take(self, answer: Any) -> None:
        match answer:
            case [b"message", self._channel, bytes(message)]:
                # Longer ones are not of `announce`.
                if len(message) <= _MESSAGE_BYTES and not self._ends.is_set():
                    with contextlib.suppress(Exception):
                        self._heard(message)
            case [b"pong", _]:
                pass
            case _:
                raise TypeError("no message")


def _is_ours(action: Callable[[], object]) -> bool:
    """Do something to a lock; return whether it is ours."""
    from redis.exceptions import LockError

    try:
        action()
    except LockError:
        return False
    return True
