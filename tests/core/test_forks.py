"""Forked children compile, whatever threads of their parent were doing at that moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from nbcache.core.errors import StoreUnavailable
from nbcache.core.key import components
from nbcache.core.model import Environment, Outcome
from nbcache.core.reports import Cell
from nbcache.core.settings import Settings
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing
from nbcache.storage.backends.memory import MemoryStore
from nbcache.torch_bridge.gc_pause import HeapAside
from support.front_door import in_child
from support.testing import FailingStore, FakeBridge

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")

HERE = Environment(components({"torch.version": "2.13.0", "device": "cpu"}))
SECONDS = 30.0


@contextmanager
def held(lock: threading.Lock) -> Iterator[None]:
    """Have another thread hold a lock."""
    holds, released = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holds.set()
            released.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(SECONDS)
    try:
        yield
    finally:
        released.set()
        thread.join()


@pytest.fixture
def store() -> MemoryStore:
    """Return a store in which a kernel has left the graph `known`."""
    store = MemoryStore()
    bridge = FakeBridge(HERE)
    with closing(Session(Settings(), bridge, store)) as session:
        session.start()
        bridge.compile("known")
    return store


@pytest.mark.parametrize(
    "lock",
    [
        lambda session: session.cache._lock,
        lambda session: session.locator._known._cond,
        lambda session: session.cache._prefetcher._lock,
        lambda session: session.cache._prefetcher._refs_ready._cond,
        lambda session: session._tracker._lock,
        lambda session: session.prewarm._lock,
        lambda session: session.cache._worker._lock,
        lambda session: session.artifacts.store.store._lock,
    ],
    ids=["session", "notebook", "prefetcher", "manifest", "tracker", "prewarming", "worker", "store"],
)
def test_a_forked_child_compiles_while_a_thread_of_its_parent_holds_a_lock(
    store: MemoryStore, lock: Callable[[Session], threading.Lock]
) -> None:
    failing = FailingStore(store, None)
    bridge = FakeBridge(HERE)
    with closing(Session(Settings(), bridge, failing)) as session:
        session.start()
        session.cache.keys_of("inductor", SECONDS)

        def compile() -> bool:
            session.begin_cell(Cell.of("a cell", 1))
            bridge.compile("known")
            bridge.compile("new")
            failing.error = StoreUnavailable("gone")
            bridge.compile("newer")  # the store's failure is a notice
            session.cache.give_up("inductor", "known", "it is of no use")
            report = session.end_cell()
            session.notebook(timeout=SECONDS)
            return [graph.outcome for graph in report.graphs] == [Outcome.HIT, Outcome.MISS, Outcome.MISS]

        with held(lock(session)):
            assert in_child(compile)
        assert compile()  # the parent goes on as ever


def test_a_forked_child_waits_for_no_thread_of_its_parent(store: MemoryStore) -> None:
    located = threading.Event()
    bridge = FakeBridge(HERE)
    with closing(
        Session(Settings(), bridge, store, locate_notebook=lambda: str(located.wait() or ""))
    ) as session:
        sharing = Sharing(session)
        session.start()
        sharing.look()
        began = time.monotonic()
        with held(sharing._lock):
            assert in_child(
                lambda: (
                    session.cache.keys_of("inductor", 2 * SECONDS) == []
                    and session.notebook(2 * SECONDS) == ""
                    and sharing.wait_for_look(2 * SECONDS)
                    and sharing.snapshots() == []
                )
            )
        assert time.monotonic() - began < SECONDS
        located.set()


def test_a_forked_child_sets_no_heap_aside_for_threads_of_its_parent() -> None:
    import gc

    heap = HeapAside()
    heap.begin()
    frozen = gc.get_freeze_count()

    def compile() -> bool:
        before = gc.get_freeze_count()
        heap.begin()
        heap.end()
        return frozen > 0 and before == gc.get_freeze_count() == 0

    try:
        with held(heap._lock):
            assert in_child(compile)
        assert gc.get_freeze_count() > 0
    finally:
        heap.end()
