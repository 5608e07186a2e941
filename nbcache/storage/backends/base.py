"""The interface of a store, which maps keys to bytes. Framing, policy and statistics wrap it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol, runtime_checkable

from nbcache.core.errors import StoreError

MAX_VALUE_BYTES = 512 << 20
"""Longest value in a shared store. Readers ignore longer values.

Kernels publish values of half that length at most: that is the size of their write queue.
"""

_KEY = re.compile(r"[a-z0-9_-]+(/[a-z0-9_-]+)*", re.ASCII)


def is_key(name: str) -> bool:
    return len(name) <= 512 and _KEY.fullmatch(name) is not None


def check_key(key: str) -> str:
    """Return `key`; ValueError unless it is parts of `a-z 0-9 _ -` joined by `/`, 512 characters at most."""
    if not is_key(key):
        raise ValueError(f"not a store key: {key[:80]!r}")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`; ValueError unless it is empty, or whole parts of a key that end in `/`."""
    if prefix and not (prefix.endswith("/") and is_key(prefix[:-1])):
        raise ValueError(f"not a prefix of whole parts: {prefix[:80]!r}")
    return prefix


def check_length(value: bytes, where: str) -> None:
    if len(value) > MAX_VALUE_BYTES:
        raise StoreError(
            f"a value of {len(value):,} bytes is not written: the longest has {MAX_VALUE_BYTES:,}",
            where=where,
            next_step="take a snapshot into a file: %nbcache snapshot PATH",
        )


def batches(keys: Iterable[str], length: int) -> Iterator[list[str]]:
    iterator = iter(keys)
    while batch := list(islice(iterator, length)):
        yield batch


def read_batches(store: Store, keys: Iterable[str], length: int) -> Iterator[tuple[str, bytes]]:
    """Yield the stored keys among `keys` with their values, in round trips of `length` keys."""
    for batch in batches(keys, length):
        yield from store.get_many(batch).items()


@runtime_checkable
class Store(Protocol):
    """A thread-safe mapping of keys to bytes. A missing key gives None, a failure raises `StoreError`."""

    @property
    def name(self) -> str:
        """Its name in reports, without secrets."""

    @property
    def read_only(self) -> bool:
        """True if `put` and `delete` raise `StoreReadOnly`."""

    def get(self, key: str) -> bytes | None: ...

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the stored keys among `keys` with their values, in one round trip if possible."""

    def present(self, keys: Iterable[str]) -> set[str]:
        """Return the stored keys among `keys` without reading values, in one round trip if possible."""

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key` in place of an earlier value; atomic and idempotent."""

    def delete(self, key: str) -> None:
        """Remove `key` and its value; do nothing if it is missing."""

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix` (empty, or ending in `/`), in any order."""

    def close(self) -> None:
        """Release connections and threads. Idempotent."""
