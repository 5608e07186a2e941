"""Removes the artifacts of a store that no named snapshot names any more.

It takes two runs: the first marks them, one that comes later than a grace removes them. How writers and this
keep out of each other's way, `nbcache.snapshots.named` tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nbcache.artifacts.encoding import decode_snapshot
from nbcache.core.errors import ConfigError, NbcacheError, SnapshotError
from nbcache.core.key import is_sha256, sha256
from nbcache.snapshots.file import decode_file, refused
from nbcache.snapshots.named import ARTIFACT, BATCH_KEYS, DOOMED, NamedSnapshots
from nbcache.snapshots.names import SNAPSHOTS
from nbcache.stores.base import batches

__all__ = ["GRACE_SECONDS", "Collected", "collect_garbage"]

GRACE_SECONDS = 3600.0
"""How long what was marked is left: longer than any writer takes."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What removing artifacts that no snapshot names came to."""

    removed: int = 0
    waiting: int = 0
    """How many are marked."""
    due: float | None = None
    """Unix seconds from which on the first of these may go; None where none is marked."""
    problems: tuple[NbcacheError, ...] = ()
    """Why nothing was removed: versions whose artifacts cannot be told."""


def collect_garbage(snapshots: NamedSnapshots, grace: float = GRACE_SECONDS) -> Collected:
    """Mark the artifacts that no snapshot names; remove those that were marked `grace` seconds ago.

    Removes nothing while a version cannot be read: what it names is not known then. ConfigError where
    the store is a kernel's local one, whose artifacts are named in another way.
    """
    return _Collection(snapshots).run(grace)


class _Collection:
    def __init__(self, snapshots: NamedSnapshots) -> None:
        self._snapshots = snapshots
        self._store = snapshots.store

    def run(self, grace: float) -> Collected:
        if next(iter(self._store.keys("ref/")), None) is not None:
            raise ConfigError(
                "this is the local store of kernels, which keeps its bound by itself",
                where=self._store.name,
                next_step="name the store that snapshots were put into",
            )
        present = self._digests(ARTIFACT)  # before versions: what is put later is not looked at
        marks = self._marks(self._digests(DOOMED))
        named, problems = self._named()
        if problems:
            return Collected(waiting=len(marks), problems=tuple(problems))
        now = self._snapshots.clock()
        unnamed = present - named
        for digest in marks.keys() - unnamed:
            self._store.delete(DOOMED + digest)
        for digest in unnamed:
            if marks.get(digest, now + 1) > now:  # of another clock, if it is from the future
                self._store.put(DOOMED + digest, repr(now).encode())
        marks = {digest: min(marks.get(digest, now), now) for digest in unnamed}
        due = {digest for digest, marked in marks.items() if marked + grace <= now}
        if due:  # a writer that was there before our marks did not see them, but its version is there now
            named, problems = self._named()
            if problems:
                return Collected(waiting=len(marks), problems=tuple(problems))
            marks = {digest: marked for digest, marked in marks.items() if digest not in named}
        removed = 0
        for batch in batches(sorted(due & marks.keys()), BATCH_KEYS):
            for digest, marked in self._marks(batch).items():
                if marked + grace <= now:
                    self._store.delete(ARTIFACT + digest)
                    self._store.delete(DOOMED + digest)
                    del marks[digest]
                    removed += 1
        return Collected(removed, len(marks), min(marks.values()) + grace if marks else None)

    def _digests(self, prefix: str) -> set[str]:
        found = (key.removeprefix(prefix) for key in self._store.keys(prefix))
        return {digest for digest in found if is_sha256(digest)}

    def _marks(self, digests: Iterable[str]) -> dict[str, float]:
        """Return since when artifacts are marked, in Unix seconds; what is no number is as new as can be."""
        found: dict[str, float] = {}
        for batch in batches(digests, BATCH_KEYS):
            for key, value in self._store.get_many(DOOMED + digest for digest in batch).items():
                match = re.fullmatch(rb"\d{1,15}(\.\d+)?", value)
                found[key.removeprefix(DOOMED)] = float(value) if match else float("inf")
        return found

    def _named(self) -> tuple[set[str], list[NbcacheError]]:
        """Return the artifacts that versions name, whoever signed them, and what is wrong with versions."""
        values, complete = self._snapshots.values_below(SNAPSHOTS)
        named: set[str] = set()
        problems: list[NbcacheError] = []
        for key, value in values.items():
            try:
                if sha256(value) != key.rpartition("/")[2]:
                    raise refused("its manifest does not have the digest that it is named by")
                for version in decode_file(value).versions:
                    contents = decode_snapshot(version.manifest).contents
                    named.update(each.packed_digest for each in contents.values())
            except NbcacheError as error:
                problems.append(self._snapshots.placed(error, key))
        if not complete:
            problems.append(
                SnapshotError(
                    "snapshots were being written all the while",
                    where=self._store.name,
                    next_step="run it again",
                )
            )
        return named, problems
