"""A store in this process's memory, for tests and for machines without a usable folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nbcache.core.threads import ForkSafeLock
from nbcache.storage.backends.base import check_key


class MemoryStore:
    read_only = False

    def __init__(self, name: str = "memory"):
        self.name = name
        self._values: dict[str, bytes] = {}
        self._lock = ForkSafeLock()

    def get(self, key: str) -> bytes | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        checked = [check_key(key) for key in keys]
        with self._lock:
            return {key: self._values[key] for key in checked if key in self._values}

    def present(self, keys: Iterable[str]) -> set[str]:
        return set(self.get_many(keys))

    def put(self, key: str, value: bytes) -> None:
        with self._lock:
            self._values[check_key(key)] = bytes(value)

    def delete(self, key: str) -> None:
        with self._lock:
            self._values.pop(check_key(key), None)

    def keys(self, prefix: str = "") -> Iterator[str]:
        with self._lock:
            present = list(self._values)
        return (key for key in present if key.startswith(prefix))

    def close(self) -> None: ...
