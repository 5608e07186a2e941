"""Write, verify, merge and drop artifacts, references and manifests in any store.

Keys of a store, all below these prefixes (each value is an entry of `nbcache.storage.encoding`)::

    artifact/<content digest>                                     content
    ref/<digest of environment, type, key>/<content digest>       ArtifactRef
    manifest/<environment digest>/<notebook digest>/<digest>      Manifest; never changed, only replaced

An artifact is written before its reference, so a reference promises its artifact. A damaged entry is reported
and removed, and the lookup is a miss; only a failing store raises. A reference names its artifact's maker,
unless that is this user. References that `admits` refuses stay, unused, until their maker is trusted again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from nbcache.core import key as keys
from nbcache.core.errors import CorruptEntry, FormatError, StoreError, UnsupportedVersion
from nbcache.core.model import UNSIGNED, Artifact, ArtifactRef, Environment, Manifest, Provenance
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.encoding import (
    decode_entry,
    decode_manifest,
    decode_ref,
    encode_entry,
    encode_manifest,
    encode_ref,
    entry_of,
    packed_of,
)
from nbcache.storage.history import HistoryStore
from nbcache.storage.manifests import holdings, newest_first, notebook_digest, recency, restricted, union
from nbcache.storage.types import type_of

_MAX_REF_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 64 << 20
_LISTINGS = 5
"""Most attempts to list manifests while other kernels merge them."""
_UPKEEP_SHARE = 16
"""Manifests may take this fraction of the bytes that artifacts may take: a sixteenth."""

_ARTIFACT, _REF, _MANIFEST = "artifact/", "ref/", "manifest/"

_T = TypeVar("_T")


class ArtifactStore:
    """Artifacts and manifests above any `Store`, for all environments and notebooks.

    The reading thread calls `on_fault` with the error of an entry that is damaged, before it removes the
    entry, or that a newer nbcache wrote (UnsupportedVersion); such an entry stays. `admits` returns whether
    a reference's artifact may be used. Methods raise StoreError, and FormatError if their docstrings say so.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        on_fault: Callable[[FormatError], None] = lambda error: None,
        admits: Callable[[ArtifactRef], bool] = lambda ref: True,
    ):
        self.store = store
        self.history = HistoryStore(getattr(store, "root", None))
        self._clock = clock
        self._on_fault = on_fault
        self._admits = admits

    def put(
        self,
        environment_digest: str,
        artifact: Artifact,
        packed: bytes | None = None,
        *,
        cell: str = "",
        function: str = "",
    ) -> ArtifactRef:
        """Store `artifact`, which this user compiled; `packed` is the result of `pack` for its content.

        FormatError if the artifact's key is not valid text, or its type is empty.
        """
        used = self._clock()
        ref = ArtifactRef(
            artifact.type, artifact.key, artifact.digest, len(artifact.content), used, used, cell, function
        )
        return self._store(environment_digest, ref, lambda: encode_entry(artifact.content, packed))[0]

    def adopt(self, environment_digest: str, ref: ArtifactRef, packed: bytes) -> bool:
        """Store another maker's artifact; return whether its content is new here. FormatError as in `put`.

        `find` and `get` later unpack and verify the content. A reference without provenance is unsigned.
        """
        ref = replace(ref.not_after(self._clock()), provenance=ref.provenance or UNSIGNED)
        return self._store(environment_digest, ref, lambda: entry_of(packed, size=ref.size))[1]

    def refresh(
        self, environment_digest: str, artifact: Artifact, *, cell: str = "", function: str = ""
    ) -> ArtifactRef | None:
        """If `artifact` is stored, mark it as used now and return its reference; else return None."""
        digest = artifact.digest
        try:
            prefix = _ref_prefix(environment_digest, artifact.type, artifact.key)
        except FormatError:
            return None
        stored = self._read_refs(prefix, [prefix + digest], artifact.type, artifact.key)
        if not stored or not self._touch(_ARTIFACT + digest):
            return None
        ref = stored[prefix + digest]
        used = max(self._clock(), ref.used)
        ref = replace(ref, used=used, cell=cell or ref.cell, function=function or ref.function)
        self._put_ref(prefix, ref)
        return ref

    def find(self, environment_digest: str, type: str, key: str) -> list[Artifact]:
        """Return the artifacts under torch's `key`, newest first; several if their guards differ."""
        try:
            prefix = _ref_prefix(environment_digest, type, key)
        except FormatError:
            return []  # `put` refuses such a key
        stored = self._read_refs(prefix, self.store.keys(prefix), type, key)
        refs = {ref_key: ref for ref_key, ref in stored.items() if self._admits(ref)}
        entries = self.store.get_many(_ARTIFACT + ref.digest for ref in refs.values())
        artifacts = []
        for ref_key, ref in sorted(refs.items(), key=lambda pair: recency(pair[1]), reverse=True):
            entry = entries.get(_ARTIFACT + ref.digest)
            if entry is None:
                self._drop(ref_key)  # its artifact was evicted
            elif (content := self._read_content(entry, ref.digest)) is not None:
                artifacts.append(Artifact(type, key, content))
            elif self.store.get(_ARTIFACT + ref.digest) is None:
                self._drop(ref_key)  # its artifact was damaged; one of a newer nbcache stays
        return artifacts

    def forget(self, environment_digest: str, type: str, key: str) -> None:
        self._delete(self.store.keys(_ref_prefix(environment_digest, type, key)))

    def get(self, ref: ArtifactRef) -> Artifact | None:
        entry = self.store.get(_ARTIFACT + ref.digest)
        content = None if entry is None else self._read_content(entry, ref.digest)
        return None if content is None else Artifact(ref.type, ref.key, content)

    def present(self, digests: Iterable[str]) -> set[str]:
        keys = self.store.present(_ARTIFACT + digest for digest in digests)
        return {key.removeprefix(_ARTIFACT) for key in keys}

    def read_packed(self, ref: ArtifactRef) -> bytes | None:
        """Return the verified content of `ref`'s artifact as one zstd frame (`pack`), or None."""
        if (entry := self.store.get(_ARTIFACT + ref.digest)) is None:
            return None
        return self._decode(_ARTIFACT + ref.digest, entry, partial(packed_of, digest=ref.digest))

    def load_manifest(self, environment: Environment, notebook: str) -> Manifest | None:
        """Return the union of the manifests that kernels saved for `notebook`, without refused artifacts."""
        saved = newest_first(self.manifests(notebook, environment).values())
        return union(environment, notebook, map(self.admitted, saved)) if saved else None

    def everything(self, environment: Environment) -> Manifest:
        """Return the union of all notebooks' manifests for `environment`, without refused artifacts."""
        stored = self.manifests(environment=environment).values()
        return union(environment, "", map(self.admitted, newest_first(stored)))

    def save_manifest(self, manifest: Manifest) -> Manifest:
        """Save the union of `manifest` and its notebook's saved manifests; return its admitted part.

        Several kernels may do so at once without a lock, and no reference is lost: a saved manifest never
        changes, and is deleted only after a greater one was written. FormatError if a field is out of range.
        """
        environment, notebook = manifest.environment, manifest.notebook
        saved = self.manifests(notebook, environment)
        merged = union(environment, notebook, [manifest, *newest_first(saved.values())])
        content = encode_manifest(merged)
        name = _manifest_prefix(environment, notebook) + keys.sha256(content)
        # A greater manifest has all references of the other, as new or newer. If both have the same ones in
        # another order, the greater has the greater name. Without that rule two kernels with manifests in
        # different orders could each remove the other's.
        equals = {key: one for key, one in saved.items() if holdings(one) == holdings(merged)}
        equals[name] = merged
        greatest = max(equals)
        if greatest not in saved:
            self.store.put(greatest, encode_entry(content))
        for key in saved.keys() - {greatest}:
            self.store.delete(key)
        return self.admitted(equals[greatest])

    def evict(self, max_bytes: int) -> list[str]:
        """Evict the least recently used artifacts of a folder; return their digests. Servers evict alone."""
        if not isinstance(self.store, DirectoryStore):
            return []
        removed = self.store.evict(_ARTIFACT, max_bytes)
        self.store.evict(_MANIFEST, max_bytes // _UPKEEP_SHARE)
        if removed:
            # References are listed first: each is put after its artifact. So if a listed reference's
            # artifact is missing from the later listing, it was evicted.
            refs = list(self.store.keys(_REF))
            present = {key.removeprefix(_ARTIFACT) for key in self.store.keys(_ARTIFACT)}
            self._delete(key for key in refs if key.rpartition("/")[2] not in present)
        return [key.removeprefix(_ARTIFACT) for key in removed]

    def manifests(
        self, notebook: str | None = None, environment: Environment | None = None
    ) -> dict[str, Manifest]:
        """Return the manifests of all notebooks and environments, or of the given ones, by key."""
        prefix = _MANIFEST if environment is None else f"{_MANIFEST}{environment.digest}/"
        if notebook is not None and environment is not None:
            prefix = _manifest_prefix(environment, notebook)
        digest = None if notebook is None else notebook_digest(notebook)
        entries: Mapping[str, bytes] = {}
        for _ in range(_LISTINGS):
            listed = {key for key in self.store.keys(prefix) if digest in (None, *key.split("/")[2:3])}
            entries = self.store.get_many(listed)
            if entries.keys() == listed:
                break  # else another kernel has merged some into a manifest that this listing lacks
        return self._decode_all(entries, _manifest_of)

    def drop(self, listed: Iterable[str], refs: Iterable[tuple[str, ArtifactRef]]) -> int:
        """Remove manifests and references, then artifacts without references; return their number."""
        self._delete(listed)
        self._delete(_ref_prefix(digest, ref.type, ref.key) + ref.digest for digest, ref in refs)
        # Artifacts are listed first, so that one which is put meanwhile stays: its reference follows it.
        present = list(self.store.keys(_ARTIFACT))
        referred = {key.rpartition("/")[2] for key in self.store.keys(_REF)}
        return self._delete(key for key in present if key.removeprefix(_ARTIFACT) not in referred)

    def clear(self) -> int:
        """Remove all entries, for all environments and notebooks; return their number."""
        self.history.clear()
        return sum(self._delete(self.store.keys(prefix)) for prefix in (_MANIFEST, _REF, _ARTIFACT))

    def _delete(self, keys: Iterable[str]) -> int:
        listed = list(keys)
        for key in listed:
            self.store.delete(key)
        return len(listed)

    def admitted(self, manifest: Manifest) -> Manifest:
        """Return `manifest` without the references that `admits` refuses."""
        refs = tuple(filter(self._admits, manifest.artifacts))
        return manifest if len(refs) == len(manifest.artifacts) else restricted(manifest, refs)

    def _store(
        self, environment_digest: str, ref: ArtifactRef, entry: Callable[[], bytes]
    ) -> tuple[ArtifactRef, bool]:
        """Store a missing entry, and its reference; return the reference, and whether the entry is new."""
        artifact_key = _ARTIFACT + ref.digest
        prefix = _ref_prefix(environment_digest, ref.type, ref.key)
        stored = self._read_refs(prefix, [prefix + ref.digest], ref.type, ref.key)
        for earlier in stored.values():
            ref = replace(
                ref,
                created=earlier.created,
                used=max(ref.used, earlier.used),
                cell=ref.cell or earlier.cell,
                function=ref.function or earlier.function,
                provenance=self._better_provenance(earlier.provenance, ref),
            )
        encode_ref(ref)  # raises before the artifact is stored, so that none lacks its reference
        is_new = not self._touch(artifact_key)
        if is_new:
            self.store.put(artifact_key, entry())
        self._put_ref(prefix, ref)
        return ref, is_new

    def _put_ref(self, prefix: str, ref: ArtifactRef) -> None:
        self.store.put(prefix + ref.digest, encode_entry(encode_ref(ref)))
        if type_of(ref.type).grows:
            stored = self._read_refs(prefix, self.store.keys(prefix), ref.type, ref.key)
            # Only older ones: two kernels that put at once must not delete each other's.
            self._delete(key for key, other in stored.items() if recency(other) < recency(ref))

    def _better_provenance(self, stored: Provenance | None, ref: ArtifactRef) -> Provenance | None:
        """Return None if either is this user's, else a signed one: of two, the stored one if admitted."""
        if ref.provenance is None or stored is None:
            return None
        if ref.provenance == UNSIGNED or self._admits(replace(ref, provenance=stored)):
            return ref.provenance if stored == UNSIGNED else stored
        return ref.provenance

    def _touch(self, artifact_key: str) -> bool:
        """Return whether an artifact is stored; in a folder, mark it as used now."""
        if isinstance(self.store, DirectoryStore):
            return self.store.touch(artifact_key)
        return bool(self.store.present([artifact_key]))

    def _read_refs(self, prefix: str, ref_keys: Iterable[str], type: str, key: str) -> dict[str, ArtifactRef]:
        def decode(ref_key: str, entry: bytes) -> ArtifactRef:
            ref = decode_ref(decode_entry(entry, max_bytes=_MAX_REF_BYTES))
            if (ref.type, ref.key, prefix + ref.digest) != (type, key, ref_key):
                raise CorruptEntry("a reference is stored under the key of another artifact")
            return ref

        return self._decode_all(self.store.get_many(list(ref_keys)), decode)

    def _read_content(self, entry: bytes, digest: str) -> bytes | None:
        return self._decode(_ARTIFACT + digest, entry, partial(decode_entry, digest=digest))

    def _decode_all(self, entries: Mapping[str, bytes], decode: Callable[[str, bytes], _T]) -> dict[str, _T]:
        decoded = {key: self._decode(key, entry, partial(decode, key)) for key, entry in entries.items()}
        return {key: value for key, value in decoded.items() if value is not None}

    def _decode(self, key: str, entry: bytes, decode: Callable[[bytes], _T]) -> _T | None:
        """Return the decoded `entry`. If it is damaged, report it, remove it and return None.

        The report is first, so that another thread which misses the entry can rely on it.
        """
        try:
            return decode(entry)
        except FormatError as error:
            error.where = f"{key} in {self.store.name}"
            self._on_fault(error)
            if not isinstance(error, UnsupportedVersion):
                self._drop(key)
            return None

    def _drop(self, key: str) -> None:
        with suppress(StoreError):
            self.store.delete(key)


def _ref_prefix(environment_digest: str, type: str, key: str) -> str:
    try:
        parts = keys.components({"environment": environment_digest, "type": type, "key": key})
        return f"{_REF}{keys.digest(parts)}/"
    except UnicodeEncodeError as error:
        raise FormatError("an artifact's key holds a lone surrogate, which UTF-8 cannot hold") from error


def _manifest_of(key: str, entry: bytes) -> Manifest:
    manifest = decode_manifest(decode_entry(entry, max_bytes=_MAX_MANIFEST_BYTES))
    if not key.startswith(_manifest_prefix(manifest.environment, manifest.notebook)):
        raise CorruptEntry(
            "a notebook's list of graphs is stored under the key of another notebook or environment"
        )
    return manifest


def _manifest_prefix(environment: Environment, notebook: str) -> str:
    return f"{_MANIFEST}{environment.digest}/{notebook_digest(notebook)}/"
