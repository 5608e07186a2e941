"""Removes from a store artifacts that kernels shared live and no longer use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from nbcache.core.errors import CorruptEntry, FormatError, NbcacheError
from nbcache.sharing.live.layout import LIVE, NOTEBOOK, PUBLISHERS, decode_shared, slot_of
from nbcache.sharing.provenance import Statement
from nbcache.storage.backends.base import Store, read_batches
from nbcache.storage.encoding import decode_manifest, unpack

MAX_AGE_SECONDS = 30 * 86400.0
_FRESH_SECONDS = 86400.0
"""A newer artifact may belong to a running cell; the manifest that names it is published later."""
_BATCH = 16


@dataclass(frozen=True, slots=True)
class Removed:
    artifacts: int = 0
    kept: int = 0
    publishers: int = 0
    problems: tuple[NbcacheError, ...] = ()
    """Unreadable publications: while their artifacts are unknown, nothing is removed."""


def remove_unused(
    store: Store, max_age: float = MAX_AGE_SECONDS, *, clock: Callable[[], float] = time.time
) -> Removed:
    """Remove artifacts that no publication has used for `max_age` seconds; may raise StoreError."""
    began = clock()
    listed = list(store.keys(LIVE))  # before publications, so that newer artifacts stay
    named: set[str] = set()
    stale: list[str] = []
    problems: list[NbcacheError] = []
    for key, value in read_batches(store, store.keys(NOTEBOOK), _BATCH):
        try:
            used = set(_slots_in_use(value, since=began - max_age))
        except CorruptEntry:  # nobody can read it
            stale.append(key)
            continue
        except FormatError as error:
            error.where = f"{key} in {store.name}"
            problems.append(error)
            continue
        named |= used
        stale += [] if used else [key]
    if problems:
        return Removed(kept=len(listed), problems=tuple(problems))
    removed = 0
    for key, value in read_batches(store, [key for key in listed if key not in named], _BATCH):
        if _newest_time(value) < began - min(max_age, _FRESH_SECONDS):
            store.delete(key)
            removed += 1
    for key in stale:
        store.delete(key)
    notebooks = {key.split("/")[1] for key in store.keys(NOTEBOOK)}
    for key in list(store.keys(PUBLISHERS)):
        if key.removeprefix(PUBLISHERS) not in notebooks:
            store.delete(key)
    return Removed(removed, len(listed) - removed, len(stale))


def _slots_in_use(value: bytes, *, since: float) -> Iterator[str]:
    for variant in decode_shared(value):
        statement = Statement.decode(variant.statement)
        content = unpack(variant.packed, size=statement.ref.size, digest=statement.ref.digest)
        manifest = decode_manifest(content)
        for ref in manifest.artifacts:
            if ref.used >= since:
                yield slot_of(manifest.environment, ref.type, ref.key)


def _newest_time(value: bytes) -> float:
    with suppress(FormatError):
        statements = [Statement.decode(variant.statement) for variant in decode_shared(value)]
        return max((statement.ref.created for statement in statements), default=0.0)
    return 0.0
