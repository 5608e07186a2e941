"""Open a store by its URL, and bound the time of stores without timeouts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from nbcache.core.errors import ConfigError, StoreUnavailable
from nbcache.core.settings import Settings
from nbcache.core.threads import renew_in_children, within
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.filesystem import PLACES, FilesystemStore
from nbcache.storage.backends.redis.address import SCHEMES
from nbcache.storage.backends.redis.leases import RedisLeases
from nbcache.storage.backends.redis.store import RedisStore

T = TypeVar("T")

_WRITE_FACTOR = 15
"""Factor of the timeout for writes and listings, since no user waits for them."""


def open_store(url: str | os.PathLike[str], *, connect_timeout: float = 0.25, timeout: float = 2.0) -> Store:
    """Return the store at `url`, or in a folder's path, without connecting. Timeouts are in seconds.

    ConfigError if the kind of URL is unknown, or its package is not installed.
    """
    text = os.fspath(url)
    scheme = text.partition(":")[0]
    if scheme in SCHEMES:
        return RedisStore(text, connect_timeout=connect_timeout, timeout=timeout)
    if "://" not in text:
        if not text:
            raise ConfigError("the URL of a store is empty", next_step=PLACES)
        return FilesystemStore(_folder(text) if isinstance(url, str) else text)
    return FilesystemStore(text)


def _folder(text: str) -> str:
    is_path = text.startswith(("/", ".", "~")) and not text.startswith("//")  # which lacks a scheme
    if not is_path and not os.path.isdir(text):  # a network path could hang here, so paths are not tested
        raise ConfigError(
            "this is neither a URL nor an existing folder",  # not quoted: it may hold a password
            next_step="write a host as redis://host, and a new folder as ./folder",
        )
    return os.path.expanduser(text)


def open_shared(settings: Settings) -> Store:
    """Return the store of `settings.shared_url`, bounded in time, without connecting; or ConfigError."""
    seconds = settings.shared_timeout
    store = open_store(settings.shared_url, connect_timeout=settings.shared_connect_timeout, timeout=seconds)
    return BoundedStore(store, seconds) if isinstance(store, FilesystemStore) else store


def leases_of(store: Store) -> RedisLeases | None:
    return RedisLeases(store) if isinstance(store, RedisStore) else None


class BoundedStore:
    """Calls `store` in threads, and waits `timeout` seconds, for writes 15 times that, unless many hang."""

    def __init__(self, store: Store, timeout: float, *, most_hanging: int = 32) -> None:
        self.name, self.read_only = store.name, store.read_only
        self._store = store
        self._timeout = timeout
        self._most_hanging = most_hanging
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        self._hanging = threading.Semaphore(self._most_hanging)

    def get(self, key: str) -> bytes | None:
        return self._within(1, self._store.get, key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        return self._within(1, self._store.get_many, list(keys))

    def present(self, keys: Iterable[str]) -> set[str]:
        return self._within(1, self._store.present, list(keys))

    def put(self, key: str, value: bytes) -> None:
        self._within(_WRITE_FACTOR, self._store.put, key, value)

    def delete(self, key: str) -> None:
        self._within(_WRITE_FACTOR, self._store.delete, key)

    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter(self._within(_WRITE_FACTOR, lambda: list(self._store.keys(prefix))))

    def close(self) -> None:
        self._store.close()

    def _within(self, factor: int, action: Callable[..., T], *arguments: object) -> T:
        hanging, seconds = self._hanging, factor * self._timeout

        def act() -> T:
            try:
                return action(*arguments)
            finally:
                hanging.release()

        try:
            if not hanging.acquire(blocking=False):
                raise TimeoutError
            return within(seconds, act, "ask")
        except TimeoutError as error:
            raise StoreUnavailable(
                f"it did not answer within {seconds:g} s",
                where=self.name,
                next_step="check that it can be reached, or allow it more time:"
                " %nbcache config shared_timeout=5, then %nbcache connect",
            ) from error
