"""The arguments of `nbcache bench`, and its variants. This module imports neither torch nor Jupyter."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nbcache.core.errors import ConfigError

__all__ = [
    "FULL",
    "VARIANTS",
    "Idle",
    "Options",
    "Variant",
    "add_arguments",
    "from_arguments",
]

FULL = "full"
Idle = float | str
"""Seconds of idle time before a cell, or `FULL`: until prewarming is done."""
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of kernel to measure: whether nbcache is loaded, and the caches that are there."""

    name: str
    loads: bool = False
    """True where nbcache is loaded."""
    stores: bool = False
    """True where nothing is cached. Its store is copied afterwards, for variants that restore it."""
    restores: str = ""
    """Name of the variant whose store this one restores; empty for none."""
    home: str = ""
    """Name of the variant whose folders this one has, emptied; empty for folders of its name."""
    torchs: str = ""
    """The part of torch's own cache that it finds: `folder`, `bundle`, or none."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""

    @property
    def idles(self) -> bool:
        """Return whether idle time makes a difference, as where nbcache prewarms before a hit."""
        return self.loads and not self.stores


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("eager", variables={"TORCH_COMPILE_DISABLE": "1"}),
        Variant("cold", loads=True, stores=True),
        Variant("torch-warm", torchs="folder"),
        Variant("mega-cache", torchs="bundle"),
        Variant("restart", loads=True, restores="cold", home="cold"),
        Variant("fresh", loads=True, restores="cold"),
    )
}
_USUAL = ("cold", "torch-warm", "restart", "fresh")
"""The variants of a notebook that are measured unless others are named."""


@dataclass(frozen=True, slots=True)
class Options:
    """One benchmark."""

    models: tuple[str, ...] = ()
    """Notebooks, or functions as `module:function`."""
    training: bool = False
    """True to call a function's model forward and backward."""
    runs: int = 3
    idle: tuple[Idle, ...] = (0.0, FULL)
    variants: tuple[str, ...] = tuple(VARIANTS)
    json: str | None = None
    """A file for the JSON; `-` for standard output, in place of the table."""


_HELP = """\
Measures what a user waits for: the cells of a notebook in fresh Jupyter kernels, side by side.

SUBJECT is a notebook, which is not changed, or module:function: the function returns (model, example
inputs), where the inputs are a tensor, a tuple, or a dict of keyword arguments.

variants, each in a kernel process of its own, run 1 of each before run 2 of any:
  eager       no compile (TORCH_COMPILE_DISABLE=1)
  cold        nothing cached anywhere, nbcache loaded
  torch-warm  without nbcache; torch's own cache folder filled by an earlier kernel
  mega-cache  without nbcache; empty folders; the first cell loads a torch.compiler bundle
  restart     nbcache's store of the cold run; torch's folder and the temp folder empty
  fresh       a copy of that store in another place; all else empty
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nbcache bench` to `parser`."""
    parser.description = _HELP
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("models", nargs="+", metavar="SUBJECT", help="a notebook, or module:function")
    add("--training", action="store_true", help="of functions: measure forward and backward")
    add("--runs", metavar="N", type=_runs, help="runs of each variant; default: 3, of notebooks 1")
    add(
        "--idle",
        metavar="SECONDS",
        type=_idle,
        action="append",
        help="idle time before each cell of restart and fresh, or `full`: until prewarming is done; "
        "may be repeated; default: 0 and full, of notebooks 0",
    )
    variants = f"only these variants; default: all, of notebooks {', '.join(_USUAL)}"
    add("--variants", metavar="NAME,…", type=_names("--variants", VARIANTS), help=variants)
    add(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE.json",
        help="write all runs and medians there, again after each run; without FILE, print them, and no table",
    )


def from_arguments(arguments: argparse.Namespace) -> Options:
    """Return the options of a command line; ConfigError where they contradict each other."""
    of_notebooks = arguments.models[0].endswith(".ipynb")
    for name in arguments.models:
        if name.endswith(".ipynb") and not Path(name).is_file():
            raise _error(f"there is no notebook {name!r}", "check the path")
        if not name.endswith(".ipynb") and not _FUNCTION.fullmatch(name):
            raise _error(f"{name!r} is neither a notebook nor a function", "name a .ipynb or module:function")
        if name.endswith(".ipynb") != of_notebooks:
            raise _error("notebooks and functions are measured in different ways", "use two commands")
    if of_notebooks and arguments.training:
        raise _error("a notebook has its own cells", "leave out --training")
    file = arguments.json
    if file not in (None, "-") and not (file.endswith(".json") and Path(file).absolute().parent.is_dir()):
        raise _error(f"--json {file} is no .json file in a folder", "or put SUBJECT before --json")
    return Options(
        models=tuple(dict.fromkeys(arguments.models)),
        training=arguments.training,
        runs=arguments.runs or (1 if of_notebooks else 3),
        idle=tuple(arguments.idle or ([0.0] if of_notebooks else [0.0, FULL])),
        variants=arguments.variants or (_USUAL if of_notebooks else tuple(VARIANTS)),
        json=file,
    )


def _runs(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise _error(f"--runs {text} is not a number of runs", "give 1 or more")
    return int(text)


def _idle(text: str) -> Idle:
    if text == FULL:
        return FULL
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) < math.inf:
            return seconds
    raise _error(f"--idle {text} is no time", "give seconds, 0 or more, or `full`")


def _names(option: str, choices: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what reads a comma-separated list of names, and puts them in the order of `choices`."""

    def names(text: str) -> tuple[str, ...]:
        words = {word.strip().lower() for word in text.split(",")}
        for word in words.difference(choices):
            near = difflib.get_close_matches(word, choices, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it takes {', '.join(choices)}"
            raise _error(f"{option} does not take {word!r}", hint)
        return tuple(name for name in choices if name in words)

    return names


def _error(message: str, next_step: str) -> ConfigError:
    return ConfigError(message, where="nbcache bench", next_step=next_step)
