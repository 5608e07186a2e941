"""The local store as one kernel uses it: whatever fails there costs hits, and never a cell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeVar

from nbcache.artifacts.provenance import Judge
from nbcache.artifacts.store import ArtifactStore, Fault, FaultKind
from nbcache.core.errors import StoreError, TrustError
from nbcache.core.model import Artifact, ArtifactRef, Environment, Manifest
from nbcache.stores.base import Store

__all__ = ["LocalLevel"]

T = TypeVar("T")

_QUIET_SECONDS = 60.0
"""How long a store that failed is left alone."""
_EVICT_SHARE = 50
"""The store's bound is checked after each fiftieth of it has been written."""


class LocalLevel:
    """Reads, writes and bounds the local store. No method raises; what a failing store costs is None.

    `max_bytes` returns its bound, `say` is given one-line notices, and `failed` what is a bug of ours.
    `judge` says whose artifacts may be used, and `met_others` hears of any that was not compiled here.
    """

    def __init__(
        self,
        store: Store,
        max_bytes: Callable[[], int],
        say: Callable[[str], None],
        failed: Callable[[str, BaseException], None],
        judge: Judge,
        met_others: Callable[[], None],
    ) -> None:
        self.artifacts = ArtifactStore(store, on_fault=self._faulted, admits=self._admits)
        """The store itself, whose methods raise StoreError."""
        self._max_bytes = max_bytes
        self._say = say
        self._failed = failed
        self._judge = judge
        self._met_others = met_others
        self.refused: dict[str, str] = {}
        """Why artifacts may not be used, by their digests."""
        self._refused: set[str] = set()
        """What was said of artifacts that may not be used."""
        self._damaged: set[str] = set()
        self._looking_for = threading.local()
        self._quiet_until: dict[str, float] = {}
        self._written = self._evicted_at = 0

    @property
    def name(self) -> str:
        """What to call it in reports."""
        return self.artifacts.store.name

    def is_damaged(self, key: str) -> bool:
        """Tell whether what was stored under torch's `key` was damaged when it was looked for."""
        return key in self._damaged

    def find(self, environment: Environment, type: str, key: str) -> list[Artifact]:
        """Return the artifacts under torch's `key`, newest first."""
        self._looking_for.key = key
        return (
            self._access("read", "reading", partial(self.artifacts.find, environment.digest, type, key)) or []
        )

    def manifest(self, environment: Environment, notebook: str) -> Manifest | None:
        """Return what is stored of a notebook; None where nothing is, too."""
        load = partial(self.artifacts.load_manifest, environment, notebook)
        return self._access("read", "reading the manifest", load)

    def of_all_environments(self, notebook: str) -> list[Manifest]:
        """Return what is stored of a notebook for every environment."""
        read = partial(self.artifacts.manifests, notebook)
        return [*(self._access("read", "reading the manifests of other environments", read) or {}).values()]

    def packed(self, ref: ArtifactRef) -> bytes | None:
        """Return an artifact as a snapshot holds it; None where it is not there, too."""
        return self._access("read", "reading what is to be shared", partial(self.artifacts.packed, ref))

    def put(self, put: Callable[[], ArtifactRef | None]) -> ArtifactRef | None:
        """Return what `put` does, which stores an artifact, and keep the store within its bound."""
        ref = self._access("write", "storing what was compiled", put)
        if ref is not None:
            self._bound(ref.size)
        return ref

    def adopt(self, environment: Environment, ref: ArtifactRef, packed: bytes) -> bool | None:
        """Store an artifact that came from elsewhere, `packed`; return whether it is new here."""
        adopt = partial(self.artifacts.adopt, environment.digest, ref, packed)
        new = self._access("write", "storing what came from elsewhere", adopt)
        if new:
            self._bound(len(packed))
        return new

    def usable(self, refs: Sequence[ArtifactRef]) -> list[ArtifactRef]:
        """Return the refs whose artifacts are stored, and may be used."""
        look = partial(self.artifacts.present, [ref.digest for ref in refs])
        present = self._access("read", "looking for what was stored", look) or ()
        return [ref for ref in refs if ref.digest in present and self._admits(ref)]

    def save(self, manifest: Manifest) -> Manifest | None:
        """Save a manifest, and return its union with what is saved."""
        return self._access("write", "writing the manifest", partial(self.artifacts.save_manifest, manifest))

    def forget(self, environment: Environment, type: str, key: str) -> None:
        """Drop what is stored under torch's `key`."""
        forget = partial(self.artifacts.forget, environment.digest, type, key)
        self._access("write", "dropping what is of no use", forget)

    def _bound(self, written: int) -> None:
        """Count bytes that were written, and keep the store within its bound."""
        self._written += written
        most = self._max_bytes()
        if self._evicted_at == 0 or self._written - self._evicted_at > most / _EVICT_SHARE:
            self._evicted_at = max(1, self._written)
            self._access("write", "keeping within its bound", partial(self.artifacts.evict, most))

    def _access(self, access: Literal["read", "write"], what: str, action: Callable[[], T]) -> T | None:
        """Do `action` on the store, unless the store failed at such an access a short while ago."""
        if time.monotonic() < self._quiet_until.get(access, 0.0):
            return None
        try:
            return action()
        except StoreError as error:
            self._quiet_until[access] = time.monotonic() + _QUIET_SECONDS
            why = error.with_next_step()
            self._say(f"{self.name}: {what} failed, so it is not tried for a while. {why}")
        except Exception as error:
            self._failed(what, error)
        return None

    def _admits(self, ref: ArtifactRef) -> bool:
        """Tell whether an artifact may be used; say once why those of its maker may not."""
        try:
            self._judge.admit_stored(ref)
            if ref.provenance is not None:
                self._met_others()
                self.refused.pop(ref.digest, None)  # its maker is trusted by now
            return True
        except TrustError as error:
            self.refused[ref.digest] = error.what
            if error.what not in self._refused:
                self._refused.add(error.what)
                self._say(f"{self.name}: what came from elsewhere is not used: {error.with_next_step()}")
            return False

    def _faulted(self, fault: Fault) -> None:
        """Say once that stored bytes could not be used; what was evicted is no fault."""
        if fault.kind is FaultKind.CORRUPT:
            self._damaged.add(getattr(self._looking_for, "key", ""))
            self._say(f"{self.name}: damaged entries were set aside and count as misses")
        elif fault.kind is FaultKind.NEWER:
            self._say(f"{self.name}: entries of a newer nbcache were left alone")
