"""Tells which traces fit what a kernel has run: those that torch made where the same had run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Set
from typing import TYPE_CHECKING

from nbcache.artifacts.types import RERUN
from nbcache.core.key import sha256

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["Reruns"]


class Reruns:
    """What is noted of the traces of a kernel and of those before it that have run the same."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._met: Counter[str] = Counter()
        """By the keys of frames: how often each was met."""

    def place(self, key: str) -> str:
        """Return what stands for a frame that is met now, after all that has run; empty where none tells.

        Each call counts: what becomes of a frame depends on how often it was met.
        """
        with self._lock:
            ran = self._session.program.digest()
            self._met[key] += 1
            return ran and sha256(f"{key} {ran} {self._met[key]}".encode())

    def traces(self, place: str) -> Set[str]:
        """Return the digests of the traces that torch made of the frame at this place."""
        return {each.content.decode("ascii", "replace") for each in self._session.find(RERUN, place)}

    def note(self, place: str, trace: str, *, made: bool) -> None:
        """Note the digest of a trace that torch `made` of the frame at this place, or that was used there."""
        self._session.cache.record(RERUN, place, trace.encode("ascii"), made=made)
