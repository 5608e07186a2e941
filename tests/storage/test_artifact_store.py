"""Artifacts and manifests above a store: what is kept, merged, removed, and never lost."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbcache.core.errors import (
    CorruptEntry,
    FormatError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    UnsupportedVersion,
)
from nbcache.core.key import components
from nbcache.core.model import Artifact, ArtifactRef, Environment, Manifest
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.encoding import decode_entry, encode_entry, encode_manifest, encode_ref
from nbcache.storage.manifests import MAX_MANIFEST_ARTIFACTS
from nbcache.storage.store import ArtifactStore
from nbcache.storage.types import TYPES
from support.testing import OPERATIONS, FailingStore, at_once, flip_last_byte, truncate

ENVIRONMENT = Environment(components({"torch": "2.13.0", "cpu": "avx2"}))
OTHER_ENVIRONMENT = Environment(components({"torch": "2.13.0", "cpu": "avx512"}))
HERE = ENVIRONMENT.digest
NOTEBOOK = "work/quickstart.ipynb"
NEWER_ENTRY = b"NBCE\x02 whatever a later nbcache writes"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def faults() -> list[FormatError]:
    return []


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else DirectoryStore(tmp_path / "store")


def named(faults: list[FormatError]) -> list[tuple[type[FormatError], str]]:
    """Return the kind of each fault, and the key of its entry."""
    return [(type(error), (error.where or "").partition(" ")[0]) for error in faults]


@pytest.fixture
def artifacts(store: Store, clock: Clock, faults: list[FormatError]) -> ArtifactStore:
    return ArtifactStore(store, clock=clock, on_fault=faults.append)


def artifact(content: bytes, type: str = "inductor", key: str = "fkey") -> Artifact:
    return Artifact(type, key, content)


def ref(
    name: str, used: float = 1.0, type: str = "inductor", key: str | None = None, cell: str = ""
) -> ArtifactRef:
    """Return a reference to an artifact whose content is `name`."""
    return ArtifactRef(
        type, key or name, hashlib.sha256(name.encode()).hexdigest(), len(name), 1.0, used, cell
    )


def manifest(
    *refs: ArtifactRef, notebook: str = NOTEBOOK, environment: Environment = ENVIRONMENT
) -> Manifest:
    return Manifest(environment, notebook, refs)


def below(store: Store, prefix: str) -> list[str]:
    return sorted(store.keys(prefix))


# --- put and find ---------------------------------------------------------------------------------


def test_an_artifact_is_found_only_by_its_environment_type_and_key(artifacts: ArtifactStore) -> None:
    put = artifacts.put(HERE, artifact(b"content"), cell="c1", function="f")
    assert put == ArtifactRef("inductor", "fkey", artifact(b"content").digest, 7, 1000.0, 1000.0, "c1", "f")
    assert artifacts.find(HERE, "inductor", "fkey") == [artifact(b"content")] == [artifacts.get(put)]
    assert artifacts.find(OTHER_ENVIRONMENT.digest, "inductor", "fkey") == []
    assert artifacts.find(HERE, "aot_autograd", "fkey") == []
    assert artifacts.find(HERE, "inductor", "another") == []


def test_the_layout_of_keys_and_values_is_frozen(artifacts: ArtifactStore, store: Store) -> None:
    digest = artifact(b"content").digest
    put = artifacts.put(HERE, artifact(b"content"))
    artifacts.save_manifest(manifest(ref("a")))
    name = hashlib.sha256(
        f"nbcache key 1\n11:environment64:{HERE}3:key4:fkey4:type8:inductor".encode()
    ).hexdigest()
    notebook = hashlib.sha256(NOTEBOOK.encode()).hexdigest()
    saved = hashlib.sha256(encode_manifest(manifest(ref("a")))).hexdigest()
    contents = {key: decode_entry(value) for key, value in store.get_many(store.keys()).items()}
    assert contents == {
        f"artifact/{digest}": b"content",
        f"manifest/{HERE}/{notebook}/{saved}": encode_manifest(manifest(ref("a"))),
        f"ref/{name}/{digest}": encode_ref(put),
    }


def test_variants_of_one_key_are_all_found_the_last_used_first(
    artifacts: ArtifactStore, clock: Clock
) -> None:
    for content in (b"one", b"two", b"three"):
        clock.now += 1
        artifacts.put(HERE, artifact(content))
    assert [found.content for found in artifacts.find(HERE, "inductor", "fkey")] == [b"three", b"two", b"one"]
    clock.now += 1
    artifacts.put(HERE, artifact(b"one"))
    assert [found.content for found in artifacts.find(HERE, "inductor", "fkey")] == [b"one", b"three", b"two"]


def test_putting_again_updates_the_use_and_keeps_the_rest(artifacts: ArtifactStore, clock: Clock) -> None:
    artifacts.put(HERE, artifact(b"content"), cell="c1", function="f")
    clock.now += 5
    again = artifacts.put(HERE, artifact(b"content"))
    assert (again.created, again.used, again.cell, again.function) == (1000.0, 1005.0, "c1", "f")
    moved = artifacts.put(HERE, artifact(b"content"), cell="c2")
    assert (moved.cell, moved.function) == ("c2", "f")


def test_content_that_is_there_is_not_written_again(clock: Clock) -> None:
    counted = FailingStore(MemoryStore(), None)
    artifacts = ArtifactStore(counted, clock=clock)
    artifacts.put(HERE, artifact(b"content"))
    assert counted.calls["put"] == 2
    artifacts.put(HERE, artifact(b"content"))
    assert counted.calls["put"] == 3
    artifacts.put(OTHER_ENVIRONMENT.digest, artifact(b"content"))
    artifacts.put(HERE, artifact(b"content", key="another"))
    assert (len(below(counted, "artifact/")), len(below(counted, "ref/"))) == (1, 3)


def test_putting_again_counts_as_use_where_the_store_keeps_that_order(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    artifacts = ArtifactStore(store)
    for content in (b"one", b"two"):
        put = artifacts.put(HERE, artifact(content))
        file = tmp_path / "v2/artifact" / put.digest
        os.utime(file, (1000.0, 1000.0) if content == b"one" else (2000.0, 2000.0))
    artifacts.put(HERE, artifact(b"one"))
    assert store.evict("artifact/", 64) == [f"artifact/{artifact(b'two').digest}"]


def test_an_artifact_is_written_before_its_reference(clock: Clock) -> None:
    store = MemoryStore()
    artifacts = ArtifactStore(_FullAfter(store, puts=1), clock=clock)
    with pytest.raises(StoreFull):
        artifacts.put(HERE, artifact(b"content"))
    assert (len(below(store, "artifact/")), below(store, "ref/")) == (1, [])


class _FullAfter(FailingStore):
    """A store that is full after some puts."""

    def __init__(self, store: Store, puts: int):
        super().__init__(store, StoreFull("no room"), [])
        self._puts = puts

    def put(self, key: str, value: bytes) -> None:
        if self.calls["put"] >= self._puts:
            self.operations = ["put"]
        super().put(key, value)


@pytest.mark.parametrize("type", [name for name, type in TYPES.items() if type.grows])
def test_a_profile_is_kept_only_as_it_was_last(
    artifacts: ArtifactStore, store: Store, clock: Clock, type: str
) -> None:
    for content in (b"profile", b"profile grown", b"profile grown more"):
        clock.now += 1
        artifacts.put(HERE, artifact(content, type=type))
        artifacts.put(HERE, artifact(content, type=type, key="of another function"))
    assert artifacts.find(HERE, type, "fkey") == [artifact(b"profile grown more", type=type)]
    assert len(below(store, "ref/")) == 2


def test_a_late_put_of_an_older_profile_does_not_drop_a_newer_one(store: Store) -> None:
    early, late = (ArtifactStore(store, clock=lambda now=now: now) for now in (1.0, 2.0))  # type: ignore[misc]
    late.put(HERE, artifact(b"new", type="pgo"))
    early.put(HERE, artifact(b"old", type="pgo"))
    assert [found.content for found in early.find(HERE, "pgo", "fkey")] == [b"new", b"old"]


@pytest.mark.parametrize("broken", [artifact(b"content", key="\udc80"), artifact(b"content", type="")])
def test_an_artifact_that_cannot_be_named_is_refused_and_not_found(
    artifacts: ArtifactStore, store: Store, broken: Artifact
) -> None:
    with pytest.raises(FormatError):
        artifacts.put(HERE, broken)
    assert artifacts.find(HERE, broken.type, broken.key) == []
    assert list(store.keys()) == []


# --- faults ---------------------------------------------------------------------------------------


def only(found: list[str]) -> str:
    (key,) = found
    return key


@pytest.mark.parametrize("damage", [flip_last_byte, truncate, lambda entry: b"", lambda entry: entry + b"\0"])
@pytest.mark.parametrize("prefix", ["artifact/", "ref/"])
def test_a_damaged_entry_is_reported_set_aside_and_a_miss(
    artifacts: ArtifactStore,
    store: Store,
    faults: list[FormatError],
    damage: Callable[[bytes], bytes],
    prefix: str,
) -> None:
    artifacts.put(HERE, artifact(b"content"))
    key = only(below(store, prefix))
    damaged = damage(store.get(key) or b"")
    store.put(key, damaged)

    assert artifacts.find(HERE, "inductor", "fkey") == []
    assert named(faults) == [(CorruptEntry, key)]
    assert faults[0].where == f"{key} in {store.name}"
    assert below(store, prefix) == []
    assert below(store, "ref/") == []

    assert artifacts.find(HERE, "inductor", "fkey") == []  # once said is enough
    assert len(faults) == 1
    artifacts.put(HERE, artifact(b"content"))
    assert artifacts.find(HERE, "inductor", "fkey") == [artifact(b"content")]


def test_damage_is_reported_before_it_is_set_aside(store: Store) -> None:
    """Else another thread finds nothing, and cannot tell that it was there and damaged."""
    there: list[bytes | None] = []
    artifacts = ArtifactStore(store, on_fault=lambda error: there.append(store.get(named([error])[0][1])))
    key = f"artifact/{artifacts.put(HERE, artifact(b'content')).digest}"
    store.put(key, b"damaged")
    assert artifacts.find(HERE, "inductor", "fkey") == []
    assert there == [b"damaged"]
    assert store.get(key) is None


def test_a_damaged_variant_does_not_hide_the_others(artifacts: ArtifactStore, store: Store) -> None:
    artifacts.put(HERE, artifact(b"one"))
    artifacts.put(HERE, artifact(b"two"))
    store.put(f"artifact/{artifact(b'two').digest}", b"damaged")
    assert artifacts.find(HERE, "inductor", "fkey") == [artifact(b"one")]


def test_sound_content_of_another_artifact_is_not_taken(
    artifacts: ArtifactStore, store: Store, faults: list[FormatError]
) -> None:
    put = artifacts.put(HERE, artifact(b"content"))
    store.put(f"artifact/{put.digest}", encode_entry(b"something else"))
    assert artifacts.get(put) is None
    assert [type(error) for error in faults] == [CorruptEntry]
    assert below(store, "artifact/") == []


def test_a_reference_under_a_key_that_is_not_its_own_is_not_taken(
    artifacts: ArtifactStore, store: Store, faults: list[FormatError]
) -> None:
    for key in ("fkey", "another"):
        artifacts.put(HERE, artifact(b"content", key=key))
    one, other = below(store, "ref/")
    store.put(one, store.get(other) or b"")
    found = artifacts.find(HERE, "inductor", "fkey") + artifacts.find(HERE, "inductor", "another")
    assert len(found) == 1
    assert named(faults) == [(CorruptEntry, one)]


def test_a_reference_whose_artifact_is_gone_is_dropped(
    artifacts: ArtifactStore, store: Store, faults: list[FormatError]
) -> None:
    put = artifacts.put(HERE, artifact(b"content"))
    store.delete(f"artifact/{put.digest}")
    assert artifacts.find(HERE, "inductor", "fkey") == []
    assert faults == []
    assert below(store, "ref/") == []
    assert artifacts.get(put) is None
    assert faults == []


@pytest.mark.parametrize("prefix", ["artifact/", "ref/", "manifest/"])
def test_what_a_newer_nbcache_wrote_is_left_alone(
    artifacts: ArtifactStore, store: Store, faults: list[FormatError], prefix: str
) -> None:
    artifacts.put(HERE, artifact(b"content"))
    artifacts.save_manifest(manifest(ref("a")))
    before = set(store.keys())
    key = only(below(store, prefix))
    store.put(key, NEWER_ENTRY)

    found = artifacts.find(HERE, "inductor", "fkey"), artifacts.load_manifest(ENVIRONMENT, NOTEBOOK)
    assert found in (([], manifest(ref("a"))), ([artifact(b"content")], None))
    assert {*named(faults)} == {(UnsupportedVersion, key)}
    assert set(store.keys()) == before
    assert store.get(key) == NEWER_ENTRY


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_content_that_decodes_to_no_reference_or_manifest_is_a_miss(content: bytes) -> None:
    store, faults = MemoryStore(), list[FormatError]()
    artifacts = ArtifactStore(store, on_fault=faults.append)
    artifacts.put(HERE, artifact(b"content"))
    artifacts.save_manifest(manifest(ref("a")))
    for key in (*store.keys("ref/"), *store.keys("manifest/")):
        store.put(key, encode_entry(content))
    assert artifacts.find(HERE, "inductor", "fkey") == []
    assert artifacts.load_manifest(ENVIRONMENT, NOTEBOOK) is None
    assert len(faults) == 2


@pytest.mark.parametrize(
    "error", [StoreReadOnly("read-only"), StoreFull("no room"), StoreUnavailable("gone")]
)
def test_a_fault_that_cannot_be_set_aside_is_a_miss_all_the_same(
    faults: list[FormatError], error: StoreError
) -> None:
    store = FailingStore(MemoryStore(), None, ["put", "delete"])
    artifacts = ArtifactStore(store, on_fault=faults.append)
    put = artifacts.put(HERE, artifact(b"content"))
    store.put(f"artifact/{put.digest}", b"damaged")
    store.error = error
    assert artifacts.find(HERE, "inductor", "fkey") == []
    assert artifacts.get(put) is None
    assert [type(error) for error in faults] == [CorruptEntry] * 2


# --- manifests ------------------------------------------------------------------------------------


def test_a_manifest_is_of_one_notebook_in_one_environment(artifacts: ArtifactStore) -> None:
    artifacts.save_manifest(manifest(ref("a")))
    artifacts.save_manifest(manifest(ref("b"), notebook=""))
    artifacts.save_manifest(manifest(ref("c"), environment=OTHER_ENVIRONMENT))
    assert artifacts.load_manifest(ENVIRONMENT, NOTEBOOK) == manifest(ref("a"))
    assert artifacts.load_manifest(ENVIRONMENT, "") == manifest(ref("b"), notebook="")
    assert artifacts.load_manifest(OTHER_ENVIRONMENT, "") is None


def test_saving_keeps_what_was_saved_before_behind_what_is_new(
    artifacts: ArtifactStore, store: Store
) -> None:
    artifacts.save_manifest(manifest(ref("a"), ref("b")))
    union = artifacts.save_manifest(manifest(ref("c", used=2.0), ref("b", used=2.0)))
    assert union == manifest(ref("c", used=2.0), ref("b", used=2.0), ref("a"))
    assert artifacts.load_manifest(ENVIRONMENT, NOTEBOOK) == union
    assert len(below(store, "manifest/")) == 1


def test_of_one_artifact_the_newest_use_is_kept(artifacts: ArtifactStore) -> None:
    artifacts.save_manifest(manifest(ref("a", used=5.0, cell="new"), ref("b", used=1.0, cell="old")))
    union = artifacts.save_manifest(manifest(ref("a", used=2.0, cell="old"), ref("b", used=3.0, cell="new")))
    assert union == manifest(ref("a", used=5.0, cell="new"), ref("b", used=3.0, cell="new"))


def test_of_a_profile_only_the_newest_is_kept(artifacts: ArtifactStore) -> None:
    old, new = ref("old", used=1.0, type="pgo", key="k"), ref("new", used=2.0, type="pgo", key="k")
    other = ref("old", used=1.0, type="pgo", key="k2")
    artifacts.save_manifest(manifest(old, other))
    assert artifacts.save_manifest(manifest(ref("a"), new)) == manifest(ref("a"), new, other)
    assert set(artifacts.save_manifest(manifest(old)).artifacts) == {new, ref("a"), other}


def test_a_manifest_names_at_most_its_bound_those_used_last(store: Store) -> None:
    artifacts = ArtifactStore(store)
    old = [ref(f"old{number}", used=1.0 + number) for number in range(MAX_MANIFEST_ARTIFACTS)]
    new = [ref(f"new{number}", used=100_000.0) for number in range(10)]
    artifacts.save_manifest(manifest(*old))
    union = artifacts.save_manifest(manifest(*new))
    assert union == manifest(*new, *old[10:])
    assert artifacts.load_manifest(ENVIRONMENT, NOTEBOOK) == union


def test_manifests_that_several_kernels_left_are_loaded_as_one(
    artifacts: ArtifactStore, store: Store
) -> None:
    one, two = manifest(ref("a"), ref("b")), manifest(ref("b", used=2.0), ref("c"))
    for left in (one, two):
        leave(store, left)
    # The newest, by its last use, gives the order.
    assert artifacts.load_manifest(ENVIRONMENT, NOTEBOOK) == manifest(ref("b", used=2.0), ref("c"), ref("a"))
    assert len(below(store, "manifest/")) == 2


def leave(store: Store, left: Manifest) -> str:
    """Put a manifest as a kernel does that is killed before it removes those that it absorbed."""
    notebook = hashlib.sha256(left.notebook.encode()).hexdigest()
    content = encode_manifest(left)
    key = f"manifest/{left.environment.digest}/{notebook}/{hashlib.sha256(content).hexdigest()}"
    store.put(key, encode_entry(content))
    return key


def test_a_damaged_manifest_is_set_aside_and_the_others_are_loaded(
    artifacts: ArtifactStore, store: Store, faults: list[FormatError]
) -> None:
    damaged = leave(store, manifest(ref("a")))
    leave(store, manifest(ref("b")))
    store.put(damaged, truncate(store.get(damaged) or b""))
    assert artifacts.load_manifest(ENVIRONMENT, NOTEBOOK) == manifest(ref("b"))
    assert named(faults) == [(CorruptEntry, damaged)]


def test_a_manifest_of_another_notebook_or_environment_is_not_taken(
    artifacts: ArtifactStore, store: Store, faults: list[FormatError]
) -> None:
    for foreign in (
        manifest(ref("a"), notebook="another.ipynb"),
        manifest(ref("a"), environment=OTHER_ENVIRONMENT),
    ):
        key = leave(store, manifest(ref("a")))
        store.put(key, encode_entry(encode_manifest(foreign)))
        assert artifacts.load_manifest(ENVIRONMENT, NOTEBOOK) is None
    assert [type(error) for error in faults] == [CorruptEntry] * 2


def test_a_manifest_that_could_not_be_read_again_is_not_saved(artifacts: ArtifactStore, store: Store) -> None:
    for broken in (manifest(ref("a", used=-1.0)), manifest(ref("a"), notebook="\udc80.ipynb")):
        with pytest.raises(FormatError):
            artifacts.save_manifest(broken)
    assert list(store.keys()) == []
    assert artifacts.load_manifest(ENVIRONMENT, "\udc80.ipynb") is None


# --- several kernels at once ----------------------------------------------------------------------


class _Turns:
    """Lets threads do one operation each in a given order; a thread that has ended is passed over."""

    def __init__(self, order: Iterable[int], threads: int):
        self._order = list(order)
        self._running = set(range(threads))
        self._changed = threading.Condition()

    def take(self, thread: int, operation: Callable[[], object]) -> object:
        with self._changed:
            self._changed.wait_for(lambda: self._next() in (thread, None))
            try:
                return operation()
            finally:
                if self._order:
                    self._order.pop(0)
                self._changed.notify_all()

    def end(self, thread: int) -> None:
        with self._changed:
            self._running.discard(thread)
            self._changed.notify_all()

    def _next(self) -> int | None:
        while self._order and self._order[0] not in self._running:
            self._order.pop(0)
        return self._order[0] if self._order else None


class _InTurns:
    """One thread's view of a store: it does nothing before its turn."""

    def __init__(self, store: Store, turns: _Turns, thread: int):
        self._store, self._turns, self._thread = store, turns, thread

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if name not in OPERATIONS:
            return operation
        finish = list if name == "keys" else lambda result: result  # a listing is one operation
        return lambda *arguments: self._turns.take(self._thread, lambda: finish(operation(*arguments)))


def run_in_turns(
    store: Store, order: Iterable[int], actions: list[Callable[[ArtifactStore], object]]
) -> None:
    """Run `actions`, each in its thread on `store`, their operations on it in `order`."""
    turns = _Turns(order, len(actions))

    def run(thread: int) -> None:
        try:
            actions[thread](ArtifactStore(_InTurns(store, turns, thread), clock=lambda: 1.0 + thread))
        finally:
            turns.end(thread)

    at_once(partial(run, number) for number in range(len(actions)))


def orders(*operations: int) -> Iterator[tuple[int, ...]]:
    """Yield every order in which threads can do so many operations each."""
    if not any(operations):
        yield ()
    for thread, left in enumerate(operations):
        if left:
            rest = (*operations[:thread], left - 1, *operations[thread + 1 :])
            for order in orders(*rest):
                yield (thread, *order)


A, B, C = ref("a"), ref("b"), ref("c")
SAVED_BEFORE: dict[str, list[Manifest]] = {
    "nothing": [],
    "one": [manifest(C)],
    "the same": [manifest(A)],
    "the union": [manifest(A, B)],
    "two": [manifest(C), manifest(A)],
    "two that differ in order only": [manifest(A, B), manifest(B, A)],
}


@pytest.mark.parametrize("before", SAVED_BEFORE)
@pytest.mark.parametrize(
    ("one", "two"),
    [
        (manifest(A), manifest(B)),
        (manifest(A, B), manifest(B, A)),
        (manifest(A), manifest(ref("a", used=2.0), B)),
    ],
)
def test_two_kernels_that_save_at_once_lose_nothing_in_any_order_of_what_they_do(
    before: str, one: Manifest, two: Manifest
) -> None:
    expected = {each.identity for each in one.artifacts + two.artifacts}
    expected |= {each.identity for saved in SAVED_BEFORE[before] for each in saved.artifacts}
    # keys, get_many, put, delete: 70 orders; what comes after those runs in any order.
    for order in orders(4, 4):
        store = MemoryStore()
        for saved in SAVED_BEFORE[before]:
            leave(store, saved)
        run_in_turns(
            store,
            order,
            [lambda artifacts: artifacts.save_manifest(one), lambda artifacts: artifacts.save_manifest(two)],
        )
        loaded = ArtifactStore(store).load_manifest(ENVIRONMENT, NOTEBOOK)
        assert loaded is not None, order
        assert {each.identity for each in loaded.artifacts} == expected, order
        newest = {each.identity: each.used for each in loaded.artifacts}
        for each in one.artifacts + two.artifacts:
            assert newest[each.identity] >= each.used, order


def test_a_manifest_is_loaded_whole_while_another_kernel_replaces_it() -> None:
    for order in orders(4, 4):
        store = MemoryStore()
        leave(store, manifest(A))
        loaded: list[Manifest | None] = []
        run_in_turns(
            store,
            order,
            [
                lambda artifacts, loaded=loaded: loaded.append(
                    artifacts.load_manifest(ENVIRONMENT, NOTEBOOK)
                ),  # type: ignore[misc]
                lambda artifacts: artifacts.save_manifest(manifest(B)),
            ],
        )
        assert loaded[0] is not None, order
        assert A in loaded[0].artifacts, order


def test_of_two_profiles_put_at_once_the_newer_stays() -> None:
    # put: get_many, get, put, put, keys, get_many, delete
    for number, order in enumerate(orders(7, 7)):
        if number % 10:
            continue
        store = MemoryStore()
        run_in_turns(
            store,
            order,
            [
                lambda artifacts: artifacts.put(HERE, artifact(b"old", type="pgo")),
                lambda artifacts: artifacts.put(HERE, artifact(b"new", type="pgo")),
            ],
        )
        assert ArtifactStore(store).find(HERE, "pgo", "fkey")[0].content == b"new", order


# --- upkeep ---------------------------------------------------------------------------------------


def test_evicting_bounds_the_artifacts_and_drops_their_references(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    faults = list[FormatError]()
    artifacts = ArtifactStore(store, on_fault=faults.append)
    puts = [artifacts.put(HERE, artifact(os.urandom(1000), key=f"k{number}")) for number in range(10)]
    for age, put in enumerate(reversed(puts)):
        os.utime(tmp_path / "v2/artifact" / put.digest, (1e9 - age, 1e9 - age))
    assert artifacts.evict(1 << 30) == []
    assert artifacts.evict(6000) == [put.digest for put in puts[:5]]
    assert len(below(store, "ref/")) == 5
    assert [len(artifacts.find(HERE, "inductor", put.key)) for put in puts] == [0] * 5 + [1] * 5
    assert faults == []


def test_clearing_removes_everything_of_nbcaches_and_nothing_else(
    artifacts: ArtifactStore, store: Store
) -> None:
    put = artifacts.put(HERE, artifact(b"content"))
    artifacts.put(OTHER_ENVIRONMENT.digest, artifact(b"other"))
    artifacts.save_manifest(manifest(put))
    store.put("another/program", b"its own")
    assert artifacts.clear() == 5
    assert list(store.keys()) == ["another/program"]
    assert artifacts.clear() == 0


def test_forgetting_a_key_drops_its_variants_and_nothing_else(artifacts: ArtifactStore) -> None:
    for content, key in ((b"one", "fkey"), (b"two", "fkey"), (b"three", "other")):
        artifacts.put(HERE, artifact(content, key=key))

    artifacts.forget(HERE, "inductor", "fkey")
    artifacts.forget(HERE, "inductor", "never stored")

    assert artifacts.find(HERE, "inductor", "fkey") == []
    assert [each.content for each in artifacts.find(HERE, "inductor", "other")] == [b"three"]


def test_refreshing_takes_nothing_in(artifacts: ArtifactStore, clock: Clock) -> None:
    assert artifacts.refresh(HERE, artifact(b"unknown")) is None
    assert artifacts.find(HERE, "inductor", "fkey") == []

    first = artifacts.put(HERE, artifact(b"known"))
    clock.now += 5
    again = artifacts.refresh(HERE, artifact(b"known"))

    assert again is not None
    assert (again.digest, again.created, again.used) == (first.digest, first.created, first.used + 5)
