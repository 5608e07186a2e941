"""What errors of redis-py mean, in words that quote nothing that the server says."""

from __future__ import annotations

import re

from nbcache.core.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from nbcache.stores.base import MAX_VALUE_BYTES
from nbcache.stores.redis.address import Address
from nbcache.stores.redis.client import TooMuchError

__all__ = ["Faults"]

_CODE = re.compile(r"[A-Z]{1,20}", re.ASCII)
"""What an error of Redis begins with. The rest is the server's own text, and may quote a password."""
_SAYINGS = (
    "unknown command",
    "cluster support disabled",
    "DB index is out of range",
    "max number of clients reached",
    "Connection closed by server",
)
"""What Redis and redis-py say that helps a user, and that holds nothing of anybody's."""


class Faults:
    """Makes the errors of one store, which is called `name`; times are in seconds."""

    def __init__(self, name: str, address: Address, timeout: float, connect_timeout: float) -> None:
        self._name = name
        self._address = address
        self._timeout = timeout
        self._connect_timeout = connect_timeout

    def of(self, error: Exception) -> StoreError:
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
                    where=self._name,
                    next_step="set its maxmemory-policy to allkeys-lru, or raise its maxmemory",
                )
            case kinds.ReadOnlyError():
                return StoreReadOnly(
                    "Redis is a replica, which cannot be written to",
                    where=self._name,
                    next_step="name its primary, or its Sentinels by redis+sentinel://",
                )
            case (
                kinds.AuthenticationError()
                | kinds.AuthorizationError()
                | kinds.AuthenticationWrongNumberOfArgsError()
            ):
                return self._unavailable(
                    "Redis does not take user and password, or the lack of them",
                    "check user and password in the URL; they are percent-encoded there",
                )
            case kinds.NoPermissionError():
                return self._unavailable(
                    "the user may not do this on Redis",
                    f"allow the user the keys {self._address.prefix}:*, and to read, write and list keys, and"
                    " to run scripts",
                )
            case kinds.MovedError() if not self._address.cluster:
                return self._unavailable("Redis is a node of a Cluster", "write redis+cluster:// in the URL")
            case (
                kinds.ClusterError()
                | kinds.RedisClusterException()
                | kinds.AskError()
                | kinds.TryAgainError()
            ):
                return self._unavailable(
                    "the Cluster cannot serve this now",
                    "check that all its slots are covered: CLUSTER INFO",
                )
            case TooMuchError():
                return self._unavailable(
                    f"Redis answers with more than {MAX_VALUE_BYTES:,} bytes, which nbcache never writes",
                    "see who else writes there, or use another prefix",
                )
            case kinds.TimeoutError() | TimeoutError():
                return self._unavailable(
                    f"Redis did not answer within {self._timeout:g} s, or could not be connected to within"
                    f" {self._connect_timeout:g} s",
                    "check that the server runs and is near, or allow it more time",
                )
            case MasterNotFoundError():
                return self._unavailable(
                    f"no Sentinel names a primary of {self._address.service!r}",
                    "check that they run, and hosts, ports and service= in the URL",
                )
            case kinds.ConnectionError() | OSError():
                return self._unavailable(
                    f"Redis cannot be reached{_of_system(error) or _said(error)}",
                    "check that the server runs, and host and port in the URL",
                )
            case kinds.ResponseError():
                return self._unavailable(f"Redis refused{_said(error)}", "see the server's log")
        return self.garbled()

    def garbled(self) -> StoreUnavailable:
        return self._unavailable(
            "what answers there does not speak Redis's protocol", "check host and port in the URL"
        )

    def crowded(self) -> StoreUnavailable:
        return self._unavailable(
            "Redis lists more names of keys than are held here",
            "see who else writes there, or use another prefix",
        )

    def _unavailable(self, what: str, next_step: str) -> StoreUnavailable:
        return StoreUnavailable(what, where=self._name, next_step=next_step)


def _of_system(error: Exception) -> str:
    """Return what the system says of a connection, after a colon; empty where it has said nothing."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return f": {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return ""


def _said(error: Exception) -> str:
    """Return what may be told of a server's error, after a colon: words that are known, or its code.

    Anybody may answer there, so nothing else of it is shown.
    """
    text = str(error)
    code = getattr(error, "status_code", None) or text.partition(" ")[0]  # redis-py cuts off those it knows
    known = next((saying for saying in _SAYINGS if saying in text), code if _CODE.fullmatch(code) else "")
    return f": {known}" if known else ""
