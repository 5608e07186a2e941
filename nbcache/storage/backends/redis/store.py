"""A store on Redis: one server, the primary that Sentinels name, or a Cluster.

Keys of Redis, below the prefix of the address (`nbcache.storage.backends.redis.address`)::

    <prefix>:v1:<key>    a string, the value

Anything that is not a string is absent, and the next `put` replaces it.

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
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from nbcache.core.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from nbcache.core.threads import renew_in_children
from nbcache.storage.backends.base import MAX_VALUE_BYTES, check_key, check_length, check_prefix, is_key
from nbcache.storage.backends.redis.address import Address
from nbcache.storage.backends.redis.client import TooMuchError, connect, deadline, disconnect, require_redis

_OVERHEAD_BYTES = 16 << 20
_SCAN_COUNT = 1000
_SCAN_BYTES = 16 << 20
_LISTING_FACTOR = 15
"""A server that lists names for ever is given up after so many times the timeout."""
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
_T = TypeVar("_T")


class RedisStore:
    """Values on a Redis server that others use too; connects when first used. May raise ConfigError."""

    read_only = False  # whether a server is a replica shows when it is written to, and changes

    def __init__(self, url: str, *, connect_timeout: float = 0.25, timeout: float = 2.0):
        self.address = Address.parse(url)
        self.name = self.address.name
        self.timeout = timeout
        self._connect_timeout = connect_timeout
        self._open: Any = None
        self._lock = threading.Lock()
        require_redis()
        renew_in_children(self)

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._open = None

    def get(self, key: str) -> bytes | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        return self._of_each("GET", keys, bytes)

    def present(self, keys: Iterable[str]) -> set[str]:
        return {key for key, kind in self._of_each("TYPE", keys, bytes).items() if kind == b"string"}

    def put(self, key: str, value: bytes) -> None:
        name, ttl = self._key(key), self.address.ttl
        check_length(value, self.name)
        (stored,) = self._ask(("SET", name, value, *(() if ttl is None else ("EX", ttl))))
        if stored is not True:
            raise self._garbage_error()

    def delete(self, key: str) -> None:
        self._ask(("DEL", self._key(key)))

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Return the keys below `prefix`; a round trip for each 1,000 keys of the whole database."""
        beginning = f"{self.address.prefix}:v1:"
        pattern = f"{beginning}{check_prefix(prefix)}*"
        keys: set[str] = set()  # SCAN may name a key twice, and so may two nodes while it moves
        with self._round_trip(_LISTING_FACTOR) as client:
            with deadline(self.timeout):
                nodes = self._nodes(client)
            for node in nodes:
                cursor = -1
                while cursor:
                    try:
                        with deadline(self.timeout, _SCAN_BYTES):
                            cursor, names = node.scan(max(cursor, 0), match=pattern, count=_SCAN_COUNT)
                    except TooMuchError:
                        raise self._crowd_error() from None
                    below = (name.decode(errors="replace").removeprefix(beginning) for name in names)
                    keys.update(filter(is_key, below))
                    if len(keys) > _MOST_NAMES:
                        raise self._crowd_error()
        return iter(keys)

    def close(self) -> None:
        with self._lock:
            client, self._open = self._open, None
        if client is not None:
            disconnect(client)

    def exchange(self, send: Callable[[Any], _T]) -> _T:
        """Return what `send` returns for redis-py's client, within the deadline; raises StoreError alone.

        `send` is called again where the connection was lost, so its commands may be done twice. Any error of
        `send` that is not redis-py's means that the answer was garbage.
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
        names = {key: self._key(key) for key in keys}
        answers = self._ask(*((command, name) for name in names.values())) if names else []
        by_key = {key: answer for key, answer in zip(names, answers, strict=True) if answer is not None}
        if not all(isinstance(answer, kind) for answer in by_key.values()):
            raise self._garbage_error()
        return by_key

    def _nodes(self, client: Any) -> list[Any]:
        if not self.address.cluster:
            return [client]
        # Or nodes that came after this store connected are left out.
        client.nodes_manager.initialize(disconnect_startup_nodes_pools=False)
        return [client.get_redis_connection(node) for node in client.get_primaries()]

    def _ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        return self.exchange(lambda client: _send(client, commands))

    @contextlib.contextmanager
    def _round_trip(self, factor: int = 1) -> Iterator[Any]:
        """Yield the client; what is done with it ends by the deadline, and fails with StoreError alone."""
        try:
            with deadline(factor * self.timeout, MAX_VALUE_BYTES + _OVERHEAD_BYTES):
                with deadline(self.timeout):
                    client = self._client()
                yield client
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
            case kinds.AuthenticationError() | kinds.AuthorizationError():
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
