"""Snapshots under names in stores, against real ones: Redis, a Cluster, a folder, fsspec's memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import nbformat
import pytest

from nbcache.core.errors import (
    BadSignature,
    ConfigError,
    CorruptSnapshot,
    MissingArtifact,
    SnapshotError,
    StoreError,
    UntrustedSigner,
)
from nbcache.core.key import sha256
from nbcache.core.model import Level, Outcome, SnapshotRestored
from nbcache.core.settings import Policy
from nbcache.core.signature import Purpose
from nbcache.sharing.snapshots.build import Taken
from nbcache.sharing.snapshots.file import Signed, SnapshotFile, decode_file, encode_file
from nbcache.sharing.snapshots.named import GRACE_SECONDS, NamedSnapshots, Place, place
from nbcache.sharing.snapshots.sources import destination
from nbcache.sharing.snapshots.verify import Received
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.backends.open import open_store
from nbcache.ui.terminal.parser import main
from support.front_door import CALL, DEFINE, LOAD, REPORTS, SET_UP, RunCells, graphs, printed
from support.people import ORIGIN, Person, outcomes, trusts
from support.redis_servers import HOST, RedisServer, free_port
from support.testing import OPERATIONS, FailingStore, at_once

NAME = "team/gpt"
numbers = count()


@pytest.fixture(params=["redis", "cluster", "folder", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "redis":
        return str(request.getfixturevalue("redis_server").url)
    if request.param == "cluster":
        return str(request.getfixturevalue("redis_cluster").url)
    return str(tmp_path / "shared") if request.param == "folder" else f"memory://named-{next(numbers)}"


def take_into(person: Person, store: Store, name: str, *keys: str) -> Taken:
    """Compile `keys` in a new kernel, and write its snapshot under a name."""
    session, bridge, sharing = person.session()
    for key in keys:
        bridge.compile(key)
    snapshots = NamedSnapshots(store, Keyring(person.keys))
    written = snapshots.write(name, lambda known: sharing.build(ORIGIN, known), ORIGIN)
    session.close()
    return written


def keys_of(store: Store, prefix: str = "") -> set[str]:
    return set(store.keys(prefix))


def read_whole(store: Store, person: Person, name: str) -> list[Received]:
    """Return the whole versions of a name, which are some; raise the first problem where there is none."""
    whole, problems = NamedSnapshots(store, Keyring(person.keys)).read_all(name)
    if not whole:
        raise problems[0]
    return whole


def held_by(store: Store, person: Person, name: str = NAME) -> set[str]:
    """Return the keys of the graphs that a name holds, in all versions that are whole and trusted."""
    held = set()
    for received in read_whole(store, person, name):
        received.unpack_all(Policy.STRICT)
        held |= {ref.key for manifest in received.snapshot.manifests for ref in manifest.artifacts}
    return held


# --- taken and restored -----------------------------------------------------------------------------


def test_what_one_takes_another_restores_from_any_store(url: str, ada: Person, bob: Person) -> None:
    session, bridge, _ = ada.session()
    bridge.compile("one")
    bridge.compile("two")
    taken = session.snapshot(f"{url}#{NAME}")
    assert (taken.graphs, taken.artifacts, taken.changed, taken.missing) == (2, 2, True, 0)
    assert taken.where.endswith(f"#{NAME}")
    assert not session.snapshot(f"{url}#{NAME}").changed
    session.close()

    session, bridge, _ = bob.session()
    with pytest.raises(UntrustedSigner):
        session.restore(f"{url}#{NAME}")
    trusts(bob, ada)
    assert session.restore(f"{url}#{NAME}") == [SnapshotRestored(taken.where, 2, 2)]
    bridge.compile("one")
    assert outcomes(session) == [Outcome.HIT]
    assert (session.graphs[0].level, session.graphs[0].source) == (Level.L2, taken.where)
    session.close()


def test_names_are_listed_removed_and_collected(
    url: str, ada: Person, bob: Person, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_store(url)) as store:
        take_into(ada, store, NAME, "one", "two")
        take_into(bob, store, "Other one", "three")
    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(ada.keys))

    def said(*arguments: str, status: int = 0) -> Any:
        assert main([*arguments, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    assert main(["ls", url]) == 0
    table = capsys.readouterr().out
    assert "team/gpt" in table and "ada@engine" in table and "not trusted" in table
    other, gpt = said("ls", url)
    assert (other["name"], other["standing"], other["artifacts"]) == ("Other one", "unknown", 1)
    assert (gpt["name"], gpt["standing"], gpt["artifacts"], gpt["graphs"]) == (NAME, "own", 2, 2)
    assert gpt["signer"] == Keyring(ada.keys).own() and gpt["created"] == ORIGIN.created
    (inspected,) = said("inspect", f"{url}#{NAME}")
    assert (inspected["source"].rpartition("#")[2], inspected["standing"]) == (NAME, "own")
    assert said("verify", f"{url}#{NAME}")[0]["sound"]

    assert said("rm", f"{url}#{NAME}")["versions"] == 1
    assert [each["name"] for each in said("ls", url)] == ["Other one"]
    assert main(["rm", f"{url}#{NAME}"]) == 1
    assert "there is no snapshot of this name" in capsys.readouterr().err
    marked = said("gc", url)
    assert (marked["removed"], marked["marked"]) == (0, 2) and marked["due"] > 0
    unused = {"removed": 0, "kept": 0, "publishers": 0}
    removed = {"removed": 2, "marked": 0, "due": None, "live": unused, "problems": []}
    assert said("gc", url, "--grace", "0") == removed
    with closing(open_store(url)) as store:
        assert held_by(store, bob, "Other one") == {"three"}
        assert len(keys_of(store)) == 2


def test_a_notebooks_snapshot_is_taken_and_restored_in_a_terminal(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nbcache.storage.backends.directory import DirectoryStore
    from nbcache.torch_bridge import environment

    ada = Person(tmp_path / "ada", environment.current())
    ada.store = DirectoryStore(tmp_path / "store")
    session, bridge, _ = ada.session()
    bridge.compile("one")
    session.close()
    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(ada.keys))
    monkeypatch.setenv("NBCACHE_DIR", str(tmp_path / "store"))
    assert main(["snapshot", str(ada.notebook), f"{url}#{NAME}"]) == 0
    assert main(["snapshot", str(ada.notebook)]) == 0 and ada.snapshot.exists()
    assert main(["snapshot", str(ada.notebook), f"{url}#{NAME}"]) == 0
    assert "nothing was new" in capsys.readouterr().out
    assert main(["snapshot", str(tmp_path / "another.ipynb")]) == 1

    monkeypatch.setenv("NBCACHE_DIR", str(tmp_path / "another"))
    assert main(["restore", f"{url}#{NAME}"]) == 0
    assert "restored 1 graph, 1 artifact" in capsys.readouterr().out
    ada.store = DirectoryStore(tmp_path / "another")
    ada.snapshot.unlink()
    session, bridge, _ = ada.session()
    bridge.compile("one")
    assert (outcomes(session), session.graphs[0].level) == ([Outcome.HIT], Level.L1)
    session.close()
    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(tmp_path / "nobody"))
    assert main(["restore", f"{url}#{NAME}"]) == 1
    assert "is not trusted here" in capsys.readouterr().err


# --- writing only what is new -----------------------------------------------------------------------


class Watched(FailingStore):
    """A store that tells which keys were read and put."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, None)
        self.read: set[str] = set()
        self.put_keys: list[str] = []

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = list(keys)
        self.read |= set(wanted)
        return super().get_many(wanted)

    def put(self, key: str, value: bytes) -> None:
        self.put_keys.append(key)
        super().put(key, value)


def test_another_snapshot_costs_what_is_new_and_reads_no_artifact(url: str, ada: Person) -> None:
    with closing(open_store(url)) as opened:
        store = Watched(opened)
        take_into(ada, store, NAME, "one", "two")
        before = keys_of(store, "artifact/")
        assert len(before) == 2
        store.put_keys.clear()

        written = take_into(ada, store, NAME, "three")

        assert written.changed
        new = keys_of(store, "artifact/") - before
        assert len(new) == 1 and keys_of(store, "artifact/") > before
        assert sorted(store.put_keys) == sorted([*new, *keys_of(store, "snapshot/")])
        store.put_keys.clear()
        assert not take_into(ada, store, NAME).changed
        take_into(ada, store, "another/name")
        assert [key.partition("/")[0] for key in store.put_keys] == ["snapshot"]
        assert not {key for key in store.read if key.startswith("artifact/")}
        assert held_by(opened, ada) == held_by(opened, ada, "another/name") == {"one", "two", "three"}


def test_versions_of_others_are_removed_only_where_the_user_says_so(
    url: str, ada: Person, bob: Person, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_store(url)) as store:
        take_into(ada, store, NAME, "one")
        take_into(bob, store, NAME, "two")
        take_into(bob, store, "bob's", "two")
    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(ada.keys))

    assert main(["rm", f"{url}#{NAME}"]) == 0
    assert "removed, 1 version; " in (output := capsys.readouterr().out)
    assert "1 version of others, or damaged, left (--all-signers removes all)" in output
    for name in (NAME, "bob's"):
        assert main(["rm", f"{url}#{name}"]) == 1
        refusal = capsys.readouterr().err
        assert (
            "none of the 1 versions under this name is yours, or they are damaged" in refusal
            and "next: --all-signers" in refusal
        )
        assert main(["rm", f"{url}#{name}", "--all-signers"]) == 1
        assert "nbcache cannot ask here" in capsys.readouterr().err
        with closing(open_store(url)) as store:
            assert held_by(store, bob, name)
        assert main(["rm", f"{url}#{name}", "--all-signers", "--yes", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["versions"] == 1
    with closing(open_store(url)) as store:
        assert not list(store.keys("snapshot/"))


# --- several writers ----------------------------------------------------------------------------------


def test_writers_at_once_lose_nothing(url: str, tmp_path: Path) -> None:

    def write(number: int) -> None:
        writer = Person(tmp_path / f"writer-{number}")
        writer.keys = tmp_path / "keys"
        with closing(open_store(url)) as store:
            for turn in range(3):
                take_into(writer, store, NAME, f"{number}-{turn}")

    Keyring(tmp_path / "keys").fingerprint()
    at_once((partial(write, number) for number in range(4)), seconds=60)
    reader = Person(tmp_path / "reader")
    reader.keys = tmp_path / "keys"
    every = {f"{number}-{turn}" for number in range(4) for turn in range(3)}
    with closing(open_store(url)) as store:
        assert held_by(store, reader) == every
        take_into(reader, store, NAME, "last")
        assert len(keys_of(store, "snapshot/")) == 1
        assert held_by(store, reader) == every | {"last"}


class Interrupted(FailingStore):
    """A store on which something else happens before its operation number `at`."""

    def __init__(self, store: Store, at: int, action: Callable[[], object]) -> None:
        super().__init__(store, None)
        self._left, self._action = at, action
        self.done: list[str] = []
        """The operations until then."""
        self.next = ""

    def _meet(self, operation: str) -> None:
        if self._left == 0:
            self.next = operation
            self._left = -1
            self._action()
        elif self._left > 0:
            self._left -= 1
            self.done.append(operation)


def copied(store: Store) -> MemoryStore:
    copy = MemoryStore()
    for key, value in store.get_many(store.keys()).items():
        copy.put(key, value)
    return copy


def interruptions(make: Callable[[int], Interrupted]) -> Iterator[Interrupted]:
    """Yield stores that are interrupted at their first operation, their second, …, until all are through."""
    for at in count():
        store = make(at)
        yield store
        if not store.next:
            return


def test_a_writer_that_is_interrupted_by_another_at_any_point_loses_nothing(
    ada: Person, person: Callable[[str], Person]
) -> None:
    other = person("other")
    other.keys = ada.keys
    sharings = {}
    for who, key in ((ada, "mine"), (other, "theirs")):
        _, bridge, sharings[key] = who.session()
        bridge.compile(key)
    third = person("third")
    third.keys = ada.keys
    before = MemoryStore()
    take_into(third, before, NAME, "old")

    def write(store: Store, key: str) -> None:
        snapshots = NamedSnapshots(store, Keyring(ada.keys))
        snapshots.write(NAME, lambda known: sharings[key].build(ORIGIN, known), ORIGIN)

    def make(at: int) -> Interrupted:
        store = copied(before)
        return Interrupted(store, at, lambda: write(store, "theirs"))

    for store in interruptions(make):
        write(store, "mine")
        if store.next:
            assert held_by(store.store, ada) == {"old", "mine", "theirs"}


# --- collecting -----------------------------------------------------------------------------------------


def test_what_is_not_named_goes_in_the_second_run_after_the_grace(ada: Person) -> None:
    store, now = MemoryStore(), [1_000_000.0]
    snapshots = NamedSnapshots(store, Keyring(ada.keys), clock=lambda: now[0])
    take_into(ada, store, NAME, "one")
    snapshots.remove(NAME)
    store.put("live/x/y", b"another's")
    first = snapshots.collect_garbage()
    assert (first.removed, first.waiting, first.due) == (0, 1, now[0] + GRACE_SECONDS)
    now[0] += GRACE_SECONDS - 1
    assert snapshots.collect_garbage() == first
    take_into(ada, store, "again")  # takes the mark away
    assert keys_of(store, "doomed/") == set()
    now[0] += GRACE_SECONDS
    assert snapshots.collect_garbage().waiting == 0
    snapshots.remove("again")
    assert snapshots.collect_garbage().waiting == 1
    now[0] -= 2 * GRACE_SECONDS  # a clock that goes wrong
    assert snapshots.collect_garbage().due == now[0] + GRACE_SECONDS
    now[0] += GRACE_SECONDS
    done = snapshots.collect_garbage()
    assert (done.removed, done.waiting, done.due) == (1, 0, None)
    assert keys_of(store) == {"live/x/y"}


def test_a_stale_mark_is_removed_and_dooms_nothing(ada: Person) -> None:
    store = MemoryStore()
    take_into(ada, store, NAME, "one")
    (artifact,) = keys_of(store, "artifact/")
    for digest in (artifact.removeprefix("artifact/"), "0" * 64):
        store.put(f"doomed/{digest}", b"1")
    assert NamedSnapshots(store, Keyring(ada.keys)).collect_garbage(grace=0).removed == 0
    assert keys_of(store, "doomed/") == set()
    assert held_by(store, ada) == {"one"}


def unnamed(ada: Person) -> MemoryStore:
    """Return a store with an artifact that was named, and is marked since long."""
    store = MemoryStore()
    take_into(ada, store, NAME, "one")
    snapshots = NamedSnapshots(store, Keyring(ada.keys), clock=lambda: 1.0)
    snapshots.remove(NAME)
    assert snapshots.collect_garbage().waiting == 1
    return store


def test_a_writer_may_come_at_any_point_while_artifacts_are_collected(ada: Person) -> None:
    keyring = Keyring(ada.keys)

    def make(at: int) -> Interrupted:
        store = unnamed(ada)
        return Interrupted(store, at, lambda: take_into(ada, store, NAME))

    for store in interruptions(make):
        NamedSnapshots(store, keyring).collect_garbage(grace=0)
        if not store.next:
            continue
        if store.next == "delete" and store.done[-1] == "get_many":
            # Between looking at the mark and deleting, for as long as all of a writer takes: the one gap.
            with pytest.raises(MissingArtifact):
                held_by(store.store, ada)
            take_into(ada, store.store, NAME)
        assert held_by(store.store, ada) == {"one"}


def test_artifacts_may_be_collected_at_any_point_while_a_writer_writes(ada: Person) -> None:
    for grace in (0.0, GRACE_SECONDS):

        def make(at: int, grace: float = grace) -> Interrupted:
            store = unnamed(ada)
            collector = NamedSnapshots(store, Keyring(ada.keys))
            return Interrupted(store, at, lambda: collector.collect_garbage(grace))

        for store in interruptions(make):
            take_into(ada, store, NAME)
            assert held_by(store.store, ada) == {"one"}


@pytest.mark.parametrize("broken", ["damaged", "newer", "no name"])
def test_nothing_is_collected_while_a_version_cannot_be_read(
    broken: str,
    ada: Person,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(ada.keys))
    url = str(tmp_path / "shared")
    with closing(open_store(url)) as store:
        take_into(ada, store, NAME, "one")
        take_into(ada, store, "other", "two")
        NamedSnapshots(store, Keyring(ada.keys)).remove("other")
        (key,) = store.keys("snapshot/")
        value = store.get(key) or b""
        if broken == "damaged":
            store.put(key, value[:-1])
        elif broken == "newer":
            (version,) = decode_file(value).versions
            later = version.manifest.replace(b'"version":1}', b'"version":2}')
            value = encode_file(SnapshotFile([Signed(later, version.signature)], {}))
            store.delete(key)
            store.put(f"{key.rpartition('/')[0]}/{sha256(value)}", value)
        else:
            store.put("snapshot/x", b"?")
        assert main(["gc", url, "--grace", "0"]) == 1
        assert "some snapshots do not tell which artifacts they use" in capsys.readouterr().out
        assert len(keys_of(store, "artifact/")) == 2
        assert keys_of(store, "doomed/") == set()


def test_a_local_store_of_kernels_is_not_collected(ada: Person) -> None:
    session, bridge, _ = ada.session()
    bridge.compile("one")
    session.flush()
    with pytest.raises(ConfigError, match="local store"):
        NamedSnapshots(ada.store, Keyring(ada.keys)).collect_garbage()


# --- whose it is ------------------------------------------------------------------------------------------


def test_what_strangers_have_under_a_name_is_fetched_up_to_a_bound(
    person: Callable[..., Person], ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of their versions may name the same long artifacts."""
    store = MemoryStore()
    take_into(ada, store, NAME, "same")
    (length,) = (len(store.get(key) or b"") for key in store.keys("artifact/"))
    for number in range(4):
        take_into(person(f"stranger-{number}"), store, NAME, "same")
    monkeypatch.setattr("nbcache.sharing.snapshots.named.MAX_SNAPSHOT_BYTES", 2 * length)
    found, problems = NamedSnapshots(store, Keyring(ada.keys)).read_all(NAME)
    standings = [received.standing for received in found if received.standing]
    assert sorted(standings) == ["not trusted", "not trusted", "you"]
    assert [type(problem) for problem in problems] == [UntrustedSigner] * 2


def test_versions_are_read_up_to_a_bound(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    take_into(ada, store, NAME, "one")
    (length,) = (len(store.get(key) or b"") for key in store.keys("snapshot/"))
    monkeypatch.setattr("nbcache.sharing.snapshots.named._VERSIONS_BYTES", length)
    assert held_by(store, ada) == {"one"}
    (key,) = store.keys("snapshot/")
    store.put(key.replace(key.rpartition("/")[2], "0" * 64), b"?")
    with pytest.raises(StoreError, match="is longer than"):
        held_by(store, ada)


def test_what_is_damaged_of_a_trusted_signers_version_is_left_to_them(ada: Person, bob: Person) -> None:
    store = MemoryStore()
    take_into(bob, store, NAME, "one")
    (damaged,) = keys_of(store, "artifact/")
    take_into(bob, store, NAME, "two")
    store.put(damaged, b"no frame")
    trusts(ada, bob)
    written = take_into(ada, store, NAME, "mine")
    assert (written.lost, written.left) == (0, 1)
    assert held_by(store, ada) == {"mine"}
    take_into(bob, store, NAME)
    assert held_by(store, ada) == {"one", "two", "mine"}


def test_nothing_is_fetched_whose_signature_is_wrong(ada: Person, bob: Person) -> None:
    store = Watched(MemoryStore())
    take_into(ada, store, NAME, "one")
    (key,) = keys_of(store, "snapshot/")
    file = decode_file(store.get(key) or b"")
    forged = Keyring(bob.keys).sign(Purpose.SNAPSHOT, b"something else").encode()
    value = encode_file(replace(file, versions=[replace(file.versions[0], signature=forged)]))
    store.delete(key)
    store.put(f"{key.rpartition('/')[0]}/{sha256(value)}", value)
    store.read.clear()
    with pytest.raises(BadSignature, match=r"memory#team/gpt"):
        read_whole(store, ada, NAME)
    assert not {key for key in store.read if key.startswith("artifact/")}


# --- what is damaged or gone --------------------------------------------------------------------------


def test_a_tampered_artifact_is_refused_removed_and_put_again(
    redis_server: RedisServer,
    ada: Person,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(ada.keys))
    source = f"{redis_server.url}#{NAME}"
    with closing(open_store(redis_server.url)) as store, redis_server.client() as client:
        take_into(ada, store, NAME, "one", "two")
        (key, _) = client.keys("nbcache:v1:artifact/*")
        value = client.get(key)
        client.set(key, value[:-1] + bytes([value[-1] ^ 1]))
        assert main(["verify", source]) == 1
        assert "1 of its artifacts in the store were not what their names say" in capsys.readouterr().out
        assert not client.exists(key)
        with pytest.raises(MissingArtifact, match="1 of 2 artifacts"):
            held_by(store, ada)
        assert take_into(ada, store, NAME).changed
        assert client.get(key) == value
        assert main(["verify", source]) == 0


def test_a_tampered_manifest_is_refused_and_what_is_whole_beside_it_is_used(
    redis_server: RedisServer, ada: Person, bob: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_store(redis_server.url)) as store, redis_server.client() as client:
        take_into(ada, store, NAME, "one")
        (key,) = client.keys("nbcache:v1:snapshot/*")
        client.set(key, client.get(key).replace(b"model.ipynb", b"mine!.ipynb"))
        with pytest.raises(CorruptSnapshot, match=f"#{NAME}"):
            held_by(store, ada)
        assert main(["ls", redis_server.url]) == 0
        assert "cannot be used" in capsys.readouterr().out
        assert take_into(ada, store, NAME, "two").left == 1
        assert held_by(store, ada) == {"one", "two"}
        assert NamedSnapshots(store, Keyring(ada.keys)).remove(NAME) == (1, 1)
        assert NamedSnapshots(store, Keyring(ada.keys)).remove(NAME, all_signers=True) == (1, 0)


def test_what_goes_while_it_is_merged_is_named_no_more_at_the_latest_by_the_next(ada: Person) -> None:
    before = MemoryStore()
    take_into(ada, before, NAME, "one")
    (gone,) = keys_of(before, "artifact/")
    ada.store = MemoryStore()

    def make(at: int) -> Interrupted:
        store = copied(before)
        return Interrupted(store, at, lambda: store.delete(gone))

    for store in interruptions(make):
        take_into(ada, store, NAME, "two")
        take_into(ada, store.store, NAME)
        assert held_by(store.store, ada) == ({"two"} if store.next else {"one", "two"})


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each != "get"])
def test_a_store_that_fails_is_an_error_and_loses_nothing(operation: str, ada: Person) -> None:
    store = MemoryStore()
    take_into(ada, store, NAME, "one")
    failing = FailingStore(store, StoreError("no"), [operation])
    with pytest.raises(StoreError):
        take_into(ada, failing, NAME, "two")
    assert held_by(store, ada) >= {"one"}


# --- servers -------------------------------------------------------------------------------------------


def test_a_wrong_password_and_a_dead_server_are_clear_errors_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(tmp_path / "keys"))
    monkeypatch.setenv("NBCACHE_DIR", str(tmp_path / "store"))
    with RedisServer(tmp_path / "redis", password="right") as server:
        wrong = f"redis://:s3cret@{HOST}:{server.port}/0"
        dead = f"redis://:s3cret@{HOST}:{free_port()}/0"
        for at, said in ((wrong, "refuses this user and password"), (dead, "cannot be reached")):
            for arguments in (
                ["ls", at],
                ["gc", at],
                ["rm", f"{at}#x"],
                ["restore", f"{at}#x"],
                ["verify", f"{at}#x"],
            ):
                assert main(arguments) == 1
                captured = capsys.readouterr()
                assert said in captured.err and "next: " in captured.err
                assert "s3cret" not in captured.out + captured.err
        assert main(["ls", f"redis://:right@{HOST}:{server.port}/0"]) == 0


# --- names and places --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "team/gpt", "Größe 2.0/x_y", "-", "a" * 100, "語" * 22])
def test_a_name_comes_back_as_it_was(name: str, ada: Person) -> None:
    store = MemoryStore()
    take_into(ada, store, name, "one")
    assert place(f"s3://bucket/x#{name}") == Place("s3://bucket/x", name)
    assert [version.name for version in NamedSnapshots(store, Keyring(ada.keys)).versions()] == [name]


def test_a_name_is_one_part_of_a_key(ada: Person) -> None:
    store = MemoryStore()
    take_into(ada, store, "team/gpt_2", "one")
    (key,) = keys_of(store, "snapshot/")
    assert key.split("/")[:2] == ["snapshot", "team_2fgpt_5f2"]
    assert key.split("/")[2] == sha256(store.get(key) or b"")
    (artifact,) = keys_of(store, "artifact/")
    assert artifact == f"artifact/{sha256(store.get(artifact) or b'')}"


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "/a", "a//b", "a\nb", "a\x00", "a" * 101, "A" * 67, "\ud800", "x\u202ey"]
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name") as caught:
        place(f"redis://:s3cret@host/0#{name}")
    assert "s3cret" not in "\n".join(caught.value.diagnostics())


def test_a_place_is_told_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there#it").write_bytes(b"")
    for text in (
        "model.nbcache",
        "a#b.nbcache",
        "/x/a#b.ipynb",
        "there#it",
        "https://host/x#y",
        "C#/x.nbcache",
    ):
        assert place(text) is None
    assert place("./shared#team/gpt") == Place("./shared", NAME)
    assert place(f"file://{tmp_path}/a#b#{NAME}") == Place(f"file://{tmp_path}/a#b", NAME)
    assert destination(Path("a#b")) == Path("a#b")
    assert "secret" not in repr(place("redis://:secret@host#x"))
    for text in ("redis://host/0", "redis://user:12#34@host/0", "s3://bucket"):
        with pytest.raises(ConfigError) as caught:
            place(text)
        assert "34" not in "\n".join(caught.value.diagnostics())
    with pytest.raises(ConfigError, match="web address"):
        destination("https://ada:secret@host/x")


def test_python_says_as_clearly_what_cannot_be_done(ada: Person) -> None:
    session, bridge, _ = ada.session()
    bridge.compile("one")
    assert session.snapshot().where == str(ada.snapshot)
    assert session.restore()[0].artifacts == session.restore(ada.snapshot)[0].artifacts == 1
    for call, error in (
        (lambda: session.snapshot("redis://host/0"), ConfigError),
        (lambda: session.snapshot("notebook"), ConfigError),
        (lambda: session.restore("mongodb://ada:s3cret@host#x"), ConfigError),
        (lambda: session.restore(f"redis://:s3cret@{HOST}:{free_port()}/0#x"), StoreError),
        (lambda: session.restore(f"memory://empty-{next(numbers)}#x"), SnapshotError),
    ):
        with pytest.raises(error) as caught:
            call()
        assert caught.value.next_step
        assert "s3cret" not in "\n".join(caught.value.diagnostics())
    session.close()


# --- through the front door ----------------------------------------------------------------------------


@pytest.mark.compile
def test_a_kernel_takes_a_snapshot_into_redis_and_another_starts_from_it(
    cold: tuple[Path, nbformat.NotebookNode],
    warm: dict[str, str],
    redis_server: RedisServer,
    run_cells: RunCells,
    tmp_path: Path,
) -> None:
    source = f"{redis_server.url}#{NAME}"
    taken = run_cells(
        [LOAD, SET_UP, DEFINE, CALL, f"%nbcache snapshot {source}", f"%nbcache snapshot {source}"],
        warm | {"NBCACHE_NOTEBOOK": str(tmp_path / "model.ipynb")},
    )
    assert f"redis://{HOST}:{redis_server.port}/0#{NAME} holds 4 graphs" in printed(taken, 4)
    assert "nothing was new" in printed(taken, 5)

    shutil.rmtree(warm["NBCACHE_DIR"])
    shutil.rmtree(warm["TMPDIR"])
    Path(warm["TMPDIR"]).mkdir()
    python = f"import nbcache; print(nbcache.session().restore({source!r})[0].where)"
    restored = run_cells([LOAD, SET_UP, f"%nbcache restore {source}", python, DEFINE, CALL, REPORTS], warm)

    assert "restored 4 graphs" in printed(restored, 2)
    assert printed(restored, 3).strip() == f"redis://{HOST}:{redis_server.port}/0#{NAME}"
    assert {graph["outcome"] for graph in graphs(restored)} == {"hit"}
    assert {graph["level"] for graph in graphs(restored)} == {"L2"}
    assert {graph["source"] for graph in graphs(restored)} == {f"redis://{HOST}:{redis_server.port}/0#{NAME}"}
    assert printed(restored, 5) == printed(taken, 3)
