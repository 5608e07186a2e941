"""Part `entries`: lookups and listings in a full Redis. Each line of `_ACTIONS` is measured."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.redis_server import Server
from benchmarks.report import call_text
from nbcache.core.errors import NbcacheError
from nbcache.core.key import components, sha256
from nbcache.core.model import Artifact, ArtifactRef, Environment, Manifest
from nbcache.core.settings import Policy
from nbcache.core.text import aligned, size
from nbcache.sharing.gc import remove_unused
from nbcache.sharing.live.layout import LIVE
from nbcache.sharing.live.level import SharedLevel
from nbcache.sharing.live.signing import Signer
from nbcache.sharing.snapshots.build import Origin, build_snapshot
from nbcache.sharing.snapshots.named import NamedSnapshots
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.backends.redis.store import RedisStore
from nbcache.storage.encoding import pack
from nbcache.storage.store import ArtifactStore

__all__ = ["entries_text"]

_PER_NOTEBOOK = 100
_CONTENT_BYTES = 2_000
"""Content of an artifact; it cannot be compressed, so that it takes as much on the server."""
_FLUSHED = 1_000
"""Artifacts handed to the background at once; the first few of these become a named snapshot."""
_IN_SNAPSHOT = 10
_LONG, _FEWEST, _MOST = 1.0, 3, 200
"""An action is repeated for so many seconds, and so often at least and at most."""
_SMALL_PART = 10
"""The first measurement is made with this part of the artifacts."""


@dataclass(frozen=True, slots=True)
class Action:
    """The seconds of one action in a Redis with so many artifacts."""

    name: str
    entries: int
    seconds: float
    """Median."""
    round_trips: float
    """Mean."""


class _Full:
    """A kernel's shared level on a server that holds the artifacts of many notebooks."""

    def __init__(self, level: SharedLevel, keyring: Keyring) -> None:
        self.level = level
        self.snapshots = NamedSnapshots(level.store, keyring)
        self.environment = Environment(components({"torch.version": "none, this is a benchmark"}))
        self.refs: list[ArtifactRef] = []
        """Refs of all artifacts on the server."""

    def fill(self, entries: int) -> None:
        """Publish artifacts, and what notebooks have of them, until there are `entries`."""
        for number in range(len(self.refs), entries):
            ref, content = _artifact(number)
            self.refs.append(ref)
            self.level.publish(self.environment, ref, pack(content))
            if (number + 1) % _PER_NOTEBOOK == 0:
                self.level.publish_manifest(self.manifest(number))
            if (number + 1) % _FLUSHED == 0:
                self.level.flush(None)
        self.level.flush(None)

    def name_snapshots(self) -> None:
        """Write the named snapshots that are not there yet."""
        for number in range(len(self.snapshots.versions()), len(self.refs) // _FLUSHED):
            self._name_snapshot(number)

    def _name_snapshot(self, number: int) -> None:
        """Write a named snapshot, whose artifacts are there once more."""
        kept = ArtifactStore(MemoryStore())
        refs = []
        for ref, content in map(_artifact, range(number * _FLUSHED, number * _FLUSHED + _IN_SNAPSHOT)):
            refs.append(kept.put(self.environment.digest, Artifact(ref.type, ref.key, content)))
        manifest = Manifest(self.environment, f"snapshot-{number}.ipynb", tuple(refs))
        origin = Origin(manifest.notebook, time.time(), "nbcache bench")
        self.snapshots.write(f"bench/{number}", partial(build_snapshot, kept, manifest, origin), origin)

    def manifest(self, number: int) -> Manifest:
        """Return what the notebook has that the artifact of this number belongs to."""
        first = number - number % _PER_NOTEBOOK
        refs = tuple(self.refs[first : first + _PER_NOTEBOOK])
        return Manifest(self.environment, f"notebook-{number // _PER_NOTEBOOK}.ipynb", refs)

    def some(self, time: int) -> int:
        """Return the number of an artifact of a whole notebook, another one each time."""
        return random.Random(time).randrange(len(self.refs) // _PER_NOTEBOOK * _PER_NOTEBOOK)


def _artifact(number: int) -> tuple[ArtifactRef, bytes]:
    content = random.Random(number).randbytes(_CONTENT_BYTES)
    key = f"f{sha256(str(number).encode())[:50]}"
    now = time.time()
    return ArtifactRef("inductor", key, sha256(content), len(content), now, now), content


def _look_up(full: _Full, time: int) -> object:
    (found,) = full.level.find(full.environment, "inductor", full.refs[full.some(time)].key)
    return found


def _miss(full: _Full, time: int) -> object:
    return full.level.find(full.environment, "inductor", f"absent-{time}")


def _present(full: _Full, time: int) -> object:
    return full.level.absent(full.environment, full.manifest(full.some(time)).artifacts)


def _read_ahead(full: _Full, time: int) -> object:
    refs = full.manifest(full.some(time)).artifacts
    found = list(full.level.find_many(full.environment, refs, most_bytes=1 << 30))
    assert len(found) == len(refs)
    return found


def _publications(full: _Full, time: int) -> object:
    (found,) = full.level.publications(full.manifest(full.some(time)).notebook)
    return found


def _all_keys(full: _Full, time: int) -> object:
    return list(full.level.store.keys(LIVE))


def _list_snapshots(full: _Full, time: int) -> object:
    return full.snapshots.versions()


def _collect(full: _Full, time: int) -> object:
    return full.snapshots.collect_garbage(), remove_unused(full.level.store)


_ACTIONS: Mapping[str, Callable[[_Full, int], object]] = {
    "look one artifact up": _look_up,
    "look one up that is not there": _miss,
    f"ask which of a notebook's {_PER_NOTEBOOK} are there": _present,
    f"read a notebook's {_PER_NOTEBOOK} ahead": _read_ahead,
    "who has published what of a notebook": _publications,
    "list all artifacts": _all_keys,
    "list the named snapshots (nbcache ls)": _list_snapshots,
    "find what nobody needs (nbcache gc)": _collect,
}
"""Each takes the full store and the number of the repetition."""


def entries_text(server: Server, folder: Path, count: int, say: Callable[[str], None]) -> str:
    """Measure all actions with a tenth of `count` artifacts, then with all; return the table."""
    actions: list[Action] = []
    notices: list[str] = []
    empty = server.memory_bytes()
    keyring = Keyring(folder / "keys")
    with _level(server.url, keyring, notices) as level:
        full = _Full(level, keyring)
        for entries in (count // _SMALL_PART, count):
            say(f"publishing {entries:,} artifacts")
            began, published = time.perf_counter(), len(full.refs)
            full.fill(entries)
            publish_seconds = (time.perf_counter() - began) / (entries - published)
            full.name_snapshots()
            memory = server.memory_bytes() - empty
            for name in _ACTIONS:
                actions.append(_action(server, name, full))
                say(f"{entries:,} artifacts: {name}: {call_text(actions[-1].seconds)}")
            if notices:
                raise NbcacheError(notices[0])
    return _table(actions, count, memory, publish_seconds)


def _action(server: Server, name: str, full: _Full) -> Action:
    _ACTIONS[name](full, 0)
    counts = server.counts()
    seconds: list[float] = []
    while len(seconds) < _FEWEST or (len(seconds) < _MOST and sum(seconds) < _LONG):
        began = time.perf_counter()
        _ACTIONS[name](full, len(seconds) + 1)
        seconds.append(time.perf_counter() - began)
    trips = server.counts().since(counts)["round_trips"]
    return Action(name, len(full.refs), statistics.median(seconds), trips / len(seconds))


@contextlib.contextmanager
def _level(url: str, keyring: Keyring, notices: list[str]) -> Iterator[SharedLevel]:
    signer = Signer(lambda: keyring, lambda: Policy.STRICT, "bench", "here")
    store = RedisStore(url)
    level = SharedLevel(store, signer, wait_seconds=600.0, say=lambda text, slug: notices.append(text))
    try:
        yield level
    finally:
        level.close(timeout=1.0)


def _table(actions: Sequence[Action], count: int, memory: int, publish_seconds: float) -> str:
    """Return a line for each action, by how many artifacts there are."""
    sizes = list(dict.fromkeys(action.entries for action in actions))
    rows = [["artifacts", *(word for entries in sizes for word in (f"{entries:,}", "round trips"))]]
    for name in _ACTIONS:
        figures = [action for action in actions if action.name == name]
        words = [(call_text(action.seconds), f"{action.round_trips:.0f}") for action in figures]
        rows.append([name, *(word for pair in words for word in pair)])
    head = f"a Redis that holds {count:,} artifacts of {size(_CONTENT_BYTES)} each, "
    head += f"{_PER_NOTEBOOK} of each notebook, and {count // _FLUSHED:,} named snapshots"
    taken = f"{size(memory)} of its memory, {size(round(memory / count))} for each"
    foot = f"({taken}; publishing one took {call_text(publish_seconds)}, in the background)"
    return "\n".join([head, *(f"  {line}" for line in [*aligned(rows, right=range(1, len(rows[0]))), foot])])
