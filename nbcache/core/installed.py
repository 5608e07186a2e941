"""Installed Python files, as opposed to files of the user: their packages and versions."""

from __future__ import annotations

import math
import os
import re
import time
from functools import cache, lru_cache

from nbcache.core.key import sha256

_MARGIN_SECONDS = 1.0
"""Seconds after the start of a process in which no package is assumed to be replaced."""
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED_PATH = re.compile(r"(?P<folder>.*/(?:site|dist)-packages)/(?P<top>[^/]+)")
"""Path of an installed file: the folder of packages, and the top-level name in it."""


def is_in_packages_folder(file: str) -> bool:
    """Return whether a path lies in a folder into which pip or a distribution installs packages."""
    return "/site-packages/" in file or "/dist-packages/" in file


def is_installed(file: str) -> bool:
    """Return whether a path belongs to the standard library or to an installed package."""
    return file.startswith((_STDLIB, "<frozen ")) or is_in_packages_folder(file)


def module_of_stdlib(file: str) -> str:
    """Return the top-level name of the standard library's module at a path, or an empty text."""
    if file.startswith("<frozen "):
        return file.removeprefix("<frozen ").rstrip(">").partition(".")[0]
    if not file.startswith(_STDLIB) or is_in_packages_folder(file):
        return ""
    return file.removeprefix(_STDLIB).partition(os.sep)[0].removesuffix(".py")


def version_of(file: str) -> str:
    """Return name and version of an installed file's distribution, and digests of its RECORD and of the file.

    The text is empty for a file that is not installed or was written after the process began.
    """
    place = _INSTALLED_PATH.match(file)
    # A file that was written later may differ from the imported one.
    if place and os.path.exists(file) and os.stat(file).st_mtime > _process_start() + _MARGIN_SECONDS:
        return ""
    version = _distribution(place["folder"], place["top"].removesuffix(".py")) if place else ""
    try:
        status = os.stat(file)
        return version and f"{version} {_digest(file, status.st_mtime_ns, status.st_size)}"
    except OSError:
        return ""


def package_of(file: str) -> str:
    place = _INSTALLED_PATH.match(file)
    return place["top"].removesuffix(".py") if place else ""


@cache
def _process_start() -> float:
    """Return the start of this process in Unix seconds; infinity if the system has no `/proc`."""
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
    """Return name, version and digest of the distribution that installed a package into a folder."""
    from importlib.metadata import distributions

    installed = [*distributions(path=[folder])]
    name = re.sub("[-_.]+", "_", top).lower()
    # Most distributions have the name of their package: try those first.
    installed.sort(
        key=lambda distribution: re.sub("[-_.]+", "_", distribution.metadata["Name"] or "").lower() != name
    )
    for distribution in installed:
        files = distribution.read_text("RECORD") or ""
        if f"\n{top}/" in f"\n{files}" or f"\n{top}.py," in f"\n{files}":
            return f"{distribution.metadata['Name']} {distribution.version} {sha256(files.encode())}"
    return ""
