"""Maps what a kernel has run to the traces that torch made after the same program."""

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
"""Number of places per function, the newest first."""
_LINE = re.compile(r"[0-9a-f]{64} [0-9a-f]{64}")
"""A place, and the digest of a trace that torch made there."""


class Reruns:
    """The places of this kernel's frames, and the traces that this and earlier kernels made there."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._met: Counter[str] = Counter()
        """Key of a frame → how often the kernel has met it."""
        self._noted: dict[str, dict[str, None]] = {}
        """Key of a frame → its lines, the newest first."""

    def place(self, key: str) -> str:
        """Return the digest of a frame and of all that has run before it; empty if that is unknown.

        It includes how often the kernel has met the frame, and ignores modules that torch has generated.
        """
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        with self._lock:
            ran = self._session.program.digest(generated=cache_dir())
            self._met[key] += 1
            return ran and sha256(f"{key} {ran} {self._met[key]}".encode())

    def traces(self, key: str, place: str) -> Set[str]:
        """Return the digests of the traces that torch made of the frame with this key at this place."""
        stored = self._session.find(RERUN, key)
        with self._lock:
            noted = self._noted.setdefault(key, {})
            for artifact in stored:
                noted.update(dict.fromkeys(_LINE.findall(artifact.content.decode("ascii", "replace"))))
            return {line.split()[1] for line in noted if line.startswith(place)}

    def note(self, key: str, place: str, trace: str) -> None:
        """Note the digest of a trace that torch made of the frame at this place, or that it adopted there."""
        line = f"{place} {trace}"
        with self._lock:
            noted = self._noted.setdefault(key, {})
            if is_new := line not in noted:
                self._noted[key] = noted = dict.fromkeys(islice((line, *noted), _MOST))
            content = "\n".join(noted).encode("ascii")
        self._session.cache.record(RERUN, key, content, made=is_new)
