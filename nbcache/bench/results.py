"""What was measured, and what it comes to: values and medians, no I/O."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from nbcache.bench.options import Idle, Variant
from nbcache.bench.variants import Subject
from nbcache.core.reports import PHASES

__all__ = ["Held", "Result", "Row", "Run", "Sizes", "Traffic", "median", "outcomes_of", "ratio", "rows_of"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a Redis was asked between two moments."""

    commands: Mapping[str, int]
    """Commands by name, in lower case."""
    round_trips: int
    """How often the server read from a connection: commands that are sent together are one round trip.

    A long command, as one that writes a large value, is read in several pieces, and counts as many.
    """


@dataclass(frozen=True, slots=True)
class Run:
    """What one fresh kernel measured. Seconds throughout."""

    variant: Variant
    number: int
    """Which run of the variant, from 1."""
    idle: Idle | None
    """Idle time given before each cell; None for variants to which it is all the same."""
    cell_seconds: float
    """From sending the measured cell to its result."""
    start_seconds: float
    """From the start of the process to that result, idle time included."""
    setup_seconds: float
    """The cells that import torch and make the model."""
    load_seconds: float | None
    """`%load_ext nbcache`; None where it is not loaded."""
    hot_seconds: float
    """Median of the calls after the first."""
    agrees: bool
    """Whether the results, and in training the gradients, are eager's within `tolerance`."""
    difference: float | None
    """Largest absolute difference from eager; None where the results cannot be compared."""
    tolerance: float
    compared_with: str = "eager"
    """`float64` where compiled and eager are apart, and their distance from that decided."""
    next_seconds: Sequence[float] = field(default_factory=list)
    """Of the calls between the first and the hot ones; with CUDA graphs the first of these records them."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """What torch's Inductor counted until the end of the cell; empty where nothing was compiled.

    A graph that hits adds what was counted when it was compiled.
    """
    benchmarked: bool = False
    """Whether torch has benchmarked anything on a GPU until then, to choose what is fastest."""
    report: Mapping[str, Any] | None = None
    """nbcache's report of the measured cell (`CellReport.to_json`); None where nbcache is not loaded."""
    overhead_seconds: float | None = None
    """What nbcache's hooks spent on the threads that compile; None where it is not known."""
    explaining_seconds: float | None = None
    """Of these, what it took to keep what the keys of graphs are made of, and to say why they missed."""
    prewarm: str | None = None
    """The state of prewarming when waiting for it ended; None where it was not waited for."""
    asked_before: Traffic | None = None
    """What the Redis was asked until the measured cell began; None for variants without one."""
    asked: Traffic | None = None
    """What it was asked during that cell."""
    ready_seconds: float | None = None
    """From the start of the process until it answers; None in what earlier versions have kept, like these."""
    import_seconds: float | None = None
    """The cell that imports torch."""
    private_bytes: int | None = None
    """Memory that is this process's alone, when the measured cell has its result."""

    @property
    def graphs(self) -> Sequence[Mapping[str, Any]]:
        """The graphs of the measured cell, as `GraphRecord.to_json` gives them."""
        return self.report["graphs"] if self.report is not None else ()

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, summed over the graphs, and the rest of the cell as `outside`."""
        spent = {phase: sum(graph["seconds"].get(phase, 0.0) for graph in self.graphs) for phase in PHASES}
        inside = sum(graph["seconds"].get("total", 0.0) for graph in self.graphs)
        return {**spent, "outside": self.cell_seconds - inside}

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return {
            **asdict(self),
            "variant": self.variant.value,
            "report": None if self.report is None else dict(self.report),
            "phases": self.phases if self.report is not None else None,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        """Return the run of which `to_json` made `values`."""
        asked = {name: values[name] and Traffic(**values[name]) for name in ("asked_before", "asked")}
        known = _known(cls, values)
        return cls(**{**known, **asked, "variant": Variant(values["variant"])})


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of what the measured cell of a cold run stored, and of torch's bundle of the same."""

    artifacts: int
    """Number of artifacts."""
    artifact_bytes: int
    """Their contents, uncompressed."""
    snapshot_bytes: int
    """What would travel: their entries and the manifest's, as they lie in the store, compressed."""
    common_bytes: int
    """The entries of those types of artifact only that torch's bundle can hold."""
    store_bytes: int
    """All that the manifests name, with what prewarming keeps there for itself."""
    bundle_bytes: int | None = None
    """What `torch.compiler.save_cache_artifacts` returned; None where no variant needed it."""
    bytes_by_type: Mapping[str, int] = field(default_factory=dict)
    """Compressed entries by artifact type."""
    trace_bytes: int = 0
    """Of the contents, those of traces, uncompressed."""
    components_bytes: int = 0
    """Of the manifest, what the keys of its graphs are made of, for `%nbcache why`: compressed, as text."""

    def to_json(self) -> dict[str, Any]:
        """Return the sizes as JSON values."""
        found = asdict(self) | {"bytes_by_type": dict(self.bytes_by_type)}
        return found | {"bundle_ratio": ratio(self.bundle_bytes, self.common_bytes)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Sizes:
        """Return the sizes of which `to_json` made `values`."""
        return cls(**_known(cls, values))


@dataclass(frozen=True, slots=True)
class Held:
    """What a Redis holds for one of the variants that use it."""

    keys: int
    value_bytes: int
    """Lengths of the values."""
    memory_bytes: int
    """What the server says that keys and values take (`MEMORY USAGE`)."""
    common_bytes: int
    """Lengths of those values that hold what torch's own caches hold too: the measured cell's graphs."""
    bytes_by_type: Mapping[str, int] = field(default_factory=dict)
    """Lengths of nbcache's values by artifact type."""
    asked: Traffic | None = None
    """What the kernel asked that filled it, from its start to its end."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Held:
        """Return that of which `asdict` made `values`."""
        return cls(**{**_known(cls, values), "asked": values["asked"] and Traffic(**values["asked"])})


@dataclass(slots=True)
class Result:
    """Everything about one subject; it grows while it is measured."""

    subject: Subject
    runs: list[Run] = field(default_factory=list)
    sizes: Sizes | None = None
    traced_sizes: Sizes | None = None
    """The same of a cold run that has stored traces, too."""
    uncounted_seconds: float | None = None
    """The cell of the first kernel, which fills torch's folder without nbcache; None where none does."""
    held: dict[Variant, Held] = field(default_factory=dict)
    """What the Redis held for the variants that use it, before the first of their runs."""
    error: str | None = None
    """Why it could not be measured in full."""
    notes: list[str] = field(default_factory=list)
    """What to know about these figures."""

    def to_json(self) -> dict[str, Any]:
        """Return all runs and what they come to as JSON values."""
        subject = self.subject
        return {
            "model": subject.model,
            "mode": subject.mode.value,
            "size": subject.size or None,
            "device": subject.device,
            "dynamic": subject.dynamic,
            "compile_mode": subject.compile_mode,
            "precision": subject.precision.value,
            "error": self.error,
            "notes": list(self.notes),
            "uncounted_seconds": self.uncounted_seconds,
            "sizes": self.sizes and self.sizes.to_json(),
            "traced_sizes": self.traced_sizes and self.traced_sizes.to_json(),
            "redis": {variant.value: asdict(held) for variant, held in self.held.items()} or None,
            "medians": [row.to_json() for row in rows_of(self.runs)],
            "runs": [run.to_json() for run in self.runs],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], subject: Subject) -> Result:
        """Return what `to_json` made `values` of; what failed then may be tried again."""
        return cls(
            subject,
            runs=[Run.from_json(run) for run in values["runs"]],
            sizes=values["sizes"] and Sizes.from_json(values["sizes"]),
            traced_sizes=values.get("traced_sizes") and Sizes.from_json(values["traced_sizes"]),
            uncounted_seconds=values["uncounted_seconds"],
            held={Variant(name): Held.from_json(held) for name, held in (values["redis"] or {}).items()},
            notes=list(values["notes"]),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one variant at one idle time."""

    variant: Variant
    idle: Idle | None
    runs: int
    cell_seconds: float
    cell_fastest: float
    cell_slowest: float
    start_seconds: float
    setup_seconds: float
    hot_seconds: float
    times_torch_warm: float | None
    """How many times faster the cell is than `torch warm`; None without that variant."""
    times_mega_cache: float | None
    """How many times faster the cell is than `mega-cache`."""
    times_torch_redis: float | None
    """How many times faster the cell is than `torch redis`."""
    start_times_torch_warm: float | None
    """The same from the start of the process; None where idle time is part of it."""
    agrees: bool
    """In all runs."""
    difference: float | None
    """The largest of all runs."""
    compared_with: str
    """`float64` where that decided in any run."""
    graphs: int | None
    """Of the run with the fewest hits, like `outcomes`; None where nbcache is not loaded."""
    outcomes: Mapping[str, int]
    """How many graphs had which outcome."""
    phases: Mapping[str, float]
    """Seconds by phase, and `outside` of all; empty where nbcache is not loaded."""
    next_seconds: Sequence[float]
    """Medians of the calls between the first and the hot ones."""
    kernels: int | None
    """C++ and Triton kernels that the graphs run; None where nbcache is not loaded."""
    kernels_compiled: int | None
    """How many of them were compiled, in the run that compiled most."""
    benchmarked: bool
    """Whether torch benchmarked anything on a GPU, in any run."""
    reasons: Sequence[str]
    """What hits had to do all the same, in any run."""
    overhead_seconds: float | None
    overhead_share: float | None
    """`overhead_seconds` as a part of the cell's."""
    explaining_seconds: float | None
    asked_before: Traffic | None
    """Of the run whose cell asked the Redis most often, like `asked`."""
    asked: Traffic | None
    ready_seconds: float | None
    import_seconds: float | None
    private_bytes: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return {
            **asdict(self),
            "variant": self.variant.value,
            "outcomes": dict(self.outcomes),
            "phases": dict(self.phases),
        }


def _known(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are fields of a dataclass."""
    return {each.name: values[each.name] for each in fields(cls) if each.name in values}


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are there, or None."""
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def ratio(other: float | None, ours: float | None) -> float | None:
    """Return how many times `ours` goes into `other`: 2.0 where it is half; None where one is missing."""
    return other / ours if other is not None and ours else None


def outcomes_of(run: Run) -> dict[str, int]:
    """Return how many graphs had which outcome."""
    return dict(Counter(graph["outcome"] for graph in run.graphs))


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Return one row for each variant and idle time, in the order of `Variant`, then as measured."""
    groups: dict[tuple[Variant, Idle | None], list[Run]] = {}
    for run in sorted(runs, key=lambda run: list(Variant).index(run.variant)):
        groups.setdefault((run.variant, run.idle), []).append(run)

    def reference(variant: Variant, figure: Callable[[Run], float]) -> float | None:
        return median(map(figure, groups.get((variant, None), ())))

    warm = reference(Variant.TORCH_WARM, lambda run: run.cell_seconds)
    mega = reference(Variant.MEGA_CACHE, lambda run: run.cell_seconds)
    redis = reference(Variant.TORCH_REDIS, lambda run: run.cell_seconds)
    started = reference(Variant.TORCH_WARM, lambda run: run.start_seconds)
    return [_row(group, warm, mega, redis, started) for group in groups.values()]


def _row(
    group: Sequence[Run],
    warm: float | None,
    mega: float | None,
    redis: float | None,
    started: float | None,
) -> Row:
    last = group[-1]
    busiest = max(group, key=lambda run: run.asked.round_trips if run.asked is not None else 0)
    worst = min(group, key=lambda run: outcomes_of(run).get("hit", 0))
    cells = [run.cell_seconds for run in group]
    cell = statistics.median(cells)
    start = statistics.median(run.start_seconds for run in group)
    idled = last.idle is not None and last.idle != 0
    names = last.phases if last.report is not None else ()
    overhead = median(run.overhead_seconds for run in group)
    differences = [run.difference for run in group if run.difference is not None]
    recorded = [run.graphs for run in group if run.report is not None]
    hits = [graph for run in group for graph in run.graphs if graph["outcome"] == "hit"]
    return Row(
        variant=last.variant,
        idle=last.idle,
        runs=len(group),
        cell_seconds=cell,
        cell_fastest=min(cells),
        cell_slowest=max(cells),
        start_seconds=start,
        setup_seconds=statistics.median(run.setup_seconds for run in group),
        hot_seconds=statistics.median(run.hot_seconds for run in group),
        times_torch_warm=ratio(warm, cell),
        times_mega_cache=ratio(mega, cell),
        times_torch_redis=ratio(redis, cell),
        start_times_torch_warm=None if idled else ratio(started, start),
        agrees=all(run.agrees for run in group),
        difference=max(differences, default=None),
        compared_with="float64" if any(run.compared_with == "float64" for run in group) else "eager",
        graphs=len(worst.graphs) if last.report is not None else None,
        outcomes=outcomes_of(worst),
        phases={name: statistics.median(run.phases[name] for run in group) for name in names},
        next_seconds=[*map(statistics.median, zip(*(run.next_seconds for run in group), strict=True))],
        kernels=max((_sum(graphs, "kernels") for graphs in recorded), default=None),
        kernels_compiled=max((_sum(graphs, "kernels_compiled") for graphs in recorded), default=None),
        benchmarked=any(run.benchmarked for run in group),
        reasons=[*dict.fromkeys(filter(None, map(_cost_of_hit, hits)))],
        overhead_seconds=overhead,
        overhead_share=None if overhead is None else overhead / cell,
        explaining_seconds=median(run.explaining_seconds for run in group),
        asked_before=busiest.asked_before,
        asked=busiest.asked,
        ready_seconds=median(run.ready_seconds for run in group),
        import_seconds=median(run.import_seconds for run in group),
        private_bytes=median(run.private_bytes for run in group),
    )


def _cost_of_hit(graph: Mapping[str, Any]) -> str:
    """Return what a hit had to do all the same; that it was not traced again is no cost."""
    notes = (graph.get("reason") or "").split("; ")
    return "; ".join(note for note in notes if not note.startswith("not traced: "))


def _sum(graphs: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(graph.get(name, 0) for graph in graphs)
