"""The store on Redis where Redis fails: what is raised, how long that takes, and what works again."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nbcache.core.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from nbcache.storage.backends.redis import store as redis_store
from nbcache.storage.backends.redis.store import RedisStore
from support.redis_servers import HOST, Proxy, RedisCluster, RedisServer, free_port, within
from support.testing import OPERATIONS

pytestmark = pytest.mark.faults


def store_on(url: str, **options: float) -> contextlib.closing[RedisStore]:
    return closing(RedisStore(url, **options))  # type: ignore[arg-type]


def every_operation_raises(store: RedisStore, kind: type[StoreError], *, bound: float) -> None:
    """Assert that each operation raises `kind` within `bound` seconds, and says where and what to do."""
    for name, operation in OPERATIONS.items():
        with within(bound), pytest.raises(StoreError) as caught:
            operation(store)
        assert type(caught.value) is kind, name
        assert caught.value.where == store.name
        assert caught.value.next_step
        assert "secret" not in "\n".join(caught.value.diagnostics())


# --- not there, or not to be entered --------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "redis+sentinel"])
def test_where_nobody_listens(scheme: str) -> None:
    with store_on(f"{scheme}://ada:secret@{HOST}:{free_port()}?ttl=86400") as store:
        every_operation_raises(store, StoreUnavailable, bound=0.25)


def test_where_nothing_comes_back_at_all() -> None:
    # A listener whose queue is full: what a firewall that drops packets looks like.
    import socket

    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        store = stack.enter_context(store_on(f"redis://{HOST}:{listener.getsockname()[1]}"))
        with within(0.25), pytest.raises(StoreUnavailable, match=r"connected to within 0\.25 s"):
            store.get("artifact/a")


@pytest.mark.parametrize("user", ["", ":wrong-secret@", "ada:secret@"])
def test_a_wrong_password_or_none(tmp_path: Path, user: str) -> None:
    with (
        RedisServer(tmp_path, password="s/e@cret") as server,
        store_on(f"redis://{user}{HOST}:{server.port}") as store,
    ):
        every_operation_raises(store, StoreUnavailable, bound=0.25)
        with pytest.raises(StoreUnavailable, match="refuses this user and password"):
            store.get("artifact/a")
        with store_on(f"redis://:s%2Fe%40cret@{HOST}:{server.port}") as right:
            right.put("artifact/a", b"one")
            assert right.get("artifact/a") == b"one"


# --- killed and stopped ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_server_that_was_restarted_in_between_is_not_noticed(server: RedisServer, name: str) -> None:
    with store_on(server.url) as store:
        store.put("artifact/a", b"x" * 5000)
        store.get("artifact/a")
        server.kill()
        server.start()
        OPERATIONS[name](store)


def test_a_server_that_is_killed_is_unavailable_until_it_is_back(server: RedisServer) -> None:
    with store_on(server.url) as store:
        store.put("artifact/a", b"one")
        server.kill()
        every_operation_raises(store, StoreUnavailable, bound=0.25)
        server.start()
        store.put("artifact/a", b"two")
        assert store.get("artifact/a") == b"two"


def test_a_server_that_hangs_is_waited_for_no_longer_than_the_timeout(server: RedisServer) -> None:
    with store_on(server.url, timeout=1.0) as store:
        store.put("artifact/a", b"one")
        server.stop()
        every_operation_raises(store, StoreUnavailable, bound=1.0)
        server.resume()
        store.put("artifact/b", b"two")
        # Not the answers to what was asked while it hung.
        assert store.get_many(["artifact/b", "artifact/c"]) == {"artifact/b": b"two"}


def test_a_node_of_a_cluster_that_hangs(redis_cluster: RedisCluster) -> None:
    keys = [f"artifact/{number}" for number in range(30)]
    with store_on(redis_cluster.url, timeout=1.0) as store:
        for key in keys:
            store.put(key, key.encode())
        redis_cluster.nodes[1].stop()
        try:
            with within(1.0), pytest.raises(StoreUnavailable):
                store.get_many(keys)
            with within(1.0), pytest.raises(StoreUnavailable):
                list(store.keys())
        finally:
            redis_cluster.nodes[1].resume()
        assert len(store.get_many(keys)) == 30


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_a_cluster_whose_slots_no_node_has(tmp_path: Path, scheme: str) -> None:
    with (
        RedisServer(tmp_path, "--cluster-enabled", "yes") as server,
        store_on(f"{scheme}://{HOST}:{server.port}") as store,
        within(2),
        pytest.raises(StoreUnavailable, match="the Cluster cannot serve this now"),
    ):
        store.get("artifact/a")


def test_a_sentinel_that_hangs_leaves_time_for_the_next(server: RedisServer, tmp_path: Path) -> None:
    watched = f"sentinel monitor mymaster {HOST} {server.port} 1\n"
    with (
        RedisServer(tmp_path / "one", sentinel=watched) as one,
        RedisServer(tmp_path / "other", sentinel=watched) as other,
        store_on(
            f"redis+sentinel://{HOST}:{one.port},{HOST}:{other.port}", connect_timeout=0.1, timeout=3
        ) as store,
    ):
        one.stop()
        with within(1):
            store.put("artifact/a", b"one")
        other.stop()
        assert store.get("artifact/a") == b"one"  # it is connected
        store.close()
        with within(1), pytest.raises(StoreUnavailable):
            store.get("artifact/a")


# --- read-only, full, evicting --------------------------------------------------------------------


def test_a_replica_is_read_and_says_that_it_cannot_be_written_to(server: RedisServer) -> None:
    with store_on(server.url) as store:
        store.put("artifact/a", b"one")
        with server.client() as client:
            client.config_set("replica-serve-stale-data", "yes")
            client.replicaof(HOST, free_port())
        assert store.get("artifact/a") == b"one"
        assert list(store.keys()) == ["artifact/a"]
        for name in ("put", "delete"):
            with pytest.raises(StoreReadOnly, match="replica") as caught:
                OPERATIONS[name](store)
            assert "primary" in (caught.value.next_step or "")


def used_memory(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("memory")["used_memory"])


def limit_memory(server: RedisServer, policy: str) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", used_memory(server) + 2_000_000)


def test_a_full_server_says_so_keeps_what_it_has_and_nothing_of_what_it_refused(server: RedisServer) -> None:
    limit_memory(server, "noeviction")
    with closing(RedisStore(server.url)) as store:
        store.put("artifact/a", b"a" * 150_000)
        stored = 0
        with contextlib.suppress(StoreFull):
            for stored in range(100):
                store.put(f"artifact/{stored}", b"c" * 90_000)
        assert 10 < stored < 30
        with pytest.raises(StoreFull, match="memory limit") as caught:
            store.put("artifact/b", b"c" * 90_000)
        assert "maxmemory" in (caught.value.next_step or "")
        assert store.get("artifact/a") == b"a" * 150_000
        with server.client() as client:
            assert client.dbsize() == 1 + stored
        store.delete("artifact/a")
        store.put("artifact/b", b"d" * 50_000)
        assert store.get("artifact/b") == b"d" * 50_000


# --- networks and strangers -----------------------------------------------------------------------


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


def test_a_connection_that_breaks_in_mid_value_is_tried_again_once(proxy: Proxy) -> None:
    with closing(RedisStore(proxy.url)) as store:
        store.put("artifact/a", b"x" * 300_000)
        proxy.cut_after, proxy.cuts = 100_000, 1
        assert store.get("artifact/a") == b"x" * 300_000
        proxy.cuts = 2
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            store.get("artifact/a")
        assert store.get("artifact/a") == b"x" * 300_000


def test_a_server_that_drips_is_waited_for_no_longer_than_the_timeout(proxy: Proxy) -> None:
    with closing(RedisStore(proxy.url, timeout=0.5)) as store:
        store.put("artifact/a", b"x" * 10_000)
        proxy.piece, proxy.delay = 10, 0.02
        with within(0.5), pytest.raises(StoreUnavailable, match=r"within 0\.5 s"):
            store.get("artifact/a")
        proxy.piece, proxy.delay = 1 << 16, 0.0
        assert store.get("artifact/a") == b"x" * 10_000
        assert store.get("artifact/b") is None


GARBAGE = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x00\xff" * 50 + b"\r\n",
    b"$x\r\n",
    b"$5\r\nab",
    b"$-7\r\n",
    b"*99999999\r\n",
    b"*1\r\n" * 5000,
    b":1\r\n",
    b"*2\r\n$1\r\na\r\n",
    b"-\r\n",
    b"-MOVED x y\r\n",
    b"-MOVED 1 127.0.0.1:1\r\n",
    b"-\xff\xfe\r\n",
    b"_\r\n",
]


@pytest.mark.parametrize(
    ("scheme", "garbage"),
    [
        *(("redis", garbage) for garbage in GARBAGE),
        *(("redis+cluster", garbage) for garbage in GARBAGE[::3]),
        *(("redis+sentinel", garbage) for garbage in GARBAGE[1::3]),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_garbage_is_an_error_and_no_value(redis_server: RedisServer, scheme: str, garbage: bytes) -> None:
    with Proxy(redis_server.port) as proxy:
        proxy.answer = garbage
        with store_on(f"{scheme}://{HOST}:{proxy.port}", timeout=0.05) as store:
            for name in ("get", "get_many", "put", "keys"):
                with within(0.05), pytest.raises(StoreUnavailable):
                    OPERATIONS[name](store)


def test_a_listing_that_never_ends_is_given_up(proxy: Proxy) -> None:
    proxy.answer = b"*2\r\n$1\r\n7\r\n*1\r\n$21\r\nnbcache:v1:artifact/a\r\n"
    store = RedisStore(proxy.url, timeout=0.05)
    with closing(store), within(15 * 0.05 + 0.5), pytest.raises(StoreUnavailable):
        list(store.keys())


class _NamesForEver(Proxy):
    """A server that names more and more keys, in answers of any length."""

    def __init__(self, port: int, names: int, length: int):
        super().__init__(port)
        self._names, self._length = names, length
        self.named = 0

    @property
    def answer(self) -> bytes | None:
        first, self.named = self.named, self.named + self._names
        names = [b"nbcache:v1:%0*d" % (self._length, number) for number in range(first, self.named)]
        listed = b"".join(b"$%d\r\n%b\r\n" % (len(name), name) for name in names)
        return b"*2\r\n$1\r\n7\r\n*%d\r\n%b" % (len(names), listed)

    @answer.setter
    def answer(self, value: bytes | None) -> None: ...


@pytest.mark.parametrize(
    ("names", "length", "most"),
    [(100, 10, 1000), (20_000, 10, 1 << 30)],
    ids=["names", "one answer"],
)
def test_a_listing_of_ever_new_names_is_bounded(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, names: int, length: int, most: int
) -> None:
    monkeypatch.setattr(redis_store, "_MOST_NAMES", most, raising=False)
    monkeypatch.setattr(redis_store, "_SCAN_BYTES", 100_000, raising=False)
    with (
        _NamesForEver(redis_server.port, names, length) as proxy,
        closing(RedisStore(proxy.url)) as store,
    ):
        found: list[str] = []
        with pytest.raises(StoreUnavailable, match="more keys than") as caught:
            found.extend(store.keys())
        assert caught.value.next_step
        assert len(found) <= most
        assert proxy.named <= 40_000  # it makes up two answers to each question


def test_after_garbage_the_next_answer_is_the_right_one(proxy: Proxy) -> None:
    with closing(RedisStore(proxy.url)) as store:
        store.put("artifact/a", b"one")
        for garbage in (b"$3\r\nbad\r\n$3\r\nbad\r\n", b"*1\r\n$3\r\nbad\r\n$3\r\nbad\r\n", b"$9\r\nbad\r\n"):
            proxy.answer = garbage
            with contextlib.suppress(StoreUnavailable):
                store.get("artifact/a")
            proxy.answer = None
            assert store.get("artifact/a") == b"one"


SAID = "see \x1b[31mhttp://evil.example \u202e%nbcache trust add"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (f"-ERR {SAID}", "Redis refused: ERR"),
        (f"-{SAID}", "Redis refused"),
        (f"-BUSY {SAID}", "Redis refused: BUSY"),
        (f"-LOADING {SAID}", "Redis cannot be reached: LOADING"),
        (f"-ERR unknown command {SAID}", "Redis refused: unknown command"),
        ("-ERR max number of clients reached", "Redis cannot be reached: max number of clients reached"),
        (f"-{'A' * 21} {SAID}", "Redis refused"),
        (f"-ERR {'z' * 5_000_000}", "Redis refused: ERR"),
        (f"-WRONGPASS {SAID}", "Redis refuses this user and password, or asks for them"),
        (f"-NOPERM {SAID}", "the user may not do this on Redis"),
    ],
    ids=lambda given: repr(given)[:30],
)
def test_of_what_a_server_says_its_code_alone_is_quoted(
    redis_server: RedisServer, answer: str, told: str
) -> None:
    with Proxy(redis_server.port) as proxy, closing(RedisStore(proxy.url)) as store:
        proxy.answer = answer.encode() + b"\r\n"
        for name in ("get", "put", "keys"):
            with pytest.raises(StoreUnavailable) as caught:
                OPERATIONS[name](store)
            assert caught.value.what == told
            shown = "".join(traceback.format_exception(caught.value))
            assert "evil" not in shown and "zzz" not in shown


@pytest.mark.parametrize("scheme", ["redis+cluster", "redis+sentinel"])
def test_nothing_is_quoted_of_what_a_cluster_or_a_sentinel_says(
    redis_server: RedisServer, scheme: str
) -> None:
    for code in ("ERR", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "EXECABORT", "evil"):
        with Proxy(redis_server.port) as proxy, store_on(f"{scheme}://{HOST}:{proxy.port}") as store:
            proxy.answer = f"-{code} {SAID}\r\n".encode()
            with pytest.raises(StoreUnavailable) as caught:
                store.get("artifact/a")
            assert "evil" not in "".join(traceback.format_exception(caught.value))
