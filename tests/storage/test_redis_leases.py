"""Leases on real Redis servers: one, a Cluster, Sentinels; killed, stopped, full, garbled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from nbcache.core.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.backends.open import leases_of
from nbcache.storage.backends.redis.leases import Lease, RedisLeases
from nbcache.storage.backends.redis.store import RedisStore
from support.redis_servers import (
    HOST,
    Proxy,
    RedisCluster,
    RedisServer,
    free_port,
    limited_user,
    wait_until,
)

pytestmark = pytest.mark.faults

NAME = "graph/a"
KEY = f"nbcache:lock:{NAME}"


@contextlib.contextmanager
def leasing(url: str, **options: float) -> Iterator[RedisLeases]:
    with closing(RedisStore(url, **options)) as store:  # type: ignore[arg-type]
        found = leases_of(store)
        assert isinstance(found, RedisLeases)
        yield found


def claimed(by: RedisLeases, name: str = NAME, holder: bytes = b"ada", seconds: float = 60) -> Lease:
    """Claim a lease that must be free."""
    claim = by.claim(name, holder, seconds)
    assert claim.lease is not None and claim.lease.name == name and claim.holder is None
    return claim.lease


def is_lost(by: RedisLeases, lease: Lease) -> bool:
    return (by.extend(lease, 60), by.release(lease)) == (False, False)


@pytest.fixture
def redis_leases(redis_server: RedisServer) -> Iterator[RedisLeases]:
    with leasing(redis_server.url) as found:
        yield found


# --- what a lease is ------------------------------------------------------------------------------


def test_a_lease_is_held_by_one_until_it_is_released(
    redis_server: RedisServer, redis_leases: RedisLeases
) -> None:
    lease = claimed(redis_leases, holder=b"ada", seconds=60)
    for holder in (b"bob", b"ada"):  # by another, though its statement is the same
        other = redis_leases.claim(NAME, holder, 60)
        assert other.lease is None and other.holder == b"ada"
    assert redis_leases.extend(lease, 600)
    with redis_server.client() as client:
        assert 500 < client.ttl(KEY) <= 600
    assert redis_leases.claim("graph/b", b"bob", 60).lease
    assert redis_leases.release(lease)
    assert is_lost(redis_leases, lease)
    assert claimed(redis_leases, holder=b"").token != lease.token


def test_a_lease_ends_by_itself_and_who_held_it_does_not_disturb_the_next(
    redis_server: RedisServer, redis_leases: RedisLeases
) -> None:
    lost = claimed(redis_leases, seconds=0.2)
    with redis_server.client() as client:
        wait_until(lambda: not client.exists(KEY), "the lease has ended")
    assert is_lost(redis_leases, lost)  # ended is ended, though nobody has it yet
    claimed(redis_leases, holder=b"bob")
    assert is_lost(redis_leases, lost)
    assert redis_leases.claim(NAME, b"ada", 60).holder == b"bob"


def test_a_name_that_is_no_key_is_refused_before_redis_is_asked() -> None:
    with leasing(f"redis://{HOST}:{free_port()}") as found:
        for name in ("", "../a", "A", "a b"):
            with pytest.raises(ValueError, match="not a store key"):
                found.claim(name, b"", 1)


def test_other_stores_have_no_leases() -> None:  # `test_layers` shows that they need no redis-py
    assert leases_of(MemoryStore()) is None


def test_a_holder_that_lets_go_meanwhile_is_nobody(
    redis_server: RedisServer, redis_leases: RedisLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed(redis_leases)
    get = redis.Redis.get

    def get_late(client: redis.Redis, name: str) -> object:
        client.delete(name)
        return get(client, name)

    monkeypatch.setattr(redis.Redis, "get", get_late)
    claim = redis_leases.claim(NAME, b"bob", 60)
    assert (claim.lease, claim.holder) == (None, None)


# --- faults ---------------------------------------------------------------------------------------


def times_run(server: RedisServer, command: str) -> int:
    with server.client() as client:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_a_claim_that_is_sent_again_since_its_answer_was_lost_is_one_claim(redis_server: RedisServer) -> None:
    with (
        Proxy(redis_server.port) as proxy,
        leasing(proxy.url) as found,
        leasing(redis_server.url) as other,
    ):
        assert not found.release(Lease(NAME, b"x" * 16))  # connects
        before = times_run(redis_server, "set")
        proxy.cut_after, proxy.cuts = 0, 1
        lease = claimed(found)
        assert times_run(redis_server, "set") - before == 2 and proxy.cuts == 0
        assert other.claim(NAME, b"ada", 60).lease is None
        assert found.extend(lease, 60)


def test_each_operation_is_one_round_trip_and_a_claim_in_vain_two(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy, leasing(proxy.url) as found:
        lease = claimed(found)  # connects
        found.extend(lease, 60)
        found.release(lease)  # the server knows the scripts
        before = proxy.round_trips
        lease = claimed(found)
        found.extend(lease, 60)
        found.release(lease)
        assert proxy.round_trips - before == 3
        claimed(found)
        before = proxy.round_trips
        found.claim(NAME, b"", 60)
        assert proxy.round_trips - before == 2


def operations(found: RedisLeases, lease: Lease) -> dict[str, Callable[[], Any]]:
    return {
        "claim": lambda: found.claim("graph/free", b"", 60),
        "extend": lambda: found.extend(lease, 60),
        "release": lambda: found.release(lease),
    }


def every_operation_raises(found: RedisLeases, kind: type[StoreError], match: str) -> None:
    for operation in operations(found, Lease(NAME, b"x" * 16)).values():
        with pytest.raises(StoreError, match=match) as caught:
            operation()
        assert type(caught.value) is kind
        assert "secret" not in "\n".join(caught.value.diagnostics())


def test_a_server_that_is_killed_forgets_leases(server: RedisServer) -> None:
    with leasing(server.url) as found:
        lost = claimed(found)
        server.kill()
        every_operation_raises(found, StoreUnavailable, "cannot be reached")
        server.start()
        assert is_lost(found, lost)
        assert claimed(found).token != lost.token


def test_a_replica_gives_no_lease_and_ends_none(server: RedisServer) -> None:
    with leasing(server.url) as found, server.client() as client:
        lease = claimed(found)
        client.replicaof(HOST, free_port())
        with pytest.raises(StoreReadOnly, match="replica"):
            found.claim(NAME, b"bob", 60)
        for operation in (lambda: found.extend(lease, 60), lambda: found.release(lease)):
            with pytest.raises(StoreError):  # Redis before 7 hides the code of a script's error
                operation()


def test_a_full_server_gives_no_lease_and_extends_and_ends_those_that_it_gave(server: RedisServer) -> None:
    with leasing(server.url) as found, server.client() as client:
        lease = claimed(found)
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreFull, match="memory limit"):
            found.claim("graph/b", b"", 60)
        assert found.extend(lease, 600)
        assert 500 < client.ttl(KEY) <= 600
        assert found.release(lease)


def test_a_key_that_holds_something_else_is_an_error(
    redis_server: RedisServer, redis_leases: RedisLeases
) -> None:
    with redis_server.client() as client:
        for strange in (lambda: client.lpush(KEY, "a list"), lambda: client.set(KEY, bytes(2 << 20))):
            client.delete(KEY)
            strange()
            with pytest.raises(StoreUnavailable):
                redis_leases.claim(NAME, b"", 60)


# --- every kind of Redis --------------------------------------------------------------------------


def everything_works(url: str) -> None:
    with leasing(url) as found, leasing(url) as other:
        lease = claimed(found)
        assert other.claim(NAME, b"bob", 60).holder == b"ada"
        assert found.extend(lease, 60) and found.release(lease)
        assert claimed(other, holder=b"bob").token != lease.token


def test_on_a_cluster(redis_cluster: RedisCluster) -> None:
    everything_works(redis_cluster.url)
    with leasing(redis_cluster.url) as found:
        leases = [claimed(found, f"graph/{number}") for number in range(20)]
        assert all(node.client().dbsize() for node in redis_cluster.nodes)
        assert all(found.release(lease) for lease in leases)


def test_a_user_needs_no_more_rights_than_the_documentation_names(redis_server: RedisServer) -> None:
    url = f"redis://a%3Ab:right@{HOST}:{redis_server.port}/0"
    with limited_user(redis_server, "GET SET DEL PEXPIRE EVALSHA SCRIPT|LOAD", "right") as client:
        client.script_flush()
        everything_works(url)
        with leasing(f"{url}?prefix=other") as found:
            for name in ("claim", "extend", "release"):
                with pytest.raises(StoreUnavailable, match="the user may not") as caught:
                    operations(found, Lease(NAME, b"x" * 16))[name]()
                assert "other:*" in (caught.value.next_step or "")
