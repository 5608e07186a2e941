"""Leases and channels on real Redis servers: one, a Cluster, Sentinels; killed, stopped, full, garbled."""

from __future__ import annotations

import contextlib
import multiprocessing
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nbcache.core.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from nbcache.stores.memory import MemoryStore
from nbcache.stores.open import coordinator
from nbcache.stores.redis.leases import _MESSAGE_BYTES, Lease, RedisCoordinator, RedisListener
from nbcache.stores.redis.store import RedisStore
from support.front_door import RunPython, in_child
from support.redis_servers import (
    HOST,
    Proxy,
    RedisCluster,
    RedisServer,
    free_port,
    make_certificate,
    wait_until,
)

pytestmark = pytest.mark.faults

NAME = "graph/a"
KEY = f"nbcache:lock:{NAME}"
FORKS = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


@contextlib.contextmanager
def coordinating(url: str, **options: float) -> Iterator[RedisCoordinator]:
    with closing(RedisStore(url, **options)) as store:  # type: ignore[arg-type]
        found = coordinator(store)
        assert isinstance(found, RedisCoordinator)
        yield found


@contextlib.contextmanager
def listening(to: RedisCoordinator, channel: str = "new") -> Iterator[tuple[RedisListener, list[bytes]]]:
    """Listen to a channel; yield the listener, once it is connected, and the list of what it hears."""
    heard: list[bytes] = []
    with closing(to.listen(channel, heard.append)) as listener:
        wait_until(lambda: listener.connected, "the listener is connected")
        yield listener, heard
    wait_until(lambda: not listeners(), "the listener's thread has ended")


@pytest.fixture(autouse=True)
def earlier() -> None:
    """Note which threads other tests have left behind."""
    EARLIER.clear()
    EARLIER.update(threading.enumerate())


EARLIER: set[threading.Thread] = set()


def listeners() -> list[threading.Thread]:
    there = {*threading.enumerate()} - EARLIER
    return [thread for thread in there if thread.name == "nbcache-listen"]


def claimed(by: RedisCoordinator, name: str = NAME, holder: bytes = b"ada", seconds: float = 60) -> Lease:
    """Claim a lease that must be free."""
    claim = by.claim(name, holder, seconds)
    assert claim.lease is not None and claim.lease.name == name and claim.holder is None
    return claim.lease


def is_lost(by: RedisCoordinator, lease: Lease) -> bool:
    return (by.extend(lease, 60), by.holds(lease), by.release(lease)) == (False, False, False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, to be killed, stopped and filled."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def redis_coordinator(redis_server: RedisServer) -> Iterator[RedisCoordinator]:
    with coordinating(redis_server.url) as found:
        yield found


# --- what a lease is ------------------------------------------------------------------------------


def test_a_lease_is_held_by_one_until_it_is_released(
    redis_server: RedisServer, redis_coordinator: RedisCoordinator
) -> None:
    lease = claimed(redis_coordinator, holder=b"ada", seconds=60)
    for holder in (b"bob", b"ada"):  # by another, though its statement is the same
        other = redis_coordinator.claim(NAME, holder, 60)
        assert other.lease is None and other.holder == b"ada"
    assert redis_coordinator.holds(lease)
    assert redis_coordinator.extend(lease, 600)
    with redis_server.client() as client:
        assert 500 < client.ttl(KEY) <= 600
    assert redis_coordinator.claim("graph/b", b"bob", 60).lease
    assert redis_coordinator.release(lease)
    assert is_lost(redis_coordinator, lease)
    assert claimed(redis_coordinator, holder=b"").token != lease.token


def test_a_lease_ends_by_itself_and_who_held_it_does_not_disturb_the_next(
    redis_coordinator: RedisCoordinator,
) -> None:
    lost = claimed(redis_coordinator, seconds=0.2)
    wait_until(lambda: not redis_coordinator.holds(lost), "the lease has ended")
    assert is_lost(redis_coordinator, lost)  # ended is ended, though nobody has it yet
    lease = claimed(redis_coordinator, holder=b"bob")
    assert is_lost(redis_coordinator, lost)
    assert redis_coordinator.holds(lease)
    assert redis_coordinator.claim(NAME, b"ada", 60).holder == b"bob"


def test_a_lease_that_the_server_has_lost_is_lost_and_can_be_claimed(
    redis_server: RedisServer, redis_coordinator: RedisCoordinator
) -> None:
    with redis_server.client() as client:
        for lose in (client.flushall, lambda: client.delete(KEY), lambda: client.pexpire(KEY, 0)):
            lease = claimed(redis_coordinator)
            lose()
            assert is_lost(redis_coordinator, lease)


def test_stores_with_other_prefixes_and_databases_do_not_share_leases_and_channels(
    redis_server: RedisServer,
) -> None:
    urls = [redis_server.url, f"{redis_server.url}?prefix=team", f"redis://{HOST}:{redis_server.port}/5"]
    with contextlib.ExitStack() as stack:
        all_three = [stack.enter_context(coordinating(url)) for url in urls]
        for each in all_three:
            claimed(each)
        everything: list[list[bytes]] = [[], [], []]
        for each, heard in zip(all_three, everything, strict=True):
            listener = stack.enter_context(closing(each.listen("new", heard.append)))
            wait_until(lambda listener=listener: listener.connected, "the listener is connected")
        for number, each in enumerate(all_three):
            each.announce("new", b"%d" % number)
        wait_until(lambda: all(everything), "all have heard")
        assert everything == [[b"0"], [b"1"], [b"2"]]


def test_a_name_that_is_no_key_is_refused_before_redis_is_asked() -> None:
    with coordinating(f"redis://{HOST}:{free_port()}") as found:
        for name in ("", "../a", "A", "a b"):
            with pytest.raises(ValueError, match="not a store key"):
                found.claim(name, b"", 1)
            with pytest.raises(ValueError, match="not a store key"):
                found.announce(name, b"")
            with pytest.raises(ValueError, match="not a store key"):
                found.listen(name, print)


def test_other_stores_have_no_coordinator_and_need_no_redis_py(run_python: RunPython) -> None:
    assert coordinator(MemoryStore()) is None
    code = (
        "import sys; from nbcache.stores.open import coordinator;"
        "from nbcache.stores.memory import MemoryStore;"
        "print(coordinator(MemoryStore()), 'redis' in sys.modules)"
    )
    assert run_python(code).stdout == "None False\n"


# --- many at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("own_stores", [False, True], ids=["one store", "a store each"])
def test_of_20_threads_one_gets_it_and_the_others_hear_who(
    redis_server: RedisServer, own_stores: bool
) -> None:
    claims = []
    start = threading.Barrier(20)

    def claim(by: RedisCoordinator, number: int) -> None:
        start.wait()
        claims.append(by.claim(NAME, b"%d" % number, 60))

    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(coordinating(redis_server.url))
        threads = []
        for number in range(20):
            by = stack.enter_context(coordinating(redis_server.url)) if own_stores else shared
            threads.append(threading.Thread(target=claim, args=(by, number)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (lease,) = (claim.lease for claim in claims if claim.lease)
    assert [claim.holder for claim in claims if claim.lease is None] == [lease.token[16:]] * 19


@FORKS
def test_8_processes_hold_it_one_after_another(redis_server: RedisServer) -> None:
    context = multiprocessing.get_context("fork")
    start = context.Barrier(8)

    def work() -> None:
        left = 5
        start.wait()
        with coordinating(redis_server.url) as found, redis_server.client() as client:
            while left:
                lease = found.claim(NAME, b"", 60).lease
                if lease is None:
                    time.sleep(0.002)
                    continue
                alone = client.incr("holders") == 1
                client.decr("holders")
                if not (found.release(lease) and alone):
                    sys.exit(1)
                left -= 1

    processes = [context.Process(target=work) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert [process.exitcode for process in processes] == [0] * 8


# --- faults ---------------------------------------------------------------------------------------


def times_run(server: RedisServer, command: str) -> int:
    with server.client() as client:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_a_claim_that_is_sent_again_since_its_answer_was_lost_is_one_claim(redis_server: RedisServer) -> None:
    with (
        Proxy(redis_server.port) as proxy,
        coordinating(proxy.url) as found,
        coordinating(redis_server.url) as other,
    ):
        assert not found.holds(Lease(NAME, b"x" * 16))  # connects
        before = times_run(redis_server, "set")
        proxy.cut_after, proxy.cuts = 0, 1
        lease = claimed(found)
        assert times_run(redis_server, "set") - before == 2 and proxy.cuts == 0
        assert other.claim(NAME, b"ada", 60).lease is None
        assert found.holds(lease)


def test_each_operation_is_one_round_trip_and_a_claim_in_vain_two(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy, coordinating(proxy.url) as found:
        lease = claimed(found)  # connects
        found.extend(lease, 60)
        found.release(lease)  # the server knows the scripts
        before = proxy.round_trips
        lease = claimed(found)
        found.extend(lease, 60)
        found.holds(lease)
        found.release(lease)
        found.announce("new", b"")
        assert proxy.round_trips - before == 5
        claimed(found)
        before = proxy.round_trips
        found.claim(NAME, b"", 60)
        assert proxy.round_trips - before == 2


def operations(found: RedisCoordinator, lease: Lease) -> dict[str, Callable[[], Any]]:
    return {
        "claim": lambda: found.claim("graph/free", b"", 60),
        "extend": lambda: found.extend(lease, 60),
        "holds": lambda: found.holds(lease),
        "announce": lambda: found.announce("new", b""),
        "release": lambda: found.release(lease),
    }


def every_operation_raises(found: RedisCoordinator, kind: type[StoreError], match: str) -> None:
    for operation in operations(found, Lease(NAME, b"x" * 16)).values():
        with pytest.raises(StoreError, match=match) as caught:
            operation()
        assert type(caught.value) is kind
        assert "secret" not in "\n".join(caught.value.diagnostics())


def test_a_server_that_is_killed_forgets_leases(server: RedisServer) -> None:
    with coordinating(server.url) as found:
        lost = claimed(found)
        server.kill()
        every_operation_raises(found, StoreUnavailable, "cannot be reached")
        server.start()
        assert is_lost(found, lost)
        assert claimed(found).token != lost.token


def test_a_server_that_hangs_is_waited_for_no_longer_than_the_timeout(server: RedisServer) -> None:
    with coordinating(server.url, timeout=0.05) as hasty, coordinating(server.url) as found:
        lease = claimed(found)
        server.stop()
        every_operation_raises(hasty, StoreUnavailable, r"within 0\.05 s")
        server.resume()
        assert found.holds(lease)


def test_a_wrong_password(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path, password="right") as server,
        coordinating(f"redis://:secret@{HOST}:{server.port}") as found,
    ):
        every_operation_raises(found, StoreUnavailable, "does not take user and password")


def test_a_replica_gives_no_lease_and_ends_none(server: RedisServer) -> None:
    with coordinating(server.url) as found, server.client() as client:
        lease = claimed(found)
        client.replicaof(HOST, free_port())
        assert found.holds(lease)
        with pytest.raises(StoreReadOnly, match="replica"):
            found.claim(NAME, b"bob", 60)
        for operation in (lambda: found.extend(lease, 60), lambda: found.release(lease)):
            with pytest.raises(StoreError):  # Redis before 7 hides the code of a script's error
                operation()


def test_a_full_server_gives_no_lease_and_extends_and_ends_those_that_it_gave(server: RedisServer) -> None:
    with coordinating(server.url) as found, server.client() as client:
        lease = claimed(found)
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreFull, match="memory limit"):
            found.claim("graph/b", b"", 60)
        assert found.extend(lease, 600)
        assert 500 < client.ttl(KEY) <= 600
        assert found.release(lease)
        assert not found.holds(lease)


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$1\r\nx\r\n", b"*1\r\n:1\r\n", b":7\r\n"],
    ids=repr,
)
def test_garbage_is_an_error_and_no_lease(redis_server: RedisServer, garbage: bytes) -> None:
    with Proxy(redis_server.port) as proxy, coordinating(proxy.url) as found:
        assert not found.holds(Lease(NAME, b"x" * 16))  # connects
        proxy.answer = garbage
        with pytest.raises(StoreUnavailable, match="does not speak Redis's protocol"):
            found.claim(NAME, b"", 60)
        proxy.answer = None
        claimed(found)


def test_a_key_that_holds_something_else_is_an_error(
    redis_server: RedisServer, redis_coordinator: RedisCoordinator
) -> None:
    with redis_server.client() as client:
        for strange in (lambda: client.lpush(KEY, "a list"), lambda: client.set(KEY, bytes(2 << 20))):
            client.delete(KEY)
            strange()
            with pytest.raises(StoreUnavailable):
                redis_coordinator.claim(NAME, b"", 60)


# --- listening ------------------------------------------------------------------------------------


def test_who_listens_hears_what_is_announced_in_order(redis_coordinator: RedisCoordinator) -> None:
    messages = [b"", b"\x00\r\n\xff", b"x" * _MESSAGE_BYTES, b"last"]
    redis_coordinator.announce("new", b"nobody listens yet")
    with (
        listening(redis_coordinator) as (listener, heard),
        listening(redis_coordinator, "other/channel") as (_, other),
    ):
        for message in messages:
            redis_coordinator.announce("new", message)
        wait_until(lambda: len(heard) >= len(messages), "all is heard")
        assert heard == messages and other == []
        listener.close()
        listener.close()
        assert not listener.connected
        redis_coordinator.announce("new", b"after it was closed")
        redis_coordinator.announce("other/channel", b"mark")
        wait_until(lambda: other, "the other hears")
        assert heard == messages


def test_longer_messages_than_are_announced_are_not_heard(
    redis_server: RedisServer, redis_coordinator: RedisCoordinator
) -> None:
    with listening(redis_coordinator) as (_, heard), redis_server.client() as client:
        client.publish("nbcache:channel:0:new", b"x" * (_MESSAGE_BYTES + 1))
        redis_coordinator.announce("new", b"short")
        wait_until(lambda: heard, "the short one is heard")
        assert heard == [b"short"]


def test_what_the_callback_raises_does_not_end_it_and_it_may_close(
    redis_coordinator: RedisCoordinator,
) -> None:
    heard: list[bytes] = []

    def hear(message: bytes) -> None:
        heard.append(message)
        if message == b"close":
            listener.close()
        raise RuntimeError("a bug of who listens")

    with closing(redis_coordinator.listen("new", hear)) as listener:
        wait_until(lambda: listener.connected, "the listener is connected")
        for message in (b"one", b"two", b"close"):
            redis_coordinator.announce("new", message)
        wait_until(lambda: not listeners(), "the listener's thread has ended")
    assert heard == [b"one", b"two", b"close"]


def test_a_listener_is_there_before_the_server_and_after_its_restart(server: RedisServer) -> None:
    server.kill()
    with coordinating(server.url) as found:
        heard: list[bytes] = []
        with closing(found.listen("new", heard.append)) as listener:
            assert not listener.connected
            server.start()
            wait_until(lambda: listener.connected, "the listener is connected")
            found.announce("new", b"one")
            wait_until(lambda: heard == [b"one"], "the first is heard")
            server.kill()
            wait_until(lambda: not listener.connected, "the listener has noticed")
            server.start()
            wait_until(lambda: listener.connected, "the listener is connected again")
            found.announce("new", b"two")
            wait_until(lambda: heard == [b"one", b"two"], "the second is heard")
            server.kill()
        assert not listener.connected and not listeners()


def test_a_listener_goes_on_where_its_store_is_closed(redis_server: RedisServer) -> None:
    with (
        coordinating(redis_server.url) as found,
        closing(RedisStore(redis_server.url)) as store,
        listening(RedisCoordinator(store)) as (_, heard),
    ):
        store.close()
        found.announce("new", b"one")
        wait_until(lambda: heard == [b"one"], "it is heard")


def test_a_connection_that_has_died_unnoticed_is_replaced_and_one_that_is_silent_is_kept(
    server: RedisServer,
) -> None:
    with Proxy(server.port) as proxy, closing(RedisStore(proxy.url, timeout=0.2)) as store:
        before = times_run(server, "ping")
        with listening(RedisCoordinator(store, silence=0.15)) as (listener, _):
            wait_until(lambda: times_run(server, "ping") >= before + 2, "the server is asked for a word")
            assert listener.connected and proxy.connections == 1
            server.stop()
            wait_until(lambda: not listener.connected, "the listener has noticed")
            server.resume()
            wait_until(lambda: listener.connected, "the listener is connected again")


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"*2\r\n:1\r\n:1\r\n", b":1\r\n"])
def test_a_listener_survives_garbage(redis_server: RedisServer, garbage: bytes) -> None:
    with Proxy(redis_server.port) as proxy, coordinating(proxy.url) as found:
        proxy.answer = garbage
        with closing(found.listen("new", print)) as listener:
            wait_until(lambda: proxy.connections >= 2, "it tries again")
            assert not listener.connected
            proxy.answer = None
            wait_until(lambda: listener.connected, "the listener is connected")


@FORKS
def test_a_forked_child_does_not_listen_but_can(redis_coordinator: RedisCoordinator) -> None:
    with listening(redis_coordinator) as (listener, heard):

        def child() -> bool:
            ended = not listener.connected and not listeners()
            listener.close()
            with listening(redis_coordinator) as (_, own):
                redis_coordinator.announce("new", b"from the child")
                wait_until(lambda: own, "the child hears")
            return ended and own == [b"from the child"] and heard == []

        assert in_child(child)
        redis_coordinator.announce("new", b"from the parent")
        wait_until(lambda: len(heard) == 2, "the parent hears")
        assert listener.connected


def test_an_interpreter_ends_without_a_word_while_it_listens(
    redis_server: RedisServer, run_python: RunPython
) -> None:
    done = run_python(
        "import time; from nbcache.stores.redis.store import RedisStore;"
        "from nbcache.stores.open import coordinator;"
        f"each = coordinator(RedisStore({redis_server.url!r}));"
        "listeners = [each.listen('new', print) for _ in range(3)]\n"
        "while not all(listener.connected for listener in listeners): time.sleep(0.01)"
    )
    assert (done.stdout, done.stderr) == ("", "")


# --- every kind of Redis --------------------------------------------------------------------------


def everything_works(url: str) -> None:
    with coordinating(url) as found, coordinating(url) as other:
        lease = claimed(found)
        assert other.claim(NAME, b"bob", 60).holder == b"ada"
        assert found.extend(lease, 60) and found.holds(lease) and found.release(lease)
        assert claimed(other, holder=b"bob").token != lease.token
        with listening(found) as (_, heard):
            other.announce("new", b"x" * _MESSAGE_BYTES)
            wait_until(lambda: heard, "it is heard")
            assert heard == [b"x" * _MESSAGE_BYTES]


def test_over_tls(redis_server: RedisServer, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Proxy(redis_server.port, tls=context) as proxy:
        everything_works(f"{proxy.url}?ssl_ca_certs={certificate}")


def test_by_a_sentinel(redis_server: RedisServer, tmp_path: Path) -> None:
    watched = f"sentinel monitor mymaster {HOST} {redis_server.port} 1\n"
    with RedisServer(tmp_path, sentinel=watched) as sentinel:
        everything_works(f"redis+sentinel://{HOST}:{sentinel.port}")


def test_on_a_cluster(redis_cluster: RedisCluster) -> None:
    everything_works(redis_cluster.url)
    with coordinating(redis_cluster.url) as found:
        leases = [claimed(found, f"graph/{number}") for number in range(20)]
        assert all(node.client().dbsize() for node in redis_cluster.nodes)
        assert all(found.release(lease) for lease in leases)


def test_messages_reach_a_listener_from_every_node_of_a_cluster(redis_cluster: RedisCluster) -> None:
    with coordinating(redis_cluster.url) as found, listening(found) as (_, heard):
        for node in redis_cluster.nodes:
            with node.client() as client:
                client.publish("nbcache:channel:0:new", b"%d" % node.port)
        wait_until(lambda: len(heard) == 3, "all are heard")
        assert {int(port) for port in heard} == {node.port for node in redis_cluster.nodes}


@pytest.mark.parametrize("held", [True, False], ids=["held", "free"])
def test_leases_are_held_and_claimed_while_a_cluster_moves_them(
    redis_cluster: RedisCluster, held: bool
) -> None:
    with redis_cluster.nodes[0].client() as client:
        slot = int(client.cluster("keyslot", KEY))
    source = slot * 3 // 16384
    target = (source + 1) % 3
    with coordinating(redis_cluster.url) as found:
        lease = claimed(found) if held else None
        redis_cluster.begin_move(slot, source, target)
        try:
            lease = lease or claimed(found)
            assert found.holds(lease) and found.extend(lease, 60)
            assert found.claim(NAME, b"bob", 60).lease is None
        finally:
            redis_cluster.end_move(slot, source, target)
            redis_cluster.begin_move(slot, target, source)
            redis_cluster.end_move(slot, target, source)
        assert found.release(lease)


def test_a_user_needs_no_more_rights_than_the_documentation_names(redis_server: RedisServer) -> None:
    rights = "GET SET DEL PEXPIRE EVALSHA SCRIPT|LOAD PUBLISH SUBSCRIBE PING".lower().split()
    url = f"redis://ada:right@{HOST}:{redis_server.port}/0"
    with redis_server.client() as client:
        client.acl_setuser(
            "ada",
            enabled=True,
            reset_channels=True,
            passwords="+right",
            keys=["nbcache:*"],
            channels=["nbcache:*"],
            commands=["-@all", *(f"+{right}" for right in rights)],
        )
        client.script_flush()
        try:
            everything_works(url)
            with closing(RedisStore(url)) as store:
                before = times_run(redis_server, "ping")
                with listening(RedisCoordinator(store, silence=0.15)) as (listener, _):
                    wait_until(lambda: times_run(redis_server, "ping") > before, "it asks for a word")
                    assert listener.connected
            with coordinating(f"{url}?prefix=other") as found:
                for name in ("claim", "extend", "holds", "announce", "release"):
                    with pytest.raises(StoreUnavailable, match="the user may not") as caught:
                        operations(found, Lease(NAME, b"x" * 16))[name]()
                    assert "other:*" in (caught.value.next_step or "")
                with closing(found.listen("new", print)) as listener:
                    assert not listener.connected
        finally:
            client.acl_deluser("ada")
