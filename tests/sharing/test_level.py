"""The shared level above any store: what is found, published and told, and what a failing store costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from nbcache.core.errors import StoreFull, StoreUnavailable
from nbcache.core.key import sha256
from nbcache.core.model import UNSIGNED, ArtifactRef, Manifest
from nbcache.core.settings import Policy
from nbcache.sharing.live import connection
from nbcache.sharing.live import level as level_module
from nbcache.sharing.live.connection import USUAL, Timings
from nbcache.sharing.live.layout import decode_shared, slot_of
from nbcache.sharing.live.level import SharedLevel
from nbcache.sharing.live.signing import Signer
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.filesystem import FilesystemStore
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.backends.redis.store import RedisStore
from nbcache.storage.encoding import pack
from nbcache.storage.manifests import union
from support.front_door import in_child
from support.live_kernels import ELSEWHERE, HERE, IMPATIENT, SECONDS, at_once
from support.redis_servers import wait_until
from support.testing import FailingStore

Level = Callable[..., SharedLevel]


@pytest.fixture
def said() -> list[str]:
    """Return what all levels have said."""
    return []


@pytest.fixture
def level(tmp_path: Path, said: list[str]) -> Iterator[Level]:
    """Return a function that makes one kernel's level on a store: `level(store, user="ada")`."""
    made: list[SharedLevel] = []

    def make(store: Store, user: str = "ada", host: str = "engine", timings: Timings = USUAL) -> SharedLevel:
        keyring = Keyring(tmp_path / user)
        signer = Signer(lambda: keyring, lambda: Policy.STRICT, user, host)
        made.append(
            SharedLevel(
                store, signer, wait_seconds=1.0, say=lambda text, slug: said.append(text), timings=timings
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close(SECONDS)


@pytest.fixture(params=["memory", "folder", "Redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "folder":
        made = FilesystemStore(str(tmp_path / "team"))
    else:
        made = RedisStore(request.getfixturevalue("redis_server").url)
    with closing(made):
        yield made


def ref_of(content: bytes, key: str = "one", type: str = "inductor") -> ArtifactRef:
    return ArtifactRef(type, key, sha256(content), len(content), 1.0, 2.0, "cell", "f")


def publish(level: SharedLevel, *contents: bytes, key: str = "one") -> None:
    for content in contents:
        level.publish(HERE, ref_of(content, key), pack(content))


def found(level: SharedLevel, key: str = "one") -> list[bytes]:
    return [each.unpack() for each in level.find(HERE, "inductor", key)]


# --- any store ------------------------------------------------------------------------------------


def test_what_is_published_is_found_with_what_was_said_of_it(store: Store, level: Level) -> None:
    writer = level(store)
    publish(writer, b"a graph")
    assert writer.flush(SECONDS)

    (each,) = level(store).find(HERE, "inductor", "one")
    assert each.unpack() == b"a graph"
    assert each.statement.ref == ref_of(b"a graph")
    assert (each.statement.user, each.statement.host) == ("ada", "engine")
    assert level(store).find(HERE, "inductor", "two") == []
    assert level(store).find(HERE, "aot_autograd", "one") == []
    assert level(store).find(ELSEWHERE, "inductor", "one") == []


def test_many_are_found_in_few_round_trips(store: Store, level: Level) -> None:
    contents = {f"k{number}": b"%d" % number for number in range(40)}
    writer = level(store)
    for key, content in contents.items():
        publish(writer, content, key=key)
    assert writer.flush(SECONDS)
    counted = FailingStore(store, None)
    reader = level(counted)
    wanted = [ref_of(b"absent", "absent"), *(ref_of(content, key) for key, content in contents.items())]
    listed = reader.find_many(HERE, wanted, most_bytes=1 << 30)
    assert {each.statement.ref.key: each.unpack() for each in listed} == contents
    assert counted.calls["get_many"] == 3
    assert [ref.key for ref in reader.absent(HERE, wanted)] == ["absent"]


def test_what_was_overwritten_meanwhile_is_written_again(level: Level) -> None:
    class Busy(FilesystemStore):
        """Another's entry replaces each of the first two that are put."""

        puts = 0

        def put(self, key: str, value: bytes) -> None:
            super().put(key, value)
            if key == slot:
                self.puts += 1
                if self.puts <= 2:
                    super().put(key, bobs)

    store = MemoryStore()
    bob = level(store, "bob")
    publish(bob, b"bob's")
    assert bob.flush(SECONDS)
    slot = slot_of(HERE, "inductor", "one")
    bobs = store.get(slot) or b""
    busy = Busy(f"memory://{time.time_ns()}")
    ada = level(busy, "ada")
    publish(ada, b"ada's")
    assert ada.flush(SECONDS)
    assert busy.puts == 3 and len(decode_shared(busy.get(slot) or b"")) == 2
    assert ada.figures().published == 1


def test_what_is_there_of_another_or_of_another_key_is_absent(store: Store, level: Level) -> None:
    bob, ada = level(store, "bob"), level(store, "ada")
    contents = {f"k{number}": b"%d" % number for number in range(40)}
    for key, content in contents.items():
        publish(bob, content, key=key)
    assert bob.flush(SECONDS)
    for key in ("k0", "k1"):
        publish(ada, contents[key], key=key)
    assert ada.flush(SECONDS)
    refs = [ref_of(content, key) for key, content in contents.items()]
    counted = FailingStore(store, None)
    reader = level(counted, "ada")
    assert [ref.key for ref in reader.absent(HERE, refs)] == [f"k{number}" for number in range(2, 40)]
    assert (counted.calls["get_many"], counted.calls["present"]) == (3, 0)

    # What bob has compiled, and ada passes on, is there; hers under another key is none of that key.
    (his,) = level(store, "bob").find(HERE, "inductor", "k2")
    assert reader.absent(HERE, [replace(refs[2], provenance=his.provenance)]) == []
    value = store.get(slot_of(HERE, "inductor", "k0"))
    assert value is not None
    store.put(slot_of(HERE, "inductor", "k9"), value)
    assert reader.absent(HERE, [refs[9]]) == [refs[9]]
    assert reader.absent(HERE, [replace(refs[3], provenance=UNSIGNED)]) == []


def test_no_more_is_read_to_tell_whose_it_is_than_a_bound(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FailingStore(MemoryStore(), None)
    bob = level(store, "bob")
    refs = [ref_of(b"%d" % number, f"k{number}") for number in range(100)]
    for ref, number in zip(refs, range(99), strict=False):
        publish(bob, b"%d" % number, key=ref.key)
    assert bob.flush(SECONDS)
    monkeypatch.setattr(level_module, "_MOST_COMPARED", 1)
    before = store.calls["get_many"]
    absent = level(store, "ada").absent(HERE, refs)
    assert [ref.key for ref in absent] == [f"k{number}" for number in range(16)]
    assert (store.calls["get_many"], store.calls["present"]) == (before + 1, 0)


def test_what_may_not_be_used_counts_for_the_bound_on_reading_ahead(level: Level) -> None:
    store = FailingStore(MemoryStore(), None)
    mallory = level(store, "mallory")
    refs = []
    for number in range(100):
        publish(mallory, bytes(1000) + b"%d" % number, key=f"k{number}")
        refs.append(ref_of(b"%d" % number, f"k{number}"))
    assert mallory.flush(SECONDS)
    assert list(level(store, "ada").find_many(HERE, refs, most_bytes=5000)) == []
    assert store.calls["get_many"] == 1


def test_nothing_of_a_stranger_is_hashed(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    mallory = level(store, "mallory")
    publish(mallory, b"a long one")
    assert mallory.flush(SECONDS)
    hashed: list[bytes] = []
    monkeypatch.setattr(
        "nbcache.sharing.live.signing.sha256", lambda content: hashed.append(content) or sha256(content)
    )
    assert found(level(store, "ada")) == []
    assert hashed == []
    assert found(mallory) == [b"a long one"] and hashed


def test_what_is_withdrawn_is_gone_whoever_published_it_and_the_rest_stays(
    store: Store, level: Level
) -> None:
    for user, content in (("ada", b"wrong"), ("ada", b"right"), ("bob", b"wrong")):
        publish(writer := level(store, user), content)
        assert writer.flush(SECONDS)
    reader = level(store)
    assert found(reader) == [b"right", b"wrong"]

    for key in ("one", "nothing is there"):
        reader.withdraw(HERE, "inductor", key, sha256(b"wrong"))
    assert reader.flush(SECONDS)

    left = decode_shared(store.get(slot_of(HERE, "inductor", "one")) or b"")
    assert [each.packed for each in left] == [pack(b"right")]
    assert found(level(store)) == [b"right"]
    reader.withdraw(HERE, "inductor", "one", sha256(b"right"))
    assert reader.flush(SECONDS)
    assert found(level(store)) == []
    publish(writer := level(store), b"anew")
    assert writer.flush(SECONDS)
    assert found(level(store)) == [b"anew"]


def test_what_a_newer_nbcache_has_published_is_not_withdrawn(level: Level) -> None:
    store, slot = MemoryStore(), slot_of(HERE, "inductor", "one")
    store.put(slot, newer := b"NBCS\xff and more")
    reader = level(store)
    reader.withdraw(HERE, "inductor", "one", sha256(b"wrong"))
    assert reader.flush(SECONDS)
    assert store.get(slot) == newer


def test_what_a_publisher_has_of_a_notebook_is_told_newest_first(
    store: Store, level: Level, tmp_path: Path
) -> None:
    ada, bob, stranger = level(store, "ada"), level(store, "bob"), level(store, "mallory")
    keys = Keyring(tmp_path / "ada")
    keys.add(Keyring(tmp_path / "bob").fingerprint())
    manifest = union(HERE, "model.ipynb", [Manifest(HERE, "model.ipynb", (ref_of(b"a graph"),))])
    for one in (ada, bob, stranger):
        one.publish_manifest(manifest)
        one.publish_manifest(replace(manifest, notebook="another.ipynb"))
        assert one.flush(SECONDS)

    told = ada.publications("model.ipynb")
    assert [(each.user, each.host) for each in told] == [("bob", "engine"), ("ada", "engine")]
    assert [each.manifest for each in told] == [manifest] * 2
    assert ada.publications("nothing.ipynb") == []


def test_of_very_many_publications_some_are_read(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_module, "_MOST_PUBLICATIONS", 20)
    store = FailingStore(MemoryStore(), None)
    for number in range(30):  # as of pods, each with a name of its own
        writer = level(store, host=f"pod-{number}")
        writer.publish_manifest(Manifest(HERE, "model.ipynb", ()))
        assert writer.flush(SECONDS)
    store.calls["get_many"] = 0

    assert len(level(store).publications("model.ipynb")) == 20
    assert store.calls["get_many"] == 2
    monkeypatch.setattr(level_module, "_MOST_PUBLISHED", 1)
    assert len(level(store).publications("model.ipynb")) == 16


def test_a_publication_that_lies_under_another_notebook_is_none(store: Store, level: Level) -> None:
    ada = level(store)
    ada.publish_manifest(Manifest(HERE, "model.ipynb", (ref_of(b"a graph"),)))
    assert ada.flush(SECONDS)
    (own,) = store.keys("notebook/")
    value = store.get(own)
    assert value is not None
    store.put(f"notebook/{sha256(b'another.ipynb')}/{'0' * 64}", value)
    store.put(f"notebook/{sha256(b'model.ipynb')}/{'0' * 64}", b"garbage")
    assert len(ada.publications("another.ipynb")) == 0
    assert len(ada.publications("model.ipynb")) == 1


def test_what_had_to_wait_to_be_published_loses_nothing_that_was_published_since(
    store: Store, level: Level
) -> None:
    failing = FailingStore(store, StoreFull("full"), ["put"])
    ada = level(failing)
    ada.publish_manifest(Manifest(HERE, "model.ipynb", (ref_of(b"old"),)))
    wait_until(lambda: ada._unsent, "it could not be written")
    failing.error = None
    ada.failure = None
    ada.publish_manifest(Manifest(HERE, "model.ipynb", (ref_of(b"new"),)))
    assert ada._worker.flush(SECONDS)
    ada._requeue_unsent()
    assert ada.flush(SECONDS)
    (told,) = ada.publications("model.ipynb")
    assert set(told.manifest.artifacts) == {ref_of(b"old"), ref_of(b"new")}


def test_two_kernels_of_one_publisher_lose_nothing_of_each_other(store: Store, level: Level) -> None:
    one, two = level(store), level(store)
    for each, content in ((one, b"one"), (two, b"two")):
        each.publish_manifest(Manifest(HERE, "model.ipynb", (ref_of(content),)))
        assert each.flush(SECONDS)
    (told,) = level(store).publications("model.ipynb")
    assert set(told.manifest.artifacts) == {ref_of(b"one"), ref_of(b"two")}


def test_what_is_published_already_is_not_written_again_within_a_day(store: Store, level: Level) -> None:
    one = level(store)
    now = time.time()
    for used, writes in ((now, True), (now + 1, False), (now - 2 * 86400, False)):
        before = {key: store.get(key) for key in store.keys("notebook/")}
        ref = replace(ref_of(b"one"), used=used)
        one.publish_manifest(Manifest(HERE, "model.ipynb", (ref,)))
        assert one.flush(SECONDS)
        assert (before != {key: store.get(key) for key in store.keys("notebook/")}) is writes


def test_who_has_published_is_known_without_a_look_at_all_keys(store: Store, level: Level) -> None:
    one = level(store)
    one.publish_manifest(Manifest(HERE, "model.ipynb", (ref_of(b"one"),)))
    assert one.flush(SECONDS)
    assert len(level(FailingStore(store, StoreUnavailable("no"), ["keys"])).publications("model.ipynb")) == 1
    (key,) = store.keys("publishers/")
    value = store.get(key)
    assert value is not None
    store.put(key, b"../../x\n\xff\n" + b"0" * 64 + b"\n" + value)  # signed by nobody
    assert len(level(store).publications("model.ipynb")) == 1


def test_closing_twice_and_using_what_is_closed_does_nothing(store: Store, level: Level) -> None:
    one = level(store)
    publish(one, b"a graph")
    one.close(SECONDS)
    one.close(SECONDS)
    publish(one, b"another graph")
    one.publish_manifest(Manifest(HERE, "model.ipynb", ()))
    one.finish_compile(HERE, "inductor", "one")
    assert found(one) == [] and one.publications("model.ipynb") == []
    assert not one.wait_for_other_kernel(HERE, "inductor", "one", 5.0)
    assert found(level(store)) == [b"a graph"]


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_asks_publishes_and_waits_for_nothing(store: Store, level: Level) -> None:
    one = level(store)
    publish(one, b"a graph")
    assert one.flush(SECONDS)
    assert found(one) == [b"a graph"]

    def in_the_child() -> bool:
        publish(one, b"another graph")
        one.finish_compile(HERE, "inductor", "one")
        nothing = not found(one) and not one.wait_for_other_kernel(HERE, "inductor", "one", 5.0)
        one.close(SECONDS)
        return nothing and one.flush(SECONDS)

    one._lock.__enter__()
    try:
        assert in_child(in_the_child)
    finally:
        one._lock.__exit__()
    assert found(one) == [b"a graph"]


# --- a store that fails ---------------------------------------------------------------------------


def test_while_a_store_fails_nobody_asks_it_and_then_what_waited_is_written(
    level: Level, said: list[str]
) -> None:
    store = FailingStore(MemoryStore(), StoreUnavailable("it is gone", next_step="wait"))
    one = level(store, timings=IMPATIENT)
    assert found(one) == [] and store.calls["get"] == 1
    publish(one, b"a graph")
    one.publish_manifest(Manifest(HERE, "model.ipynb", ()))
    assert not one.flush(SECONDS)
    assert one.failure is not None and len(said) == 1
    assert "it is gone" in said[0] and "Next: wait" in said[0]

    store.error = None
    wait_until(lambda: not one._unsent, "it was written")
    assert one.flush(SECONDS)
    assert found(one) == [b"a graph"]
    assert len(one.publications("model.ipynb")) == 1
    assert said[1:] == ["memory answers again"]


def test_what_fails_again_and_again_is_dropped_and_the_rest_is_written(level: Level, said: list[str]) -> None:
    class Picky(MemoryStore):
        """Fails at long values, as a proxy with a limit does."""

        def put(self, key: str, value: bytes) -> None:
            if len(value) > 5000:
                raise StoreUnavailable("connection closed")
            super().put(key, value)

    one = level(Picky(), timings=IMPATIENT)
    noise = b"".join(sha256(b"%d" % number).encode() for number in range(400))
    publish(one, noise, b"a graph")
    wait_until(lambda: "3 times" in said[-1] if said else False, "it was given up")
    wait_until(lambda: one.failure is None and not one._unsent, "it is back")
    assert one.flush(SECONDS)
    assert found(one) == [b"a graph"]
    assert one.pending == 0


def test_no_more_waits_to_be_written_than_is_kept(
    level: Level, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_MOST_PENDING", 100)
    one = level(FailingStore(MemoryStore(), StoreUnavailable("gone")))
    found(one)
    for number in range(20):
        publish(one, b"%d" % number)
    one.flush(SECONDS)
    assert 0 < len(one._unsent) < 20
    assert "too many entries wait to be written" in said[-1]


def test_threads_may_use_a_level_at_once(store: Store, level: Level) -> None:
    one = level(store)

    def use(name: str) -> None:
        for number in range(10):
            publish(one, b"%s%d" % (name.encode(), number), key=f"{name}{number}")
            one.find(HERE, "inductor", f"{name}{number}")
            one.begin_cell()

    at_once(partial(use, name) for name in "abcd")
    assert one.flush(SECONDS)
    for name in "abcd":
        for number in range(10):
            assert found(one, f"{name}{number}") == [b"%s%d" % (name.encode(), number)]
