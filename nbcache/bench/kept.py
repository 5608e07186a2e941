"""Results that outlive a command: one file in each subject's folder, replaced whole after each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbcache
from nbcache.bench.kernels import BenchError
from nbcache.bench.options import Options
from nbcache.bench.results import Result
from nbcache.bench.variants import Subject
from nbcache.core.files import write_whole
from nbcache.core.key import components, diff
from nbcache.torch_bridge.environment import foreseen

__all__ = ["identity", "load", "save"]

_FILE = "result.json"
_FORMAT = "nbcache.bench.kept"
_ANOTHER = "name another folder, or delete this one"


def identity(options: Options) -> dict[str, str]:
    """Return what must be the same for runs to be of one table; no torch is imported."""
    here = foreseen()
    return {
        "nbcache": nbcache.__version__,
        "--python": options.python,
        "--compile-once": str(options.compile_once),
        **{part.label: part.value for part in (here.components if here is not None else ())},
    }


def load(folder: Path, subject: Subject, here: Mapping[str, str]) -> tuple[Result, dict[str, Any]]:
    """Return what `save` left in `folder`, and the environment that its first kernel told; else nothing yet.

    BenchError where that was measured elsewhere than `here`, or cannot be read.
    """
    file = folder / _FILE
    try:
        values = json.loads(file.read_text())
    except FileNotFoundError:
        return Result(subject), {}
    except (OSError, ValueError) as error:
        raise BenchError(
            f"what was kept cannot be read: {error}", where=str(file), next_step=_ANOTHER
        ) from error
    try:
        if values["format"] != _FORMAT:
            raise KeyError("format")
        identity, environment = components(values["identity"]), values["environment"]
        result = Result.from_json(values["result"], subject)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchError("this was not kept by nbcache bench", where=str(file), next_step=_ANOTHER) from error
    if apart := diff(identity, components(here)):
        what = "; ".join(map(str, apart))
        raise BenchError(
            f"what was kept is not comparable with this: {what}", where=str(file), next_step=_ANOTHER
        )
    return result, environment


def save(folder: Path, result: Result, environment: Mapping[str, Any], here: Mapping[str, str]) -> None:
    """Keep what was measured until now."""
    values = {
        "format": _FORMAT,
        "identity": dict(here),
        "environment": dict(environment),
        "result": result.to_json(),
    }
    write_whole(folder / _FILE, json.dumps(values).encode())
