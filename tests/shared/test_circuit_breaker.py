"""A store that fails is left alone, and asked again: when, by whom, and what is said."""

from __future__ import annotations

import threading

import pytest

from nbcache.core.errors import StoreError, StoreUnavailable
from nbcache.shared.connection import USUAL, CircuitBreaker, Timings
from support.front_door import in_child
from support.redis_servers import wait_until


class Store:
    """What is asked, fails until it is mended, and keeps what is said of it."""

    def __init__(self, timings: Timings = USUAL, closed: threading.Event | None = None) -> None:
        self.error: StoreError | None = StoreUnavailable("gone")
        self.said: list[StoreError | None] = []
        self.asked = 0
        self.availability = CircuitBreaker(self.probe, self.said.append, timings, closed)

    def probe(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


class Pauses(threading.Event):
    """Waits for no time at all, and keeps how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return super().wait(0.001)


def test_it_is_off_after_a_failure_until_it_answers_again() -> None:
    store = Store(closed=Pauses())
    error = StoreUnavailable("gone")
    assert store.availability.failure is None
    store.availability.record_failure(error)
    store.availability.record_failure(StoreUnavailable("another thread met it as well"))
    assert store.availability.failure is error
    wait_until(lambda: store.asked > 2, "it is asked again and again")
    assert store.said == [error]
    store.error = None
    wait_until(lambda: len(store.said) == 2, "it is back")
    assert store.availability.failure is None and store.said == [error, None]


def test_who_wants_to_know_asks_at_once() -> None:
    store = Store(Timings(first_pause=600.0))
    store.availability.probe_now()
    assert store.asked == 0  # it is not off
    store.availability.record_failure(StoreUnavailable("gone"))
    store.availability.probe_now()
    assert store.asked == 1 and store.availability.failure is not None
    store.error = None
    store.availability.probe_now()
    assert store.availability.failure is None and store.said[-1] is None
    store.availability.close()


def test_pauses_double_up_to_five_minutes() -> None:
    pauses = Pauses()
    store = Store(closed=pauses)
    store.availability.record_failure(StoreUnavailable("gone"))
    wait_until(lambda: len(pauses.seconds) > 10, "it was asked often")
    store.availability.close()
    assert pauses.seconds[:10] == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0]


@pytest.mark.parametrize(("steady", "left_alone"), [(60.0, [2.0, 4.0, 8.0]), (0.0, [2.0, 2.0, 2.0])])
def test_what_fails_again_soon_is_left_alone_for_longer_and_later_not(
    steady: float, left_alone: list[float]
) -> None:
    pauses = Pauses()
    store = Store(Timings(steady=steady), pauses)
    store.error = None
    for times in range(1, len(left_alone) + 1):
        store.availability.record_failure(StoreUnavailable("gone"))
        wait_until(lambda times=times: len(store.said) == 2 * times, "it is back")  # type: ignore[misc]
    assert pauses.seconds == left_alone


def test_once_closed_it_asks_no_more() -> None:
    others = {*threading.enumerate()}
    store = Store()
    store.availability.record_failure(StoreUnavailable("gone"))
    store.availability.close()
    wait_until(lambda: not {*threading.enumerate()} - others, "its thread ends")
    assert store.asked == 0
    assert store.availability.failure is not None


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_in_a_forked_child_it_stays_off_and_nobody_asks() -> None:
    store = Store()

    def fails() -> bool:
        store.availability.record_failure(StoreUnavailable("gone"))
        return store.availability.failure is not None and threading.active_count() == 1

    assert in_child(fails)
    assert store.availability.failure is None
