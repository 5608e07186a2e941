"""redis-py's clients for the three kinds of Redis, with a deadline on all waits together.

redis-py bounds each read from a socket, but not their sum: a server may send a byte a second. `deadline`
bounds a thread's waits together. A connect may exceed it by one connect timeout, with TLS by one timeout.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

from nbcache.core.errors import ConfigError
from nbcache.storage.backends.redis.address import Address

_READ_BYTES = 256 * 1024


def connect(address: Address, connect_timeout: float, timeout: float) -> Any:
    """Return a client of `address`: `redis.Redis`, or `redis.RedisCluster`, which connects at once.

    It repeats a command only if a Cluster says that a key has moved. Its type is Any, since redis-py's
    annotations mix synchronous and asynchronous results.
    """
    redis = require_redis()
    common: dict[str, Any] = {
        "socket_connect_timeout": connect_timeout,
        "socket_timeout": timeout,
        "socket_read_size": _READ_BYTES,
        "socket_keepalive": True,  # else only a timeout shows that a firewall dropped a connection
        "protocol": 2,  # all servers and proxies support it, and a connect needs one round trip less
        "driver_info": None,  # else each connect sends it in two round trips, which an ACL may refuse
    }
    link = _bound_class(redis.SSLConnection if address.tls else redis.Connection)
    if address.cluster:
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        hosts = (host.rsplit(":", 1) for host in address.hosts[1:])
        nodes = [redis.cluster.ClusterNode(host.strip("[]"), int(port)) for host, port in hosts]
        never = Retry(NoBackoff(), 0)
        # For rediss:// redis-py would replace the connection class, and the deadline would be lost.
        return redis.RedisCluster.from_url(
            address.url.replace("rediss://", "redis://", 1),
            startup_nodes=nodes,
            connection_class=link,
            retry=never,
            **common,
        )
    if not address.sentinels:
        return redis.Redis.from_url(address.url, connection_class=link, **common)
    managed = redis.SentinelManagedSSLConnection if address.tls else redis.SentinelManagedConnection
    user = redis.connection.parse_url(address.url)
    for name in ("host", "port", "connection_class"):  # the Sentinels and this function set these
        user.pop(name, None)
    sentinels = redis.Sentinel([], **common)
    # Their answers are short, and one that hangs must leave time for the next.
    common["socket_timeout"] = min(timeout, connect_timeout)
    sentinels.sentinels = [
        redis.Redis.from_url(url, connection_class=link, **common) for url in address.sentinels
    ]
    return sentinels.master_for(address.service, connection_class=_bound_class(managed), **user)


def disconnect(client: Any) -> None:
    with contextlib.suppress(Exception):
        if isinstance(client, require_redis().RedisCluster):
            client.disconnect_connection_pools()  # `close` would leave that to the garbage collector
        client.close()


def require_redis() -> Any:
    """Import and return redis-py, which takes 0.1 s; ConfigError if it is not installed."""
    try:
        import redis
    except ModuleNotFoundError as error:
        raise ConfigError(
            "stores on Redis need a package that is not installed", next_step="pip install redis"
        ) from error
    return redis


@contextlib.contextmanager
def deadline(seconds: float, most_bytes: float = math.inf) -> Iterator[None]:
    """Bound the seconds and received bytes of this thread's clients; a nested bound can only be narrower."""
    until, allowed = _thread.deadline, _thread.allowed
    _thread.deadline = min(until, time.monotonic() + seconds)
    _thread.allowed = granted = min(allowed, most_bytes)
    try:
        yield
    finally:
        _thread.deadline = until
        _thread.allowed = allowed - (granted - _thread.allowed if granted < math.inf else 0.0)


class TooMuchError(Exception):
    """A server sent more bytes than `deadline` allows."""


class _ThreadBounds(threading.local):
    deadline = math.inf
    allowed = math.inf

    def spend_bytes(self, count: int) -> None:
        self.allowed -= count
        if self.allowed < 0:
            raise TooMuchError

    def remaining_seconds(self) -> float:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        return remaining


_thread = _ThreadBounds()


class _BoundedSocket:
    """A socket that waits until its timeout or the deadline, whichever is earlier."""

    def __init__(self, socket: Any):
        self._socket = socket
        self._timeout: float | None = socket.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def recv(self, *arguments: Any) -> Any:
        self._bound()
        data = self._socket.recv(*arguments)
        _thread.spend_bytes(len(data))
        return data

    def recv_into(self, *arguments: Any) -> Any:  # with hiredis
        self._bound()
        count = self._socket.recv_into(*arguments)
        _thread.spend_bytes(count)
        return count

    def sendall(self, *arguments: Any) -> Any:
        self._bound()
        return self._socket.sendall(*arguments)

    def _bound(self) -> None:
        seconds = math.inf if self._timeout is None else self._timeout
        if seconds != 0:  # 0 means a non-blocking socket
            seconds = min(seconds, _thread.remaining_seconds())
        self._socket.settimeout(None if seconds == math.inf else seconds)


class _Bounded:
    """A mixin for connections: it applies the deadline, and leaves no answer for a later command."""

    def _connect(self) -> _BoundedSocket:
        _thread.remaining_seconds()
        return _BoundedSocket(super()._connect())  # type: ignore[misc]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]
        except require_redis().ResponseError:
            raise
        except BaseException:
            self.disconnect()  # type: ignore[attr-defined]  # redis-py's Sentinel connections do not
            raise


@cache
def _bound_class(link: Any) -> Any:
    return type(f"Bounded{link.__name__}", (_Bounded, link), {})
