"""Files of imported modules, and modules that a folder would provide instead."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import TypeAlias

_OF_MODULES = (".py", ".pyc", ".so")
_OF_SITES = ("site-packages", "dist-packages")
_OF_PACKAGES = (".pth", ".dist-info", ".egg-info")
"""Ends of other names in such folders that matter: Python runs these files, and libraries look for them."""
Status: TypeAlias = tuple[int, int]
"""A file's time of change in nanoseconds (`st_ctime_ns`), and its inode."""


def files(read: Iterable[str]) -> dict[str, Status]:
    """Return the files of all that is imported or `read`, and of what says where modules are."""
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
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ctime_ns, status.st_ino


def first_changed(files: Mapping[str, Status], paths: Iterable[str]) -> str | None:
    """Return the first of these paths whose file is gone or has changed; those not in `files` are skipped."""
    return next((path for path in paths if path in files and status_of(path) != files[path]), None)


def modules_in(folder: str) -> frozenset[str]:
    """Return what can be imported from a folder, and which packages are installed there."""
    ends = _OF_PACKAGES if os.path.basename(folder) in _OF_SITES else ()
    return frozenset(
        name for name in _names_in(folder) if name.endswith(ends) or _is_module(os.path.join(folder, name))
    )


def shadowing(folder: str, names: Collection[str]) -> str | None:
    """Return what in a folder would be imported in place of an imported module of one of these names."""
    for file in sorted(_names_in(folder)):
        name, path = file.partition(".")[0], os.path.join(folder, file)
        if name in names and _is_module(path) and _would_be_found(path, sys.modules.get(name)):
            return file
    return None


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_module(path: str) -> bool:
    name = os.path.basename(path)
    return name.endswith(_OF_MODULES) or ("." not in name and name != "__pycache__" and os.path.isdir(path))


def _would_be_found(path: str, imported: ModuleType | None) -> bool:
    """Return whether Python would find another module at `path`, before the one that is imported.

    Python finds a folder without `__init__` last of all. A package's own folder is no other module.
    """
    spec = getattr(imported, "__spec__", None)
    if not os.path.isdir(path) or spec is None or not spec.has_location:
        return True
    if not glob.glob(os.path.join(glob.escape(path), "__init__.*")):
        return False
    own = [location for location in spec.submodule_search_locations or () if os.path.exists(location)]
    return not any(os.path.samefile(path, location) for location in own)
