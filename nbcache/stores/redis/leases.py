"""Leases and channels on Redis, beside the values of a `RedisStore` and by its connections.

Below the prefix of the address (`redis_address`)::

    <prefix>:lease:<name>                      a hash, which outlives its lease by a day
        token     of the last lease, a decimal number
        ends      when it ends, in microseconds of the server's clock; absent where it was released
        holder    what its holder said of itself; absent where it was released
        nonce     a random number of 128 bits, of the claim that made it or of its release

    <prefix>:channel:<database>:<channel>      a channel, to which messages are published as they are

Each operation on a lease is one script, and so atomic. A script that is sent again, since its answer was
lost, finds its nonce and answers the same. Only the server's clock counts. A token is that clock's time of
the claim, or one more than the last token where that is more: it grows even after the hash was evicted, or
has expired. The lease is evicted with it, and whoever held it is told so. (A replica that takes over may lack
the last claims: then two may hold a lease until the first asks.)

A lease can be extended and released at the server's memory limit, though not claimed. A lease is one key, so
all this works while a Cluster moves it; channels reach all nodes of a Cluster from any. Channels do not
belong to a database of Redis, so its number is in their names.

A user of Redis needs the commands EVAL HMGET HSET HDEL PEXPIRE TIME PUBLISH SUBSCRIBE PING, on a Cluster
also CLUSTER and COMMAND, the keys `<prefix>:*` and the channels `<prefix>:*` (`~<prefix>:* &<prefix>:*`).
"""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from nbcache.core.threads import renew_in_children
from nbcache.stores.base import check_key
from nbcache.stores.leases import HOLDER_BYTES, LEASE_SECONDS, MESSAGE_BYTES, Claim, Lease
from nbcache.stores.redis.client import deadline, disconnect
from nbcache.stores.redis.store import RedisStore

__all__ = ["RedisCoordinator", "RedisListener"]

_T = TypeVar("_T")

_CLOSE_SECONDS = 1.0
_SILENCE_SECONDS = 30.0
"""After so long without a word the server is asked for one, or a connection could be dead unnoticed."""
_MOST_BYTES = 1 << 20
"""Received for one message: several short ones may come together."""
_PAUSES = (0.1, 30.0)
"""Seconds between attempts to connect again: the first, and what they grow to."""

# What all scripts begin with. `write` is for a script's first write, the one that a replica or a full server
# refuses: it keeps the error's code in front, where Redis before 7 puts the place in the script.
_HEAD = """
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local token, ends, holder, nonce = unpack(redis.call('HMGET', KEYS[1], 'token', 'ends', 'holder', 'nonce'))
local left = (tonumber(ends) or 0) - now
local function write(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    return {err = string.gsub(answer.err, '^@user_script: %d+: %-', '')}
  end
end
"""
# Arguments: nonce, microseconds, milliseconds to keep the hash, holder.
_CLAIM = f"""{_HEAD}
if left > 0 and nonce ~= ARGV[1] then return {{0, left, holder}} end
if left <= 0 then
  left = tonumber(ARGV[2])
  token = math.max((tonumber(token) or 0) + 1, now)
  local refused = write('HSET', KEYS[1],
    'token', token, 'ends', now + left, 'holder', ARGV[4], 'nonce', ARGV[1])
  if refused then return refused end
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {{tonumber(token), left}}
"""
# Arguments: token, microseconds, milliseconds to keep the hash. PEXPIRE comes first since a full server does
# not refuse it, nor what a script writes after its first write.
_EXTEND = f"""{_HEAD}
if token ~= ARGV[1] or left <= 0 then return 0 end
local refused = write('PEXPIRE', KEYS[1], ARGV[3])
if refused then return refused end
redis.call('HSET', KEYS[1], 'ends', now + ARGV[2])
return 1
"""
# Arguments: token, nonce. The hash stays, for its token.
_RELEASE = f"""{_HEAD}
if token ~= ARGV[1] then return 0 end
if left > 0 then
  local refused = write('HDEL', KEYS[1], 'ends', 'holder')
  if refused then return refused end
  redis.call('HSET', KEYS[1], 'nonce', ARGV[2])
  return 1
end
return nonce == ARGV[2] and 1 or 0
"""
# Argument: token.
_HOLDS = f"{_HEAD} return token == ARGV[1] and left > 0 and 1 or 0"


class RedisCoordinator:
    """A `Coordinator` by the connections of a store on Redis; holds nothing of its own.

    A listener takes a connection for dead after two times `silence` seconds without a word, and looks every
    `poll` seconds whether it was closed.
    """

    def __init__(self, store: RedisStore, *, silence: float = _SILENCE_SECONDS, poll: float = 0.1):
        self._store = store
        self._silence, self._poll = silence, poll

    def __repr__(self) -> str:
        return f"RedisCoordinator({self._store.name!r})"

    def claim(self, name: str, holder: bytes, seconds: float) -> Claim:
        """Take the lease `name` for `seconds`, or tell who has it."""
        if len(holder) > HOLDER_BYTES:
            raise ValueError(f"a holder of {len(holder):,} bytes; the most is {HOLDER_BYTES:,}")

        def answered(answer: Any) -> Claim:
            match answer:
                case [0, int(left), bytes(other)]:
                    return Claim(None, other, left / 1e6)
                case [int(token), int(left)] if token > 0:
                    return Claim(Lease(name, token, holder), None, left / 1e6)
            raise TypeError("no answer to a claim")

        return self._run(_CLAIM, answered, name, secrets.token_bytes(16), *_times(seconds), holder)

    def extend(self, lease: Lease, seconds: float) -> bool:
        """Have `lease` end `seconds` from now; False where it is not ours any more."""
        return self._run(_EXTEND, _yes, lease.name, lease.token, *_times(seconds))

    def release(self, lease: Lease) -> bool:
        """End `lease`; False, and nothing happens, where it is not ours any more."""
        return self._run(_RELEASE, _yes, lease.name, lease.token, secrets.token_bytes(16))

    def holds(self, lease: Lease) -> bool:
        """Return whether `lease` is ours still."""
        return self._run(_HOLDS, _yes, lease.name, lease.token)

    def announce(self, channel: str, message: bytes) -> None:
        """Have all who listen to `channel` now hear `message`."""
        name = self._channel(channel)
        if len(message) > MESSAGE_BYTES:
            raise ValueError(f"a message of {len(message):,} bytes; the most is {MESSAGE_BYTES:,}")

        def publish(client: Any) -> None:
            if not isinstance(client.execute_command("PUBLISH", name, message), int):
                raise TypeError("no number of listeners")

        self._store.exchange(publish)

    def listen(self, channel: str, heard: Callable[[bytes], None]) -> RedisListener:
        """Call `heard` with each message of `channel`, on a thread of its own."""
        return RedisListener(self._store, self._channel(channel), heard, self._silence, self._poll)

    def _run(self, script: str, answered: Callable[[Any], _T], name: str, *arguments: bytes | int) -> _T:
        """Return what the answer of a script for the lease `name` means."""
        key = f"{self._store.address.prefix}:lease:{check_key(name)}"
        # Not in a pipeline: on a Cluster, that asks a node which of these are keys each time.
        return self._store.exchange(
            lambda client: answered(client.execute_command("EVAL", script, 1, key, *arguments))
        )

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
                if len(message) <= MESSAGE_BYTES and not self._ends.is_set():
                    with contextlib.suppress(Exception):
                        self._heard(message)
            case [b"pong", _]:
                pass
            case _:
                raise TypeError("no message")


def _times(seconds: float) -> tuple[int, int]:
    """Return how long a lease is to last, in microseconds, and its hash, in milliseconds."""
    if not 0 < seconds <= LEASE_SECONDS:
        raise ValueError(f"a lease of {seconds:g} s; the most is {LEASE_SECONDS:g} s")
    return max(round(seconds * 1e6), 1), round((seconds + LEASE_SECONDS) * 1e3)


def _yes(answer: Any) -> bool:
    if answer not in (0, 1):
        raise TypeError("neither yes nor no")
    return bool(answer)
