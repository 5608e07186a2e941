"""What a session has to tell: the reports of its cells, notices that each stand under one report."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from nbcache.core.log import logger
from nbcache.core.reports import Cell, CellReport, GraphRecord
from nbcache.core.text import printable
from nbcache.core.threads import ForkSafeLock

_MOST_NOTICES = 100
_MOST_REPORTS = 1000
_MOST_NAMES = 10_000
_LONGEST_NOTICE = 2000
_MORE = f"more than {_MOST_NOTICES} notices: the rest is not shown (%nbcache doctor has these)"


class ReportLog:
    """Keeps reports and notices, and which cell's source is under which file name. Safe for all threads."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._reports: deque[CellReport] = deque(maxlen=_MOST_REPORTS)
        self._fresh: list[str] = []
        self._noticed: dict[str, None] = {}
        self._held: dict[int, list[str]] = {}
        """By thread: notices that it is to say itself, or not."""
        self._code: dict[str, Cell] = {}

    @property
    def reports(self) -> list[CellReport]:
        with self._lock:
            return list(self._reports)

    @property
    def notices(self) -> list[str]:
        with self._lock:
            return list(self._noticed)

    def report(self, cell: int | Cell | None) -> CellReport | None:
        for report in reversed(self.reports):
            if cell is None or cell in (report.cell, report.cell and report.cell.execution_count):
                return report
        return None

    def notice(self, text: str) -> None:
        """Show `text` once, on one line, under the next report; of very many notices, the first ones."""
        text = _line(text)
        logger.info("notice: %s", text)
        with self._lock:
            if (held := self._held.get(threading.get_ident())) is not None:
                held.append(text)
                return
            if len(self._noticed) >= _MOST_NOTICES and text not in self._noticed:
                text = _MORE
            if text not in self._noticed:
                self._noticed[text] = None
                self._fresh.append(text)

    @contextlib.contextmanager
    def holding(self) -> Iterator[list[str]]:
        """Collect this thread's notices in the list, and in no report; not to be nested."""
        held: list[str] = []
        self._held[threading.get_ident()] = held
        try:
            yield held
        finally:
            del self._held[threading.get_ident()]

    def will_say(self, text: str) -> bool:
        with self._lock:
            return any(_line(text) in notice for notice in self._fresh)

    def add(
        self,
        cell: Cell | None,
        graphs: tuple[GraphRecord, ...],
        seconds: float,
        marks: Sequence[str],
        name: str | None,
    ) -> CellReport:
        """Add a cell's report, with the notices since the last one and `marks`, which are said each time."""
        with self._lock:
            report = CellReport(cell, graphs, seconds, (*self._fresh, *map(_line, marks)), name)
            self._fresh.clear()
            self._reports.append(report)
            return report

    def name_code(self, filename: str, cell: Cell) -> None:
        if len(self._code) >= _MOST_NAMES:
            del self._code[next(iter(self._code))]
        self._code[filename.rpartition("/")[2]] = cell

    def code_cell(self, filename: str) -> Cell | None:
        """Return the cell whose source was compiled under `filename`, if one was; its folder may be cut."""
        return self._code.get(filename.rpartition("/")[2])


def _line(text: str) -> str:
    """Return `text` as one line that steers no terminal, cut where it is too long: it may quote others."""
    cut = "…" if len(text) > _LONGEST_NOTICE else ""
    return printable(" ".join(text[:_LONGEST_NOTICE].split())) + cut
