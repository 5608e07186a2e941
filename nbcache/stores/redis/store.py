"""A store on Redis: one server, the primary that Sentinels name, or a Cluster.

Keys of Redis, below the prefix of the address (`redis_address`), `nbcache` unless given::

    <prefix>:v1:<key>                         a string, the value; or a hash, a value longer than one part
    <prefix>:tmp:<put>:{<prefix>:v1:<key>}    a hash that is being written; renamed when whole

    the hash    put          <put>:<number of parts>
                <put>:<n>    part n, from 0

`<put>` is a random number of 64 bits. That the parts of a value are fields of one key, and not keys, makes
them come and go together: committed by one RENAME, deleted by one DEL, replaced by one SET, evicted as one,
and never left over. A reader who is between two parts when the value is replaced finds no field of its
`<put>`, and starts again. The braces put both names into one slot of a Cluster. A temporary hash expires,
should its writer die. (A Cluster cannot move a key of more than 512 MB to another node.)

A user of Redis needs the commands GET SET DEL EXISTS EXPIRE PERSIST HSET HGET HLEN HSTRLEN RENAME SCAN, for
`swap` also EVAL, on a Cluster also CLUSTER and COMMAND, and the keys `<prefix>:*`. What leases
and channels need is in `leases`.

Each round trip has a deadline, however the server drips, stalls or moves its keys: the operation timeout, and
at most one connect timeout more. All that one `get` or `get_many` does has one together, and a bound on its
bytes. A value in parts takes a round trip for each part, after one for their lengths: what has more parts
than are written here, or is longer, is absent, and not read. Finding a host's address is not bounded: the
system's resolver cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from nbcache.core.errors import StoreError, StoreFull
from nbcache.core.threads import renew_in_children
from nbcache.stores.base import MAX_VALUE_BYTES, check_key, check_length, check_prefix, is_key
from nbcache.stores.redis.address import Address
from nbcache.stores.redis.client import TooMuchError, connect, deadline, disconnect, require_redis
from nbcache.stores.redis.faults import Faults
from nbcache.stores.redis.scripts import MOST_PARTS, SWAP, runs_scripts

__all__ = ["RedisStore"]

_PART_BYTES = 64 * 1024**2
_OVERHEAD_BYTES = 16 << 20
"""What may come beside a value: keys, lengths, other answers."""
_TEMPORARY_SECONDS = 600
"""How long after its last part a temporary hash is kept: its writer must be dead."""
_ATTEMPTS = 3
"""How often a value in parts is read again because it was replaced meanwhile; then it is absent."""
_SCAN_COUNT = 1000
_SCAN_BYTES = 16 << 20
"""The longest answer to one SCAN, which is about a thousandth of that."""
_LISTING_FACTOR = 15
"""A listing may take so many times as long as another operation."""
_MOST_NAMES, _MOST_NAME_BYTES = 1_000_000, 256 << 20
"""What a listing may hold: ten times what the benchmark writes. A server may name new keys for ever."""
_COMPARED_BYTES = 64 * 1024
"""What a server digests of a value to tell it from another as long: a script holds up all others."""
_T = TypeVar("_T")

_IN_PARTS = object()
"""The answer to a command for a string where there is a hash, and the other way round."""


class RedisStore:
    """Values on a Redis server that others use too. Connects when it is first used.

    `url` is as `redis_address` says; timeouts are in seconds. Raises ConfigError where the URL is not
    understood or redis-py is not installed.
    """

    read_only = False  # whether a server is a replica shows when it is written to, and changes

    def __init__(
        self,
        url: str,
        *,
        connect_timeout: float = 0.25,
        timeout: float = 2.0,
        part_bytes: int = _PART_BYTES,
    ):
        self._address = Address.parse(url)
        self.name = self._address.name
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._part_bytes = part_bytes
        self._faults = Faults(self.name, self._address, timeout, connect_timeout)
        self._open: Any = None
        """redis-py's client, once connected. Its annotations do not tell synchronous from asynchronous."""
        self._runs_scripts: bool | None = None
        """Whether this user may run scripts; None until that is asked."""
        self._lock = threading.Lock()
        require_redis()
        renew_in_children(self)

    def __repr__(self) -> str:
        return f"RedisStore({self.name!r})"

    @property
    def address(self) -> Address:
        return self._address

    @property
    def timeout(self) -> float:
        """Seconds that an operation may take."""
        return self._timeout

    def renew(self) -> None:
        """Go on in a forked child, with connections of its own."""
        self._lock = threading.Lock()
        self._open = None

    def get(self, key: str) -> bytes | None:
        """Return the bytes under `key`, or None."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return those of `keys` that are there, with their bytes.

        One round trip, on a Cluster to all nodes at once; those in parts are then read one by one, until all
        have as many bytes as one value may have: others are absent.
        """
        names = {key: self._key(key) for key in keys}
        if not names:
            return {}
        found = {}
        left = MAX_VALUE_BYTES
        with deadline(self._timeout, MAX_VALUE_BYTES + _OVERHEAD_BYTES):
            answers = self._ask(*(("GET", name) for name in names.values()))
            for (key, name), answer in zip(names.items(), answers, strict=True):
                value = self._joined(name, left) if answer is _IN_PARTS else self._bytes(answer)
                if value is not None:
                    found[key] = value
                    left -= len(value)
        return found

    def present(self, keys: Iterable[str]) -> set[str]:
        """Return those of `keys` that are there. One round trip, on a Cluster to all nodes at once."""
        names = {key: self._key(key) for key in keys}
        if not names:
            return set()
        answers = self._ask(*(("EXISTS", name) for name in names.values()))
        if any(answer not in (0, 1) for answer in answers):
            raise self._faults.garbled()
        return {key for key, answer in zip(names, answers, strict=True) if answer}

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key`, whole or not at all."""
        name, ttl = self._key(key), self._address.ttl
        check_length(value)
        if len(value) > self._part_bytes:
            # In this order, a connection lost in between leaves a value that expires too soon, no worse.
            expire = ("PERSIST", name) if ttl is None else ("EXPIRE", name, ttl)
            renamed, _ = self._ask(("RENAME", self._put_parts(name, value), name), expire)
            if renamed is not True:
                raise self._faults.garbled()
        else:
            (stored,) = self._ask(("SET", name, value, *(() if ttl is None else ("EX", ttl))))
            if stored is not True:
                raise self._faults.garbled()

    def swap(self, key: str, before: bytes | None, value: bytes) -> bool | None:
        """Store `value` if `before` is there still, or nothing where it is None; else return False.

        It is told from others by its length and its beginning, which the statement of a variant is in.
        Returns None, and nothing is stored, where this user may run no scripts.
        """
        name = self._key(key)
        check_length(value)
        most = min(_COMPARED_BYTES, self._part_bytes)
        length, beginning = (-1, b"") if before is None else (len(before), before[:most])
        digest = hashlib.sha1(beginning, usedforsecurity=False).hexdigest()
        compared = (length, most, digest, self._address.ttl or 0)
        if self._runs_scripts is None:
            self._runs_scripts = self.exchange(partial(runs_scripts, name))
        if not self._runs_scripts:
            return None
        if len(value) <= self._part_bytes:
            (swapped,) = self._ask(("EVAL", SWAP, 1, name, *compared, value))
        else:
            temporary = self._put_parts(name, value)
            (swapped,) = self._ask(("EVAL", SWAP, 2, name, temporary, *compared))
            if swapped == 0:
                self._ask(("DEL", temporary))
        if swapped not in (0, 1):
            raise self._faults.garbled()
        return bool(swapped)

    def delete(self, key: str) -> None:
        """Remove `key`; nothing happens where it is not there."""
        self._ask(("DEL", self._key(key)))

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`; some that come or go meanwhile may be missed.

        A round trip for each 1,000 keys of the whole database: Redis has no index of names.
        """
        return self._scan(check_prefix(prefix))

    def close(self) -> None:
        """Close all connections; a later operation opens new ones."""
        with self._lock:
            client, self._open = self._open, None
        if client is not None:
            disconnect(client)

    def new_client(self) -> Any:
        """Return a client with connections of its own, which `close` leaves open; raise redis-py's errors."""
        return connect(self._address, self._connect_timeout, self._timeout)

    def exchange(self, send: Callable[[Any], _T]) -> _T:
        """Return what `send` returns, given redis-py's client; StoreError alone is raised, by the deadline.

        It is called again where the connection was lost, so what it sends may be done twice. Whatever it
        raises that is no error of redis-py means that the answer was garbage.
        """
        from redis.exceptions import AuthenticationError, ConnectionError

        with self._round_trip() as client:
            try:
                return send(client)
            except AuthenticationError:
                raise
            except ConnectionError:
                # The server was restarted, or the Sentinels name another one since: redis-py itself would try
                # the old one again. To send a command twice does no harm; at worst a value in parts that is
                # committed already is reported as not.
                return send(client)

    def _key(self, key: str) -> str:
        return f"{self._address.prefix}:v1:{check_key(key)}"

    def _joined(self, name: str, most: int) -> bytes | None:
        """Return the value in parts under `name`, all of one put; None where it is longer than `most` too.

        Of what nbcache does not write, such as a list, no bytes: every reader refuses an empty value.
        """
        is_strange = True
        for _ in range(_ATTEMPTS):
            (head,) = self._ask(("HGET", name, "put"))
            if head is _IN_PARTS:  # replaced by a short one
                (value,) = self._ask(("GET", name))
                if value is not _IN_PARTS:
                    return self._bytes(value)
                continue
            is_strange = False
            if head is None:
                return None
            put, _, count = (self._bytes(head) or b"").partition(b":")
            if not (count.isdigit() and len(count) < 10):
                return b""
            if int(count) > MOST_PARTS:
                return None
            fields = [b"%s:%d" % (put, number) for number in range(int(count))]
            lengths = self._ask(*(("HSTRLEN", name, field) for field in fields)) if fields else []
            if _IN_PARTS in lengths or 0 in lengths:
                continue  # replaced meanwhile
            if not all(isinstance(length, int) and length > 0 for length in lengths):
                raise self._faults.garbled()
            if sum(lengths) > most:
                return None
            parts = []
            for field, length in zip(fields, lengths, strict=True):
                (part,) = self._ask(("HGET", name, field))
                if not isinstance(part, bytes) or len(part) != length:
                    break
                parts.append(part)
            else:
                return b"".join(parts)
        return b"" if is_strange else None

    def _put_parts(self, name: str, value: bytes) -> str:
        """Write a temporary hash that is to become `name`, and return what it is called."""
        put = secrets.token_hex(8)
        temporary = f"{self._address.prefix}:tmp:{put}:{{{name}}}"
        starts = range(0, len(value), self._part_bytes)
        whole = memoryview(value)
        head: tuple[str, ...] = ("put", f"{put}:{len(starts)}")
        try:
            for number, start in enumerate(starts):
                part = whole[start : start + self._part_bytes]
                _, length, _ = self._ask(
                    ("HSET", temporary, *head, f"{put}:{number}", part),
                    ("HLEN", temporary),
                    ("EXPIRE", temporary, _TEMPORARY_SECONDS),
                )
                if number == 0 and length != 2:  # nothing was there that could have been evicted
                    raise self._faults.garbled()
                if length != number + 2:
                    raise StoreFull(
                        "Redis has evicted the first parts of a value before the last were there",
                        where=self.name,
                        next_step="raise its maxmemory",
                    )
                head = ()
        except StoreFull:
            with contextlib.suppress(StoreError):
                self._ask(("DEL", temporary))
            raise
        return temporary

    def _scan(self, prefix: str) -> Iterator[str]:
        beginning = f"{self._address.prefix}:v1:"
        spent, length = 0.0, 0
        seen = set()  # SCAN may name a key twice, and so may two nodes while it moves
        for node in self._nodes():
            cursor = 0
            while True:
                began = time.monotonic()
                with self._round_trip():
                    cursor, names = self._scanned(node, cursor, f"{beginning}{prefix}*")
                spent += time.monotonic() - began
                if (
                    spent > _LISTING_FACTOR * self._timeout
                ):  # or a server that never ends would be asked for ever
                    raise self._faults.of(TimeoutError())
                for name in names:
                    key = name.removeprefix(beginning)
                    if key not in seen and is_key(key):
                        seen.add(key)
                        length += len(key)
                        if len(seen) > _MOST_NAMES or length > _MOST_NAME_BYTES:
                            raise self._faults.crowded()
                        yield key
                if cursor == 0:
                    break

    def _scanned(self, node: Any, cursor: int, pattern: str) -> tuple[int, list[str]]:
        try:
            with deadline(self._timeout, _SCAN_BYTES):
                cursor, found = node.scan(cursor, match=pattern, count=_SCAN_COUNT)
        except TooMuchError:
            raise self._faults.crowded() from None
        return cursor, [bytes.decode(name, errors="replace") for name in found]

    def _nodes(self) -> list[Any]:
        """Return a client for each server that has keys of its own."""
        with self._round_trip() as client:
            if not self._address.cluster:
                return [client]
            # Or nodes that came after this store connected are left out.
            client.nodes_manager.initialize(disconnect_startup_nodes_pools=False)
            return [client.get_redis_connection(node) for node in client.get_primaries()]

    def _ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send these commands in one round trip and return their answers; raise the first error."""
        return self.exchange(lambda client: _send(client, commands))

    @contextlib.contextmanager
    def _round_trip(self) -> Iterator[Any]:
        """Yield the client; what is done with it ends by the deadline, and fails with StoreError alone."""
        try:
            with deadline(self._timeout, MAX_VALUE_BYTES + _OVERHEAD_BYTES):
                yield self._client()
        except Exception as error:  # what redis-py raises at garbage is not only its own errors
            # Nor may a traceback show what a server says.
            raise self._faults.of(error) from None

    def _client(self) -> Any:
        lock = self._lock
        if not lock.acquire(timeout=self._timeout):  # another thread connects to a Cluster
            raise TimeoutError
        try:
            if self._open is None:
                self._open = self.new_client()
            return self._open
        finally:
            lock.release()

    def _bytes(self, answer: Any) -> bytes | None:
        if answer is None or isinstance(answer, bytes):
            return answer
        raise self._faults.garbled()


def _send(client: Any, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for number, answer in enumerate(answers):
        if isinstance(answer, Exception):
            # The first word is the error's code; redis-py has no class for this one.
            if str(answer).partition(" ")[0] != "WRONGTYPE":
                raise answer
            answers[number] = _IN_PARTS
    return answers
