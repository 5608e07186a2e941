"""A store whose operations end in time, around one that has no timeouts of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from nbcache.core.errors import StoreUnavailable
from nbcache.core.threads import renew_in_children, start_thread
from nbcache.stores.base import Store

T = TypeVar("T")

_WRITE_FACTOR = 15
"""Nobody waits for what is written, nor for listings: they may take so many times as long."""


class BoundedStore:
    """Asks `store` from threads of its own, and gives up after `timeout` seconds; writes have 15 times that.

    What is given up goes on in its thread. While `most_hanging` threads wait, all operations fail at once.
    """

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
        return self._within(self._timeout, lambda: self._store.get(key))

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = list(keys)
        return self._within(self._timeout, lambda: self._store.get_many(wanted))

    def present(self, keys: Iterable[str]) -> set[str]:
        wanted = list(keys)
        return self._within(self._timeout, lambda: self._store.present(wanted))

    def put(self, key: str, value: bytes) -> None:
        self._within(_WRITE_FACTOR * self._timeout, lambda: self._store.put(key, value))

    def delete(self, key: str) -> None:
        self._within(_WRITE_FACTOR * self._timeout, lambda: self._store.delete(key))

    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter(self._within(_WRITE_FACTOR * self._timeout, lambda: list(self._store.keys(prefix))))

    def close(self) -> None:
        self._store.close()

    def _within(self, seconds: float, action: Callable[[], T]) -> T:
        done: Future[T] = Future()
        hanging = self._hanging

        def act() -> None:
            try:
                done.set_result(action())
            except BaseException as error:
                done.set_exception(error)
            finally:
                hanging.release()

        try:
            if not hanging.acquire(blocking=False):
                raise TimeoutError
            if start_thread(act, "ask") is None:
                act()
            return done.result(seconds)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"it did not answer within {seconds:g} s",
                where=self.name,
                next_step="check that it can be reached, or allow it more time:"
                " %nbcache config shared_timeout=5, then %nbcache connect",
            ) from error
