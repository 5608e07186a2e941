"""The standard models, in more variants and with more figures than `nbcache bench` has."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from benchmarks.redis_server import OURS, TORCHS, Counts, Server
from nbcache.bench.report import VARIANTS, Run, Subject, Variant
from nbcache.bench.runner import (
    CALL,
    LOAD,
    CellFailed,
    Home,
    Kernel,
    Planned,
    Runner,
    wait_for_prewarming,
)
from nbcache.core.text import DOT
from nbcache.launcher.kernel_spec import LAUNCHER, PYTHON_OPTIONS
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.encoding import decode_entry, decode_manifest
from nbcache.storage.types import type_of

__all__ = [
    "COMPILE_MODES",
    "NURSERY",
    "ROOT",
    "STANDARD",
    "USUAL",
    "Model",
    "ModelRunner",
    "Sizes",
    "sizes_of",
]

ROOT = Path(__file__).parents[1]
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""The values that `torch.compile` takes as its `mode`."""
_UNTRACED = {"NBCACHE_TRACE": "off"}
_REMOTE = dict.fromkeys(("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE"), "1")

STANDARD: Mapping[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("eager", variables={"TORCH_COMPILE_DISABLE": "1"}),
        *(replace(variant, variables=_UNTRACED) for variant in VARIANTS.values()),
        Variant("mega-cache"),
        Variant("torch-redis", variables=_REMOTE),
        Variant("shared", loads=True, variables=_UNTRACED),
        Variant("cold-traced", loads=True, stores=True),
        Variant("traced", loads=True, restores="cold-traced", home="cold-traced"),
        Variant("forked", loads=True, restores="cold", home="cold", variables=_UNTRACED),
        Variant("forked-traced", loads=True, restores="cold-traced", home="cold-traced"),
    )
}
USUAL = ("eager", "cold", "torch-warm", "mega-cache", "restart", "fresh")
NURSERY = ("torch-warm", "restart", "traced", "forked", "forked-traced")
"""The variants of `--kernel nursery`: forked kernels, the same in ordinary ones, and torch warm."""
_SAVE_BUNDLE = """\
import pathlib, torch
pathlib.Path({!r}).write_bytes((torch.compiler.save_cache_artifacts() or (b"",))[0])"""
_ON_REDIS = {"torch-redis": TORCHS, "shared": OURS}
"""Beginnings of the keys of each variant that needs a Redis."""


class Model(Subject):
    """A standard model, or the model of `module:function`, called in one way."""

    def __init__(
        self,
        model: str,
        mode: str,
        compile_mode: str = COMPILE_MODES[0],
        *,
        size: str = "small",
        device: str = "cpu",
        precision: str | None = None,
        dynamic: bool = False,
    ) -> None:
        """`precision` is float32 by default; of size `full` on a GPU bfloat16, and amp in training."""
        if precision is None:
            usual = {"inference": "bfloat16", "training": "amp"}[mode]
            precision = usual if (size, device) == ("full", "cuda") else "float32"
        unusual = [precision] * (precision != "float32") + [compile_mode] * (compile_mode != "default")
        unusual += ["dynamic shapes"] * dynamic
        values = {"model": model, "mode": mode, "size": size, "device": device, "dynamic": dynamic}
        super().__init__(
            DOT.join([model, mode, size, device, *unusual]),
            {**values, "compile_mode": compile_mode, "precision": precision},
            measured=CALL,
        )
        self.name = " ".join([model, mode, *unusual])
        mode_argument = "" if compile_mode == COMPILE_MODES[0] else f", mode={compile_mode!r}"
        self._compiled = f"torch.compile(model{mode_argument}{', dynamic=True' if dynamic else ''})"
        self._training = mode == "training"
        self.bundle = Path("bundle")
        """The file of torch's Mega-Cache."""

    def cells(self, variant: Variant) -> dict[str, Any]:
        model, size, device, precision = (
            self.values[key] for key in ("model", "size", "device", "precision")
        )
        wait = ["torch.cuda.synchronize()"] * (device == "cuda")
        make = [
            "from benchmarks.inside import build, finish, total",
            f"case = build({model!r}, {size!r}, {device!r}, {self._training}, {precision!r})",
            "model, args, kwargs = case.model, case.args, case.kwargs",
        ]
        load = f"torch.compiler.load_cache_artifacts(open({str(self.bundle)!r}, 'rb').read())"
        call = [load] * (variant.name == "mega-cache")
        call.append(f"compiled = {'model' if variant.name == 'eager' else self._compiled}")
        around = [] if self._training else ["torch.no_grad()"]
        if precision == "amp":
            around.append(f"torch.autocast({device!r}, dtype=torch.bfloat16)")
        run = "output = compiled(*args, **kwargs)"
        call += [f"with {', '.join(around)}:", f"    {run}"] if around else [run]
        call += ["total(output).backward()"] * self._training
        return {
            **({LOAD: LOAD} if variant.loads else {}),
            "import torch": "import torch",
            "make the model": "\n".join(make + wait),
            CALL: "\n".join(call + wait),
        }


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that the measured cell of a cold run stored, and the size of torch's bundle."""

    artifacts: int
    """Number of artifacts."""
    artifact_bytes: int
    """Their contents, uncompressed."""
    snapshot_bytes: int
    """Their entries and the manifest's, as they lie in the store, compressed."""
    common_bytes: int
    """The entries of those types of artifact only that torch's bundle can hold."""
    bundle_bytes: int
    """The bundle that `torch.compiler.save_cache_artifacts` returned."""
    trace_bytes: int
    """Contents of traces, uncompressed."""
    components_bytes: int
    """The parts of the graphs' keys in the manifest, for `%nbcache why`, compressed."""


def sizes_of(folder: Path, cell: str, bundle: Path) -> Sizes:
    """Return the sizes of what the store at `folder` has of the cell with this digest."""
    store = DirectoryStore(folder)
    entries = [*store.get_many(store.keys("manifest/")).values()]
    manifests = [decode_manifest(decode_entry(entry)) for entry in entries]
    refs = {ref.digest: ref for manifest in manifests for ref in manifest.artifacts if ref.cell == cell}
    artifacts = store.get_many(f"artifact/{digest}" for digest in refs)
    lengths = {key.removeprefix("artifact/"): len(entry) for key, entry in artifacts.items()}
    return Sizes(
        artifacts=len(lengths),
        artifact_bytes=sum(refs[digest].size for digest in lengths),
        snapshot_bytes=sum(map(len, entries)) + sum(lengths.values()),
        common_bytes=sum(
            length for digest, length in lengths.items() if type_of(refs[digest].type).in_mega_cache
        ),
        bundle_bytes=bundle.stat().st_size,
        trace_bytes=sum(refs[digest].size for digest in lengths if refs[digest].type == "trace"),
        components_bytes=sum(
            len(graph.components) for manifest in manifests for graph in manifest.graphs if graph.cell == cell
        ),
    )


class _Launcher(KernelSpecManager):
    """Finds one kernel, whatever its name: the one that nbcache's launcher starts."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, *PYTHON_OPTIONS, *LAUNCHER, "-f", "{connection_file}", "--log-level=ERROR"]
        return KernelSpec(argv=argv, display_name=kernel_name, language="python")


class ModelRunner(Runner):
    """Measures one model, and what it stores, sends and shares."""

    def __init__(
        self,
        subject: Model,
        folder: Path,
        say: Callable[[str], None],
        *,
        server: Server | None = None,
        compile_once: bool = False,
    ) -> None:
        """With `compile_once` the cold kernel, with nbcache, fills torch's cache folder and bundle, too."""
        super().__init__(subject, folder, say)
        self.model = subject
        self.model.bundle = folder / "bundle"
        self.sizes: dict[str, Sizes] = {}
        """Sizes of the stores of the cold variants."""
        self.on_server: dict[str, dict[str, Any]] = {}
        """Contents of the Redis, for each variant that needs it."""
        self._server = server
        self._counts: Counts | None = None
        """Commands of the server before the cell that runs."""
        self._compile_once = compile_once

    def prepare(self, variants: Sequence[Variant]) -> None:
        names = {variant.name for variant in variants}
        needs = {variant.restores for variant in variants if variant.restores}
        needs = (needs | {"cold"} if self._compile_once else needs) - names
        for name in [*([] if self._compile_once else ["torch-warm"]), *sorted(needs)]:
            self.say(f"preparing the caches of {name}")
            self.run_one(Planned(STANDARD[name], 0))
        for name in names & _ON_REDIS.keys():
            assert self._server is not None
            self.say(f"preparing the Redis of {name}")
            before = self._server.counts()
            run = self.run_one(Planned(STANDARD[name], 0))
            asked = self._server.counts().since(before)
            self.on_server[name] = {**self._server.contents(_ON_REDIS[name], _cell(run)), "asked": asked}

    def cells(self, variant: Variant) -> dict[str, Any]:
        return self.model.cells(variant)

    def home(self, variant: Variant) -> Home:
        once = self._compile_once and variant.name == "cold"
        return super().home(STANDARD["torch-warm"] if once else variant)

    def variables(self, planned: Planned) -> dict[str, str]:
        """Return what makes a kernel this variant's, and lets it import this package."""
        name = planned.variant.name
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        variables = {**super().variables(planned), "PYTHONPATH": path}
        if self._server is not None and name == "torch-redis":
            variables["TORCHINDUCTOR_REDIS_URL"] = self._server.url
        if self._server is not None and name == "shared":
            variables["NBCACHE_SHARED_URL"] = self._server.url
            variables["NBCACHE_TRUST_DIR"] = str(self.folder / "keys")  # a team's: kernels trust each other
        if self._compile_once and name == "cold":
            folder = f"torchinductor_{getpass.getuser()}"  # the folder that torch takes by default
            variables["TORCHINDUCTOR_CACHE_DIR"] = str(Path(variables["TMPDIR"], folder))
        return variables

    def _fills(self, planned: Planned) -> bool:
        """Return whether this kernel fills torch's own cache folder, and saves the bundle."""
        name, number = planned.variant.name, planned.number
        return name == "cold" if self._compile_once else (name, number) == ("torch-warm", 0)

    @contextlib.contextmanager
    def start(self, planned: Planned, **more: Any) -> Iterator[Kernel]:
        """Start a kernel; a forked one is forked from a new nursery."""
        if not planned.variant.name.startswith("forked"):
            with super().start(planned, **more) as running:
                yield running
            return
        variables = self.variables(planned)
        _nursery("start", variables)
        try:
            with super().start(planned, specs=_Launcher()) as running:
                if not running.ask("__import__('sys').modules['nbcache.launcher'].__name__"):
                    raise CellFailed("the kernel was not forked; see `nbcache kernel status`")
                yield running
        finally:
            _nursery("stop", variables)

    def before_cell(self, planned: Planned) -> None:
        if self._server is not None and planned.variant.name in _ON_REDIS:
            self._counts = self._server.counts()

    def finish(self, running: Kernel, planned: Planned) -> dict[str, Any]:
        """Return further figures: hot calls, agreement with eager, memory, traffic and sizes."""
        if self._fills(planned):
            running.run(_SAVE_BUNDLE.format(str(self.model.bundle)))
        if planned.variant.stores:
            wait_for_prewarming(running)
        more: dict[str, Any] = {"private_bytes": _private_bytes(running)}
        if self._server is not None and self._counts is not None:
            more["asked"] = self._server.counts().since(self._counts)
            self._counts = None
        file, variant = self.folder / "figures.json", planned.variant
        running.run(f"finish({str(file)!r}, case, compiled, output, loads={variant.loads})")
        more |= json.loads(file.read_text())
        self.subject.environment.update(
            {name: str(value) for name, value in more.pop("environment").items() if value is not None}
        )
        reports = more.pop("reports", None)
        return {"reports": reports, "more": more}

    def run_one(self, planned: Planned) -> Run:
        run = super().run_one(planned)
        name = planned.variant.name
        misses = run.more["counters"].get("fxgraph_cache_miss")
        if self._compile_once and name in ("torch-warm", "mega-cache") and misses:
            raise CellFailed(f"{name} compiled again what nbcache had compiled: leave out --compile-once")
        if planned.variant.stores:
            self.sizes[name] = sizes_of(self.store_of(name), _cell(run), self.model.bundle)
        return run

    def to_json(self) -> dict[str, Any]:
        """Return the figures beside the runs as JSON values."""
        sizes = {name: asdict(size) for name, size in self.sizes.items()}
        return {"sizes": sizes, "redis": self.on_server or None}


def _cell(run: Run) -> str:
    """Return the digest of the measured cell; empty where nbcache was not loaded."""
    return next((report["cell"]["digest"] for report in reversed(run.reports or ()) if report["graphs"]), "")


def _nursery(action: str, variables: Mapping[str, str]) -> None:
    command = [sys.executable, "-P", "-m", "nbcache", "kernel", action]
    subprocess.run(command, env=dict(variables), capture_output=True, check=True)


def _private_bytes(running: Kernel) -> int | None:
    """Return the memory that is this process's alone, written or not; None where the system does not say."""
    process = running.ask("str(__import__('os').getpid())")
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))
