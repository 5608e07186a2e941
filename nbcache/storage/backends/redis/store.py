"""A store on Redis: one server, the primary that Sentinels name, or a Cluster.

Keys in Redis begin with the address's prefix (`nbcache.storage.backends.redis.address`)::

    <prefix>:v1:<key>    a string, the value

A key of another type than string is treated as missing, and the next `put` replaces it.

A Redis user needs the commands GET SET DEL TYPE SCAN, on a Cluster also CLUSTER and COMMAND, and the keys
`<prefix>:*`. The module `leases` lists the commands for leases.

Each round trip has a deadline, even if the server drips, stalls or moves its keys: the operation timeout, and
at most one connect timeout more. One bound on bytes applies to all answers of a `get_many` together. Name
resolution has no bound, since the system's resolver cannot be interrupted.
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
"""Factor of the timeout after which a listing fails, since a server may list names forever."""
_MOST_NAMES = 1_000_000
"""Most names in a listing: ten times as many as the benchmark writes. A server may name new keys forever."""
_CROWDED = "see who else writes there, or use another prefix"
_CODE = re.compile(r"[A-Z]{1,20}", re.ASCII)
"""The code at the start of a Redis error. The rest is the server's text, which may quote a password."""
_KNOWN_ERRORS = (
    "unknown command",
    "cluster support disabled",
    "DB index is out of range",
    "max number of clients reached",
    "Connection closed by server",
)
_T = TypeVar("_T")


class RedisStore:
    """Values on a shared Redis server; connects at the first use. May raise ConfigError."""

    read_only = False  # a server may become a replica at any time, and only a write shows it

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
        return self._ask_about("GET", keys, bytes)

    def present(self, keys: Iterable[str]) -> set[str]:
        return {key for key, kind in self._ask_about("TYPE", keys, bytes).items() if kind == b"string"}

    def put(self, key: str, value: bytes) -> None:
        name, ttl = self._key(key), self.address.ttl
        check_length(value, self.name)
        (stored,) = self._ask(("SET", name, value, *(() if ttl is None else ("EX", ttl))))
        if stored is not True:
            raise self._garbage_error()

    def delete(self, key: str) -> None:
        self._ask(("DEL", self._key(key)))

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Return the keys below `prefix`, in a round trip for each 1,000 keys of the whole database."""
        beginning = f"{self.address.prefix}:v1:"
        pattern = f"{beginning}{check_prefix(prefix)}*"
        keys: set[str] = set()  # SCAN may return a key twice; two nodes may do so while the key moves
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
        """Call `send` with redis-py's client, within the deadline; return its result, or raise StoreError.

        If the connection was lost, `send` is called again, so the server may run its commands twice. If
        `send` raises an error other than redis-py's, the answer was garbage.
        """
        from redis.exceptions import AuthenticationError, ConnectionError

        with self._round_trip() as client:
            try:
                return send(client)
            except AuthenticationError:
                raise
            except ConnectionError:
                # The server was restarted, or the Sentinels now name another; redis-py itself would only try
                # the old one. All commands are idempotent.
                return send(client)

    def _key(self, key: str) -> str:
        return f"{self.address.prefix}:v1:{check_key(key)}"

    def _ask_about(self, command: str, keys: Iterable[str], kind: type[_T]) -> dict[str, _T]:
        """Send `command` for each key in one round trip; return the answers, which must be of type `kind`."""
        names = {key: self._key(key) for key in keys}
        answers = self._ask(*((command, name) for name in names.values())) if names else []
        by_key = {key: answer for key, answer in zip(names, answers, strict=True) if answer is not None}
        if not all(isinstance(answer, kind) for answer in by_key.values()):
            raise self._garbage_error()
        return by_key

    def _nodes(self, client: Any) -> list[Any]:
        if not self.address.cluster:
            return [client]
        # Else nodes that joined after this store connected would be left out.
        client.nodes_manager.initialize(disconnect_startup_nodes_pools=False)
        return [client.get_redis_connection(node) for node in client.get_primaries()]

    def _ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        return self.exchange(lambda client: _send(client, commands))

    @contextlib.contextmanager
    def _round_trip(self, factor: int = 1) -> Iterator[Any]:
        """Yield the client, within the deadline; convert all errors to StoreError."""
        try:
            with deadline(factor * self.timeout, MAX_VALUE_BYTES + _OVERHEAD_BYTES):
                with deadline(self.timeout):
                    client = self._client()
                yield client
        except Exception as error:  # on garbage, redis-py also raises errors of other classes
            # `from None`, so that a traceback quotes no text of the server.
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

    # --- errors, without quotations of the server's text ------------------------------------------

    def _fault(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        from redis import exceptions as kinds
        from redis.sentinel import MasterNotFoundError

        while isinstance(error, kinds.RedisClusterException):
            inner = error.__cause__ or error.__context__  # it wraps each failure of the first node
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
                fault = "Redis refuses this user and password, or asks for them"
                step = "check user and password in the URL; they are percent-encoded there"
            case kinds.NoPermissionError():
                fault, keys = "the user may not do this on Redis", f"{self.address.prefix}:*"
                step = f"allow the user the keys {keys}, and to read, write and list keys, and to run scripts"
            case kinds.MovedError() if not self.address.cluster:
                fault, step = "Redis is a node of a Cluster", "write redis+cluster:// in the URL"
            case (
                kinds.ClusterError()
                | kinds.RedisClusterException()
                | kinds.AskError()
                | kinds.TryAgainError()
            ):
                fault = "the Cluster cannot serve this now"
                step = "check that all its slots are covered: CLUSTER INFO"
            case TooMuchError():
                fault = f"Redis answers with more than {MAX_VALUE_BYTES:,} bytes, which nbcache never writes"
                step = _CROWDED
            case kinds.TimeoutError() | TimeoutError():
                fault = (
                    f"Redis did not answer within {self.timeout:g} s, or could not be connected to within"
                    f" {self._connect_timeout:g} s"
                )
                step = "check that the server runs and is near, or allow it more time"
            case MasterNotFoundError():
                fault = f"no Sentinel names a primary of {self.address.service!r}"
                step = "check that they run, and hosts, ports and service= in the URL"
            case kinds.ConnectionError() | OSError():
                fault = f"Redis cannot be reached{_system_reason(error) or _server_reason(error)}"
                step = "check that the server runs, and host and port in the URL"
            case kinds.ResponseError():
                fault, step = f"Redis refused{_server_reason(error)}", "see the server's log"
            case _:
                return self._garbage_error()
        return self._unavailable(fault, step)

    def _garbage_error(self) -> StoreUnavailable:
        fault = "the server there does not speak Redis's protocol"
        return self._unavailable(fault, "check host and port in the URL")

    def _crowd_error(self) -> StoreUnavailable:
        return self._unavailable("Redis lists more keys than nbcache reads", _CROWDED)

    def _unavailable(self, fault: str, next_step: str) -> StoreUnavailable:
        return StoreUnavailable(fault, where=self.name, next_step=next_step)


def _send(client: Any, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return the answers to `commands`, sent in one pipeline; None for a key that is no string."""
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for number, answer in enumerate(answers):
        if isinstance(answer, Exception):
            # redis-py has no class for WRONGTYPE, which is the error's first word.
            if str(answer).partition(" ")[0] != "WRONGTYPE":
                raise answer
            answers[number] = None
    return answers


def _system_reason(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return f": {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return ""


def _server_reason(error: Exception) -> str:
    """Return a known text or the code of a server's error, after a colon; other text may be secret."""
    text = str(error)
    code = getattr(error, "status_code", None) or text.partition(" ")[0]  # redis-py cuts off codes it knows
    reason = next((item for item in _KNOWN_ERRORS if item in text), code if _CODE.fullmatch(code) else "")
    return f": {reason}" if reason else ""
