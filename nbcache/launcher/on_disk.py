"""What lies on disk of what is imported, what else could be imported, and whether that has changed."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import NamedTuple

_OF_MODULES = (".py", ".pyc", ".so")
_OF_SITES = ("site-packages", "dist-packages")
_OF_PACKAGES = (".pth", ".dist-info", ".egg-info")
"""Ends of the names of what such folders have besides: Python runs, and libraries look for, what is there."""


class Status(NamedTuple):
    """What a file is known by."""

    changed: int
    """Nanoseconds since 1970 at which it, or what is known of it, was changed last."""
    number: int
    """Of the file itself, whatever it is called."""


def files(read: Iterable[str]) -> dict[str, Status]:
    """Return what lies on disk of all that is imported or `read`, and of what says where modules are."""
    paths = {*read, *(getattr(module, "__file__", None) for module in sys.modules.values())}
    with open("/proc/self/maps") as stream:
        paths |= {line.split(maxsplit=5)[5].rstrip("\n") for line in stream if "/" in line}
    sites = [folder for folder in sys.path if os.path.basename(folder) in _OF_SITES]
    paths |= {path for folder in sites for path in glob.glob(os.path.join(glob.escape(folder), "*.pth"))}
    paths |= {*sys.path}  # some are archives, whose modules are no files
    found = {
        path: status_of(path) for path in paths if path and os.path.isabs(path) and not os.path.isdir(path)
    }
    return {path: status for path, status in found.items() if status is not None}


def status_of(path: str) -> Status | None:
    """Return what a file is known by; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Status(status.st_ctime_ns, status.st_ino)


def first_changed(files: Mapping[str, Status], paths: Iterable[str]) -> str | None:
    """Return the first of these files that is not any more what it was; None where all are, or are not known.

    There are thousands: nothing is made for each.
    """
    for path in paths:
        if (was := files.get(path)) is None:
            continue
        try:
            now = os.stat(path)
        except OSError:
            return path
        if now.st_ctime_ns != was.changed or now.st_ino != was.number:
            return path
    return None


def modules_in(folder: str) -> frozenset[str]:
    """Return what can be imported from a folder, and which packages are installed there."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return frozenset()
    ends = _OF_PACKAGES if os.path.basename(folder) in _OF_SITES else ()
    return frozenset(
        each for each in entries if each.endswith(ends) or _is_module(os.path.join(folder, each))
    )


def shadowing(folder: str, names: Collection[str]) -> str | None:
    """Return what in a folder would be imported in place of an imported module of one of these names."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return None
    for each in sorted(entries):
        name, path = each.partition(".")[0], os.path.join(folder, each)
        if name in names and _is_module(path) and _would_be_found(path, sys.modules.get(name)):
            return each
    return None


def _is_module(path: str) -> bool:
    name = os.path.basename(path)
    return name.endswith(_OF_MODULES) or ("." not in name and name != "__pycache__" and os.path.isdir(path))


def _would_be_found(path: str, imported: ModuleType | None) -> bool:
    """Tell whether Python would find another module at `path`, before the one that is imported.

    A folder without `__init__` is found last of all. And a package's own folder is no other module.
    """
    spec = getattr(imported, "__spec__", None)
    if not os.path.isdir(path) or spec is None or not spec.has_location:
        return True
    if glob.glob(os.path.join(glob.escape(path), "__init__.*")):
        return not any(_is_same(path, location) for location in spec.submodule_search_locations or ())
    return False


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False
