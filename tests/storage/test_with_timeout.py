"""A store whose operations end in time, whatever the one inside does."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbcache.core.errors import StoreError, StoreFull, StoreUnavailable
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.backends.open import BoundedStore
from support.front_door import in_child
from support.live_kernels import HIT, MISS, SECONDS, kernels
from support.testing import OPERATIONS, FailingStore, StoreContract

pytestmark = pytest.mark.faults


class TestBoundedStore(StoreContract):
    @pytest.fixture
    def store(self) -> BoundedStore:
        return BoundedStore(MemoryStore(), SECONDS)


class HangingStore(FailingStore):
    """Answers nothing until `released`."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), None)
        self.met, self.released = threading.Event(), threading.Event()

    def _meet(self, operation: str) -> None:
        self.met.set()
        self.released.wait(SECONDS)
        super()._meet(operation)


@pytest.fixture
def hanging() -> Iterator[HangingStore]:
    store = HangingStore()
    yield store
    store.released.set()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_ends_in_time(hanging: HangingStore, name: str) -> None:
    store = BoundedStore(hanging, 0.01)
    with pytest.raises(StoreUnavailable, match="did not answer within") as caught:
        OPERATIONS[name](store)
    assert caught.value.where == "memory" and "shared_timeout" in (caught.value.next_step or "")


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_the_store_raises_is_raised(name: str) -> None:
    error = StoreFull("no room")
    with pytest.raises(StoreError) as caught:
        OPERATIONS[name](BoundedStore(FailingStore(MemoryStore(), error), SECONDS))
    assert caught.value is error


def test_while_too_many_hang_nothing_is_asked_and_then_all_is_again(
    hanging: HangingStore,
) -> None:
    store = BoundedStore(hanging, 0.01, most_hanging=3)
    before = threading.active_count()
    for _ in range(10):
        with pytest.raises(StoreUnavailable):
            store.get("a")
    assert threading.active_count() - before <= 3
    hanging.released.set()
    deadline = time.monotonic() + SECONDS
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.005)
    store.put("a", b"one")
    assert store.get("a") == b"one"


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(
    hanging: HangingStore,
) -> None:
    store = BoundedStore(hanging, 0.01, most_hanging=1)
    with pytest.raises(StoreUnavailable):
        store.get("a")

    def child() -> bool:
        hanging.released = threading.Event()
        hanging.released.set()
        return store.get("a") is None

    assert in_child(child)


def test_an_interrupt_ends_it(hanging: HangingStore) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever another test has left

    def interrupt() -> None:
        assert hanging.met.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        BoundedStore(hanging, SECONDS).get("a")
    interrupting.join()
    signal.signal(signal.SIGINT, before)


def test_a_kernel_on_a_store_that_hangs_compiles(
    hanging: HangingStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("support.live_kernels.open_shared", lambda settings: BoundedStore(hanging, 0.02))
    with kernels(tmp_path) as kernel:
        one = kernel("a folder")
        assert one.run("one", "two") == [MISS, MISS]
        assert len(one.session.notices) == 1
        assert one.run("one") == [HIT]
        began = time.monotonic()
        one.session.close(1.0)
        assert time.monotonic() - began < SECONDS / 2
        hanging.released.set()
