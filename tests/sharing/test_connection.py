"""A store that fails is left alone, and asked again: when, by whom, and what is said."""

from __future__ import annotations

import threading

import pytest

from nbcache.core.errors import StoreError, StoreFull, StoreUnavailable
from nbcache.sharing.live.connection import USUAL, Connection, Timings
from nbcache.storage.backends.memory import MemoryStore
from support.front_door import in_child
from support.redis_servers import wait_until

GONE = StoreUnavailable("gone")
BACK = "memory answers again"


class Store(MemoryStore):
    """Fails at reading while `error` is set, and at writing while `full`; it writes once it `goes_on`."""

    error: StoreError | None = GONE
    asked = 0
    full = False
    goes_on: threading.Event | None = None

    def __init__(self) -> None:
        super().__init__()
        self.is_writing = threading.Event()

    def put(self, key: str, value: bytes) -> None:
        self.is_writing.set()
        if self.full:
            raise StoreFull("full")
        if self.goes_on is not None:
            self.goes_on.wait(60)
        super().put(key, value)

    def get(self, key: str) -> bytes | None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return super().get(key)


class Pauses(threading.Event):
    """Waits for no time at all, and keeps how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return super().wait(0.001)


class Kernel:
    def __init__(self, timings: Timings = USUAL, closed: threading.Event | None = None) -> None:
        self.store = Store()
        self.notices: list[str] = []
        self.connection = Connection(self.store, self.say, timings, closed)

    def say(self, text: str, slug: str) -> None:
        self.notices.append(text)


def test_it_is_off_after_a_failure_until_it_answers_again() -> None:
    kernel = Kernel(closed=Pauses())
    assert kernel.connection.can_write
    kernel.connection.fails(GONE)
    kernel.connection.fails(StoreUnavailable("another thread met it as well"))
    assert kernel.connection.failure is GONE and not kernel.connection.can_read
    wait_until(lambda: kernel.store.asked > 2, "it is asked again and again")
    assert kernel.notices == ["memory: gone, so it is not asked until it answers again."]
    kernel.store.error = None
    wait_until(lambda: len(kernel.notices) == 2, "it is back")
    assert kernel.connection.can_write and kernel.notices[1] == BACK


def test_a_full_store_is_read_until_reading_fails_as_well() -> None:
    kernel = Kernel(Timings(first_pause=600.0))
    kernel.connection.fails(StoreFull("full"))
    assert kernel.connection.can_read and not kernel.connection.can_write
    kernel.connection.fails(GONE)
    assert not kernel.connection.can_read and kernel.connection.failure is GONE
    assert kernel.notices == [
        "memory: full, so it is not written to until it accepts entries again.",
        "memory: gone, so it is not asked until it answers again.",
    ]
    kernel.connection.stop()


def test_a_full_store_that_fails_once_is_soon_read_again() -> None:
    pauses = Pauses()
    kernel = Kernel(closed=pauses)
    kernel.store.error, kernel.store.full = None, True
    kernel.connection.fails(StoreFull("full"))
    wait_until(lambda: 300.0 in pauses.seconds, "it is asked more and more seldom")
    kernel.connection.fails(GONE)
    wait_until(lambda: kernel.connection.can_read, "it is read again")
    kernel.connection.stop()
    assert pauses.seconds.count(2.0) == 2


def test_a_read_that_fails_while_writing_is_tried_turns_reading_off_for_a_while_only() -> None:
    kernel = Kernel(closed=Pauses())
    kernel.store.error, kernel.store.goes_on = None, threading.Event()
    kernel.connection.fails(GONE)
    assert kernel.store.is_writing.wait(60)
    kernel.connection.fails(StoreUnavailable("one read was late"))
    kernel.store.goes_on.set()
    wait_until(lambda: kernel.connection.failure is None, "it is back")
    assert kernel.connection.can_read


def test_who_wants_to_know_asks_at_once() -> None:
    kernel = Kernel(Timings(first_pause=600.0))
    kernel.connection.ask()
    assert kernel.store.asked == 0  # it is not off
    kernel.connection.fails(GONE)
    kernel.connection.ask()
    assert kernel.store.asked == 1 and kernel.connection.failure is GONE
    kernel.store.error = None
    kernel.connection.ask()
    assert kernel.connection.failure is None and kernel.notices[-1] == BACK
    kernel.connection.stop()


def test_pauses_double_up_to_five_minutes() -> None:
    pauses = Pauses()
    kernel = Kernel(closed=pauses)
    kernel.connection.fails(GONE)
    wait_until(lambda: len(pauses.seconds) > 10, "it was asked often")
    kernel.connection.stop()
    assert pauses.seconds[:10] == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0]


@pytest.mark.parametrize(("steady", "left_alone"), [(60.0, [2.0, 4.0, 8.0]), (0.0, [2.0, 2.0, 2.0])])
def test_what_fails_again_soon_is_left_alone_for_longer_and_later_not(
    steady: float, left_alone: list[float]
) -> None:
    pauses = Pauses()
    kernel = Kernel(Timings(steady=steady), pauses)
    kernel.store.error = None
    for times in range(1, len(left_alone) + 1):
        kernel.connection.fails(GONE)
        wait_until(lambda times=times: len(kernel.notices) == 2 * times, "it is back")  # type: ignore[misc]
    assert pauses.seconds == left_alone


def test_once_stopped_it_asks_no_more() -> None:
    others = {*threading.enumerate()}
    kernel = Kernel()
    kernel.connection.fails(GONE)
    kernel.connection.stop()
    wait_until(lambda: not {*threading.enumerate()} - others, "its threads end")
    assert kernel.store.asked == 0 and kernel.connection.failure is GONE


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_in_a_forked_child_it_stays_off_and_nobody_asks() -> None:
    kernel = Kernel()

    def fails() -> bool:
        kernel.connection.fails(GONE)
        return kernel.connection.failure is GONE and threading.active_count() == 1

    assert in_child(fails)
    assert kernel.connection.failure is None
