"""The variants: what a fresh kernel finds in its folders, and the cells that it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbcache.bench.options import COMPILE_MODES, Idle, Mode, Options, Precision, Variant
from nbcache.core.text import DOT

__all__ = [
    "IMPORT",
    "LOAD",
    "Planned",
    "Subject",
    "loads_nbcache",
    "measured_cell",
    "schedule",
    "setup_cell",
    "subjects",
    "variables",
]

LOAD = "%load_ext nbcache"
IMPORT = "import torch"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in one mode: the rows of one table."""

    model: str
    mode: Mode
    size: str
    """`small` or `full`; empty for a user's own model."""
    device: str
    dynamic: bool
    compile_mode: str = COMPILE_MODES[0]
    """The `mode` of `torch.compile`."""
    precision: Precision = Precision.FLOAT32

    @property
    def label(self) -> str:
        """The title of its table."""
        return DOT.join([self.model, self.mode.value, *filter(None, (self.size, self.device)), *self.unusual])

    @property
    def unusual(self) -> list[str]:
        """What is not as it is unless asked for: precision, mode of `torch.compile`, dynamic shapes."""
        parts = (
            "" if self.precision is Precision.FLOAT32 else self.precision.value,
            "" if self.compile_mode == COMPILE_MODES[0] else self.compile_mode,
            "dynamic shapes" if self.dynamic else "",
        )
        return [part for part in parts if part]

    @property
    def folder(self) -> str:
        """A name for its folder, which no other subject has: no module's name has a hyphen."""
        parts = (self.model, self.mode.value, self.size, self.device, *self.unusual)
        return "-".join(filter(None, parts)).replace(":", "-").replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Planned:
    """One fresh kernel to come."""

    variant: Variant
    number: int
    """Which run of the variant, from 1."""
    idle: Idle | None = None
    """Idle time before its cells; None for variants to which it is all the same."""


def subjects(options: Options, default: Sequence[str] = ()) -> list[Subject]:
    """Return what `options` ask to measure, in that order; `default` where they name no model."""
    return [
        Subject(
            model,
            mode,
            "" if ":" in model else options.size,
            options.device,
            options.dynamic,
            compile_mode,
            options.precision_of(model, mode),
        )
        for model in options.models or default
        for mode in options.modes
        for compile_mode in options.compile_modes
    ]


def schedule(variants: Sequence[Variant], idle: Sequence[Idle], runs: int) -> list[Planned]:
    """Return the runs in order: run 1 of every variant, then run 2, so that drift of the machine hits all."""

    def one_round(number: int) -> Iterator[Planned]:
        for variant in variants:
            for each in idle if variant.idles else (None,):
                yield Planned(variant, number, each)

    return [planned for number in range(1, runs + 1) for planned in one_round(number)]


def loads_nbcache(variant: Variant) -> bool:
    """Whether nbcache is loaded in this variant's kernels."""
    return variant.is_cold or variant.idles


def variables(variant: Variant, url: str, keys: Path) -> dict[str, str]:
    """Return the environment variables that make this variant's kernels what they are.

    `url` is that of the Redis, where there is one; `keys` the folder of the key by which nbcache's kernels
    trust each other there.
    """
    if loads_nbcache(variant):
        traces = {"NBCACHE_AUDIT": "0"} if variant.keeps_traces else {"NBCACHE_TRACE": "off"}
        shared = {"NBCACHE_SHARED_URL": url, "NBCACHE_TRUST_DIR": str(keys)}
        return {**traces, **(shared if variant is Variant.SHARED else {})}
    if variant is Variant.TORCH_REDIS:
        caches = ("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE")
        return {**dict.fromkeys(caches, "1"), "TORCHINDUCTOR_REDIS_URL": url}
    return {}


def setup_cell(subject: Subject) -> str:
    """Return the cell that makes model and inputs, on a GPU its context too: the same in all variants."""
    arguments = [
        repr(subject.model),
        f"size={subject.size or 'small'!r}",
        f"device={subject.device!r}",
        f"training={subject.mode is Mode.TRAINING}",
        f"precision={subject.precision.value!r}",
    ]
    lines = [
        IMPORT,
        "from nbcache.bench.measured import finish, save_bundle, total",
        "from nbcache.bench.models import build",
        f"case = build({', '.join(arguments)})",
        "model, args, kwargs = case.model, case.args, case.kwargs",
    ]
    return "\n".join(lines + _waiting(subject))


def measured_cell(subject: Subject, variant: Variant, bundle: str = "") -> str:
    """Return the cell that is measured; `bundle` is the file that `mega-cache` loads."""
    lines = []
    if variant is Variant.MEGA_CACHE:
        lines.append(f"torch.compiler.load_cache_artifacts(open({bundle!r}, 'rb').read())")
    if variant is Variant.EAGER:
        lines.append("compiled = model")
    else:
        mode = "" if subject.compile_mode == COMPILE_MODES[0] else f", mode={subject.compile_mode!r}"
        lines.append(f"compiled = torch.compile(model{mode}{', dynamic=True' if subject.dynamic else ''})")
    training = subject.mode is Mode.TRAINING
    around = [] if training else ["torch.no_grad()"]
    if subject.precision is Precision.AMP:
        around.append(f"torch.autocast({subject.device!r}, dtype=torch.bfloat16)")
    call = "output = compiled(*args, **kwargs)"
    lines += [f"with {', '.join(around)}:", f"    {call}"] if around else [call]
    lines += ["total(output).backward()"] * training
    return "\n".join(lines + _waiting(subject))


def _waiting(subject: Subject) -> list[str]:
    """Return what a cell ends with, so that it ends when the GPU has done what it asked for."""
    return ["torch.cuda.synchronize()"] if subject.device == "cuda" else []
