"""Redis at fault under a session: no cell fails, none waits beyond the bound, and it is said once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nbcache.core.model import Level
from nbcache.core.reports import CellReport
from nbcache.sharing.live.layout import slot_of
from nbcache.storage.backends.redis.store import RedisStore
from support.live_kernels import HERE, HIT, IMPATIENT, MISS, SECONDS, TIMEOUT, Kernel, kernels
from support.redis_servers import HOST, Proxy, RedisServer, free_port, wait_until, within

Make = Callable[..., Kernel]

pytestmark = pytest.mark.faults

CONNECT = 0.25
BOUND = CONNECT + TIMEOUT
"""Seconds that a cell may wait because of Redis, once."""
MANY = [f"k{number}" for number in range(30)]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Make]:
    usual = {"prefetch": False, "timings": IMPATIENT}
    with kernels(tmp_path) as make:
        yield lambda url, *args, **options: make(url, *args, **{**usual, **options})


def marked(report: CellReport) -> bool:
    """Tell whether a report says that the level is off: the first one by the warning itself."""
    said = (
        "is off for now",
        "it is not asked until it answers again",
        "it is not written to until it accepts entries",
    )
    return any(each in notice for notice in report.notices for each in said)


def warnings(kernel: Kernel) -> list[str]:
    return [
        notice for notice in kernel.session.notices if not notice.endswith("answers again [shared-store]")
    ]


def off(kernel: Kernel) -> bool:
    return kernel.shared.failure is not None


def comes_back(kernel: Kernel, server: RedisServer, *keys: str) -> None:
    """Assert that the level comes back by itself, and that what was compiled meanwhile is shared then."""
    wait_until(lambda: not off(kernel), "it is back")
    wait_until(lambda: kernel.session.flush(SECONDS), "all is shared")
    with closing(RedisStore(server.url)) as store:
        slots = [slot_of(HERE, "inductor", key) for key in keys]
        assert store.present(slots) == set(slots)


# --- not there ------------------------------------------------------------------------------------


def test_where_nobody_listens_cells_compile_and_it_is_said_once(kernel: Make, tmp_path: Path) -> None:
    port = free_port()
    one = kernel(f"redis://{HOST}:{port}")
    with within(BOUND):
        first, second = one.cell(*MANY), one.cell("other")
    assert [graph.outcome for graph in (*first.graphs, *second.graphs)] == [MISS] * 31
    assert len(warnings(one)) == 1
    assert marked(first) and marked(second)
    assert not marked(one.cell())  # nothing was compiled: nothing is said

    server = RedisServer(tmp_path / "redis")
    server.port = port
    with server:
        comes_back(one, server, *MANY, "other")
        report = one.cell("new")
        assert not marked(report)
        assert len(warnings(one)) == 1


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_a_server_that_dies_or_hangs_is_waited_for_once(
    kernel: Make, server: RedisServer, fault: str
) -> None:
    one = kernel(server.url)
    one.publish("before")
    getattr(server, fault)()
    with within(BOUND):
        report = one.cell(*MANY)
    assert [graph.outcome for graph in report.graphs] == [MISS] * 30
    assert marked(report) and len(warnings(one)) == 1
    with within(BOUND):
        assert one.run(*MANY) == [HIT] * 30

    if fault == "kill":
        server.start()
    else:
        server.resume()
    comes_back(one, server, *MANY)
    assert kernel(server.url, notebook="another.ipynb").run(*MANY) == [HIT] * 30


# --- slow and broken connections ------------------------------------------------------------------


def test_a_server_that_is_slow_is_not_asked_by_the_rest_of_a_cell(kernel: Make, server: RedisServer) -> None:
    with Proxy(server.port) as proxy:
        one = kernel(proxy.url, shared_timeout=2.0)
        proxy.delay = 1.2
        before = proxy.round_trips
        with within(4 * 2.0):
            report = one.cell(*MANY)
        assert [graph.outcome for graph in report.graphs] == [MISS] * 30
        assert proxy.round_trips - before < 10
        assert not marked(report)
        assert [notice for notice in report.notices if "is slow" in notice]
        proxy.delay = 0.0
        comes_back(one, server, *MANY)


def test_what_is_found_is_worth_waiting_for(kernel: Make, server: RedisServer) -> None:
    kernel(server.url).publish(*MANY[:5])
    with Proxy(server.port) as proxy:
        one = kernel(proxy.url, shared_timeout=1.5)
        proxy.delay = 0.4
        assert one.run(*MANY[:5]) == [HIT] * 5
        assert one.session.notices == []


# --- rights, room -----------------------------------------------------------------------------------


def test_a_read_only_replica_is_read_and_said_once_to_be_one(kernel: Make, server: RedisServer) -> None:
    kernel(server.url).publish("one", "two")
    with server.client() as client:
        client.config_set("replica-serve-stale-data", "yes")
        client.replicaof(HOST, free_port())
        reader = kernel(server.url, notebook="another.ipynb")
        report = reader.cell("one", "new")
        assert [graph.outcome for graph in report.graphs] == [HIT, MISS]
        reader.session.flush(SECONDS)
        assert reader.run("two") == [HIT]
        (warning,) = warnings(reader)
        assert "replica" in warning and "not written to" in warning
        assert marked(reader.cell("newer"))
        client.replicaof("NO", "ONE")
        comes_back(reader, server, "new", "newer")


def test_a_user_who_may_only_read_reads(kernel: Make, server: RedisServer) -> None:
    kernel(server.url).publish("one", "two")
    with server.client() as client:
        client.acl_setuser(
            "reader", enabled=True, passwords=["+secret"], keys=["*"], commands=["+get", "+scan"]
        )
    reader = kernel(f"redis://reader:secret@{HOST}:{server.port}", notebook="another.ipynb")
    reader.run("new")
    wait_until(lambda: reader.shared.can_read, "it is read again")
    for _ in range(3):  # what it may not do is not tried again and again
        reader.bridge.clear()
        reader.session.clear()
        assert reader.run("one", "two") == [HIT, HIT]
        reader.session.flush(SECONDS)
        assert reader.shared.can_read
    assert reader.levels == [None, *[Level.L3] * 6]
    assert len(warnings(reader)) == 1
    assert "secret" not in warnings(reader)[0]


# --- ends -------------------------------------------------------------------------------------------


def test_a_kernel_ends_in_time_while_redis_hangs(kernel: Make, server: RedisServer) -> None:
    one = kernel(server.url)
    one.publish("one")
    assert not one.session.wait_for_other_kernel("claimed")
    server.stop()
    one.session.cache.record("inductor", "two", b"a graph", made=True)
    with within(2.0):
        one.session.close(2.0)
    with within(0.1):
        one.session.close(2.0)


def test_a_snapshot_and_clear_do_not_wait_for_redis(kernel: Make, server: RedisServer) -> None:
    one = kernel(server.url, shared_timeout=600.0)
    one.publish("one")
    server.stop()
    one.session.cache.record("inductor", "two", b"a graph", made=True)
    with within(1.0):
        manifest = one.session.cache.manifest()
        assert manifest is not None and {ref.key for ref in manifest.artifacts} == {"one", "two"}
        assert not one.session.flush(0.2)
        one.session.clear()
    server.kill()


def test_disconnecting_shares_what_is_still_to_be_shared(kernel: Make, server: RedisServer) -> None:
    one = kernel(server.url)
    one.run("one", "two")
    one.session.disconnect()
    assert kernel(server.url, notebook="another.ipynb").run("one", "two") == [HIT, HIT]
    assert one.run("three") == [MISS]
