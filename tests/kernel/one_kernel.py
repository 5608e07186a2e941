"""One kernel's session with a compiler that stands in for torch."""

from __future__ import annotations

from nbcache.core.key import components
from nbcache.core.model import Environment, Level, Outcome
from nbcache.core.reports import Cell
from nbcache.core.settings import Settings
from nbcache.kernel.session import Session
from nbcache.storage.backends.base import Store
from support.testing import FakeBridge

HERE = Environment(components({"torch.version": "2.13.0", "cpu.features": "avx2"}))
ELSEWHERE = Environment(components({"torch.version": "2.13.0", "cpu.features": "avx2 avx512f"}))


class Kernel:
    def __init__(self, store: Store, *, notebook: str = "/n.ipynb", environment: Environment = HERE) -> None:
        self.bridge = FakeBridge(environment)
        self.session = Session(Settings(), self.bridge, store, locate_notebook=lambda: notebook)
        self.session.start()

    def run(self, source: str, *keys: str, save: bool = True) -> list[Outcome]:
        """Run a cell that compiles the graphs `keys`; return their outcomes."""
        self.session.program.note_cell(source, "one cell")
        self.session.begin_cell(Cell.of(source, 1))
        self.session.saving = save
        for key in keys:
            self.bridge.compile(key)
        return [graph.outcome for graph in self.session.end_cell().graphs]

    def restart(self, store: Store, **changes: object) -> Kernel:
        self.session.close()
        return Kernel(store, **changes)  # type: ignore[arg-type]

    def runs(self) -> list[tuple[str, Outcome, Level | None]]:
        """Return what the history has."""
        return [(run.key, run.outcome, run.level) for run in self.session.cache.history.runs()]
