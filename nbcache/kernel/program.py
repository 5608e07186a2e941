"""The program that a kernel has run so far: its cells, and the files of its user's own modules."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import time
import types
from collections.abc import Iterator

from nbcache.core.installed import is_installed
from nbcache.core.reports import Cell

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OURS_ALONE = re.compile(r"\s*(?:%nbcache\b|%(?:re)?load_ext +nbcache\s*$|#|$)")
"""A line that at most has nbcache do something."""
_RUNS_FILES = re.compile(r"%run\b|\brun_(?:line|cell)_magic\(\s*(?:['\"]run\b|[^'\"\s])|\bexecfile\b")
"""A cell that runs files, of which the kernel does not tell which, or a magic that a variable names."""

_CLOCKS_DIFFER = 0.05
"""Seconds by which a file that is written now may seem older than this process's clock says."""

_MOST_NEW = 100


class Program:
    """The digest of the cells, but for comments and layout, and of the user's modules that have run."""

    def __init__(self) -> None:
        self._told = hashlib.sha256()
        self._new: list[str] = []
        self._present: dict[str, str] = {}
        self._runs_files = False
        self._began = time.time() - _CLOCKS_DIFFER
        self._files: dict[str, tuple[tuple[int, int], str]] = {}

    def note_cell(self, source: str, name: str | None = None) -> None:
        """Note a cell that begins; `name` tells it from other cells, whatever its source is."""
        self._new.append(source)
        if len(self._new) > _MOST_NEW:
            self._take_in()
        digest = Cell.of(source.encode(errors="replace").decode(), None).digest
        self._present[name or digest] = digest

    def present(self) -> frozenset[str]:
        return frozenset(self._present.values())

    def digest(self, generated: str = "") -> str:
        """Return the digest of what has run up to now, with the running cell; empty where it can't be told.

        That is so where a module's file has changed since nbcache was loaded, or a cell runs a file. Modules
        in the folder `generated` don't count.
        """
        self._take_in()
        if self._runs_files:
            return ""
        found = self._told.copy()
        for name, path in sorted(_own_modules()):
            if generated and path.startswith(os.path.join(generated, "")):
                continue
            digest = self._file(path)
            if not digest:
                return ""
            found.update(f"{name} {digest}\n".encode())
        return found.hexdigest()

    def _take_in(self) -> None:
        while self._new:
            source = self._new.pop(0)
            if not all(map(_OURS_ALONE.match, source.splitlines())):
                self._runs_files |= bool(_RUNS_FILES.search(source))
                self._told.update(hashlib.sha256(_meaning(source)).digest())

    def _file(self, path: str) -> str:
        """Return the digest of a file; empty where it has changed since nbcache was loaded, or is gone."""
        try:
            status = os.stat(path)
            seen = status.st_mtime_ns, status.st_size
            known = self._files.get(path)
            if known is None or known[0] != seen:
                if status.st_mtime >= self._began:
                    return ""
                with open(path, "rb") as file:
                    known = self._files[path] = seen, hashlib.sha256(file.read()).hexdigest()
        except OSError:
            return ""
        return known[1]


def _own_modules() -> Iterator[tuple[str, str]]:
    for name, module in sys.modules.copy().items():
        if not issubclass(type(module), types.ModuleType):
            continue
        path = object.__getattribute__(module, "__dict__").get("__file__")
        if type(path) is str and not (path.startswith(_OURS) or is_installed(path)):
            yield name, path


def _meaning(source: str) -> bytes:
    """Return what a cell means, whatever its comments and its layout are; its text, where it has magics."""
    try:
        return ast.dump(ast.parse(source)).encode("utf-8", "surrogatepass")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source.strip().encode("utf-8", "surrogatepass")
