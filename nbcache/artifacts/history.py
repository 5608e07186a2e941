"""The history of a notebook: what each of its last graphs took, for estimates and for figures of a lifetime.

It stays on this machine: no snapshot holds it, and nothing of it is shared, since reasons may quote code.

Grammar (version 1, frozen; JSON as in `nbcache.artifacts.encoding`, the content of an entry)::

    history = {"format": "nbcache.history", "notebook": text, "runs": [*run], "version": 1}
    run     = {"cell": text, "direction": text, "environment": text, ["execution_count": integer,]
               "function": text, ["function_cell": text,] "kernel": text, "key": text, ["level": text,]
               "number": integer, "outcome": text, ["reason": text,] ["saved_seconds": seconds,]
               "seconds": {*text: seconds}, "time": seconds, ["unfinished": true]}

Each kernel writes its own entry, and no other writes that one, so nothing is lost where kernels of one
notebook run at once. Entries of earlier kernels are made one as soon as there are many::

    history/<notebook digest>/<kernel, or digest of what was made one>

What cannot be read is removed: it is worth less than telling of it would be.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from nbcache.artifacts.encoding import decode_entry, encode_entry
from nbcache.artifacts.manifests import notebook_digest
from nbcache.core.canonical_json import Fields, corrupt, from_json, to_json
from nbcache.core.errors import FormatError, StoreError, UnsupportedVersion
from nbcache.core.key import sha256
from nbcache.core.log import logger
from nbcache.core.model import Direction, GraphSummary, Level, Manifest, Outcome
from nbcache.core.reports import GraphRecord, has_own_name
from nbcache.core.text import one_line
from nbcache.stores.base import Store

__all__ = [
    "MAX_BYTES",
    "MAX_RUNS",
    "PREFIX",
    "HistoryStore",
    "Run",
    "Usual",
    "asked_for",
    "decode_history",
    "encode_history",
    "expected",
    "influences_of",
    "merged",
    "missed_unchanged",
    "of_one_kernel",
    "run_of",
]

PREFIX = "history/"
MAX_RUNS = 1000
"""Of a notebook, in all its environments: the newest are kept."""
MAX_BYTES = 512 << 10
"""Of all notebooks, compressed: some 25,000 runs, which are read in about a second."""

_FORMAT = "nbcache.history"
_MOST_ENTRIES = 16
"""So many kernels of a notebook leave an entry each before they are made one."""
_MAX_ENTRY_BYTES = 8 << 20
_LONGEST = 200
"""Characters of a text that are kept."""
_MOST_PHASES = 16
_ENVIRONMENT = 16
"""Hexadecimal digits of the environment's digest that are kept."""
_LAST_FEW = 5
"""So many runs make an estimate."""

_Word = TypeVar("_Word", Direction, Outcome, Level)


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one graph in one kernel."""

    time: float
    """Unix seconds at which its cell had ended."""
    kernel: str
    """Random; one for each start of the extension."""
    number: int
    """Which of this kernel's graphs it was, from 0 on."""
    environment: str
    """First 16 hexadecimal digits of the environment's digest."""
    cell: str
    """Digest of the source of the cell that compiled it (`Cell.digest`); empty outside a notebook."""
    function: str
    direction: Direction
    key: str
    """torch's FX graph key; empty where it was bypassed."""
    outcome: Outcome
    level: Level | None
    """The level that had it; None where nothing was hit."""
    seconds: Mapping[str, float]
    """Seconds by phase (`nbcache.core.reports.PHASES`), and their sum `total`."""
    saved_seconds: float | None = None
    """Seconds that compiling took when the artifact was made, less those spent now; None off a hit."""
    reason: str = ""
    """Why it was not hit, or what a hit had to do all the same; cut where it is long."""
    execution_count: int | None = None
    """The number of its cell, in this kernel; None where it had none."""
    function_cell: str = ""
    """Digest of the source of the cell that defines the function; empty where it comes from a module."""
    unfinished: bool = False
    """Whether the cell raised: the rest of its graphs may be missing from this kernel's runs."""

    def summary(self) -> dict[str, Any]:
        """Return what lists of runs show, as JSON values."""
        return {
            "execution_count": self.execution_count,
            "function": self.function,
            "direction": self.direction.value,
            "reason": self.reason or None,
        }

    @property
    def identity(self) -> tuple[str, int]:
        """What makes two of them the same run."""
        return (self.kernel, self.number)

    @property
    def total_seconds(self) -> float:
        return self.seconds.get("total", 0.0)


@dataclass(frozen=True, slots=True)
class Usual:
    """What a function's graph usually takes, by phase and in `total`; None where nothing tells."""

    cold: Mapping[str, float] | None
    """Seconds where it is compiled."""
    restored: Mapping[str, float] | None
    """Seconds where it is hit."""
    runs_cold: int = 0
    """How many runs the estimate rests on."""
    runs_restored: int = 0


def expected(
    history: Sequence[Run],
    cell: str,
    function: str,
    direction: Direction,
    *,
    environment: str = "",
) -> Usual:
    """Return what a graph usually takes, by the last few runs of its function in this cell.

    `history` is oldest first. Where the cell was never run as it is now, those of its function in any cell
    count, if the function has a name of its own; where `environment` (its digest) is given and known for
    them, those of other environments do not. The seconds are those of one run, the median by its total, so
    that its phases add up.
    """
    of_function = [run for run in history if (run.function, run.direction) == (function, direction)]
    here = environment[:_ENVIRONMENT]
    hits = [run for run in of_function if run.outcome is Outcome.HIT]
    others = [run for run in of_function if run.outcome is not Outcome.HIT]
    cold, restored = _nearest(others, cell, function, here), _nearest(hits, cell, function, here)
    return Usual(_median(cold), _median(restored), len(cold), len(restored))


def _nearest(runs: Sequence[Run], cell: str, function: str, environment: str) -> list[Run]:
    """Return the last few that are most like a graph of this function in this cell and environment."""
    kept = [run for run in runs if run.cell == cell]
    if not kept and has_own_name(function):
        kept = list(runs)
    kept = [run for run in kept if not environment or run.environment == environment] or kept
    return kept[-_LAST_FEW:]


def _median(runs: Sequence[Run]) -> Mapping[str, float] | None:
    if not runs:
        return None
    total = statistics.median_low(run.total_seconds for run in runs)
    return next(run.seconds for run in reversed(runs) if run.total_seconds == total)


def run_of(
    graph: GraphRecord, *, time: float, kernel: str, number: int, environment: str, unfinished: bool = False
) -> Run:
    """Return what the history keeps of a graph; `environment` is its digest."""
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
        seconds={phase: max(0.0, round(each, 4)) for phase, each in graph.seconds.items()},
        saved_seconds=None if graph.saved_seconds is None else max(0.0, round(graph.saved_seconds, 4)),
        reason=one_line(graph.reason or "", _LONGEST),
        execution_count=graph.cell.execution_count if graph.cell else None,
        function_cell=graph.function_cell.digest if graph.function_cell else "",
        unfinished=unfinished,
    )


def merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return each run once, oldest first; of very many the newest."""
    each = {run.identity: run for run in runs}
    return tuple(sorted(each.values(), key=_order)[-MAX_RUNS:])


def _order(run: Run) -> tuple[float, str, int]:
    return (run.time, *run.identity)


class HistoryStore:
    """The histories of all notebooks in a store. Every method raises StoreError where the store fails."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keys(self, notebook: str) -> list[str]:
        """Return the store's keys of a notebook's history."""
        return list(self._store.keys(_prefix(notebook)))

    def read(self, notebook: str) -> tuple[Run, ...]:
        """Return what kernels have kept of a notebook, oldest first; drop what cannot be read."""
        return merged(run for runs in self._entries(notebook).values() for run in runs)

    def everything(self) -> tuple[Run, ...]:
        """Return what kernels have kept of all notebooks, oldest first."""
        runs = {}
        for entry in self._store.get_many(list(self._store.keys(PREFIX))).values():
            with suppress(FormatError):
                found = decode_history(decode_entry(entry, max_bytes=_MAX_ENTRY_BYTES))
                runs.update({run.identity: run for run in found})
        return tuple(sorted(runs.values(), key=_order))

    def write(self, notebook: str, kernel: str, runs: Sequence[Run]) -> None:
        """Keep what `kernel` has run, all of it, in place of what it had written.

        FormatError where a text is none.
        """
        content = encode_history(notebook, runs[-MAX_RUNS:])
        self._store.put(_prefix(notebook) + kernel, encode_entry(content))

    def tidy(self, notebook: str) -> None:
        """Make one entry of many. A kernel that still writes one of them writes it again, whole."""
        if len(self.keys(notebook)) <= _MOST_ENTRIES:
            return
        entries = self._entries(notebook)
        content = encode_history(notebook, merged(run for runs in entries.values() for run in runs))
        name = _prefix(notebook) + sha256(content)
        if name not in entries:
            self._store.put(name, encode_entry(content))
        for key in entries.keys() - {name}:
            self._store.delete(key)

    def _entries(self, notebook: str) -> dict[str, list[Run]]:
        found = {}
        for key, entry in self._store.get_many(self.keys(notebook)).items():
            try:
                found[key] = decode_history(decode_entry(entry, max_bytes=_MAX_ENTRY_BYTES), notebook)
            except UnsupportedVersion:
                continue  # left to the nbcache that wrote it
            except FormatError as error:
                logger.info("%s is dropped: %s", key, error)
                with suppress(StoreError):  # one that cannot be written to can be read all the same
                    self._store.delete(key)
        return found


def influences_of(history: Sequence[Run], digests: Collection[str]) -> dict[tuple[str, int], frozenset[str]]:
    """Return the removed cells that compiled a run's function before it, in the same kernel.

    They are named by digest, runs by identity. torch may have made sizes dynamic that those cells varied.
    """
    removed: dict[tuple[str, str, str], set[str]] = {}
    by_run = {}
    for run in history:
        function = run.kernel, run.function, run.function_cell
        if run.cell and run.cell not in digests:
            removed.setdefault(function, set()).add(run.cell)
        elif function in removed:
            by_run[run.identity] = frozenset(removed[function])
    return by_run


def of_one_kernel(
    runs: Sequence[Run], digests: Collection[str], influences: Collection[tuple[str, int]]
) -> Sequence[Run]:
    """Return a cell's runs of the last kernel that no removed cell influenced; else of the last one."""
    doubtful = {
        run.kernel
        for run in runs
        if run.identity in influences or (run.function_cell and run.function_cell not in digests)
    }
    kernels = [run.kernel for run in runs]
    kernel = next((kernel for kernel in reversed(kernels) if kernel not in doubtful), kernels[-1])
    return [run for run in runs if run.kernel == kernel]


def missed_unchanged(history: Iterable[Run], kernel: str) -> tuple[Run, ...]:
    """Return the graphs that missed in a kernel, although earlier kernels ran the same cells here.

    The cell that defines the function is the same, too. `history` is oldest first.
    """
    earlier = set()
    misses = []
    for run in history:
        cell = run.environment, run.cell, run.function, run.function_cell
        if run.kernel != kernel:
            earlier.add(cell)
        elif run.cell and run.outcome is Outcome.MISS and cell in earlier:
            misses.append(run)
    return tuple(misses)


def encode_history(notebook: str, runs: Iterable[Run]) -> bytes:
    """Return a notebook's history as canonical JSON; FormatError where a text is none."""
    return to_json(_FORMAT, {"notebook": _shown(notebook), "runs": [_run_fields(run) for run in runs]})


def decode_history(content: bytes, notebook: str | None = None) -> list[Run]:
    """Return the runs of a history, of this notebook if one is given.

    Raises CorruptEntry or UnsupportedVersion.
    """
    fields = from_json(content, _FORMAT)
    if fields.text("notebook") != _shown(notebook or "") and notebook is not None:
        raise corrupt("a history is of another notebook than its key says")
    return [_run(Fields(value, "run")) for value in islice(fields.array("runs"), MAX_RUNS)]


def _run_fields(run: Run) -> dict[str, Any]:
    known: dict[str, Any] = {"level": run.level.value} if run.level else {}
    known |= {"reason": run.reason} if run.reason else {}
    known |= {"function_cell": run.function_cell} if run.function_cell else {}
    known |= {} if run.saved_seconds is None else {"saved_seconds": float(run.saved_seconds)}
    known |= {} if run.execution_count is None else {"execution_count": run.execution_count}
    known |= {"unfinished": True} if run.unfinished else {}
    return known | {
        "cell": run.cell,
        "direction": run.direction.value,
        "environment": run.environment,
        "function": run.function,
        "kernel": run.kernel,
        "key": run.key,
        "number": run.number,
        "outcome": run.outcome.value,
        "seconds": {phase: float(each) for phase, each in run.seconds.items()},
        "time": float(run.time),
    }


def _run(fields: Fields) -> Run:
    phases = fields.object("seconds")
    seconds = Fields(phases, "run's seconds")
    return Run(
        time=fields.seconds("time"),
        kernel=_text(fields, "kernel"),
        number=fields.integer("number"),
        environment=_text(fields, "environment"),
        cell=_text(fields, "cell"),
        function=_text(fields, "function"),
        direction=_one_of(Direction, fields.text("direction")),
        key=_text(fields, "key"),
        outcome=_one_of(Outcome, fields.text("outcome")),
        level=_one_of(Level, fields.text("level")) if fields.has("level") else None,
        seconds={one_line(phase, _LONGEST): seconds.seconds(phase) for phase in islice(phases, _MOST_PHASES)},
        saved_seconds=fields.seconds("saved_seconds") if fields.has("saved_seconds") else None,
        reason=_text(fields, "reason") if fields.has("reason") else "",
        execution_count=fields.integer("execution_count") if fields.has("execution_count") else None,
        function_cell=_text(fields, "function_cell") if fields.has("function_cell") else "",
        unfinished=fields.has("unfinished"),
    )


def _text(fields: Fields, name: str) -> str:
    return one_line(fields.text(name), _LONGEST)


def _one_of(kind: type[_Word], value: str) -> _Word:
    try:
        return kind(value)
    except ValueError as error:
        raise corrupt(f"a run's {kind.__name__.lower()} is none that there is") from error


def _shown(notebook: str) -> str:
    """Return a notebook's identity as JSON can hold it: a path in no encoding is no error."""
    return notebook.encode(errors="backslashreplace").decode()


def _prefix(notebook: str) -> str:
    return f"{PREFIX}{notebook_digest(notebook)}/"


def asked_for(manifest: Manifest, cells: Collection[str], runs: Iterable[Run]) -> Manifest:
    """Return what the present `cells`, given by their digests, use of `manifest`.

    Of the graphs of a cell and function those count that the last kernel of `runs`, oldest first, had.
    Where the cell raised there, the graphs of earlier runs count, too.
    """
    last: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.cell in cells and manifest.environment.digest.startswith(run.environment):
            earlier = last.get((run.cell, run.function), [])
            if not run.unfinished:
                earlier = [other for other in earlier if other.kernel == run.kernel]
            last[run.cell, run.function] = [*earlier, run]

    def uses(graph: GraphSummary) -> bool:
        if graph.cell not in cells or (of_cell := last.get((graph.cell, graph.function))) is None:
            return graph.cell in cells or not graph.cell
        current = [run for run in of_cell if not run.function_cell or run.function_cell in cells]
        return any((run.direction, run.key) == (graph.direction, graph.key) for run in current or of_cell)

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
