"""What a kernel keeps of its graphs for those after it; the bridge stands in for torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kernel.one_kernel import HERE
from kernel.one_kernel import Kernel as OneKernel

from nbcache.core.errors import StoreFull
from nbcache.core.model import Level, Outcome
from nbcache.core.reports import Cell
from nbcache.core.settings import Settings
from nbcache.sharing.snapshots.build import build_snapshot
from nbcache.sharing.snapshots.sources import origin
from nbcache.storage.backends.directory import DirectoryStore
from support.testing import FailingStore


class Kernel(OneKernel):
    def run(self, source: str, *keys: str, save: bool = True) -> list[Outcome]:
        outcomes = super().run(source, *keys, save=save)
        self.session.flush(10)
        return outcomes


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_the_next_kernel_knows_what_graphs_took(store: DirectoryStore) -> None:
    first = Kernel(store)
    first.run("a", "k1", "k2")
    missed = [("k1", Outcome.MISS, None), ("k2", Outcome.MISS, None)]
    assert first.runs() == missed
    first.session.close()

    second = Kernel(store)
    second.run("a", "k1")
    second.session.cache.history.read("/n.ipynb")
    assert second.runs() == [*missed, ("k1", Outcome.HIT, Level.L1)]
    own = [run for run in second.session.cache.history.runs() if run.cell == Cell.of("a", None).digest]
    assert len({run.kernel for run in own}) == 2
    assert own[-1].environment == HERE.digest[:16]


def test_two_kernels_of_a_notebook_at_once_lose_nothing(store: DirectoryStore) -> None:
    kernels = [Kernel(store), Kernel(store)]
    for number in range(3):
        for which, kernel in enumerate(kernels):
            kernel.run("a", f"k{which}{number}")
    kept = kernels[0].session.artifacts.history.read("/n.ipynb")
    assert {run.key for run in kept} == {f"k{which}{number}" for which in range(2) for number in range(3)}


def test_a_cell_that_is_not_saved_leaves_no_row(store: DirectoryStore) -> None:
    kernel = Kernel(store)
    kernel.run("a", "k1", save=False)
    kernel.session.configure(replace(kernel.session.settings, save=False))
    kernel.run("b", "k2")
    assert kernel.runs() == []
    assert kernel.session.artifacts.history.everything() == ()


def test_clearing_a_notebook_takes_its_history_and_no_other(store: DirectoryStore) -> None:
    for notebook in ("/n.ipynb", "/other.ipynb"):
        kernel = Kernel(store, notebook=notebook)
        kernel.run("a", "k1")
    session = kernel.session
    session.clear(session.clearing())
    assert session.artifacts.history.read("/other.ipynb") == ()
    assert len(session.artifacts.history.read("/n.ipynb")) == 1
    assert kernel.runs() == []

    kernel.run("b", "k2")  # what was removed does not come back
    assert [run.key for run in session.artifacts.history.read("/other.ipynb")] == ["k2"]


def test_a_store_that_fails_costs_no_cell(store: DirectoryStore) -> None:
    failing = FailingStore(store, StoreFull("no room"))
    kernel = Kernel(failing)
    kernel.run("a", "k1")
    assert [graph.outcome for graph in kernel.session.graphs] == [Outcome.MISS]
    assert kernel.runs() == [("k1", Outcome.MISS, None)]
    assert not any("report it" in notice for notice in kernel.session.notices)


def test_a_damaged_history_costs_no_cell_and_is_written_again(store: DirectoryStore) -> None:
    kernel = Kernel(store)
    (store.root / "history.sqlite").write_bytes(b"junk" * 1000)
    kernel.run("a", "k1")  # finds it damaged, and keeps its run for the next time
    kernel.run("b", "k2")
    assert [run.key for run in kernel.session.artifacts.history.read("/n.ipynb")] == ["k1", "k2"]
    assert kernel.session.notices == []


def test_no_snapshot_holds_the_history(store: DirectoryStore) -> None:
    kernel = Kernel(store)
    kernel.run("a", "k1")
    manifest = kernel.session.cache.manifest()
    assert manifest is not None
    own = kernel.session.cache.history.kernel
    draft = build_snapshot(kernel.session.artifacts, manifest, origin("n.ipynb", Settings()))
    assert own in str(kernel.session.cache.history.runs())
    assert own not in str(draft)
