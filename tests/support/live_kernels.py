"""Kernels that share what they compile, live: sessions with a compiler that stands in for torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nbcache.core.key import components
from nbcache.core.model import Environment, Level, Outcome
from nbcache.core.reports import Cell, CellReport
from nbcache.core.settings import Settings
from nbcache.kernel.session import Session
from nbcache.sharing.live.connection import USUAL, Timings
from nbcache.sharing.live.level import SharedLevel
from nbcache.sharing.live.signing import Signer
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.backends.open import open_shared
from support.testing import SECONDS, FakeBridge, at_once

HERE = Environment(components({"torch.version": "2.13.0", "device": "cpu", "cpu.features": "avx2"}))
ELSEWHERE = Environment(components({"torch.version": "2.13.0", "device": "cpu", "cpu.features": "avx512f"}))
HIT, MISS = Outcome.HIT, Outcome.MISS
TIMEOUT = 0.6
"""Seconds that the shared store may take."""
IMPATIENT = Timings(first_pause=0.05, longest_pause=0.1)
"""A store that was left alone is asked again soon."""


class Kernel:
    """One kernel of somebody whose keys are in `keys`, with a store of its own unless one is given.

    It waits for no thread that was there `before`.
    """

    def __init__(
        self,
        keys: Path,
        url: str,
        *,
        store: Store | None = None,
        environment: Environment = HERE,
        notebook: str = "model.ipynb",
        user: str = "ada",
        timings: Timings = USUAL,
        before: Set[threading.Thread] = frozenset(),
        **settings: Any,
    ) -> None:
        given = {"shared_timeout": TIMEOUT, "trust_dir": keys, "shared_url": url, **settings}
        self.user, self.timings = user, timings
        self._before = before
        self.store = MemoryStore("local store") if store is None else store
        self.bridge = FakeBridge(environment)
        self.session = Session(
            replace(Settings(), **given), self.bridge, self.store, locate_notebook=lambda: f"/home/{notebook}"
        )
        self.session.start()
        self.session.cache.keys_of("inductor", SECONDS)
        if url:
            self.connect()

    @property
    def keyring(self) -> Keyring:
        return Keyring(self.session.settings.trust_dir)

    @property
    def shared(self) -> SharedLevel:
        shared_client = self.session.shared_client
        assert shared_client is not None
        return shared_client.level

    @property
    def levels(self) -> list[Level | None]:
        return [graph.level for graph in self.session.graphs]

    def connect(self) -> None:
        session = self.session
        signer = Signer(lambda: self.keyring, lambda: session.settings.trust, self.user, "engine")
        seconds = session.settings.shared_timeout
        store = open_shared(session.settings)
        shared = SharedLevel(store, signer, wait_seconds=seconds, say=session.notice, timings=self.timings)
        session.join(shared)
        self.settle()

    def settle(self) -> None:
        """Wait until what was begun on connecting is done: what is here published, what is there read."""
        for thread in set(threading.enumerate()) - self._before:
            if thread.name == "nbcache-prefetch":
                _join(thread)

    def run(self, *keys: str) -> list[Outcome]:
        """Run a cell that compiles these graphs; return their outcomes."""
        return [graph.outcome for graph in self.cell(*keys).graphs]

    def cell(self, *keys: str) -> CellReport:
        """Run a cell that compiles these graphs; return its report."""
        self.session.begin_cell(Cell.of("a cell", 1))
        for key in keys:
            self.bridge.compile(key)
        return self.session.end_cell()

    def publish(self, *keys: str) -> None:
        """Run a cell, and wait until all of it is shared."""
        self.run(*keys)
        assert self.session.flush(SECONDS)


def _join(thread: threading.Thread) -> None:
    """Wait until a thread has ended; another thread may just be starting it."""
    while True:
        try:
            return thread.join(SECONDS)
        except RuntimeError:  # it is not started yet
            time.sleep(0.001)


@contextmanager
def kernels(folder: Path) -> Iterator[Callable[..., Kernel]]:
    """Yield a function that makes a kernel, of one person unless another is named: `make(url, "bob")`."""
    made: list[Kernel] = []
    before = set(threading.enumerate())  # of tests whose servers hang

    def make(url: str, keys: str = "ada", **options: Any) -> Kernel:
        made.append(Kernel(folder / keys, url, user=keys, before=before, **options))
        return made[-1]

    yield make
    at_once([lambda kernel=kernel: kernel.session.close(SECONDS) for kernel in made])  # type: ignore[misc]
