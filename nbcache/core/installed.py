"""Which files of Python code are installed, and which are a user's own."""

from __future__ import annotations

import math
import os
import re
import time
from functools import cache, lru_cache

from nbcache.core.key import sha256

_MARGIN_SECONDS = 1.0
"""Within so long after its start, a process imports no package that is replaced meanwhile."""
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_PLACE = re.compile(r"(?P<folder>.*/(?:site|dist)-packages)/(?P<top>[^/]+)")
"""A path of an installed file: the folder of packages, and the name of the package or module there."""


def is_installed(file: str) -> bool:
    """Return whether a file is the standard library's or an installed package's, by its path alone."""
    return file.startswith((_STDLIB, "<frozen ")) or "/site-packages/" in file or "/dist-packages/" in file


def module_of_stdlib(file: str) -> str:
    """Return the top-level name of the module of the standard library that a file belongs to; else empty."""
    if file.startswith("<frozen "):
        return file.removeprefix("<frozen ").rstrip(">").partition(".")[0]
    if not file.startswith(_STDLIB) or "/site-packages/" in file or "/dist-packages/" in file:
        return ""
    return file.removeprefix(_STDLIB).partition(os.sep)[0].removesuffix(".py")


def version_of(file: str) -> str:
    """Return distribution, version, and digests of an installed file and of its distribution; else empty."""
    place = _PLACE.match(file)
    # A file that was written later may not be the one that was imported.
    if place and os.path.exists(file) and os.stat(file).st_mtime > _began() + _MARGIN_SECONDS:
        return ""
    version = _distribution(place["folder"], place["top"].removesuffix(".py")) if place else ""
    try:
        status = os.stat(file)
        return version and f"{version} {_digest(file, status.st_mtime_ns, status.st_size)}"
    except OSError:
        return ""


def package_of(file: str) -> str:
    """Return the name of the installed package or module that a file belongs to; empty for others."""
    place = _PLACE.match(file)
    return place["top"].removesuffix(".py") if place else ""


@cache
def _began() -> float:
    """Return the time (Unix seconds) at which this process began; infinity where the system can't tell."""
    try:
        with open("/proc/self/stat") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
    except OSError:
        return math.inf
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


@lru_cache(maxsize=1024)
def _digest(file: str, modified_ns: int, size: int) -> str:
    with open(file, "rb") as opened:
        return sha256(opened.read())


@lru_cache(maxsize=1024)
def _distribution(folder: str, top: str) -> str:
    """Return name, version and digest of the distribution that has installed a package into a folder."""
    from importlib.metadata import distributions

    installed = [*distributions(path=[folder])]
    name = re.sub("[-_.]+", "_", top).lower()
    # A distribution has the package's name as a rule, and else lists its files.
    installed.sort(key=lambda one: re.sub("[-_.]+", "_", one.metadata["Name"] or "").lower() != name)
    for distribution in installed:
        files = distribution.read_text("RECORD") or ""
        if f"\n{top}/" in f"\n{files}" or f"\n{top}.py," in f"\n{files}":
            return f"{distribution.metadata['Name']} {distribution.version} {sha256(files.encode())}"
    return ""
