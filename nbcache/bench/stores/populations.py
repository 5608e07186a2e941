"""Part `populate` of `nbcache bench --stores`: 1,000 artifacts, 100 MB, by nbcache and by torch's bundle.

A way to populate is one row: a function of `populate.WAYS`, and a line of `_TITLES`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nbcache.bench.kernels import BenchError, Home, environment, link_package
from nbcache.bench.options import Options
from nbcache.bench.redis_server import Server
from nbcache.bench.report import times
from nbcache.bench.results import ratio
from nbcache.core.text import DOT, aligned, size

__all__ = ["Population", "Populations", "populations_json", "populations_text"]

_TITLES: Mapping[str, str] = {
    "nbcache": "nbcache, from its local store",
    "snapshot": "nbcache, from a snapshot",
    "mega-cache": "Mega-Cache, from its bundle",
}
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 300_000_000


@dataclass(frozen=True, slots=True)
class Population:
    """One way to populate, over all its runs."""

    way: str
    bytes: int
    """What it reads: entries and manifest, the snapshot, or the bundle."""
    seconds: tuple[float, ...]
    """Of each run."""
    written: int
    """Artifacts that are in torch's folder afterwards, in the run that wrote fewest."""

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)


class Populations:
    """`populate`: all ways, alternating, each in fresh processes."""

    def __init__(
        self, options: Options, folder: Path, say: Callable[[str], None], server: Server | None
    ) -> None:
        self._options = options
        self._folder = folder
        self._say = say
        self._figures: Mapping[str, Any] = {}
        """What `populate.fill` said."""
        self._taken: dict[str, list[Mapping[str, Any]]] = {way: [] for way in _TITLES}

    def measure(self) -> None:
        with tempfile.TemporaryDirectory(prefix="nbcache-bench-", dir=_memory()) as target:
            process = partial(_process, self._folder, Path(target, "torch"), link_package(self._folder))
            self._say("storing the artifacts")
            self._figures = process("fill")
            for number in range(1, self._options.runs + 1):
                for way, runs in self._taken.items():
                    runs.append(process(way))
                    said = f"run {number} of {self._options.runs}{DOT}{way}: {runs[-1]['seconds']:.3f} s"
                    self._say(said)

    @property
    def complete(self) -> bool:
        return all(each.written == self._figures["artifacts"] for each in self._populations)

    def text(self) -> str:
        return populations_text(self._populations, self._figures) if self._figures else ""

    def to_json(self) -> Mapping[str, Any]:
        return populations_json(self._populations, self._figures) if self._figures else {}

    @property
    def _populations(self) -> list[Population]:
        return [
            Population(
                way,
                int(self._figures["bytes"][way]),
                tuple(float(run["seconds"]) for run in runs),
                min(int(run["present"]) for run in runs),
            )
            for way, runs in self._taken.items()
            if runs
        ]


def populations_text(populations: list[Population], figures: Mapping[str, Any]) -> str:
    """Return the table."""
    bundle = next((each for each in populations if each.way == "mega-cache"), None)
    rows = [["", "bytes", "seconds", "fastest–slowest", "vs mega", "artifacts"]]
    for each in populations:
        compared = ratio(bundle.median_seconds if bundle else None, each.median_seconds)
        rows.append(
            [
                _TITLES[each.way],
                size(each.bytes),
                f"{each.median_seconds:.3f}",
                f"{min(each.seconds):.3f}–{max(each.seconds):.3f}",
                times(compared),
                str(each.written),
            ]
        )
    head = f"populating {figures['artifacts']:,} artifacts, {size(int(figures['content']))} of content: "
    head += "read, decompress, write into torch's folder"
    save = figures["save_seconds"]
    saving = f"writing the snapshot took {save['snapshot']:.3f} s, the bundle {save['mega-cache']:.3f} s"
    where = "torch's folder in memory, what is read in the page cache" if _memory() else "on the disk"
    return "\n".join(
        [
            head,
            *(f"  {line}".rstrip() for line in aligned(rows, right=range(1, len(rows[0])))),
            f"  ({where}; {saving})",
        ]
    )


def populations_json(populations: list[Population], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same as JSON values."""
    return {
        "artifacts": figures["artifacts"],
        "content_bytes": figures["content"],
        "save_seconds": dict(figures["save_seconds"]),
        "ways": [{**asdict(each), "median_seconds": each.median_seconds} for each in populations],
    }


def _memory() -> Path | None:
    """Return a folder in memory for torch's folder, or None.

    On a disk, making 2,000 folders takes several times as long as all the rest, and varies as much:
    0.4 to 3.5 s were seen for the same work.
    """
    with contextlib.suppress(OSError):
        if os.access(_MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
            return _MEMORY
    return None


def _process(folder: Path, target: Path, path: Path, way: str) -> Mapping[str, Any]:
    """Run `populate` in a fresh process with empty folders and return what it says."""
    home, stored, output = Home(folder / "home"), folder / "stored", folder / "output.json"
    home.empty()
    stored.mkdir(exist_ok=True)
    variables = environment(home, os.environ, path) | {"TORCHINDUCTOR_CACHE_DIR": str(target)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "nbcache.bench.stores.populate", way, str(stored), str(output)],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(home.root)
    shutil.rmtree(target, ignore_errors=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BenchError(f"populating failed: {last[:300]}", where=way)
    found: Mapping[str, Any] = json.loads(output.read_text())
    return found
