"""The interface of a store: bytes under keys. Framing, policy and statistics wrap it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol, runtime_checkable

from nbcache.core.errors import StoreError

MAX_VALUE_BYTES = 512 << 20
"""The longest value of a store that others write to. Readers ignore longer values.

What kernels publish has half of that at most, since no more waits to be written.
"""

_KEY = re.compile(r"[a-z0-9_-]+(/[a-z0-9_-]+)*", re.ASCII)


def is_key(name: str) -> bool:
    return len(name) <= 512 and _KEY.fullmatch(name) is not None


def check_key(key: str) -> str:
    """Return `key`, parts of `a-z 0-9 _ -` joined by `/`, at most 512 characters; ValueError for others."""
    if not is_key(key):
        raise ValueError(f"not a store key: {key[:80]!r}")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`, or raise ValueError where it is not empty and not whole parts of a key and a `/`."""
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
    """Yield those of `keys` that are there, with their bytes, by round trips of `length` keys."""
    for batch in batches(keys, length):
        yield from store.get_many(batch).items()


@runtime_checkable
class Store(Protocol):
    """Bytes under keys, for several threads. Absence is None; a `StoreError` is a failure."""

    @property
    def name(self) -> str:
        """Its name in reports, without secrets."""

    @property
    def read_only(self) -> bool:
        """True where `put` and `delete` raise `StoreReadOnly`."""

    def get(self, key: str) -> bytes | None: ...

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return those of `keys` that are there, with their bytes, in one round trip if possible."""

    def present(self, keys: Iterable[str]) -> set[str]:
        """Return those of `keys` that are there, without reading them, in one round trip if possible."""

    def put(self, key: str, value: bytes) -> None:
        """Store `value` under `key`: atomic, idempotent, replacing what was there."""

    def delete(self, key: str) -> None:
        """Remove `key`; nothing happens where it is not there."""

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix` (whole parts: empty, or ending in `/`), in any order."""

    def close(self) -> None:
        """Release what it holds. Idempotent."""
