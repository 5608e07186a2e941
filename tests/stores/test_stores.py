"""Stores: the contract, and what a folder adds to it: owners, full disks, kills, eviction."""

import contextlib
import errno
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from nbcache.artifacts.encoding import decode_entry
from nbcache.core.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from nbcache.stores.base import Store
from nbcache.stores.directory import DirectoryStore
from nbcache.stores.filesystem import FilesystemStore
from nbcache.stores.memory import MemoryStore
from support.front_door import files, special_files
from support.testing import (
    CorruptingStore,
    FailingStore,
    StoreContract,
    flip_last_byte,
    store_state_machine,
    truncate,
)

SOMEBODY_ELSE = 12345
STATE_MACHINE = settings(max_examples=30, stateful_step_count=20, deadline=None, database=None)

in_folders = pytest.mark.parametrize("kind", [DirectoryStore, FilesystemStore])
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestDirectoryStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return DirectoryStore(tmp_path / "store")


class TestFailingStoreThatDoesNotFail(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return FailingStore(MemoryStore(), None)


def test_a_memory_store_is_a_dictionary() -> None:
    run_state_machine_as_test(store_state_machine(MemoryStore), settings=STATE_MACHINE)


def test_a_directory_store_is_a_dictionary(tmp_path: Path) -> None:
    numbers = count()
    machine = store_state_machine(lambda: DirectoryStore(tmp_path / str(next(numbers))))
    run_state_machine_as_test(machine, settings=STATE_MACHINE)


# --- stores that fail -----------------------------------------------------------------------------


def test_a_failing_store_fails_where_it_is_told_to_until_it_is_told_not_to() -> None:
    store = FailingStore(MemoryStore(), StoreUnavailable("no connection"), operations=["put"])
    assert store.get("a") is None
    with pytest.raises(StoreUnavailable):
        store.put("a", b"one")
    store.error = None
    store.put("a", b"one")
    assert store.get("a") == b"one"
    assert store.calls == {"get": 2, "get_many": 0, "present": 0, "put": 2, "delete": 0, "keys": 0}
    with pytest.raises(ValueError, match="putt"):
        FailingStore(MemoryStore(), None, operations=["putt"])


def test_a_corrupting_store_damages_what_is_read_below_its_prefix() -> None:
    store = CorruptingStore(MemoryStore(), truncate, prefix="artifact/")
    store.put("artifact/a", b"1234")
    store.put("ref/a", b"1234")
    assert store.get("artifact/a") == b"12"
    assert store.get_many(["artifact/a", "ref/a"]) == {"artifact/a": b"12", "ref/a": b"1234"}
    assert store.get("artifact/absent") is None
    assert store.store.get("artifact/a") == b"1234"
    assert flip_last_byte(b"\x00\x0f") == b"\x00\xf0"


# --- the folder -----------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_a_file_below_the_folder_of_its_version(tmp_path: Path) -> None:
    DirectoryStore(tmp_path / "store").put("ref/x/a", b"one")
    assert files(tmp_path / "store") == ["v2/ref/x/a"]
    assert (tmp_path / "store/v2/ref/x/a").read_bytes() == b"one"


def test_another_store_on_the_folder_sees_what_the_first_put(tmp_path: Path) -> None:
    DirectoryStore(tmp_path / "store").put("artifact/a", b"one")
    assert DirectoryStore(str(tmp_path / "store")).get("artifact/a") == b"one"


def test_only_the_owner_can_enter_the_folder_or_read_a_file(tmp_path: Path) -> None:
    with as_umask(0):
        DirectoryStore(tmp_path / "new/store").put("artifact/a", b"one")
    for folder in ("store", "store/v2", "store/v2/.tmp"):
        assert mode(tmp_path / "new" / folder) == 0o700
    assert mode(tmp_path / "new/store/v2/artifact/a") == 0o600


@pytest.mark.parametrize("open_to", [0o770, 0o707, 0o777])
def test_a_folder_of_ours_that_others_can_write_to_is_made_private(tmp_path: Path, open_to: int) -> None:
    (tmp_path / "store/v2").mkdir(parents=True)
    (tmp_path / "store").chmod(open_to)
    (tmp_path / "store/v2").chmod(open_to)
    DirectoryStore(tmp_path / "store")
    assert (mode(tmp_path / "store"), mode(tmp_path / "store/v2")) == (0o700, 0o700)


@pytest.mark.parametrize("folder", ["store", "store/v2"])
def test_what_others_could_have_put_into_it_is_dropped_and_nothing_else(tmp_path: Path, folder: str) -> None:
    before = DirectoryStore(tmp_path / "store")
    before.put("artifact/a", b"planted")
    (tmp_path / "store/notes.txt").write_text("not of the store")
    (tmp_path / folder).chmod(0o777)
    store = DirectoryStore(tmp_path / "store")
    assert (store.was_emptied, before.was_emptied) == (True, False)
    assert store.get("artifact/a") is None and before.get("artifact/a") is None
    assert files(tmp_path / "store") == ["notes.txt"]
    assert not DirectoryStore(tmp_path / "store").was_emptied


def test_a_folder_that_cannot_be_closed_to_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)
    monkeypatch.setattr(Path, "chmod", lambda *arguments: None)  # as on a filesystem without permissions
    assert "keeps no permissions" in refusal(tmp_path / "store").what


def test_what_is_no_regular_file_or_is_reached_by_a_link_is_absent(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    special_files(tmp_path / "store/v2", store)


def test_a_file_that_is_longer_than_an_entry_can_be_is_absent_and_not_read(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put("artifact/a", b"one")
    os.truncate(tmp_path / "store/v2/artifact/a", 1 << 36)
    assert store.get("artifact/a") is None


def test_a_folder_that_others_can_only_read_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o755)
    (tmp_path / "store").chmod(0o755)
    DirectoryStore(tmp_path / "store")
    assert mode(tmp_path / "store") == 0o755


def test_a_link_of_ours_to_a_folder_of_ours_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "elsewhere")
    DirectoryStore(tmp_path / "store").put("artifact/a", b"one")
    assert files(tmp_path / "elsewhere") == ["v2/artifact/a"]


def refusal(path: Path) -> StoreUnavailable:
    """Return the error of opening a store at `path`."""
    with pytest.raises(StoreUnavailable) as caught:
        DirectoryStore(path)
    assert caught.value.where
    assert caught.value.next_step
    return caught.value


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    assert "not a folder" in refusal(tmp_path / "store").what
    refusal(tmp_path / "store/below")


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "absent")
    refusal(tmp_path / "store")


@as_root
@pytest.mark.parametrize("owned", ["store", "store/v2"])
def test_a_folder_of_another_user_is_refused(tmp_path: Path, owned: str) -> None:
    DirectoryStore(tmp_path / "store")
    os.chown(tmp_path / owned, SOMEBODY_ELSE, SOMEBODY_ELSE)
    error = refusal(tmp_path / "store")
    assert "belongs to user 12345" in error.what
    assert error.where == str(tmp_path / owned)


@as_root
@pytest.mark.parametrize("linked", ["store", "store/v2"])
def test_a_link_of_another_user_is_refused_even_to_a_folder_of_ours(tmp_path: Path, linked: str) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / linked).parent.mkdir(exist_ok=True)
    (tmp_path / linked).symlink_to(tmp_path / "elsewhere")
    os.chown(tmp_path / linked, SOMEBODY_ELSE, SOMEBODY_ELSE, follow_symlinks=False)
    assert "link that user 12345 made" in refusal(tmp_path / "store").what
    assert files(tmp_path / "elsewhere") == []


def test_what_is_no_key_in_the_folder_is_neither_listed_nor_removed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put("artifact/a", b"one")
    for stranger in ("README.txt", "artifact/.nfs0001", "artifact/UPPER"):
        (tmp_path / "store/v2" / stranger).write_bytes(b"x" * 100)
    (tmp_path / "store/v2/artifact/link").symlink_to("a")
    assert list(store.keys()) == ["artifact/a"]
    assert store.size() == 3
    store.evict("", 0)
    assert list(store.keys()) == []
    assert (tmp_path / "store/v2/README.txt").exists()


def test_a_prefix_that_is_no_key_is_refused(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    for prefix in ("../", "/", "artifact", "artifact//"):
        with pytest.raises(ValueError, match="not a"):
            list(store.keys(prefix))


def test_a_key_that_is_a_folder_of_others_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put("a/b", b"one")
    with pytest.raises(StoreError, match="folder of other keys"):
        store.put("a", b"two")
    with pytest.raises(StoreError, match="folder of other keys"):
        store.put("a/b/c", b"two")
    assert (store.get("a"), store.get("a/b/c"), store.touch("a"), store.touch("a/b/c")) == (
        None,
        None,
        False,
        False,
    )
    store.delete("a")
    store.delete("a/b/c")
    assert files(tmp_path / "store") == ["v2/a/b"]
    store.delete("a/b")
    store.put("a", b"two")  # the folder went with its last key
    assert store.get("a") == b"two"


@in_folders
def test_a_name_that_the_filesystem_cannot_hold_is_an_error_to_put_and_absent_to_get(
    kind: type[DirectoryStore | FilesystemStore], tmp_path: Path
) -> None:
    store = kind(tmp_path / "store")
    with pytest.raises(StoreError, match="longer"):
        store.put("a" * 300, b"one")
    assert store.get("a" * 300) is None
    store.delete("a" * 300)


def test_a_store_that_was_removed_while_it_was_open_is_made_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put("artifact/a", b"one")
    shutil.rmtree(tmp_path / "store")
    assert store.get("artifact/a") is None
    assert list(store.keys()) == []
    assert store.evict("", 0) == []
    store.put("artifact/a", b"two")
    assert store.get("artifact/a") == b"two"
    assert mode(tmp_path / "store") == 0o700


@in_folders
def test_the_folder_is_the_same_after_the_working_directory_changed(
    kind: type[DirectoryStore | FilesystemStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = kind("store")
    monkeypatch.chdir("/")
    store.put("artifact/a", b"one")
    (version,) = {each.partition("/")[0] for each in files(tmp_path / "store")}
    assert files(tmp_path / "store") == [f"{version}/artifact/a"]


# --- disks and rights -----------------------------------------------------------------------------


@contextlib.contextmanager
def as_umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def folder_without_rights() -> Iterator[Path]:
    """A store's folder that this process, if need be as another user, may read and not write."""
    top = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    root = os.geteuid() == 0
    try:
        if root:
            os.chown(top, SOMEBODY_ELSE, SOMEBODY_ELSE)
            os.seteuid(SOMEBODY_ELSE)  # root may write to everything
        DirectoryStore(top / "store").put("artifact/a", b"one")
        folders = [top / "store", top / "store/v2", top / "store/v2/.tmp", top / "store/v2/artifact"]
        for folder in folders:
            folder.chmod(0o500)
        yield top / "store"
    finally:
        if root:
            os.seteuid(0)
        for folder in [top / "store", *(top / "store").rglob("*")]:
            if folder.is_dir():
                folder.chmod(0o700)
        shutil.rmtree(top)


def test_a_full_disk_says_so_and_leaves_nothing_behind(small_disk: Path) -> None:
    store = DirectoryStore(small_disk / "store")
    store.put("artifact/a", b"a" * 20_000)
    with pytest.raises(StoreFull) as caught:
        store.put("artifact/b", b"b" * 100_000)
    with pytest.raises(StoreFull):
        store.put("artifact/a", b"c" * 100_000)
    assert "clear --all" in (caught.value.next_step or "")
    assert files(small_disk) == ["store/v2/artifact/a"]
    assert store.get("artifact/a") == b"a" * 20_000
    store.put("artifact/b", b"b" * 20_000)
    assert store.get("artifact/b") == b"b" * 20_000


def test_a_disk_that_is_read_only_is_read(small_disk: Path) -> None:
    DirectoryStore(small_disk / "store").put("artifact/a", b"one")
    writable = DirectoryStore(small_disk / "store")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for store in (DirectoryStore(small_disk / "store"), writable):
        assert store.get("artifact/a") == b"one"
        assert store.touch("artifact/a")
        assert list(store.keys()) == ["artifact/a"]
        with pytest.raises(StoreReadOnly):
            store.put("artifact/b", b"two")
        with pytest.raises(StoreReadOnly):
            store.delete("artifact/a")
    assert not writable.read_only
    assert DirectoryStore(small_disk / "store").read_only
    assert DirectoryStore(small_disk / "store").evict("", 0) == []
    refusal(small_disk / "another")


def test_a_folder_without_write_permission_is_read(folder_without_rights: Path) -> None:
    store = DirectoryStore(folder_without_rights)
    assert store.read_only
    assert store.get("artifact/a") == b"one"
    assert store.evict("", 0) == []
    with pytest.raises(StoreReadOnly) as caught:
        store.put("artifact/b", b"two")
    assert caught.value.where == str(folder_without_rights)
    with pytest.raises(StoreReadOnly):
        store.delete("artifact/a")


def test_a_file_without_read_permission_is_a_fault_and_no_miss(folder_without_rights: Path) -> None:
    (folder_without_rights / "v2/artifact/a").chmod(0)
    store = DirectoryStore(folder_without_rights)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        store.get("artifact/a")


def test_an_empty_folder_without_write_permission_is_an_empty_store(folder_without_rights: Path) -> None:
    empty = folder_without_rights.parent / "empty"
    empty.mkdir(mode=0o500)
    store = DirectoryStore(empty)
    assert store.read_only
    assert store.get("artifact/a") is None
    assert list(store.keys()) == []


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EROFS, StoreReadOnly),
        (errno.EACCES, StoreReadOnly),
        (errno.EPERM, StoreReadOnly),
        (errno.EIO, StoreUnavailable),
    ],
)
def test_an_error_of_the_disk_is_named_and_the_temporary_file_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[StoreError]
) -> None:
    def replace(source: Path, target: Path) -> None:
        assert source.exists()
        raise OSError(number, os.strerror(number), str(source))

    store = DirectoryStore(tmp_path / "store")
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(StoreError) as caught:
        store.put("artifact/a", b"one")
    assert type(caught.value) is expected
    assert files(tmp_path) == []


# --- kills and other kernels ----------------------------------------------------------------------


PUT_FOREVER = """
import sys
from nbcache.artifacts.encoding import encode_entry
from nbcache.stores.directory import DirectoryStore

store = DirectoryStore(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    number += 1
    value = bytes([number % 256]) * (1 + number * 7919 % 400_000)
    store.put(f"artifact/{number % 5}", encode_entry(value, packed=value))
"""


@pytest.mark.compile
def test_a_kernel_killed_while_it_puts_leaves_every_key_whole(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(25):
        command = [sys.executable, "-c", PUT_FOREVER, str(tmp_path / "store")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(chance.uniform(0, 0.01))
            child.kill()
        store = DirectoryStore(tmp_path / "store")
        present = store.get_many(store.keys())
        assert set(present) <= {f"artifact/{number}" for number in range(5)}
        for value in present.values():
            assert len(set(decode_entry(value))) == 1

    temporary = tmp_path / "store/v2/.tmp"
    store.evict("", 1 << 40)
    for file in temporary.iterdir():
        os.utime(file, (time.time() - 7200,) * 2)
    store.put("artifact/young", b"")
    (temporary / "young").write_bytes(b"being written")
    assert store.evict("", 1 << 40) == []
    assert [file.name for file in temporary.iterdir()] == ["young"]


PUT_AND_EVICT = """
import sys
from nbcache.artifacts.encoding import decode_entry, encode_entry
from nbcache.stores.directory import DirectoryStore

store = DirectoryStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for number in range(200):
    key = f"artifact/{number % 40}/{number % 3}"
    store.put(key, encode_entry(bytes([number]) * 2000, packed=bytes(2000)))
    for value in store.get_many(store.keys()).values() if number % 20 == 0 else ():
        assert len(set(decode_entry(value))) == 1
    if number % 5 == 0:
        store.evict("artifact/", 20_000)
    if number % 7 == 0:
        store.delete(key)
"""


def test_kernels_may_put_evict_and_delete_in_one_folder_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PUT_AND_EVICT, str(tmp_path / "store")]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        child.communicate("go\n")
    assert [child.returncode for child in children] == [0, 0]
    store = DirectoryStore(tmp_path / "store")
    store.evict("artifact/", 20_000)
    assert 0 < store.size("artifact/") <= 20_000
    for value in store.get_many(store.keys()).values():
        assert len(decode_entry(value)) == 2000


def test_threads_that_put_and_delete_in_one_folder_do_not_stop_each_other(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    errors: list[BaseException] = []

    def use(name: str) -> None:
        try:
            for _ in range(200):
                store.put(f"ref/x/{name}", b"one")  # its folder goes with the last key, and comes again
                store.delete(f"ref/x/{name}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(store.keys()) == []


# --- eviction -------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def put_aged(store: DirectoryStore, ages: dict[str, float], size: int = 100) -> None:
    """Put keys, each used so many seconds ago."""
    now = time.time()
    for key, age in ages.items():
        store.put(key, b"x" * size)
        os.utime(store.path / "v2" / key, (now - age,) * 2)


HOUR = 3600.0


def test_size_is_that_of_the_values_below_a_prefix(store: DirectoryStore) -> None:
    put_aged(store, {"artifact/a": 0, "artifact/b": 0, "ref/x/a": 0})
    assert (store.size(), store.size("artifact/"), store.size("ref/"), store.size("absent/")) == (
        300,
        200,
        100,
        0,
    )


def test_the_least_recently_used_are_evicted_until_nine_tenths_are_left(store: DirectoryStore) -> None:
    put_aged(store, {f"artifact/{number}": (20 - number) * HOUR for number in range(20)})
    assert store.evict("artifact/", 1000) == [f"artifact/{number}" for number in range(11)]
    assert store.size() == 900


def test_nothing_is_evicted_within_the_bound(store: DirectoryStore) -> None:
    put_aged(store, {f"artifact/{number}": HOUR for number in range(10)})
    assert store.evict("artifact/", 1000) == []
    assert store.size() == 1000


def test_only_what_is_below_the_prefix_is_counted_and_evicted(store: DirectoryStore) -> None:
    put_aged(store, {"artifact/a": HOUR, "artifact/b": 2 * HOUR, "ref/x/a": 3 * HOUR})
    assert store.evict("artifact/", 150) == ["artifact/b"]
    assert store.get("ref/x/a") is not None


def test_what_was_read_or_touched_is_kept_before_what_was_not(store: DirectoryStore) -> None:
    put_aged(
        store, {"artifact/a": 4 * HOUR, "artifact/b": 3 * HOUR, "artifact/c": 2 * HOUR, "artifact/d": HOUR}
    )
    assert store.get("artifact/a") is not None
    assert store.touch("artifact/b")
    assert not store.touch("artifact/absent")
    assert store.evict("artifact/", 250) == ["artifact/c", "artifact/d"]


def test_an_entry_from_the_future_is_not_kept_for_ever(store: DirectoryStore) -> None:
    put_aged(store, {"artifact/future": -HOUR, "artifact/a": 10})
    assert store.evict("artifact/", 150) == ["artifact/future"]


def test_an_entry_that_another_kernel_used_since_the_listing_is_kept(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_aged(store, {"artifact/a": 3 * HOUR, "artifact/b": 2 * HOUR, "artifact/c": HOUR})
    listed = store._statuses

    def then_used(prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        yield from list(listed(prefix))
        DirectoryStore(store.path).touch("artifact/a")

    monkeypatch.setattr(store, "_statuses", then_used)
    assert store.evict("artifact/", 250) == ["artifact/b"]


def test_a_kernel_does_not_evict_while_another_does(store: DirectoryStore) -> None:
    put_aged(store, {"artifact/a": HOUR})
    with store._lock() as held:
        assert held
        assert DirectoryStore(store.path).evict("artifact/", 0) == []
        assert store.evict("artifact/", 0) == []
    assert store.evict("artifact/", 0) == ["artifact/a"]


def test_a_kernel_killed_while_it_evicts_does_not_stop_the_others(store: DirectoryStore) -> None:
    put_aged(store, {"artifact/a": HOUR})
    program = (
        "import sys, time; from nbcache.stores.directory import DirectoryStore\n"
        "with DirectoryStore(sys.argv[1])._lock() as held: print(held, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(store.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        assert store.evict("artifact/", 0) == []
        child.kill()
    assert store.evict("artifact/", 0) == ["artifact/a"]
