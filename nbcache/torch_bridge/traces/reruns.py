"""Tells which traces fit what a kernel has run: those that torch made where the same had run."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Set
from itertools import islice
from typing import TYPE_CHECKING

from nbcache.artifacts.types import RERUN
from nbcache.core.key import sha256

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["Reruns"]

_MOST = 64
"""At how many places the traces of a function are remembered, the newest first."""
_LINE = re.compile(r"[0-9a-f]{64} [0-9a-f]{64}")
"""A place, and the digest of a trace that torch made there."""


class Reruns:
    """What is noted of the traces of a kernel and of those before it that have run the same."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._met: Counter[str] = Counter()
        """By the keys of frames: how often each was met."""
        self._noted: dict[str, dict[str, None]] = {}
        """By the keys of frames: what is noted, newest first."""

    def place(self, key: str) -> str:
        """Return what stands for a frame that is met now, after all that has run; empty where none tells.

        Each call counts: what becomes of a frame depends on how often it was met. What torch has generated
        does not: prewarming has it loaded, or not yet.
        """
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        with self._lock:
            ran = self._session.program.digest(generated=cache_dir())
            self._met[key] += 1
            return ran and sha256(f"{ran} {self._met[key]}".encode())

    def traces(self, key: str, place: str) -> Set[str]:
        """Return the digests of the traces that torch made of the frame with this key at this place."""
        stored = self._session.find(RERUN, key)
        with self._lock:
            noted = self._noted.setdefault(key, {})
            for each in stored:
                noted.update(dict.fromkeys(_LINE.findall(each.content.decode("ascii", "replace"))))
            told = (line.split() for line in noted)
            return {trace for where, trace in told if where == place}

    def note(self, key: str, place: str, trace: str) -> None:
        """Note the digest of a trace that torch made of the frame at this place, or that was used there."""
        line = f"{place} {trace}"
        with self._lock:
            noted = self._noted.setdefault(key, {})
            if is_new := line not in noted:
                self._noted[key] = noted = dict.fromkeys(islice((line, *noted), _MOST))
            content = "\n".join(noted).encode("ascii")
        self._session.cache.record(RERUN, key, content, made=is_new)
