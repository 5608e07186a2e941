"""The store on fsspec: shared folders and `memory://`; and how a URL finds its store."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import sys
import time
from itertools import count
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from nbcache.core.errors import ConfigError, StoreReadOnly, StoreUnavailable
from nbcache.storage.backends.base import MAX_VALUE_BYTES, Store
from nbcache.storage.backends.filesystem import FilesystemStore, redacted
from nbcache.storage.backends.open import open_store
from nbcache.storage.backends.redis.store import RedisStore
from support.front_door import files
from support.testing import StoreContract

numbers = count()


def memory_url() -> str:
    """Return a URL that no other test uses: the memory is this process's."""
    return f"memory://{next(numbers)}/team"


class TestFilesystemStoreOnAFolder(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FilesystemStore(tmp_path / "a [b]*?" / "store")


class TestFilesystemStoreOnAUrlOfAFolder(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FilesystemStore(f"file://{tmp_path}/store/")


class TestFilesystemStoreInMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return FilesystemStore(memory_url())


# --- folders --------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("shared", [0o2770, 0o700, 0o755])
def test_who_may_use_the_folder_may_use_what_is_put_into_it(tmp_path: Path, shared: int) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(shared)
    FilesystemStore(folder).put("ref/x/a", b"one")
    assert {mode(folder / each) for each in ("v1", "v1/.tmp", "v1/ref", "v1/ref/x")} == {shared}
    assert mode(folder / "v1/ref/x/a") == shared & 0o666


@pytest.mark.parametrize("linked", ["v1", "v1/artifact", "v1/.tmp"])
def test_nothing_is_written_or_removed_through_a_link(tmp_path: Path, linked: str) -> None:
    store = FilesystemStore(tmp_path / "store")
    store.put("artifact/a", b"one")
    shutil.move(tmp_path / "store" / linked, tmp_path / "elsewhere")
    (tmp_path / "store" / linked).symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match="is a link") as caught:
        store.put("artifact/b", b"two")
    assert caught.value.where == str(tmp_path / "store" / linked)
    if linked != "v1/.tmp":
        store.delete("artifact/a")
        assert store.get("artifact/a") is None and store.present(["artifact/a"]) == set()
    assert files(tmp_path / "elsewhere") == before


def test_a_folder_that_is_not_there_is_an_empty_store(tmp_path: Path) -> None:
    assert FilesystemStore(tmp_path / "absent").get("artifact/a") is None
    assert list(FilesystemStore(tmp_path / "absent").keys()) == []


def test_what_is_longer_than_a_value_may_be_is_absent_and_not_read(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path / "store")
    for key in ("artifact/a", "artifact/b"):
        store.put(key, b"one")
    os.truncate(tmp_path / "store/v1/artifact/a", MAX_VALUE_BYTES + 1)
    began = time.process_time()
    for _ in range(100):
        assert store.get_many(["artifact/a", "artifact/b"]) == {"artifact/b": b"one"}
    assert time.process_time() - began < 2


def test_what_is_read_at_once_is_no_longer_than_one_value_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbcache.storage.backends.filesystem.MAX_VALUE_BYTES", 10)
    store = FilesystemStore(tmp_path / "store")
    for key in "abc":
        store.put(key, b"12345")
    assert store.get_many("abc") == {"a": b"12345", "b": b"12345"}


def test_what_a_killed_process_leaves_is_swept_by_the_next_store(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path / "store")
    store.put("artifact/a", b"one")
    left, fresh = (tmp_path / "store/v1/.tmp" / name for name in ("1-left", "2-fresh"))
    left.write_bytes(b"x")
    fresh.write_bytes(b"x")
    os.utime(left, (0, time.time() - 4000))
    store.put("artifact/b", b"one")
    assert left.exists()  # one that has swept does not do so at each put
    FilesystemStore(tmp_path / "store").put("artifact/c", b"one")
    assert (left.exists(), fresh.exists()) == (False, True)


# --- disks, rights and networks -------------------------------------------------------------------


class Published(MemoryFileSystem):
    """A service that has no way to write, as fsspec's `http://`, which needs aiohttp."""

    protocol = "published"

    def pipe_file(self, *arguments: object, **options: object) -> None:
        raise NotImplementedError


def test_a_service_that_has_no_way_to_write_is_read_only() -> None:
    fsspec.register_implementation("published", Published, clobber=True)
    with pytest.raises(StoreReadOnly):
        FilesystemStore("published://team").put("artifact/a", b"one")


def test_a_service_that_can_be_asked_for_several_objects_at_once_is() -> None:
    class Remote(AsyncFileSystemWrapper):
        protocol = "remote"

        def __init__(self, **options: object) -> None:
            super().__init__(MemoryFileSystem(), asynchronous=False)

        async def _info(self, path: str, **options: object) -> object:
            meeting.append(path)
            while len(meeting) < 3:
                await asyncio.sleep(0.001)
            return await super()._info(path, **options)

    fsspec.register_implementation("remote", Remote, clobber=True)
    store = FilesystemStore("remote://team")
    for key in ("artifact/a", "artifact/b"):
        store.put(key, b"one")
    meeting: list[str] = []
    assert store.present(["artifact/a", "artifact/b", "artifact/absent"]) == {"artifact/a", "artifact/b"}


@pytest.mark.parametrize(
    "through",
    ["simplecache::file://", "dir::file://", "zip://::file://"],
)
def test_a_folder_is_used_through_no_other_service(tmp_path: Path, through: str) -> None:
    """It would follow links."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "store/v1/artifact").mkdir(parents=True)
    os.symlink(tmp_path / "secret", tmp_path / "store/v1/artifact/a")
    with pytest.raises(ConfigError, match="links") as caught:
        FilesystemStore(f"{through}{tmp_path}/store")
    assert caught.value.next_step == "name the store or the folder itself"


def test_of_objects_as_well_no_more_is_read_than_one_value_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbcache.storage.backends.filesystem.MAX_VALUE_BYTES", 10)
    url = memory_url()
    store = FilesystemStore(url)
    memory = fsspec.filesystem("memory")
    for key, value in {"a": b"1234567", "b": b"12345678901", "c": b"1234", "d": b"", "e": b"123"}.items():
        memory.pipe_file(f"{url.removeprefix('memory:/')}/v1/{key}", value)
    assert store.get_many("abcde") == {"a": b"1234567", "d": b"", "e": b"123"}
    assert store.get("b") is None
    assert store.get("c") == b"1234"


def test_of_an_object_that_grows_while_it_is_read_one_byte_too_many_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = FilesystemStore(memory_url())
    store.put("artifact/a", b"one")
    store.put("artifact/b", b"two")
    read = []

    def grown(
        self: MemoryFileSystem, paths: list[str], starts: object, ends: object, **more: object
    ) -> object:
        self.pipe_file(paths[0], bytes(1000))
        read.extend(MemoryFileSystem.__mro__[1].cat_ranges(self, paths, starts, ends, **more))
        return read

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", grown)
    assert store.get_many(["artifact/a", "artifact/b"]) == {"artifact/b": b"two"}
    assert [len(each) for each in read] == [4, 3]


def test_a_service_that_cannot_be_reached_is_unavailable_and_tells_no_secret() -> None:
    store = FilesystemStore("ftp://ada:secret@127.0.0.1:1/team?token=secret")
    assert store.name == "ftp://127.0.0.1:1/team"
    for call in (
        lambda: store.get("artifact/a"),
        lambda: store.put("artifact/a", b"one"),
        lambda: store.delete("artifact/a"),
        lambda: list(store.keys()),
    ):
        with pytest.raises(StoreUnavailable, match=os.strerror(errno.ECONNREFUSED)) as caught:
            call()
        assert caught.value.next_step
        assert "secret" not in repr(store) + "\n".join(caught.value.diagnostics())


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/team", "s3://bucket/team"),
        ("sftp://ada:secret@host/team", "sftp://host/team"),
        ("sftp://ada@host/team", "sftp://host/team"),
        ("s3://key:sec/ret@bucket/team?token=secret#secret", "s3://bucket/team"),
        ("hf://datasets/ada/cache@main/team", "hf://datasets/ada/cache@main/team"),
        ("simplecache::ftp://ada:secret@host/a", "simplecache::ftp://host/a"),
        ("redis://[::1]:6379/0?password=secret", "redis://[::1]:6379/0"),
        ("redis://:sec::ret@[::1]:6379/0", "redis://[::1]:6379/0"),
        ("zip://a.zip::simplecache::s3://key:secret@bucket/b", "zip://a.zip::simplecache::s3://bucket/b"),
        ("file:///shared/a#b?c", "file:///shared/a#b?c"),
        ("/shared/ada:a@b", "/shared/ada:a@b"),
    ],
)
def test_a_store_is_named_by_its_url_without_user_password_and_query(url: str, name: str) -> None:
    assert redacted(url) == name


# --- by URL ---------------------------------------------------------------------------------------


def test_a_url_opens_the_store_of_its_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in (
        "redis://host",
        "rediss://host",
        "redis+cluster://a,b",
        "redis+sentinel://a",
    ):
        assert isinstance(open_store(url), RedisStore)
    names = {
        str(tmp_path / "a"): str(tmp_path / "a"),
        "~/a": str(tmp_path / "a"),
        "memory://team": "memory://team",
        f"file://{tmp_path}/a": f"file://{tmp_path}/a",
    }
    for url, name in names.items():
        store = open_store(url)
        assert isinstance(store, FilesystemStore)
        assert store.name == name
    assert open_store(tmp_path).name == str(tmp_path)


def test_a_host_without_its_scheme_does_not_become_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert open_store("there").name == str(tmp_path / "there")
    assert open_store("./new").name == str(tmp_path / "new")
    assert open_store(Path("new")).name == str(tmp_path / "new")
    for url in ("ada:hunter2@host/0", "//ada:hunter2@host/0"):
        with pytest.raises(ConfigError, match="neither a URL nor") as caught:
            open_store(url)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "mongodb://ada:secret@host", "redsi://host"])
def test_an_unknown_scheme_names_those_that_are_known(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    said = "\n".join(caught.value.diagnostics())
    assert "redis+cluster://" in said and "s3://" in said
    assert "secret" not in said


def test_a_url_of_redis_without_slashes_is_no_folder() -> None:
    with pytest.raises(ConfigError, match="no host"):
        open_store("redis:host")


def test_a_package_that_is_missing_is_named_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    with pytest.raises(ConfigError, match="s3://") as caught:
        open_store("s3://key:secret@bucket/team")
    assert caught.value.next_step == "pip install s3fs"
    assert caught.value.where == "s3://bucket/team"
    with pytest.raises(ConfigError, match="with the scheme 'absent'") as caught:
        FilesystemStore("absent://user:pass#word@host")
    assert "pass" not in "\n".join(caught.value.diagnostics())
