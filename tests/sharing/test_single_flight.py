"""One compile for many kernels: who waits, for whom, for how long, and what ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nbcache.core.model import Level
from nbcache.core.settings import Policy
from nbcache.sharing.live.connection import USUAL, Timings
from nbcache.sharing.live.layout import decode_shared, slot_of
from nbcache.sharing.live.signing import Signer
from nbcache.sharing.live.single_flight import Holder, SingleFlight
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.open import leases_of
from nbcache.storage.backends.redis.leases import RedisLeases
from nbcache.storage.backends.redis.store import RedisStore
from support.live_kernels import HERE, HIT, IMPATIENT, MISS, SECONDS, Kernel, at_once, kernels
from support.redis_servers import RedisServer, wait_until

pytestmark = pytest.mark.faults

Make = Callable[..., Kernel]
KEY = slot_of(HERE, "inductor", "one")


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Make]:
    with kernels(tmp_path) as make:
        patient = {"prefetch": False, "shared_timeout": 2.0}  # a busy machine is no slow server
        yield lambda url, *args, **options: make(url, *args, **{**patient, **options})


class _Signs(Signer):
    """Signs and believes without keys."""

    def sign(self, content: bytes) -> bytes:
        return b"signed"

    def signer_of(self, content: bytes, signature: bytes) -> str:
        return "f" * 64 if signature == b"signed" else ""


def signer_called(user: str) -> Signer:
    return _Signs(lambda: Keyring(Path("/nowhere")), lambda: Policy.STRICT, user)


def flight_of(leases: RedisLeases, user: str) -> SingleFlight:
    return SingleFlight(leases, signer_called(user), USUAL)


class Compiler:
    """A compiler that takes as long as it is let, for one kernel."""

    def __init__(self, kernel: Kernel, error: BaseException | None = None) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self._error = error
        kernel.bridge.compiling = self._compile

    def _compile(self, key: str) -> None:
        self.began.set()
        assert self.may_end.wait(SECONDS)
        if self._error is not None:
            raise self._error


def waits(kernel: Kernel) -> bool:
    activity = kernel.session.activity()
    return activity is not None and bool(activity.compiled_by)


def run_both(
    first: Kernel, second: Kernel, meanwhile: Callable[[], object], error: BaseException | None = None
) -> list[object]:
    """Run graph `one` in two kernels, the second once the first compiles it; return both outcomes.

    The compile ends once the second kernel waits for it and `meanwhile` is done.
    """
    compiler = Compiler(first, error)

    def run_first() -> object:
        if error is None:
            return first.run("one")
        with pytest.raises(type(error)):
            first.run("one")
        return None

    def run_second() -> object:
        assert compiler.began.wait(SECONDS)
        return second.run("one")

    def end() -> None:
        wait_until(lambda: waits(second), "the second kernel waits")
        try:
            meanwhile()
        finally:
            compiler.may_end.set()

    return at_once([run_first, run_second, end])[:2]


def outlast(first: Kernel, second: Kernel) -> list[object]:
    """Run graph `one` in two kernels, the second while the first compiles it; return both outcomes."""
    compiler = Compiler(first)

    def run_second() -> object:
        assert compiler.began.wait(SECONDS)
        try:
            outcomes = second.run("one")
            second.session.flush(SECONDS)
            return outcomes
        finally:
            compiler.may_end.set()

    return at_once([lambda: first.run("one"), run_second])


def free(server: RedisServer) -> bool:
    """Return whether nobody holds the lease of KEY."""
    with closing(RedisStore(server.url)) as store:
        claim = RedisLeases(store).claim(KEY, b"", 0.001)
    return claim.lease is not None


# --- many at once ---------------------------------------------------------------------------------


def test_of_eight_kernels_that_miss_at_once_one_compiles(redis_server: RedisServer, kernel: Make) -> None:
    many = [kernel(redis_server.url) for _ in range(8)]
    for each in many:
        each.bridge.compiling = lambda key: time.sleep(0.1)

    outcomes = at_once([lambda each=each: each.run("one", "two") for each in many])  # type: ignore[misc]
    for number in range(2):
        assert sorted(each[number] for each in outcomes) == [HIT] * 7 + [MISS]
    assert sum(each.levels.count(Level.L3) for each in many) == 14
    assert [each.session.notices for each in many] == [[]] * 8
    wait_until(lambda: free(redis_server), "all leases are released")


def test_the_one_that_waits_says_for_whom(redis_server: RedisServer, kernel: Make) -> None:
    first, second = kernel(redis_server.url), kernel(redis_server.url)

    def look() -> None:
        activity = second.session.activity()
        assert activity is not None and activity.compiled_by == "you on engine"
        assert abs(time.time() - activity.compiled_since) < SECONDS

    assert run_both(first, second, look) == [[MISS], [HIT]]
    assert not waits(second)


def test_two_graphs_are_compiled_at_the_same_time(redis_server: RedisServer, kernel: Make) -> None:
    first, second = kernel(redis_server.url), kernel(redis_server.url)
    one, other = Compiler(first), Compiler(second)

    def let() -> None:
        assert one.began.wait(SECONDS) and other.began.wait(SECONDS)
        one.may_end.set()
        other.may_end.set()

    assert at_once([lambda: first.run("one"), lambda: second.run("two"), let])[:2] == [[MISS], [MISS]]


# --- what ends the waiting ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("no such operator"), KeyboardInterrupt()])
def test_where_a_compile_fails_the_next_goes_on_at_once(
    redis_server: RedisServer, kernel: Make, error: BaseException
) -> None:
    first, second = kernel(redis_server.url), kernel(redis_server.url)
    began = time.monotonic()
    assert run_both(first, second, lambda: None, error) == [None, [MISS]]
    assert time.monotonic() - began < USUAL.lease / 2


DYING = """
import sys, time
from pathlib import Path
from support.live_kernels import Kernel
from nbcache.sharing.live.connection import Timings

brief = Timings(lease=2.0, heartbeat=0.1)
kernel = Kernel(Path(sys.argv[1]), sys.argv[2], prefetch=False, timings=brief)
kernel.bridge.compiling = lambda key: (print("compiling", flush=True), time.sleep(600))
kernel.run("one")
"""


def test_where_the_compiler_dies_the_next_takes_over(
    redis_server: RedisServer, kernel: Make, tmp_path: Path
) -> None:
    second = kernel(redis_server.url)
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", DYING, str(tmp_path / "ada"), redis_server.url],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as dying:
        assert dying.stdout is not None and dying.stdout.readline() == b"compiling\n"
        with redis_server.client() as client:
            left = [client.pttl(f"nbcache:lock:{KEY}")]

            def beats() -> bool:
                left.append(client.pttl(f"nbcache:lock:{KEY}"))
                return bool(left[-1] > left[-2])

            wait_until(beats, "the lease is extended")

        def kill() -> None:
            wait_until(lambda: waits(second), "the second waits")
            dying.kill()

        assert at_once([lambda: second.run("one"), kill])[0] == [MISS]
    assert second.session.notices == []


def test_nobody_waits_for_longer_than_compiling_is_expected_to_take(
    redis_server: RedisServer, kernel: Make
) -> None:
    timings = Timings(least_expected=0.3, usually_expected=0.3)
    first, second = kernel(redis_server.url), kernel(redis_server.url, timings=timings)
    assert outlast(first, second) == [[MISS], [MISS]]


def test_what_compiling_takes_is_learned_and_bounded(redis_server: RedisServer, kernel: Make) -> None:
    first = kernel(redis_server.url)
    assert first.session.shared_client is not None
    expected = first.session.shared_client._expected_seconds
    assert expected("f") == 60.0
    first.session.shared_client._seconds = {"f": 20.0, "g": 40.0, "h": 1e15, "i": 0.1}
    assert [expected(name) for name in "fghi"] == [20.0, 40.0, 1800.0, 5.0]
    assert expected("unheard of") == 60.0


def test_an_interrupt_ends_waiting_at_once(redis_server: RedisServer, kernel: Make) -> None:
    first, second = kernel(redis_server.url), kernel(redis_server.url)
    compiler = Compiler(first)
    compiling = threading.Thread(target=first.run, args=("one",))
    compiling.start()
    assert compiler.began.wait(SECONDS)

    def interrupt() -> None:
        wait_until(lambda: waits(second), "the second waits")
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        second.run("one")
    assert not waits(second)
    compiler.may_end.set()
    interrupting.join(SECONDS)
    compiling.join(SECONDS)
    assert first.session.flush(SECONDS)
    assert second.run("one") == [HIT]


def test_who_disconnects_waits_no_more(redis_server: RedisServer, kernel: Make) -> None:
    first, second = kernel(redis_server.url), kernel(redis_server.url)
    compiler = Compiler(first)
    compiling = threading.Thread(target=first.run, args=("one",))
    compiling.start()
    assert compiler.began.wait(SECONDS)
    waiting = threading.Thread(target=second.run, args=("one",))
    waiting.start()
    wait_until(lambda: waits(second), "the second waits")
    second.session.disconnect()

    waiting.join(SECONDS)
    assert not waiting.is_alive() and not compiler.may_end.is_set()
    compiler.may_end.set()
    compiling.join(SECONDS)


def test_an_interrupt_lets_go_of_what_this_kernel_was_to_compile(redis_server: RedisServer) -> None:
    with closing(RedisStore(redis_server.url)) as store:
        leases = leases_of(store)
        assert leases is not None
        flights = flight_of(leases, "ada")

        def interrupted() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            flights.wait(KEY, interrupted, 5.0, lambda holder: None)
        assert free(redis_server)


def test_a_kernel_never_waits_for_itself(redis_server: RedisServer, kernel: Make) -> None:
    # As where torch loads an AOTAutograd entry whose graph is gone, and then compiles that graph.
    first = kernel(redis_server.url)
    began = time.monotonic()
    assert not first.session.wait_for_other_kernel("one")
    assert not first.session.wait_for_other_kernel("one")
    assert first.run("one") == [MISS]
    assert time.monotonic() - began < USUAL.least_expected
    assert first.session.flush(SECONDS)
    wait_until(lambda: free(redis_server), "it is released")


# --- late and lost --------------------------------------------------------------------------------


def test_what_a_kernel_publishes_that_was_stopped_for_too_long_stands_beside_the_next_ones(
    redis_server: RedisServer, kernel: Make
) -> None:
    stopped = Timings(lease=0.4, heartbeat=600.0)
    late, next = kernel(redis_server.url, timings=stopped), kernel(redis_server.url)
    late.bridge.size, next.bridge.size = 1000, 2000
    assert outlast(late, next) == [[MISS], [MISS]]
    assert late.session.flush(SECONDS)
    value = RedisStore(redis_server.url).get(KEY)
    assert value is not None and len(decode_shared(value)) == 2


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_where_redis_fails_while_a_kernel_waits_it_compiles(
    server: RedisServer, kernel: Make, fault: str
) -> None:
    first, second = kernel(server.url), kernel(server.url)
    assert run_both(first, second, getattr(server, fault)) == [[MISS], [MISS]]
    assert len(second.session.notices) == 1


def test_where_redis_is_full_nobody_waits_for_what_cannot_be_published(
    server: RedisServer, kernel: Make
) -> None:
    first, second = kernel(server.url), kernel(server.url)
    first.bridge.size = 100_000

    def fill() -> None:
        with server.client() as client:
            client.config_set("maxmemory", 1)

    began = time.monotonic()
    assert run_both(first, second, fill) == [[MISS], [MISS]]
    assert time.monotonic() - began < USUAL.lease / 2


def test_once_redis_is_back_kernels_wait_for_each_other_again(server: RedisServer, kernel: Make) -> None:
    first, second = kernel(server.url, timings=IMPATIENT), kernel(server.url, timings=IMPATIENT)
    server.kill()
    assert (first.run("one"), second.run("one")) == ([MISS], [MISS])
    server.start()
    wait_until(lambda: first.shared.failure is None and second.shared.failure is None, "they are back")
    compiler = Compiler(first)

    def later() -> object:
        assert compiler.began.wait(SECONDS)
        compiler.may_end.set()
        return second.run("two")

    assert at_once([lambda: first.run("two"), later]) == [[MISS], [HIT]]


# --- who ------------------------------------------------------------------------------------------


def said_of(**changes: object) -> str:
    """Return what a holder of KEY says, with something changed."""
    fields = {"format": "nbcache.holder", "version": 1, "name": KEY, "user": "ada", "host": "engine"}
    return json.dumps({**fields, "since": 12.5, **changes})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 10_000,
        *(
            json.dumps({"said": said, "signature": "signed"}).encode()
            for said in (
                "",
                "{}",
                "[" * 10_000,
                said_of(user=1),
                said_of(since=-1),
                said_of(since=float("nan")),
                said_of(name="another"),
                said_of(user="\ud800"),
                said_of(version=2),
            )
        ),
    ],
)
def test_whatever_a_holder_says_of_itself_can_be_shown(data: bytes) -> None:
    holder = Holder.decode(data, KEY, signer_called("ada"))
    assert not holder.signer
    assert abs(time.time() - holder.since) < SECONDS


def test_a_holder_is_named_in_one_short_line(tmp_path: Path) -> None:
    holder = Holder("ada\n\x1b[31m", "e" * 1000, 12.5, "f" * 64)
    assert Holder.decode(holder.encode(KEY, signer_called("ada")), KEY, signer_called("ada")) == holder
    signer = Signer(lambda: Keyring(tmp_path / "bob"), lambda: Policy.STRICT)
    called = signer.introduce(holder.signer, holder.user, holder.host)
    assert called.startswith("ffff-ffff-ffff-ffff (says ada ?[31m@eee")
    assert called.isprintable() and len(called) < 100
    signer.keyring().add("f" * 64, "Ada")
    assert signer.introduce("f" * 64, "", "engine") == "Ada (says engine)"


@pytest.mark.parametrize("trusted", [True, False])
def test_nobody_is_named_whom_the_user_does_not_trust(
    redis_server: RedisServer, kernel: Make, trusted: bool
) -> None:
    mallory, ada = kernel(redis_server.url, "mallory"), kernel(redis_server.url)
    if trusted:
        ada.keyring.add(mallory.keyring.fingerprint(), "Mal")
    named: list[str] = []

    def look() -> None:
        activity = ada.session.activity()
        assert activity is not None
        named.append(str(activity.compiled_by))

    run_both(mallory, ada, look)
    assert named == ["Mal (says mallory@engine)" if trusted else "another kernel"]


def test_what_a_holder_says_counts_for_its_own_lease_only(tmp_path: Path) -> None:
    signer = Signer(lambda: Keyring(tmp_path / "ada"), lambda: Policy.STRICT)
    data = Holder("ada", "engine", 12.5).encode(KEY, signer)
    holder = Holder.decode(data, KEY, signer)
    assert (holder.user, holder.host, holder.signer) == ("ada", "engine", signer.keyring().fingerprint())
    assert not Holder.decode(data, f"{KEY}x", signer).signer
    assert not Holder.decode(data.replace(b"ada", b"eve"), KEY, signer).signer
    (tmp_path / "ada").chmod(0o777)  # keys that cannot be believed
    locked = Holder("ada", "engine", 12.5).encode(KEY, signer)
    assert not Holder.decode(locked, KEY, signer).signer


def test_a_cell_waits_in_vain_no_longer_than_for_one_graph(redis_server: RedisServer, kernel: Make) -> None:
    keys = [f"graph-{number}" for number in range(8)]
    waiting = kernel(redis_server.url, timings=Timings(least_expected=1.0, usually_expected=1.0))
    with closing(RedisStore(redis_server.url)) as store:
        leases = RedisLeases(store)
        for key in (*keys, "another"):
            assert leases.claim(slot_of(HERE, "inductor", key), b"", 600.0).lease is not None
        began = time.monotonic()
        assert waiting.run(*keys) == [MISS] * len(keys)
        assert 1.0 <= time.monotonic() - began < len(keys)
        began = time.monotonic()
        assert waiting.run("another") == [MISS]  # another cell may wait again
        assert time.monotonic() - began >= 1.0


def test_a_graph_that_two_have_let_go_of_without_a_result_is_waited_for_no_more(
    redis_server: RedisServer,
) -> None:
    with closing(RedisStore(redis_server.url)) as store:
        flights = [flight_of(RedisLeases(store), name) for name in ("ada", "bob", "eve", "kim")]
        ada, *others = flights
        told: set[tuple[str, str]] = set()
        ended: dict[str, bool] = {}

        def compile_in_vain(flight: SingleFlight) -> None:
            me = flight._signer.user
            flight.wait(
                KEY, lambda: None, SECONDS, lambda holder: told.add((me, getattr(holder, "user", "")))
            )
            ended[me] = KEY in flight._flights
            waiting = {"bob", "eve", "kim"} - ended.keys()
            if ended[me]:
                wait_until(lambda: {(each, me) for each in waiting} <= told, "the others wait for it")
            flight.done(KEY)  # it has compiled, and has nothing to publish

        ada.wait(KEY, lambda: None, SECONDS, lambda holder: None)
        threads = [threading.Thread(target=compile_in_vain, args=(each,)) for each in others]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(told) == 3, "all wait")
        ada.done(KEY)
        for thread in threads:
            thread.join(SECONDS)
        assert sorted(ended) == ["bob", "eve", "kim"]
        assert sum(ended.values()) == 1  # after ada and this one the others wait for nobody
        assert free(redis_server)
