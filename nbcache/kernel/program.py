"""The program that a kernel has run so far: its cells, and the user's own modules."""

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
"""A line that is empty, a comment, or a command to nbcache."""
_RUNS_FILES = re.compile(r"%run\b|\brun_(?:line|cell)_magic\(\s*(?:['\"]run\b|[^'\"\s])|\bexecfile\b")
"""A cell that runs files whose names are unknown, or a magic whose name is in a variable."""

_CLOCKS_DIFFER = 0.05
"""Seconds by which the time of a new file may be behind this process's clock."""

_MOST_NEW = 100


class Program:
    """Digests the cells that have run, without comments and layout, and the user's modules."""

    def __init__(self) -> None:
        self._state = hashlib.sha256()
        self._new: list[str] = []
        self._present: dict[str, str] = {}
        self._runs_files = False
        self._began = time.time() - _CLOCKS_DIFFER
        self._files: dict[str, tuple[tuple[int, int], str]] = {}

    def note_cell(self, source: str, name: str | None = None) -> None:
        """Note a cell that begins; `name` identifies the cell even if its source changes."""
        self._new.append(source)
        if len(self._new) > _MOST_NEW:
            self._hash_new_cells()
        digest = Cell.of(source.encode(errors="replace").decode(), None).digest
        self._present[name or digest] = digest

    def present(self) -> frozenset[str]:
        return frozenset(self._present.values())

    def digest(self, generated: str = "") -> str:
        """Return the digest of the program so far, with the running cell; empty if it is unknown.

        It is unknown if a module's file has changed since nbcache was loaded, or if a cell runs a file.
        Modules in the folder `generated` are ignored.
        """
        self._hash_new_cells()
        if self._runs_files:
            return ""
        state = self._state.copy()
        for name, path in sorted(_own_modules()):
            if generated and path.startswith(os.path.join(generated, "")):
                continue
            digest = self._file_digest(path)
            if not digest:
                return ""
            state.update(f"{name} {digest}\n".encode())
        return state.hexdigest()

    def _hash_new_cells(self) -> None:
        while self._new:
            source = self._new.pop(0)
            if not all(map(_OURS_ALONE.match, source.splitlines())):
                self._runs_files |= bool(_RUNS_FILES.search(source))
                self._state.update(hashlib.sha256(_meaning(source)).digest())

    def _file_digest(self, path: str) -> str:
        """Return the digest of a file; empty if it has changed since nbcache was loaded, or is gone."""
        try:
            status = os.stat(path)
            stamp = status.st_mtime_ns, status.st_size
            cached = self._files.get(path)
            if cached is None or cached[0] != stamp:
                if status.st_mtime >= self._began:
                    return ""
                with open(path, "rb") as file:
                    cached = self._files[path] = stamp, hashlib.sha256(file.read()).hexdigest()
        except OSError:
            return ""
        return cached[1]


def _own_modules() -> Iterator[tuple[str, str]]:
    for name, module in sys.modules.copy().items():
        if not issubclass(type(module), types.ModuleType):
            continue
        path = object.__getattribute__(module, "__dict__").get("__file__")
        if type(path) is str and not (path.startswith(_OURS) or is_installed(path)):
            yield name, path


def _meaning(source: str) -> bytes:
    """Return a cell's syntax tree, without comments and layout; its text if it is not plain Python."""
    try:
        return ast.dump(ast.parse(source)).encode("utf-8", "surrogatepass")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source.strip().encode("utf-8", "surrogatepass")
