"""What kernels share live goes when nobody uses it any more, and not before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbcache.core.key import components, sha256
from nbcache.core.model import ArtifactRef, Environment, Manifest
from nbcache.core.settings import Policy
from nbcache.sharing.gc import MAX_AGE_SECONDS, remove_unused
from nbcache.sharing.live.layout import LIVE, NOTEBOOK
from nbcache.sharing.live.level import SharedLevel
from nbcache.sharing.live.signing import Signer
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.filesystem import FilesystemStore
from nbcache.storage.backends.redis.store import RedisStore
from nbcache.storage.encoding import pack
from support.redis_servers import RedisServer

HERE = Environment(components({"torch.version": "2.13.0", "device": "cpu", "cpu.features": "avx2"}))
DAY = 86400.0


@pytest.fixture(params=["redis", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> Store:
    return RedisStore(redis_server.url) if request.param == "redis" else FilesystemStore(tmp_path / "shared")


@pytest.fixture
def level(store: Store, tmp_path: Path) -> Iterator[SharedLevel]:
    signer = Signer(lambda: Keyring(tmp_path / "trust"), lambda: Policy.STRICT, "ada", "gpu-1")
    level = SharedLevel(store, signer, wait_seconds=2.0, say=lambda text, slug: pytest.fail(text))
    yield level
    level.close(1.0)


def share(level: SharedLevel, *names: str, notebook: str = "model.ipynb", publish: bool = True) -> None:
    refs = []
    for name in names:
        content, now = name.encode() * 100, time.time()
        ref = ArtifactRef("inductor", name, sha256(content), len(content), now, now)
        level.publish(HERE, ref, pack(content))
        refs.append(ref)
    if publish:
        level.publish_manifest(Manifest(HERE, notebook, tuple(refs)))
    assert level.flush(10)


def count(store: Store, prefix: str) -> int:
    return len(list(store.keys(prefix)))


def test_what_was_used_lately_is_kept(store: Store, level: SharedLevel) -> None:
    share(level, "a", "b")
    done = remove_unused(store, clock=lambda: time.time() + MAX_AGE_SECONDS - DAY)
    assert (done.artifacts, done.kept, done.publishers) == (0, 2, 0)
    assert count(store, LIVE) == 2


def test_what_nobody_has_used_for_so_long_goes_with_who_published_it(
    store: Store, level: SharedLevel
) -> None:
    share(level, "a", "b")
    done = remove_unused(store, clock=lambda: time.time() + MAX_AGE_SECONDS + DAY)
    assert (done.artifacts, done.kept, done.publishers) == (2, 0, 1)
    assert count(store, LIVE) == count(store, NOTEBOOK) == 0


def test_what_one_notebook_still_uses_is_kept_of_what_two_had(store: Store, level: SharedLevel) -> None:
    share(level, "a", "b", notebook="old.ipynb")
    later = time.time() + MAX_AGE_SECONDS
    ref = ArtifactRef("inductor", "a", sha256(b"a" * 100), 100, later, later)
    level.publish_manifest(Manifest(HERE, "new.ipynb", (ref,)))
    assert level.flush(10)
    done = remove_unused(store, clock=lambda: later + DAY)
    assert (done.artifacts, done.kept) == (1, 1)
    assert level.find(HERE, "inductor", "a")
    assert not level.find(HERE, "inductor", "b")


def test_what_a_cell_has_put_that_still_runs_is_kept(store: Store, level: SharedLevel) -> None:
    share(level, "a", publish=False)
    assert remove_unused(store).kept == 1
    assert remove_unused(store, clock=lambda: time.time() + 2 * DAY).artifacts == 1


def test_nothing_goes_where_a_publication_cannot_be_read(store: Store, level: SharedLevel) -> None:
    share(level, "a")
    (key,) = store.keys(NOTEBOOK)
    value = store.get(key)
    assert value is not None
    store.put(key, value[:4] + b"\x63" + value[5:])  # of a newer nbcache
    done = remove_unused(store, clock=lambda: time.time() + MAX_AGE_SECONDS + DAY)
    assert done.artifacts == 0
    assert "upgrade nbcache" in str(done.problems[0].next_step)
    assert count(store, LIVE) == 1


def test_a_publication_that_is_damaged_names_nothing_and_goes(store: Store, level: SharedLevel) -> None:
    share(level, "a")
    (key,) = store.keys(NOTEBOOK)
    store.put(key, b"no publication")
    share(level, "b", notebook="other.ipynb")
    done = remove_unused(store, clock=lambda: time.time() + 2 * DAY)
    assert (done.artifacts, done.kept, done.publishers, done.problems) == (1, 1, 1, ())
    assert level.find(HERE, "inductor", "b") and not level.find(HERE, "inductor", "a")
