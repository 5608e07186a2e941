"""The history of a notebook: the outcomes and seconds of its last graphs, for estimates and lifetime figures.

It stays on this machine. Snapshots and shared stores exclude it, since reasons may quote code.

One SQLite file beside the local store's entries has a row for each run of any notebook. Several kernels may
write at once; each adds its own rows. A damaged file is removed, and a newer nbcache's file is ignored.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nbcache.core.log import logger
from nbcache.core.model import Direction, GraphSummary, Level, Manifest, Outcome
from nbcache.core.reports import GraphRecord, has_own_name
from nbcache.core.text import one_line
from nbcache.storage.manifests import notebook_digest

if TYPE_CHECKING:
    import sqlite3

MAX_RUNS = 1000
_MAX_RUNS_IN_ALL = 25_000
_FILE = "history.sqlite"
_VERSION = 1
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")
"""SQLite's errors for a damaged file, another kind of file, or a table with other columns."""
_BUSY_SECONDS = 5.0
_LONGEST = 200
_ENVIRONMENT = 16
_LAST_FEW = 5


@dataclass(frozen=True, slots=True)
class Run:
    time: float
    """Unix time at which its cell ended."""
    kernel: str
    """Random text, new at each start of the extension."""
    number: int
    environment: str
    """First 16 hexadecimal digits of the environment's digest."""
    cell: str
    """`Cell.digest` of the cell that compiled the graph; empty outside a notebook."""
    function: str
    direction: Direction
    key: str
    outcome: Outcome
    level: Level | None
    """The level that was hit; None after a miss."""
    seconds: Mapping[str, float]
    """Phase → seconds; `total` is their sum."""
    saved_seconds: float | None = None
    """Seconds of the artifact's compile, less those of the hit; None if it was not a hit."""
    reason: str = ""
    """The reason of a miss, or the work that a hit left over; cut if it is long."""
    execution_count: int | None = None
    function_cell: str = ""
    """`Cell.digest` of the cell that defines the function; empty if a module defines it."""
    unfinished: bool = False
    """True if the cell raised: this kernel's runs may lack further graphs of the cell."""

    def summary(self) -> dict[str, Any]:
        return {
            "execution_count": self.execution_count,
            "function": self.function,
            "direction": self.direction.value,
            "reason": self.reason or None,
        }

    @property
    def identity(self) -> tuple[str, int]:
        return (self.kernel, self.number)

    @property
    def total_seconds(self) -> float:
        return self.seconds.get("total", 0.0)


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual seconds of a function's graph, by phase and in `total`; None if they are unknown."""

    cold: Mapping[str, float] | None
    restored: Mapping[str, float] | None
    runs_cold: int = 0
    runs_restored: int = 0


def usual_of(
    history: Sequence[Run], cell: str, function: str, direction: Direction, *, environment: str = ""
) -> Usual:
    """Return the usual seconds of a graph, from the last few runs of its function in this cell.

    If `history`, oldest first, has no run of this cell, runs in other cells count, unless the function is
    anonymous. Runs in `environment` (a digest) take precedence. The result is one run's seconds, so that
    its phases add up: the run with the median total.
    """
    prefix = environment[:_ENVIRONMENT]

    def nearest(*, hit: bool) -> list[Run]:
        of_function = [
            run
            for run in history
            if (run.function, run.direction, run.outcome is Outcome.HIT) == (function, direction, hit)
        ]
        runs = [run for run in of_function if run.cell == cell]
        if not runs and has_own_name(function):
            runs = of_function
        runs = [run for run in runs if not prefix or run.environment == prefix] or runs
        return runs[-_LAST_FEW:]

    cold, restored = nearest(hit=False), nearest(hit=True)
    return Usual(_median_seconds(cold), _median_seconds(restored), len(cold), len(restored))


def _median_seconds(runs: Sequence[Run]) -> Mapping[str, float] | None:
    if not runs:
        return None
    total = statistics.median_low(run.total_seconds for run in runs)
    return next(run.seconds for run in reversed(runs) if run.total_seconds == total)


def run_of(
    graph: GraphRecord, *, time: float, kernel: str, number: int, environment: str, unfinished: bool = False
) -> Run:
    return Run(
        time=time,
        kernel=kernel,
        number=number,
        environment=environment[:_ENVIRONMENT],
        cell=graph.cell_digest,
        function=one_line(graph.function, _LONGEST),
        direction=graph.direction,
        key=one_line(graph.key or "", _LONGEST),
        outcome=graph.outcome,
        level=graph.level,
        seconds={phase: max(0.0, round(value, 4)) for phase, value in graph.seconds.items()},
        saved_seconds=None if graph.saved_seconds is None else max(0.0, round(graph.saved_seconds, 4)),
        reason=one_line(graph.reason or "", _LONGEST),
        execution_count=graph.cell.execution_count if graph.cell else None,
        function_cell=graph.function_cell.digest if graph.function_cell else "",
        unfinished=unfinished,
    )


def merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return the newest `MAX_RUNS` runs, oldest first, without duplicates."""
    by_identity = {run.identity: run for run in runs}
    return tuple(sorted(by_identity.values(), key=_order)[-MAX_RUNS:])


def _order(run: Run) -> tuple[float, str, int]:
    return (run.time, *run.identity)


_T = TypeVar("_T")
_TEXTS = ("kernel", "environment", "cell", "function", "key", "reason", "function_cell")
_COLUMNS = tuple(field.name for field in fields(Run))
_TABLE = f"CREATE TABLE IF NOT EXISTS run (notebook, {', '.join(_COLUMNS)}, PRIMARY KEY (kernel, number))"
_INSERT = f"INSERT OR IGNORE INTO run VALUES (?{', ?' * len(_COLUMNS)})"
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM run"
_NEWEST = "SELECT rowid FROM run {} ORDER BY time DESC, kernel DESC, number DESC LIMIT {}"


class HistoryStore:
    """Histories of all notebooks, in a private `folder`; empty without one. Failures are only logged."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / _FILE

    def read(self, notebook: str) -> tuple[Run, ...]:
        return self._runs(f"{_SELECT} WHERE notebook = ?", notebook_digest(notebook))

    def everything(self) -> tuple[Run, ...]:
        return self._runs(_SELECT)

    def write(self, notebook: str, runs: Iterable[Run]) -> bool:
        """Add runs, and drop the oldest runs beyond the bounds; return whether the transaction succeeded."""
        digest = notebook_digest(notebook)

        def add(database: sqlite3.Connection) -> bool:
            database.executemany(_INSERT, [_row(digest, run) for run in runs])
            newest = _NEWEST.format("WHERE notebook = ?1", MAX_RUNS)
            database.execute(f"DELETE FROM run WHERE notebook = ?1 AND rowid NOT IN ({newest})", (digest,))
            newest = _NEWEST.format("", _MAX_RUNS_IN_ALL)
            database.execute(f"DELETE FROM run WHERE rowid NOT IN ({newest})")
            return True

        return self._do(add, write=True) or False

    def clear(self, notebook: str | None = None) -> None:
        where = "" if notebook is None else " WHERE notebook = ?"
        digests = [] if notebook is None else [notebook_digest(notebook)]
        self._do(lambda database: database.execute(f"DELETE FROM run{where}", digests))

    def _runs(self, query: str, *arguments: str) -> tuple[Run, ...]:
        rows = self._do(lambda database: database.execute(query, arguments).fetchall()) or ()
        return tuple(sorted(filter(None, map(_run, rows)), key=_order))

    def _do(self, action: Callable[[sqlite3.Connection], _T], *, write: bool = False) -> _T | None:
        """Call `action` in a transaction on a new connection; return its result, or None after a failure."""
        if self._file is None or not (write or self._file.exists()):
            return None
        try:
            import sqlite3
        except ImportError as error:  # this Python was built without it
            logger.info("there is no history: %s", error)
            return None
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._file, timeout=_BUSY_SECONDS)) as database, database:
                database.execute("PRAGMA secure_delete = ON")  # reasons may quote code
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version > _VERSION:
                    return None
                if version < _VERSION:
                    database.execute(_TABLE)
                    database.execute(f"PRAGMA user_version = {_VERSION}")
                return action(database)
        except (sqlite3.Error, OSError, UnicodeEncodeError) as error:
            logger.info("the history is not used: %s", error)
            if getattr(error, "sqlite_errorname", None) in _DAMAGED:
                self._remove()
            return None

    def _remove(self) -> None:
        assert self._file is not None
        for file in self._file.parent.glob(f"{_FILE}*"):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                logger.info("the history cannot be removed: %s", error)


def _row(notebook: str, run: Run) -> tuple[object, ...]:
    values = {name: getattr(run, name) for name in _COLUMNS} | {"seconds": json.dumps(dict(run.seconds))}
    return notebook, *values.values()


def _run(row: Sequence[Any]) -> Run | None:
    """Return the run in a row; None if this nbcache cannot read it."""
    try:
        run = Run(*row)
        if not all(isinstance(getattr(run, name), str) for name in _TEXTS):
            return None
        return replace(
            run,
            time=float(run.time),
            number=int(run.number),
            saved_seconds=None if run.saved_seconds is None else float(run.saved_seconds),
            execution_count=None if run.execution_count is None else int(run.execution_count),
            direction=Direction(run.direction),
            outcome=Outcome(run.outcome),
            level=None if run.level is None else Level(run.level),
            unfinished=bool(run.unfinished),
            seconds={str(phase): float(seconds) for phase, seconds in json.loads(str(run.seconds)).items()},
        )
    except (AttributeError, TypeError, ValueError):
        return None


def past_influence(history: Sequence[Run], present: Collection[str]) -> dict[tuple[str, int], frozenset[str]]:
    """Return run identity → cells that called its function earlier in its kernel, and are not `present`."""
    # After a call with another size, torch compiles for any size.
    removed: dict[tuple[str, str, str], set[str]] = {}
    by_run = {}
    for run in history:
        function_in_kernel = run.kernel, run.function, run.function_cell
        if run.cell and run.cell not in present:
            removed.setdefault(function_in_kernel, set()).add(run.cell)
        elif function_in_kernel in removed:
            by_run[run.identity] = frozenset(removed[function_in_kernel])
    return by_run


def of_one_kernel(
    runs: Sequence[Run], present: Collection[str], influences: Collection[tuple[str, int]]
) -> Sequence[Run]:
    """Return a cell's runs in the last kernel that no removed cell influenced, or else in the last kernel."""
    doubtful = {
        run.kernel
        for run in runs
        if run.identity in influences or (run.function_cell and run.function_cell not in present)
    }
    kernels = [run.kernel for run in runs]
    kernel = next((kernel for kernel in reversed(kernels) if kernel not in doubtful), kernels[-1])
    return [run for run in runs if run.kernel == kernel]


def missed_unchanged(history: Iterable[Run], kernel: str) -> tuple[Run, ...]:
    """Return the misses of a kernel whose cells an earlier kernel had run in the same environment."""
    earlier = set()
    misses = []
    for run in history:
        function_in_cell = run.environment, run.cell, run.function, run.function_cell
        if run.kernel != kernel:
            earlier.add(function_in_cell)
        elif run.cell and run.outcome is Outcome.MISS and function_in_cell in earlier:
            misses.append(run)
    return tuple(misses)


def asked_for(manifest: Manifest, cells: Collection[str], runs: Iterable[Run]) -> Manifest:
    """Return the part of `manifest` that the notebook's `cells` (digests) use; `runs` are oldest first.

    A cell uses a function's graphs from the last kernel in `runs`, and earlier ones if the cell raised there.
    """
    runs_of: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.cell in cells and manifest.environment.digest.startswith(run.environment):
            earlier = runs_of.get((run.cell, run.function), [])
            if not run.unfinished:
                earlier = [other for other in earlier if other.kernel == run.kernel]
            runs_of[run.cell, run.function] = [*earlier, run]

    def uses(graph: GraphSummary) -> bool:
        if graph.cell not in cells or (last := runs_of.get((graph.cell, graph.function))) is None:
            return graph.cell in cells or not graph.cell
        current = [run for run in last if not run.function_cell or run.function_cell in cells]
        return any((run.direction, run.key) == (graph.direction, graph.key) for run in current or last)

    graphs = tuple(filter(uses, manifest.graphs))
    needed = {digest for graph in graphs for digest in graph.artifacts}
    keys = {graph.key for graph in graphs}
    stale = {graph.key for graph in manifest.graphs} - keys
    refs = tuple(
        ref
        for ref in manifest.artifacts
        if ref.key not in stale and (ref.digest in needed or not ref.cell or ref.cell in cells)
    )
    digests = {ref.digest for ref in refs}
    pruned = tuple(
        replace(graph, artifacts=tuple(filter(digests.__contains__, graph.artifacts))) for graph in graphs
    )
    return replace(manifest, artifacts=refs, graphs=pruned)
