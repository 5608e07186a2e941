"""Records of graphs, for reports and the live line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from nbcache.core.key import sha256
from nbcache.core.model import Direction, Level, Outcome

PHASES = ("trace", "dynamo", "aot", "inductor", "build", "wait", "load")
"""The phases of `GraphRecord.seconds`, in the order of a compile.

`trace` looks for a stored trace and checks it; `build` runs the C++ or Triton compiler; `wait` waits for
another kernel that compiles the same graph; `load` reads from caches and loads kernels.
"""

RESUMED = " (resumed)"
"""Suffix of the name of a function that continues after a graph break."""
_TRACE_FITS = "not traced: "


def bare_name(function: str) -> str:
    """Return the name that all parts of a function share: after a break, torch omits its class."""
    return function.removesuffix(RESUMED).rpartition(".")[2]


def has_own_name(function: str) -> bool:
    """Return whether the name identifies a function; False for a lambda."""
    return not function.removesuffix(RESUMED).endswith("<lambda>")


def cost_of_hit(reason: str | None) -> str:
    """Return the notes in a hit's reason that name a cost: all but the one that its trace fits."""
    notes = (reason or "").split("; ")
    return "; ".join(note for note in notes if not note.startswith(_TRACE_FITS))


@dataclass(frozen=True, slots=True)
class Cell:
    execution_count: int | None
    digest: str
    """First 16 hexadecimal digits of the SHA-256 of the cell's source."""

    @classmethod
    def of(cls, source: str, execution_count: int | None) -> Cell:
        return cls(execution_count, sha256(source.encode())[:16])

    @property
    def label(self) -> str:
        return f"In[{' ' if self.execution_count is None else self.execution_count}]"


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of the keys of two graphs that differs."""

    what: str
    before: str
    now: str
    """Empty, like `before`, if the values are too long to show."""
    where: str = ""
    """The current line, `In[4]:7`, or empty if it is unknown."""

    def words(self) -> str:
        at = f" ({self.where})" if self.where else ""
        if not self.before and not self.now:
            return f"{self.what} differs{at}" if ":" not in self.what else f"{self.what}{at}"
        return f"{self.what}: {self.before or 'none'} before, {self.now or 'none'} now{at}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The differences between a graph that missed and the nearest stored one."""

    nearest: str
    differences: tuple[Difference, ...]
    """At least one; the most informative first."""

    def clause(self) -> str:
        first, *more = (difference.words() for difference in self.differences)
        return first + (f"; and {len(more)} more, see %nbcache why" if more else "")


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """One graph: the row of every report. `to_json` names are stable."""

    function: str
    compile_id: str
    direction: Direction
    outcome: Outcome
    cell: Cell | None = None
    """The cell that was running when the graph compiled; None outside any cell."""
    function_cell: Cell | None = None
    """The cell that defines the function; None for a function of a module."""
    location: str = ""
    """`file:line` of the function, `In[3]:5` for one that is defined in a cell."""
    level: Level | None = None
    source: str | None = None
    """The source of a hit, in words: `torch's cache folder`, `local store`."""
    reason: str | None = None
    """The reason of a miss, bypass or disabled cache; for a hit, the remaining cost."""
    key: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase (`PHASES`, absent where zero) and their sum `total`."""
    saved_seconds: float | None = None
    """Seconds of the compile that made the artifact, less the seconds spent now; None unless it hit."""
    operators: int | None = None
    """Operators in the traced graph; None for a backward graph, which has no trace."""
    kernels: int = 0
    kernels_compiled: int = 0
    """The kernels that were compiled now; the others came from a cache."""
    bytes: Mapping[str, int] = field(default_factory=dict)
    recompile_reason: str | None = None
    versions: int = 0
    """Versions of its function that torch holds, including this one; 0 unless this is a recompile."""
    recompile_limit: int = 0
    """Versions that torch holds at most; further calls run eagerly. 0 if unknown."""
    graph_break_reason: str | None = None
    threads: int = 0
    trace: str | None = None
    """The stored trace: `adopted` or `outdated`; `agrees` or `differs` after an audit."""
    components: str = field(default="", repr=False)
    explanation: Explanation | None = field(default=None, repr=False)
    """Its differences from the nearest stored graph; None for a hit and if there are none."""
    code_path: str = field(default="", repr=False)

    @property
    def total_seconds(self) -> float:
        return self.seconds.get("total", 0.0)

    @property
    def cell_digest(self) -> str:
        return self.cell.digest if self.cell else ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values under the stable names in docs/json.md."""
        shown = {item.name: getattr(self, item.name) for item in fields(self) if item.repr}
        return shown | {
            "cell": self.cell and asdict(self.cell),
            "function_cell": self.function_cell and asdict(self.function_cell),
            "direction": self.direction.value,
            "outcome": self.outcome.value,
            "level": self.level and self.level.value,
            "seconds": dict(self.seconds),
            "bytes": dict(self.bytes),
            "versions": self.versions or None,
            "recompile_limit": self.recompile_limit or None,
            "threads": self.threads or None,
        }


@dataclass(frozen=True, slots=True)
class GraphContents:
    """Guards and code of a graph. They are read on demand and not stored."""

    guards: tuple[str, ...] = ()
    no_guards: str = ""
    code: str = ""
    no_code: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "guards": None if self.no_guards else list(self.guards),
            "no_guards": self.no_guards or None,
            "code": None if self.no_code else self.code,
            "no_code": self.no_code or None,
        }


@dataclass(frozen=True, slots=True)
class CellReport:
    """The graphs of one run of a cell, in the order of their compiles."""

    cell: Cell | None
    graphs: tuple[GraphRecord, ...]
    seconds: float
    """Wall seconds of the cell."""
    notices: tuple[str, ...] = ()
    """One-line warnings to show once: a level that failed, a setting torch ignores."""
    name: str | None = None

    def count(self, outcome: Outcome) -> int:
        return Counter(graph.outcome for graph in self.graphs)[outcome]

    @property
    def compile_seconds(self) -> float:
        return sum(graph.total_seconds for graph in self.graphs)

    @property
    def saved_seconds(self) -> float:
        return sum(graph.saved_seconds or 0.0 for graph in self.graphs)

    def to_json(self) -> dict[str, Any]:
        return {
            "cell": self.cell and asdict(self.cell),
            "name": self.name,
            "graphs": [graph.to_json() for graph in self.graphs],
            "hits": self.count(Outcome.HIT),
            "misses": self.count(Outcome.MISS),
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "saved_seconds": self.saved_seconds,
            "notices": list(self.notices),
        }


@dataclass(frozen=True, slots=True)
class Activity:
    """The compile that runs now: the live line's content."""

    function: str
    compile_id: str
    phase: str
    """One of `PHASES`, or `restoring` while artifacts are being made present."""
    seconds: float
    graphs_done: int
    compiled_by: str = ""
    """The user of the kernel that compiles it, if this kernel waits for another one."""
    compiled_since: float = 0.0
    """Unix seconds of their start, by their clock."""
    backward: bool = False
    usual_seconds: float = 0.0
    """The usual seconds of this compile; 0 where they are unknown."""
    usual_graphs: int = 0
    """The graphs of the cell when it last ran; 0 where they are unknown."""
