"""A store on Redis: one server, the primary that Sentinels name, or a Cluster.

Keys of Redis, below the prefix of the address (`nbcache.stores.redis.address`), `nbcache` unless given::

    <prefix>:v1:<key>    a string, the value

An earlier nbcache kept a long value as a hash of parts. Such a hash, like anything that is not a string, is
absent, and the next `put` replaces it.

A user of Redis needs the commands GET SET DEL TYPE SCAN, on a Cluster also CLUSTER and COMMAND, and the keys
`<prefix>:*`. The module `leases` names what leases need.

Each round trip has a deadline, however the server drips, stalls or moves its keys: the operation timeout, and
at most one connect timeout more. A bound on bytes applies to all answers of one `get_many` together. Finding
a host's address is not bounded: the system's resolver cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from nbcache.core.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from nbcache.core.threads import renew_in_children
from nbcache.stores.base import MAX_VALUE_BYTES, check_key, check_length, check_prefix, is_key
from nbcache.stores.redis.address import Address
from nbcache.stores.redis.client import TooMuchError, connect, deadline, disconnect, require_redis

_OVERHEAD_BYTES = 16 << 20
"""Bytes beside a value: keys, lengths, other answers."""
_SCAN_COUNT = 1000
_SCAN_BYTES = 16 << 20
"""The longest answer to one SCAN, which is about a thousandth of that."""
_LISTING_FACTOR = 15
"""A listing may take so many times as long as another operation."""
_MOST_NAMES = 1_000_000
"""Names that a listing may hold: ten times what the benchmark writes. A server may name new keys for ever."""
_CROWDED = "see who else writes there, or use another prefix"
_CODE = re.compile(r"[A-Z]{1,20}", re.ASCII)
"""The beginning of an error of Redis. The rest is the server's own text, and may quote a password."""
_SAYINGS = (
    "unknown command",
    "cluster support disabled",
    "DB index is out of range",
    "max number of clients reached",
    "Connection closed by server",
)
"""Helpful sayings of Redis and redis-py that quote nobody."""
_T = TypeVar("_T")


class RedisStore:
    """Values on a Redis server that others use too; connects when first used. May raise ConfigError."""

    read_only = False  # whether a server is a replica shows when it is written to, and changes

    def __init__(self, url: str, *, connect_timeout: float = 0.25, timeout: float = 2.0):
        self.address = Address.parse(url)
        self.name = self.address.name
        self.timeout = timeout
        """Seconds that an operation may take."""
        self._connect_timeout = connect_timeout
        self._open: Any = None
        """redis-py's client, once connected. Its annotations do not tell synchronous from asynchronous."""
        self._lock = threading.Lock()
        require_redis()
        renew_in_children(self)

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._open = None

    def get(self, key: str) -> bytes | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the values of `keys` in one round trip; StoreUnavailable where they are too long."""
        return self._of_each("GET", keys, bytes)

    def present(self, keys: Iterable[str]) -> set[str]:
        """Return those of `keys` that are there. One round trip, on a Cluster to all nodes at once."""
        return {key for key, kind in self._of_each("TYPE", keys, bytes).items() if kind == b"string"}

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key`, whole or not at all."""
        name, ttl = self._key(key), self.address.ttl
        check_length(value, self.name)
        (stored,) = self._ask(("SET", name, value, *(() if ttl is None else ("EX", ttl))))
        if stored is not True:
            raise self._garbage_error()

    def delete(self, key: str) -> None:
        self._ask(("DEL", self._key(key)))

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`; a round trip for each 1,000 keys of the whole database."""
        return self._scan(check_prefix(prefix))

    def close(self) -> None:
        """Close all connections; a later operation opens new ones."""
        with self._lock:
            client, self._open = self._open, None
        if client is not None:
            disconnect(client)

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
                # the old one again. To send a command twice does no harm.
                return send(client)

    def _key(self, key: str) -> str:
        return f"{self.address.prefix}:v1:{check_key(key)}"

    def _of_each(self, command: str, keys: Iterable[str], kind: type[_T]) -> dict[str, _T]:
        """Return by key the answers to a command that are not None; each must be of one `kind`."""
        names = {key: self._key(key) for key in keys}
        answers = self._ask(*((command, name) for name in names.values())) if names else []
        by_key = {key: answer for key, answer in zip(names, answers, strict=True) if answer is not None}
        if not all(isinstance(answer, kind) for answer in by_key.values()):
            raise self._garbage_error()
        return by_key

    def _scan(self, prefix: str) -> Iterator[str]:
        beginning = f"{self.address.prefix}:v1:"
        spent = 0.0
        seen = set()  # SCAN may name a key twice, and so may two nodes while it moves
        for node in self._nodes():
            cursor = 0
            while True:
                began = time.monotonic()
                with self._round_trip():
                    try:
                        with deadline(self.timeout, _SCAN_BYTES):
                            pattern = f"{beginning}{prefix}*"
                            cursor, names = node.scan(cursor, match=pattern, count=_SCAN_COUNT)
                    except TooMuchError:
                        raise self._crowd_error() from None
                    keys = [name.decode(errors="replace").removeprefix(beginning) for name in names]
                spent += time.monotonic() - began
                if spent > _LISTING_FACTOR * self.timeout:  # or a server that never ends is asked for ever
                    raise self._fault(TimeoutError())
                for key in keys:
                    if key not in seen and is_key(key):
                        seen.add(key)
                        if len(seen) > _MOST_NAMES:
                            raise self._crowd_error()
                        yield key
                if cursor == 0:
                    break

    def _nodes(self) -> list[Any]:
        """Return a client for each server with keys."""
        with self._round_trip() as client:
            if not self.address.cluster:
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
            with deadline(self.timeout, MAX_VALUE_BYTES + _OVERHEAD_BYTES):
                yield self._client()
        except Exception as error:  # what redis-py raises at garbage is not only its own errors
            # Nor may a traceback show what a server says.
            raise self._fault(error) from None

    def _client(self) -> Any:
        lock = self._lock
        if not lock.acquire(timeout=self.timeout):  # another thread connects to a Cluster
            raise TimeoutError
        try:
            if self._open is None:
                self._open = connect(self.address, self._connect_timeout, self.timeout)
            return self._open
        finally:
            lock.release()

    # --- faults, in words that quote nothing that the server says ---------------------------------

    def _fault(self, error: Exception) -> StoreError:
        """Return what an error of redis-py means."""
        if isinstance(error, StoreError):
            return error
        from redis import exceptions as kinds
        from redis.sentinel import MasterNotFoundError

        while isinstance(error, kinds.RedisClusterException):
            inner = error.__cause__ or error.__context__  # it is raised for each failure of the first node
            if not isinstance(inner, Exception):
                break
            error = inner
        match error:
            case kinds.OutOfMemoryError():
                return StoreFull(
                    "Redis has reached its memory limit, and evicts nothing",
                    where=self.name,
                    next_step="set its maxmemory-policy to allkeys-lru, or raise its maxmemory",
                )
            case kinds.ReadOnlyError():
                return StoreReadOnly(
                    "Redis is a replica, which cannot be written to",
                    where=self.name,
                    next_step="name its primary, or its Sentinels by redis+sentinel://",
                )
            case (
                kinds.AuthenticationError()
                | kinds.AuthorizationError()
                | kinds.AuthenticationWrongNumberOfArgsError()
            ):
                what = "Redis does not take user and password, or the lack of them"
                step = "check user and password in the URL; they are percent-encoded there"
            case kinds.NoPermissionError():
                what, keys = "the user may not do this on Redis", f"{self.address.prefix}:*"
                step = f"allow the user the keys {keys}, and to read, write and list keys, and to run scripts"
            case kinds.MovedError() if not self.address.cluster:
                what, step = "Redis is a node of a Cluster", "write redis+cluster:// in the URL"
            case (
                kinds.ClusterError()
                | kinds.RedisClusterException()
                | kinds.AskError()
                | kinds.TryAgainError()
            ):
                what = "the Cluster cannot serve this now"
                step = "check that all its slots are covered: CLUSTER INFO"
            case TooMuchError():
                what = f"Redis answers with more than {MAX_VALUE_BYTES:,} bytes, which nbcache never writes"
                step = _CROWDED
            case kinds.TimeoutError() | TimeoutError():
                what = (
                    f"Redis did not answer within {self.timeout:g} s, or could not be connected to within"
                    f" {self._connect_timeout:g} s"
                )
                step = "check that the server runs and is near, or allow it more time"
            case MasterNotFoundError():
                what = f"no Sentinel names a primary of {self.address.service!r}"
                step = "check that they run, and hosts, ports and service= in the URL"
            case kinds.ConnectionError() | OSError():
                what = f"Redis cannot be reached{_of_system(error) or _saying(error)}"
                step = "check that the server runs, and host and port in the URL"
            case kinds.ResponseError():
                what, step = f"Redis refused{_saying(error)}", "see the server's log"
            case _:
                return self._garbage_error()
        return self._unavailable(what, step)

    def _garbage_error(self) -> StoreUnavailable:
        what = "what answers there does not speak Redis's protocol"
        return self._unavailable(what, "check host and port in the URL")

    def _crowd_error(self) -> StoreUnavailable:
        return self._unavailable("Redis lists more names of keys than are held here", _CROWDED)

    def _unavailable(self, what: str, next_step: str) -> StoreUnavailable:
        return StoreUnavailable(what, where=self.name, next_step=next_step)


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
            answers[number] = None
    return answers


def _of_system(error: Exception) -> str:
    """Return what the system says of a connection, after a colon; empty where it has said nothing."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return f": {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return ""


def _saying(error: Exception) -> str:
    """Return a known saying or the code of a server's error, after a colon: the rest may be anybody's."""
    text = str(error)
    code = getattr(error, "status_code", None) or text.partition(" ")[0]  # redis-py cuts off those it knows
    known = next((saying for saying in _SAYINGS if saying in text), code if _CODE.fullmatch(code) else "")
    return f": {known}" if known else ""
