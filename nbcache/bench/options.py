"""What to measure: the arguments of `nbcache bench`. Importing this loads nothing of torch or Jupyter."""

from __future__ import annotations

import argparse
import difflib
import enum
import importlib.util
import math
import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nbcache.errors import ConfigError, NbcacheError

__all__ = [
    "FULL",
    "MODELS",
    "Idle",
    "Mode",
    "Options",
    "Variant",
    "add_arguments",
    "check_packages",
    "from_arguments",
]

MODELS = ("nanogpt", "bert", "resnet50", "gpt2", "llama")
FULL = "full"
Idle = float | str
"""Seconds of idle time before a cell, or `FULL`: until prewarming is done."""
_FROM_TRANSFORMERS = ("bert", "gpt2", "llama")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Mode(enum.StrEnum):
    """What is compiled."""

    INFERENCE = "inference"
    TRAINING = "training"


class Variant(enum.StrEnum):
    """What a fresh kernel finds, in the order in which they are measured."""

    EAGER = "eager"
    COLD = "cold"
    TORCH_WARM = "torch-warm"
    MEGA_CACHE = "mega-cache"
    RESTART = "restart"
    FRESH = "fresh"

    @property
    def label(self) -> str:
        """The name in tables and charts."""
        return {Variant.TORCH_WARM: "torch warm", Variant.RESTART: "nbcache restart"}.get(
            self, "nbcache fresh" if self is Variant.FRESH else self.value
        )

    @property
    def idles(self) -> bool:
        """Whether idle time changes anything: only where nbcache restores."""
        return self in (Variant.RESTART, Variant.FRESH)


@dataclass(frozen=True, slots=True)
class Options:
    """One benchmark."""

    models: tuple[str, ...] = MODELS
    modes: tuple[Mode, ...] = (Mode.INFERENCE,)
    size: str = "small"
    """`small` or `full`."""
    dynamic: bool = False
    """Compile with `dynamic=True`."""
    device: str = "cpu"
    """`cpu` or `cuda`."""
    runs: int = 3
    idle: tuple[Idle, ...] = (0.0, FULL)
    variants: tuple[Variant, ...] = tuple(Variant)
    python: str = sys.executable
    """The interpreter of `nbcache fresh`."""
    json: str | None = None
    """File for the JSON; `-` for standard output, instead of the table; None for none."""
    plot: str | None = None
    """File for the bar chart, `.svg` or `.png`; None for none."""
    stores: bool = False
    """Measure populating artifacts, instead of models."""


_HELP = """\
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
        "--size", choices=("small", "full"), default="small", help="small for a CPU (default), full for a GPU"
    )
    add("--dynamic", action="store_true", help="compile for dynamic shapes from the start")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    add(
        "--runs",
        metavar="N",
        default="3",
        help="runs of each variant, of which the median counts; default: 3",
    )
    add(
        "--idle",
        metavar="SECONDS",
        action="append",
        help="idle time before each cell of restart and fresh, or `full`: until prewarming is done; "
        "may be given several times; default: 0 and full",
    )
    add("--variants", metavar="NAME,…", help="only these variants")
    add("--python", metavar="PATH", help="interpreter of another virtual environment, for `fresh`")
    add(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE.json",
        help="write all runs and medians there; without FILE, print them instead of the table",
    )
    add("--plot", metavar="FILE.svg|png", help="draw a bar chart")
    add("--stores", action="store_true", help="measure populating 1,000 artifacts, instead of models")


def from_arguments(given: argparse.Namespace) -> Options:
    """Return what `given` asks for; ConfigError where it makes no sense."""
    if given.stores and (given.models or given.plot):
        raise _error("--stores measures no model", "leave out MODEL and --plot")
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
    for file in (given.json, given.plot):
        if file not in (None, "-") and not Path(file).absolute().parent.is_dir():
            raise _error(f"the folder of {file} does not exist", "make it, or name another")
    return Options(
        models=tuple(dict.fromkeys(given.models)) or MODELS,
        modes=tuple(mode for mode, wanted in asked if wanted),
        size=given.size,
        dynamic=given.dynamic,
        device=given.device,
        runs=_runs(given.runs),
        idle=tuple(dict.fromkeys(map(_idle, given.idle or ("0", FULL)))),
        variants=_variants(given.variants),
        python=_python(given.python),
        json=given.json,
        plot=given.plot,
        stores=given.stores,
    )


def check_packages(options: Options) -> None:
    """Raise NbcacheError where an optional package is missing that these options need."""
    needed = ["torch"]
    if not options.stores:
        needed += ["ipykernel", "jupyter_client"]
        needed += ["transformers"] * any(model in _FROM_TRANSFORMERS for model in options.models)
    needed += ["matplotlib"] * bool(options.plot)
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise NbcacheError(
            f"nbcache bench needs {' and '.join(missing)}",
            where=sys.executable,
            next_step="pip install 'nbcache[bench]'",
        )


def _runs(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise _error(f"--runs {text} is not a number of runs", "give 1 or more")
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
        return tuple(Variant)
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    all_of_them = f"the variants are {', '.join(Variant)}"
    known = {name: variant for variant in Variant for name in (variant.value, variant.label)}
    for name in names:
        if name not in known:
            raise _error(f"there is no variant {name!r}", _nearest(name, known, all_of_them))
    if not names:
        raise _error("--variants names none", all_of_them)
    wanted = {known[name] for name in names}
    return tuple(variant for variant in Variant if variant in wanted)


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
