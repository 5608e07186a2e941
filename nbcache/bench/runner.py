"""Run every variant of every subject in fresh kernels, alternating."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nbcache.artifacts.encoding import decode_entry, decode_manifest
from nbcache.artifacts.types import type_of
from nbcache.bench import kept
from nbcache.bench.kernels import (
    BenchError,
    CellFailed,
    Home,
    Kernel,
    environment,
    kernel,
    link_package,
)
from nbcache.bench.options import FULL, Idle, Options, Variant
from nbcache.bench.redis_server import OURS, TORCHS, Counts, Server
from nbcache.bench.results import Result, Run, Sizes
from nbcache.bench.variants import (
    IMPORT,
    LOAD,
    Planned,
    Subject,
    loads_nbcache,
    measured_cell,
    schedule,
    setup_cell,
    subjects,
    variables,
)
from nbcache.core.errors import FormatError, StoreError
from nbcache.core.model import ArtifactRef
from nbcache.core.text import DOT
from nbcache.stores.directory import DirectoryStore

__all__ = ["Runner", "prewarmed", "sizes_of"]

_PREWARM_STATE = (
    "(lambda session: session.prewarm.state if session.settings.prewarm else 'switched off')"
    "(__import__('nbcache').session())"
)
_PREWARM_OVER = ("done", "failed", "switched off")
_ON_STORE = frozenset({Variant.RESTART, Variant.FRESH, Variant.FORKED})
"""The variants that need nbcache's store of a cold kernel without traces."""
_ON_TORCHS = frozenset({Variant.TORCH_WARM, Variant.MEGA_CACHE})
"""The variants that need torch's own folder or bundle."""
_NOT_IN_NAMES = r'[\\/:*?"<>|]'
"""What torch replaces in a user's name to name its folder."""


@dataclass(slots=True)
class Runner:
    """Measures what `options` ask for. `results` grows as it does: an interrupt loses nothing.

    With `options.keep`, what an earlier command has left there is not measured again.
    """

    options: Options
    folder: Path
    """An empty folder for everything that kernels write and that is not to be kept."""
    say: Callable[[str], None]
    """Takes one line of progress."""
    server: Server | None = None
    """The Redis of the variants that need one."""
    measured: Callable[[], None] = lambda: None
    """Called after each run, when `results` has it."""
    results: list[Result] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    """Versions and machine, as the first kernel told them."""
    _path: Path = field(init=False)
    _here: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._path = link_package(self.folder)
        self._here = kept.identity(self.options)

    def run(self) -> None:
        """Measure all subjects. One that fails says so, and the next one begins.

        BenchError, before anything is measured, where what was kept is not comparable.
        """
        root = self.folder if self.options.keep is None else Path(self.options.keep)
        for subject in subjects(self.options):
            result, told = kept.load(root / subject.folder, subject, self._here)
            self.environment = self.environment or told
            self.results.append(result)
        for result in self.results:
            places = _Places(root / result.subject.folder)
            places.root.mkdir(parents=True, exist_ok=True)
            try:
                self._measure(result, places)
            except BenchError as error:
                self._failed(result, error)
            if self.options.keep is None or result.error is None:
                places.empty()

    def _measure(self, result: Result, places: _Places) -> None:
        subject = result.subject
        planned = schedule(self.options.variants, self.options.idle, self.options.runs)
        done = {(run.variant, run.number, run.idle) for run in result.runs}
        missing = [each for each in planned if (each.variant, each.number, each.idle) not in done]
        if len(missing) < len(planned):
            self.say(f"{subject.label}: {len(planned) - len(missing)} of {len(planned)} runs are kept")
        if missing:
            self._prepare(result, places, missing)
        for number, each in enumerate(missing, 1 + len(planned) - len(missing)):
            idle = f", idle {each.idle:g} s" if isinstance(each.idle, float) else ", idle until prewarmed"
            shown = each.variant.label + (idle if each.idle is not None else "")
            try:
                run = self._one(subject, each, places)
            except CellFailed as error:
                if each.variant.is_cold:
                    raise
                self._failed(result, error, shown)  # others may have more luck
                continue
            self._note_sizes(result, places, run)
            if run.prewarm not in (None, "done"):
                result.notes.append(f"{shown}, run {each.number}: prewarming was {run.prewarm!r}")
            result.runs.append(run)
            kept.save(places.root, result, self.environment, self._here)
            self.measured()
            self.say(
                f"{subject.label}: run {each.number} of {self.options.runs}{DOT}{shown}: "
                f"{run.cell_seconds:.2f} s in the cell ({number} of {len(planned)})"
            )

    def _failed(self, result: Result, error: BenchError, shown: str = "") -> None:
        result.error = result.error or ": ".join(filter(None, (shown, str(error))))
        self.say(f"{result.subject.label}: FAILED {': '.join(filter(None, (shown, str(error))))}")

    def _prepare(self, result: Result, places: _Places, missing: Sequence[Planned]) -> None:
        """Fill torch's own folder and bundle, and nbcache's store where no cold run will; none of it counts.

        The first kernel also reads modules into the page cache and compiles them to .pyc files, for all.
        """
        subject, wanted = result.subject, {each.variant for each in missing}
        fills = bool(wanted & _ON_TORCHS) and not self.options.compile_once
        if not (places.filled if fills else result.runs):
            self.say(
                f"{subject.label}: preparing" + (" torch's own cache folder and bundle" if fills else "")
            )
            run = self._one(subject, Planned(Variant.TORCH_WARM if fills else Variant.EAGER, 0), places)
            if fills:
                result.uncounted_seconds = run.cell_seconds
        if Variant.FRESH in wanted and self.options.python != sys.executable:
            self._check_other_python(subject, places)
        fillers = {
            Variant.COLD: _ON_STORE | (_ON_TORCHS if self.options.compile_once else frozenset()),
            Variant.COLD_TRACED: frozenset({Variant.TRACED, Variant.FORKED_TRACED}),
        }
        for cold, find in fillers.items():
            fills_torchs = cold is Variant.COLD and self.options.compile_once
            there = places.stored(cold).exists() and (places.filled or not fills_torchs)
            first = next((each.variant for each in missing if each.variant in {*find, cold}), None)
            if not there and first in find:
                self.say(f"{subject.label}: preparing nbcache's store")
                self._note_sizes(result, places, self._one(subject, Planned(cold, 0), places))
        if self.server is not None and any(variant.needs_server for variant in wanted):
            self._fill(self.server, result, places)

    def _fill(self, server: Server, result: Result, places: _Places) -> None:
        """Have everything in the Redis, by a kernel of each variant that finds nothing anywhere."""
        server.clear()
        for variant, beginning in ((Variant.TORCH_REDIS, TORCHS), (Variant.SHARED, OURS)):
            if variant in self.options.variants:
                self.say(f"{result.subject.label}: preparing what {variant.label} has in the Redis")
                before = server.counts()
                run = self._one(result.subject, Planned(variant, 0), places)
                asked = server.counts().since(before)
                cell = run.report["cell"]["digest"] if run.report else ""
                result.held[variant] = replace(server.held(beginning, cell), asked=asked)

    def _check_other_python(self, subject: Subject, places: _Places) -> None:
        home, python = places.eager, self.options.python
        home.empty()
        with self._kernel(python, home) as running:
            running.run(setup_cell(subject))
            version = running.ask("torch.__version__ + ''")
        if version != self.environment["torch"]:
            raise BenchError(
                f"torch is {version} there and {self.environment['torch']} here, so nothing can be restored",
                where=python,
                next_step="give --python an environment with the same torch",
            )

    def _kernel(
        self, python: str, home: Home, more: Mapping[str, str] | None = None, *, forked: bool = False
    ) -> Any:
        variables = {**environment(home, os.environ, self._path), **(more or {})}
        return kernel(python, home, variables, Path.cwd(), forked=forked)

    def _counts(self, variant: Variant) -> Counts | None:
        return self.server.counts() if self.server is not None and variant.needs_server else None

    def _one(self, subject: Subject, planned: Planned, places: _Places) -> Run:
        """Run one fresh kernel; number 0 is preparation."""
        variant = planned.variant
        preparing = planned.number == 0
        home = places.of(variant)
        home.empty(
            keep_caches=variant is Variant.TORCH_WARM and not preparing,
            store=places.stored(variant) if variant.restores_store else None,
        )
        python = self.options.python if variant is Variant.FRESH else sys.executable
        more = variables(variant, self.server.url if self.server is not None else "", places.keys)
        fills = variant is Variant.TORCH_WARM and preparing
        if variant is Variant.COLD and self.options.compile_once:
            fills, more = True, {**more, "TORCHINDUCTOR_CACHE_DIR": str(places.empty_torchs())}
        at_first = self._counts(variant)
        with self._kernel(python, home, more, forked=variant.is_forked) as running:
            loaded = running.run(LOAD) if loads_nbcache(variant) else None
            state = _idle(running, planned.idle)
            imported = running.run(IMPORT)
            set_up = running.run(setup_cell(subject))
            state = _idle(running, planned.idle) or state
            at_cell = self._counts(variant)
            measured = running.run(measured_cell(subject, variant, str(places.bundle)))
            at_end, private = self._counts(variant), running.private_bytes()
            if fills:
                running.run(f"save_bundle({str(places.bundle)!r})")
            if variant.is_cold or (variant is Variant.SHARED and preparing):
                prewarmed(running)  # as a user's kernel would, which goes on: it stores that, too
            arguments = f"execution_count={measured.execution_count}, recorded={loaded is not None}"
            running.run(f"finish({str(places.found)!r}, case, compiled, output, {arguments})")
        if fills and variant is Variant.COLD:
            places.give_torchs(home)
        if fills:
            places.set_filled()
        found = json.loads(places.found.read_text())
        anew = found["counters"].get("fxgraph_cache_miss")
        if anew and variant in _ON_TORCHS and self.options.compile_once:
            raise BenchError(
                f"{variant.value} compiled anew what nbcache had compiled: its keys are not torch's here",
                next_step="leave out --compile-once",
            )
        if variant.is_cold:
            places.set_stored(variant, home.store)
        self.environment = self.environment or found["environment"]
        return Run(
            variant=variant,
            number=planned.number,
            idle=planned.idle,
            cell_seconds=measured.seconds,
            start_seconds=measured.ended - running.started,
            setup_seconds=imported.seconds + set_up.seconds,
            load_seconds=None if loaded is None else loaded.seconds,
            hot_seconds=found["hot_seconds"],
            next_seconds=found["next_seconds"],
            counters=found["counters"],
            benchmarked=found["benchmarked"],
            report=found.get("report"),
            overhead_seconds=found.get("overhead_seconds"),
            explaining_seconds=found.get("explaining_seconds"),
            prewarm=state,
            asked_before=at_cell.since(at_first) if at_first and at_cell else None,
            asked=at_end.since(at_cell) if at_cell and at_end else None,
            ready_seconds=running.ready_seconds,
            import_seconds=imported.seconds,
            private_bytes=private,
            **found["agreement"],
        )

    def _note_sizes(self, result: Result, places: _Places, run: Run) -> None:
        """Note what a cold run has stored."""
        if not run.variant.is_cold:
            return
        sizes = sizes_of(places.stored(run.variant), run.report["cell"]["digest"] if run.report else "")
        with suppress(FileNotFoundError):
            sizes = replace(sizes, bundle_bytes=places.bundle.stat().st_size)
        if run.variant.keeps_traces:
            result.traced_sizes = sizes
        else:
            result.sizes = sizes


@dataclass(frozen=True, slots=True)
class _Places:
    """The folders of one subject."""

    root: Path

    def of(self, variant: Variant) -> Home:
        """Return the folders of a variant's kernels; those of a restart are those of what was restarted."""
        if variant.restores_store and variant is not Variant.FRESH:
            variant = Variant.COLD_TRACED if variant.keeps_traces else Variant.COLD
        return Home(self.root / variant.value)

    @property
    def eager(self) -> Home:
        return self.of(Variant.EAGER)

    @property
    def filled(self) -> bool:
        """Whether torch's own folder and bundle are there, all of them."""
        return self._filled.exists()

    def set_filled(self) -> None:
        self._filled.touch()

    def empty_torchs(self) -> Path:
        """Empty the folders of `torch warm`, and return the one that torch takes for its caches there."""
        self._filled.unlink(missing_ok=True)
        home = self.of(Variant.TORCH_WARM)
        home.empty()
        return _default_folder(home)

    def give_torchs(self, home: Home) -> None:
        """Give `torch warm` what a kernel has left outside of the folder that `empty_torchs` returned.

        torch has its C++ headers in the temp folder, whatever it was given, Triton a module in the home.
        """
        theirs = self.of(Variant.TORCH_WARM)
        for left, into in (
            (home.root / "home", theirs.root / "home"),
            (_default_folder(home), _default_folder(theirs)),
        ):
            if left.exists():
                shutil.copytree(left, into, symlinks=True, dirs_exist_ok=True)

    @property
    def _filled(self) -> Path:
        return self.root / "filled"

    def stored(self, variant: Variant) -> Path:
        """The store as the last cold run left it, which this variant restores or fills."""
        return self.root / ("stored-traced" if variant.keeps_traces else "stored")

    def set_stored(self, variant: Variant, store: Path) -> None:
        """Copy a store to `stored`, which is whole whoever ends this process meanwhile."""
        beside, stored = self.root / "storing", self.stored(variant)
        for folder in (beside, stored):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(store, beside)
        beside.rename(stored)

    def empty(self) -> None:
        """Remove all but the results."""
        for each in self.root.iterdir():
            if each.is_dir():
                shutil.rmtree(each, ignore_errors=True)
        for file in (self._filled, self.bundle, self.found):
            file.unlink(missing_ok=True)

    @property
    def bundle(self) -> Path:
        return self.root / "bundle"

    @property
    def keys(self) -> Path:
        """The signing key that all kernels of `shared` have: a team's."""
        return self.root / "keys"

    @property
    def found(self) -> Path:
        """What `measured.finish` wrote."""
        return self.root / "found.json"


def _idle(running: Kernel, idle: Idle | None) -> str | None:
    """Let idle time pass; return the state of prewarming where that was waited for."""
    if idle == FULL:
        state = prewarmed(running)
        if state is None:
            raise BenchError(
                "this nbcache cannot say whether prewarming is done",
                where=_PREWARM_STATE,
                next_step="give --idle in seconds",
            )
        return state
    if isinstance(idle, float):
        time.sleep(idle)
    return None


def prewarmed(running: Kernel, *, settle: float = 0.5, poll: float = 0.25, most: float = 60.0) -> str | None:
    """Wait until prewarming is over, `most` seconds, and return its state; None where there is none.

    A kernel takes a moment after a cell before it prewarms, and until then its state is that of before:
    after `settle` seconds it is asked each `poll` seconds.
    """
    until = time.monotonic() + most
    time.sleep(settle)
    while True:
        # An empty silent execution: no cell runs, and prewarming goes on after it.
        state = running.ask(_PREWARM_STATE)
        if state is None or state in _PREWARM_OVER or time.monotonic() > until:
            return state
        time.sleep(poll)


def sizes_of(folder: Path, cell: str) -> Sizes:
    """Return the sizes of what the store at `folder` has of the cell with this digest.

    BenchError where an entry is broken.
    """
    store = DirectoryStore(folder)
    refs: dict[str, ArtifactRef] = {}
    manifests, components = 0, 0
    try:
        for entry in store.get_many(store.keys("manifest/")).values():
            manifests += len(entry)
            manifest = decode_manifest(decode_entry(entry))
            refs |= {ref.digest: ref for ref in manifest.artifacts}
            components += sum(len(graph.components) for graph in manifest.graphs if graph.cell == cell)
        found = store.get_many(f"artifact/{digest}" for digest in refs)
    except (FormatError, StoreError) as error:
        raise BenchError(f"what was stored cannot be read: {error}") from error
    entries = {key.removeprefix("artifact/"): len(entry) for key, entry in found.items()}
    ours = {digest: length for digest, length in entries.items() if refs[digest].cell == cell}
    by_type: dict[str, int] = {}
    for digest, length in ours.items():
        by_type[refs[digest].type] = by_type.get(refs[digest].type, 0) + length
    return Sizes(
        artifacts=len(ours),
        artifact_bytes=sum(refs[digest].size for digest in ours),
        snapshot_bytes=manifests + sum(ours.values()),
        common_bytes=sum(length for type, length in by_type.items() if type_of(type).in_mega_cache),
        store_bytes=manifests + sum(entries.values()),
        bytes_by_type=by_type,
        trace_bytes=sum(refs[digest].size for digest in ours if refs[digest].type == "trace"),
        components_bytes=components,
    )


def _default_folder(home: Home) -> Path:
    """Return the folder that torch takes for its caches where it is given none."""
    return home.temporary / f"torchinductor_{re.sub(_NOT_IN_NAMES, '_', getpass.getuser())}"
