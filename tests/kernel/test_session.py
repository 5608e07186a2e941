"""The session, with a bridge that stands in for torch: recording, providing, reporting, and faults."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kernel.one_kernel import ELSEWHERE, HERE, Kernel

from nbcache.core.errors import StoreFull, StoreUnavailable
from nbcache.core.model import Level, Outcome
from nbcache.core.reports import Cell
from nbcache.core.settings import Policy, Settings
from nbcache.kernel import tracker
from nbcache.sharing.live.level import SharedLevel
from nbcache.sharing.live.signing import Signer
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.backends.memory import MemoryStore
from support.testing import FailingStore


class CountingStore(MemoryStore):
    """Counts how often a manifest is written."""

    manifests = 0

    def put(self, key: str, value: bytes) -> None:
        self.manifests += key.startswith("manifest/")
        super().put(key, value)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DirectoryStore]:
    with closing(DirectoryStore(tmp_path / "store")) as store:
        yield store


def test_notices_are_not_without_end(store: DirectoryStore) -> None:
    kernel = Kernel(store)
    for number in range(10_000):
        kernel.session.notice(f"{number} " + "x" * 100_000, "fault")
    kernel.run("a")
    shown = kernel.session.reports[-1].notices
    assert list(shown) == kernel.session.notices
    assert len(shown) <= 101 and sum(map(len, shown)) < 300_000
    assert "the rest is not shown" in shown[-1]
    kernel.session.notice("another", "fault")
    assert kernel.session.notices == list(shown)


def calls_of(kernel: Kernel, cells: range) -> int:
    """Return how many Python functions this thread calls while a kernel runs cells that compile nothing."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        for number in cells:
            kernel.run(f"cell {number}")
    finally:
        sys.setprofile(None)
    return calls


def test_a_cell_costs_the_same_late_in_a_long_kernel() -> None:
    kernel = Kernel(MemoryStore("local store"))
    calls_of(kernel, range(110))  # the first cells import
    early = calls_of(kernel, range(110, 310))
    for number in range(310, 2_000):
        kernel.run(f"cell {number}", *([f"{number:064x}"] if number % 4 == 0 else []))
    late = calls_of(kernel, range(2_000, 2_200))
    kernel.session.flush()

    assert early > 200 and late <= 1.2 * early


@pytest.fixture
def untraced_threads() -> Iterator[None]:
    """Start threads without coverage, which keeps a kilobyte for each of them."""
    trace = threading.gettrace()
    threading.settrace(None)  # type: ignore[arg-type]
    yield
    threading.settrace(trace)  # type: ignore[arg-type]


@pytest.mark.usefixtures("untraced_threads")
def test_a_kernel_of_10_000_cells_and_500_graphs_takes_no_more_memory_and_writes_less_often() -> None:
    store = CountingStore("local store")
    kernel = Kernel(store)
    for number in range(5_000):
        kernel.run(f"cell {number}", *([f"{number:064x}"] if number % 10 == 0 else []))
    kernel.session.flush()
    assert 0 < store.manifests < 250
    tracemalloc.start()
    try:
        for _ in range(2):
            before = tracemalloc.get_traced_memory()[0]
            for number in range(5_000, 7_500):
                kernel.run(f"cell {number}")
            kernel.session.flush()
            gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(kernel.session.graphs) == 500 and len(kernel.session.reports) == 1_000
    assert grown < 50_000


def test_the_oldest_graphs_of_a_very_long_kernel_are_dropped(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "_FEWEST_RECORDS", 3)
    kernel = Kernel(store)
    for number in range(9):
        assert kernel.run(f"cell {number}", f"{number:064x}") == [Outcome.MISS]
    assert [graph.key for graph in kernel.session.graphs] == [f"{number:064x}" for number in range(4, 9)]
    assert kernel.restart(store).run("cell 0", f"{0:064x}") == [Outcome.HIT]


def test_a_thread_can_hold_its_own_notices_back(store: DirectoryStore) -> None:
    session = Kernel(store).session
    with session.report_log.holding() as held:
        session.notice("of a copy", "fault")
        other = threading.Thread(target=session.notice, args=("of another thread", "fault"))
        other.start()
        other.join()
    assert (held, session.notices) == ([("of a copy", "fault")], ["of another thread [fault]"])
    session.notice("of a copy", "fault")
    assert session.notices == ["of another thread [fault]", "of a copy [fault]"]


def test_a_notice_is_one_line_that_steers_no_terminal(store: DirectoryStore) -> None:
    kernel = Kernel(store)
    kernel.session.notice("one\nnbcache: \x1b[31mtwo\u202e \t three", "fault")
    kernel.run("a")
    assert kernel.session.notices == ["one nbcache: ?[31mtwo? three [fault]"]
    assert kernel.session.reports[-1].notices == ("one nbcache: ?[31mtwo? three [fault]",)


def test_what_one_kernel_compiled_the_next_one_hits(store: DirectoryStore) -> None:
    first = Kernel(store)
    assert first.run("a", "k1", "k2") == [Outcome.MISS, Outcome.MISS]

    second = first.restart(store)

    assert second.run("a", "k1", "k2") == [Outcome.HIT, Outcome.HIT]
    assert [graph.level for graph in second.session.graphs] == [Level.L1, Level.L1]
    assert {graph.source for graph in second.session.graphs} == {"local store"}


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({"notebook": "two.ipynb"}, Outcome.HIT), ({"environment": ELSEWHERE}, Outcome.MISS)],
)
def test_another_notebook_hits_on_demand_and_another_environment_does_not(
    changes: dict[str, object], outcome: Outcome, store: DirectoryStore
) -> None:
    first = Kernel(store)
    first.run("a", "k")
    assert first.restart(store, **changes).run("b", "k") == [outcome]


def test_the_manifest_is_the_union_of_restored_and_new(store: DirectoryStore) -> None:
    first = Kernel(store)
    first.run("a", "k1")
    second = first.restart(store)
    second.run("b", "k2")
    third = second.restart(store)
    third.session.close()

    manifest = third.session.artifacts.load_manifest(HERE, "/n.ipynb")

    assert manifest is not None
    assert {ref.key for ref in manifest.artifacts} == {"k1", "k2"}


def test_two_kernels_of_one_notebook_merge(store: DirectoryStore) -> None:
    kernels = [Kernel(store), Kernel(store)]
    threads = [
        threading.Thread(target=lambda kernel=kernel, n=n: [kernel.run("a", f"k{n}-{i}") for i in range(20)])
        for n, kernel in enumerate(kernels)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kernel in kernels:
        kernel.session.close()

    manifest = kernels[0].session.artifacts.load_manifest(HERE, "/n.ipynb")

    assert manifest is not None
    assert {ref.key for ref in manifest.artifacts} == {f"k{n}-{i}" for n in range(2) for i in range(20)}


def test_a_cell_that_is_not_to_be_saved_records_nothing(store: DirectoryStore) -> None:
    kernel = Kernel(store)
    kernel.session.begin_cell(Cell.of("a", 1))
    kernel.session.saving = False
    kernel.bridge.compile("k")
    kernel.session.end_cell()
    assert kernel.session.flush(5)
    assert list(store.keys("artifact/")) == []

    kernel.run("b", "k2")
    assert kernel.session.flush(5)
    assert len(list(store.keys("artifact/"))) == 1


@pytest.mark.parametrize("error", [StoreFull("the disk is full"), StoreUnavailable("gone")])
def test_a_store_that_fails_is_a_miss_with_one_notice(error: Exception) -> None:
    kernel = Kernel(FailingStore(MemoryStore(), error))

    assert kernel.run("a", "k1", "k2", "k3") == [Outcome.MISS] * 3
    kernel.session.flush(5)
    kernel.run("b", "k4")
    kernel.session.flush(5)
    kernel.run("c")

    notices = [notice for report in kernel.session.reports for notice in report.notices]
    assert len(notices) == len(set(notices))
    assert 1 <= len(notices) <= 3
    assert str(error) in notices[0]


def test_of_a_shared_store_that_fails_each_report_says_it_once_and_on_one_line(
    store: DirectoryStore, tmp_path: Path
) -> None:
    signer = Signer(lambda: Keyring(tmp_path / "keys"), lambda: Policy.STRICT)
    gone = FailingStore(MemoryStore("redis://host/0"), StoreUnavailable("it says\n\x1b[31mred\u202e"))
    kernel = Kernel(store)
    kernel.session.join(SharedLevel(gone, signer, wait_seconds=2.0, say=kernel.session.notice))
    kernel.session.find_shared("inductor", "k")

    for number in range(3):
        kernel.run("a", f"k{number}")

    first, *more = (
        [*filter(lambda text: "red?" in text, report.notices)] for report in kernel.session.reports
    )
    assert len(first) == 1 and "it is not asked until it answers again" in first[0] and first[0].isprintable()
    assert more == [["redis://host/0 is off for now: it says ?[31mred?"]] * 2
    kernel.session.close()


def test_a_full_store_is_still_read(store: DirectoryStore) -> None:
    first = Kernel(store)
    first.run("a", "k")

    second = first.restart(FailingStore(store, StoreFull("the disk is full"), operations=("put",)))

    assert second.run("a", "k", "new") == [Outcome.HIT, Outcome.MISS]


def test_a_corrupt_artifact_is_a_miss_and_is_stored_anew(store: DirectoryStore, tmp_path: Path) -> None:
    first = Kernel(store)
    first.run("a", "k")
    first.session.close()
    (file,) = [path for path in (tmp_path / "store").rglob("artifact/*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:-1])

    second = Kernel(store)
    assert second.run("a", "k") == [Outcome.MISS]
    notices = second.session.reports[0].notices
    assert len(notices) == 1 and "removed" in notices[0]
    third = second.restart(store)
    assert third.run("a", "k") == [Outcome.HIT]
    assert third.session.reports[0].notices == ()


def test_clearing_removes_all_and_the_next_compile_misses(store: DirectoryStore) -> None:
    kernel = Kernel(store)
    kernel.run("a", "k")

    assert kernel.session.clear() > 0
    assert list(store.keys()) == []
    assert kernel.restart(store).run("a", "k") == [Outcome.MISS]


def test_a_process_that_can_start_no_thread_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    kernel = Kernel(MemoryStore())

    kernel.run("a", "k")

    assert kernel.session.flush(5)
    assert [graph.outcome for graph in kernel.session.graphs] == [Outcome.MISS]
    kernel.session.close()


def test_what_was_only_hit_is_not_taken_into_the_store(store: DirectoryStore) -> None:
    kernel = Kernel(store)
    kernel.bridge.folder["k"] = b"made by who knows whom"

    assert kernel.run("a", "k") == [Outcome.HIT]
    kernel.session.close()

    assert list(store.keys("artifact/")) == []


def test_reports_are_found_by_cell_number(store: DirectoryStore) -> None:
    kernel = Kernel(store)
    for number in (1, 2):
        kernel.session.begin_cell(Cell.of(f"cell {number}", number))
        kernel.bridge.compile(f"k{number}")
        kernel.session.end_cell()

    report = kernel.session.report(1)

    assert report is not None and [graph.key for graph in report.graphs] == ["k1"]
    assert kernel.session.report() == kernel.session.reports[-1]
    assert kernel.session.report(99) is None


def test_the_artifacts_used_last_are_the_ones_that_stay(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    kernel = Kernel(store)
    kernel.session.settings = Settings().with_value("max_bytes", "1MB", origin="test")
    kernel.bridge.size = 300_000
    for number in range(12):
        kernel.run("a", f"k{number}")
        kernel.session.flush(5)

    assert store.size("artifact/") <= 1_000_000 + 300_000 + 1_000
