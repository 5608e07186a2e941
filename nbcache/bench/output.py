"""Where results of the benchmark go, and what machine they are of."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbcache.bench.options import Options

__all__ = ["machine", "say", "write_json"]


def write_json(options: Options, values: Mapping[str, Any]) -> None:
    """Write `values` to where `options` want them."""
    if options.json is None:
        return
    text = text_of(values)
    if options.json == "-":
        print(text, end="", flush=True)
        return
    from nbcache.core.files import write_whole

    write_whole(Path(options.json), text.encode())
    say(f"all runs: {options.json}")


def text_of(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


def machine() -> dict[str, Any]:
    """Return the CPU's name and the number of cores that this process may use."""
    name = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return {"cpu": name or platform.machine(), "cores": len(os.sched_getaffinity(0))}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
