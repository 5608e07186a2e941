"""Stores: the contract, and what a folder adds to it: owners, full disks, kills, eviction."""

import contextlib
import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from nbcache.core.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.backends.filesystem import FilesystemStore
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.encoding import decode_entry
from support.front_door import files
from support.testing import (
    StoreContract,
    store_state_machine,
)

SOMEBODY_ELSE = 12345
STATE_MACHINE = settings(max_examples=30, stateful_step_count=20, deadline=None, database=None)

Kind = type[DirectoryStore | FilesystemStore]
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


numbers = count()


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: MemoryStore(),
        lambda folder: DirectoryStore(folder / str(next(numbers))),
        lambda folder: FilesystemStore(folder / str(next(numbers))),
        lambda folder: FilesystemStore(f"memory://dictionary-{next(numbers)}/team"),
    ],
    ids=["memory", "directory", "filesystem", "filesystem in memory"],
)
def test_a_store_is_a_dictionary(make: Callable[[Path], Store], tmp_path: Path) -> None:
    run_state_machine_as_test(store_state_machine(lambda: make(tmp_path)), settings=STATE_MACHINE)


# --- the folder -----------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("kind", "version"), [(DirectoryStore, "v2"), (FilesystemStore, "v1")])
def test_a_key_is_a_file_below_the_folder_of_its_version(kind: Kind, version: str, tmp_path: Path) -> None:
    kind(tmp_path / "store").put("ref/x/a", b"one")
    assert files(tmp_path / "store") == [f"{version}/ref/x/a"]
    assert kind(str(tmp_path / "store")).get("ref/x/a") == b"one"


def test_only_the_owner_can_enter_the_folder_or_read_a_file(tmp_path: Path) -> None:
    with as_umask(0):
        DirectoryStore(tmp_path / "new/store").put("artifact/a", b"one")
    for folder in ("store", "store/v2", "store/v2/.tmp"):
        assert mode(tmp_path / "new" / folder) == 0o700
    assert mode(tmp_path / "new/store/v2/artifact/a") == 0o600


@pytest.mark.parametrize("open_to", [0o770, 0o707])
@pytest.mark.parametrize("folder", ["store", "store/v2"])
def test_a_folder_that_others_could_write_to_is_emptied_of_entries_and_made_private(
    tmp_path: Path, folder: str, open_to: int
) -> None:
    before = DirectoryStore(tmp_path / "store")
    before.put("artifact/a", b"planted")
    (tmp_path / "store/notes.txt").write_text("not of the store")
    (tmp_path / folder).chmod(open_to)
    store = DirectoryStore(tmp_path / "store")
    assert (store.was_emptied, before.was_emptied) == (True, False)
    assert store.get("artifact/a") is None and before.get("artifact/a") is None
    assert files(tmp_path / "store") == ["notes.txt"]
    assert (mode(tmp_path / "store"), mode(tmp_path / "store/v2")) == (0o700, 0o700)
    assert not DirectoryStore(tmp_path / "store").was_emptied


def test_a_folder_that_cannot_be_closed_to_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)
    monkeypatch.setattr(Path, "chmod", lambda *arguments: None)  # as on a filesystem without permissions
    assert "has no permissions" in refusal(tmp_path / "store").what


@in_folders
def test_what_is_no_regular_file_or_is_reached_by_a_link_is_absent(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path / "store")
    store.put("artifact/a", b"one")
    (root,) = (tmp_path / "store").iterdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a").write_bytes(b"theirs")
    os.mkfifo(root / "artifact/pipe")
    (root / "artifact/zeros").symlink_to("/dev/zero")
    (root / "artifact/link").symlink_to(root / "artifact/a")
    (root / "artifact/nowhere").symlink_to(root / "absent")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "artifact/folder").mkdir()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener, contextlib.chdir(root / "artifact"):
        listener.bind("socket")  # a short path: it must be one
    strange = ["artifact/pipe", "artifact/zeros", "artifact/link", "artifact/nowhere", "linked/a"]
    strange += ["artifact/folder", "artifact/socket"]
    assert store.get_many(["artifact/a", *strange]) == {"artifact/a": b"one"}
    assert store.present(["artifact/a", *strange]) == {"artifact/a"}
    assert list(store.keys()) == ["artifact/a"]
    assert [store.get(key) for key in strange] == [None] * len(strange)


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


@in_folders
def test_a_link_of_ours_to_a_folder_of_ours_is_followed(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "elsewhere")
    store = kind(tmp_path / "store")
    store.put("artifact/a", b"one")
    assert store.get("artifact/a") == b"one" and list(store.keys()) == ["artifact/a"]
    assert len(files(tmp_path / "elsewhere")) == 1


def refusal(path: Path) -> StoreUnavailable:
    """Return the error of opening a store at `path`."""
    with pytest.raises(StoreUnavailable) as caught:
        DirectoryStore(path)
    assert caught.value.where
    assert caught.value.next_step
    return caught.value


def test_neither_a_file_nor_a_link_to_nowhere_can_be_the_folder(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    assert "not a folder" in refusal(tmp_path / "store").what
    refusal(tmp_path / "store/below")
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    refusal(tmp_path / "link")


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


@in_folders
def test_what_is_no_key_in_the_folder_is_neither_listed_nor_removed(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path / "store")
    store.put("artifact/a", b"one")
    (root,) = (tmp_path / "store").iterdir()
    for stranger in ("README.txt", "artifact/.nfs0001", "artifact/UPPER"):
        (root / stranger).write_bytes(b"x" * 100)
    (root / "artifact/link").symlink_to("a")
    assert list(store.keys()) == ["artifact/a"]
    for prefix in ("../", "/", "artifact", "artifact//"):
        with pytest.raises(ValueError, match="not a"):
            list(store.keys(prefix))
    if isinstance(store, DirectoryStore):
        assert store.size() == 3
        store.evict("", 0)
        assert list(store.keys()) == []
        assert (root / "README.txt").exists()


@in_folders
def test_a_key_that_is_a_folder_of_others_is_refused_and_nothing_is_lost(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path / "store")
    store.put("a/b", b"one")
    for key in ("a", "a/b/c", "a/b/c/d"):
        with pytest.raises(StoreError, match="folder of other keys"):
            store.put(key, b"two")
        assert store.get(key) is None
        store.delete(key)
    assert list(store.keys()) == ["a/b"] and store.get("a/b") == b"one"


def test_a_folder_of_keys_goes_with_its_last_key(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put("a/b", b"one")
    assert not store.touch("a") and not store.touch("a/b/c")
    store.delete("a/b")
    store.put("a", b"two")
    assert store.get("a") == b"two"


@in_folders
def test_a_name_that_the_filesystem_cannot_hold_is_an_error_to_put_and_absent_to_get(
    kind: Kind, tmp_path: Path
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
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
def kind() -> Kind:
    return DirectoryStore


@pytest.fixture
def folder_without_rights(kind: Kind) -> Iterator[Path]:
    """A store's folder that this process, if need be as another user, may read and not write."""
    top = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    root = os.geteuid() == 0
    try:
        if root:
            os.chown(top, SOMEBODY_ELSE, SOMEBODY_ELSE)
            os.seteuid(SOMEBODY_ELSE)  # root may write to everything
        kind(top / "store").put("artifact/a", b"one")
        for folder in folders_in(top / "store"):
            folder.chmod(0o500)
        yield top / "store"
    finally:
        if root:
            os.seteuid(0)
        for folder in folders_in(top / "store"):
            folder.chmod(0o700)
        shutil.rmtree(top)


def folders_in(path: Path) -> list[Path]:
    return [path, *(folder for folder in path.rglob("*") if folder.is_dir())]


@in_folders
def test_a_full_disk_says_so_and_leaves_nothing_behind(kind: Kind, small_disk: Path) -> None:
    store = kind(small_disk / "store")
    store.put("artifact/a", b"a" * 20_000)
    (present,) = files(small_disk)
    for key in ("artifact/b", "artifact/a"):
        with pytest.raises(StoreFull) as caught:
            store.put(key, b"b" * 100_000)
        assert caught.value.next_step
    assert files(small_disk) == [present]
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


@in_folders
def test_a_folder_without_write_permission_is_read(kind: Kind, folder_without_rights: Path) -> None:
    store = kind(folder_without_rights)
    assert store.get("artifact/a") == b"one" and list(store.keys()) == ["artifact/a"]
    for call in (lambda: store.put("artifact/a", b"two"), lambda: store.delete("artifact/a")):
        with pytest.raises(StoreReadOnly) as caught:
            call()
        assert caught.value.where == str(folder_without_rights)
    if not store.read_only:  # the store on fsspec finds that out by writing
        store.delete("artifact/absent")
    assert store.get("artifact/a") == b"one"


def test_a_store_without_write_permission_evicts_nothing(folder_without_rights: Path) -> None:
    empty = folder_without_rights.parent / "empty"
    empty.mkdir(mode=0o500)
    for folder, keys in ((folder_without_rights, ["artifact/a"]), (empty, [])):
        store = DirectoryStore(folder)
        assert store.read_only
        assert store.evict("", 0) == []
        assert list(store.keys()) == keys


@in_folders
def test_a_folder_without_read_permission_is_a_fault_and_no_miss(
    kind: Kind, folder_without_rights: Path
) -> None:
    (version,) = folder_without_rights.iterdir()
    (version / "artifact").chmod(0)
    store = kind(folder_without_rights)
    for call in (lambda: store.get("artifact/a"), lambda: list(store.keys())):
        with pytest.raises(StoreUnavailable):
            call()


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
@in_folders
def test_an_error_of_the_disk_is_named_and_leaves_the_old_value_and_no_temporary_file(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[StoreError]
) -> None:
    def replace(source: Path, *arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), str(source))

    store = kind(tmp_path / "store")
    store.put("artifact/a", b"one")
    present = files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(StoreError) as caught:
            store.put("artifact/a", b"two")
    assert type(caught.value) is expected
    assert files(tmp_path) == present and store.get("artifact/a") == b"one"


# --- kills and other kernels ----------------------------------------------------------------------


def test_what_killed_kernels_have_left_is_removed_by_an_eviction(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.put("artifact/a", b"one")
    temporary = tmp_path / "store/v2/.tmp"
    for name, age in (("old", 7200), ("young", 0)):
        (temporary / name).write_bytes(b"being written")
        os.utime(temporary / name, (time.time() - age,) * 2)
    assert store.evict("", 1 << 40) == []
    assert files(temporary) == ["young"]


PUT_AND_EVICT = """
import sys
from nbcache.storage.encoding import decode_entry, encode_entry
from nbcache.storage.backends.directory import DirectoryStore

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


def test_the_least_recently_used_are_evicted_until_nine_tenths_are_left(store: DirectoryStore) -> None:
    put_aged(store, {f"artifact/{number}": (20 - number) * HOUR for number in range(20)})
    assert store.evict("artifact/", 1000) == [f"artifact/{number}" for number in range(11)]
    assert store.size() == 900


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


def test_a_kernel_killed_while_it_evicts_does_not_stop_the_others(store: DirectoryStore) -> None:
    put_aged(store, {"artifact/a": HOUR})
    program = (
        "import fcntl, sys, time\n"
        "lock = open(sys.argv[1]); fcntl.flock(lock, fcntl.LOCK_EX); print(flush=True); time.sleep(60)"
    )
    store.evict("artifact/", 1000)
    command = [sys.executable, "-c", program, str(store.root / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "\n"
        assert store.evict("artifact/", 0) == []
        child.kill()
    assert store.evict("artifact/", 0) == ["artifact/a"]
