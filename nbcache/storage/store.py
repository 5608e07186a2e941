"""Artifacts, references and manifests in any store: written, verified, merged and dropped.

Keys of a store, all below these prefixes (each value is an entry of `nbcache.storage.encoding`)::

    artifact/<content digest>                                     content
    ref/<digest of environment, type, key>/<content digest>       ArtifactRef
    manifest/<environment digest>/<notebook digest>/<digest>      Manifest; never changed, only replaced

An artifact is written before its reference, so that a reference promises its artifact. A damaged entry is
reported, removed and then a miss; only a failing store raises. A reference names the maker of its artifact,
if that is not this user. References that `admits` refuses stay, unused, until their maker is trusted again.
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
_UPKEEP_SHARE = 16

_ARTIFACT, _REF, _MANIFEST = "artifact/", "ref/", "manifest/"

_T = TypeVar("_T")


class ArtifactStore:
    """Artifacts and manifests above any `Store`, for all environments and notebooks.

    `on_fault` gets the error of each entry that is damaged, which is then removed, or of a newer nbcache
    (UnsupportedVersion), which is left alone; the reading thread calls it. `admits` returns whether a
    reference's artifact may be used. Methods raise StoreError where the store fails, and FormatError only
    where they say so.
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
        """Store `artifact`, compiled here and used now; `packed` is its content as `pack` makes it.

        FormatError where the artifact's key is no text, or its type is empty.
        """
        now = self._clock()
        ref = ArtifactRef(
            artifact.type, artifact.key, artifact.digest, len(artifact.content), now, now, cell, function
        )
        return self._keep(environment_digest, ref, lambda: encode_entry(artifact.content, packed))[0]

    def adopt(self, environment_digest: str, ref: ArtifactRef, packed: bytes) -> bool:
        """Store an artifact from elsewhere; return whether its content is new here. FormatError as `put`.

        `find` and `get` unpack the content, and check it. Without a statement it is unsigned.
        """
        ref = replace(ref.not_after(self._clock()), provenance=ref.provenance or UNSIGNED)
        return self._keep(environment_digest, ref, lambda: entry_of(packed, size=ref.size))[1]

    def refresh(
        self, environment_digest: str, artifact: Artifact, *, cell: str = "", function: str = ""
    ) -> ArtifactRef | None:
        """Mark `artifact` as used now if it is there already, and return its reference; else None."""
        digest = artifact.digest
        try:
            prefix = _ref_prefix(environment_digest, artifact.type, artifact.key)
        except FormatError:
            return None
        known = self._read_refs(prefix, [prefix + digest], artifact.type, artifact.key)
        if not known or not self._holds(_ARTIFACT + digest):
            return None
        ref = known[prefix + digest]
        used = max(self._clock(), ref.used)
        ref = replace(ref, used=used, cell=cell or ref.cell, function=function or ref.function)
        self._put_ref(prefix, ref)
        return ref

    def find(self, environment_digest: str, type: str, key: str) -> list[Artifact]:
        """Return the artifacts under torch's `key`: one, or variants with other guards, newest first."""
        try:
            prefix = _ref_prefix(environment_digest, type, key)
        except FormatError:
            return []  # `put` refuses it, so it is not there
        stored = self._read_refs(prefix, self.store.keys(prefix), type, key)
        refs = {ref_key: ref for ref_key, ref in stored.items() if self._admits(ref)}
        entries = self.store.get_many(_ARTIFACT + ref.digest for ref in refs.values())
        artifacts = []
        for ref_key, ref in sorted(refs.items(), key=lambda pair: recency(pair[1]), reverse=True):
            entry = entries.get(_ARTIFACT + ref.digest)
            if entry is None:
                self._drop(ref_key)  # it was evicted
            elif (content := self._read_content(entry, ref.digest)) is not None:
                artifacts.append(Artifact(type, key, content))
            elif self.store.get(_ARTIFACT + ref.digest) is None:
                self._drop(ref_key)  # it was removed, not left to a newer nbcache
        return artifacts

    def forget(self, environment_digest: str, type: str, key: str) -> None:
        self._delete(self.store.keys(_ref_prefix(environment_digest, type, key)))

    def get(self, ref: ArtifactRef) -> Artifact | None:
        entry = self.store.get(_ARTIFACT + ref.digest)
        content = None if entry is None else self._read_content(entry, ref.digest)
        return None if content is None else Artifact(ref.type, ref.key, content)

    def present(self, digests: Iterable[str]) -> set[str]:
        found = self.store.present(_ARTIFACT + digest for digest in digests)
        return {key.removeprefix(_ARTIFACT) for key in found}

    def packed(self, ref: ArtifactRef) -> bytes | None:
        """Return the content of the artifact that `ref` names as a snapshot holds it (`pack`), or None."""
        if (entry := self.store.get(_ARTIFACT + ref.digest)) is None:
            return None
        return self._decode(_ARTIFACT + ref.digest, entry, partial(packed_of, digest=ref.digest))

    def load_manifest(self, environment: Environment, notebook: str) -> Manifest | None:
        """Return the union of what kernels saved for `notebook` here and may be used."""
        saved = newest_first(self.manifests(notebook, environment).values())
        return union(environment, notebook, map(self.admitted, saved)) if saved else None

    def everything(self, environment: Environment) -> Manifest:
        stored = self.manifests(environment=environment).values()
        return union(environment, "", map(self.admitted, newest_first(stored)))

    def save_manifest(self, manifest: Manifest) -> Manifest:
        """Save the union of `manifest` and what is saved for its notebook; return what of it may be used.

        Any number of kernels may do so at once, without a lock, and no reference is lost: a saved
        manifest never changes, and goes only after one that is greater has been written.
        FormatError where a reference's field is out of range.
        """
        environment, notebook = manifest.environment, manifest.notebook
        saved = self.manifests(notebook, environment)
        merged = union(environment, notebook, [manifest, *newest_first(saved.values())])
        content = encode_manifest(merged)
        name = _manifest_prefix(environment, notebook) + keys.sha256(content)
        # Greater: it has all that the other has, as new or newer, and if it has no more than that (only
        # the order differs) its name is greater. Without the last rule two kernels that hold the same
        # references in another order could each remove the other's manifest.
        equals = {key: one for key, one in saved.items() if holdings(one) == holdings(merged)}
        equals[name] = merged
        greatest = max(equals)
        if greatest not in saved:
            self.store.put(greatest, encode_entry(content))
        for key in saved.keys() - {greatest}:
            self.store.delete(key)
        return self.admitted(equals[greatest])

    def evict(self, max_bytes: int) -> list[str]:
        """Bound the artifacts by use; return the removed digests. A server bounds itself."""
        if not isinstance(self.store, DirectoryStore):
            return []
        removed = self.store.evict(_ARTIFACT, max_bytes)
        self.store.evict(_MANIFEST, max_bytes // _UPKEEP_SHARE)
        if removed:
            # In this order: a reference is put after its artifact, so one that is listed now and
            # whose artifact is not listed later has lost it.
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
        wanted = None if notebook is None else notebook_digest(notebook)
        entries: Mapping[str, bytes] = {}
        for _ in range(_LISTINGS):
            listed = {key for key in self.store.keys(prefix) if wanted in (None, *key.split("/")[2:3])}
            entries = self.store.get_many(listed)
            if entries.keys() == listed:
                break  # else another kernel absorbed some into a manifest that is not in this listing
        return self._decode_all(entries, _manifest_of)

    def drop(self, listed: Iterable[str], refs: Iterable[tuple[str, ArtifactRef]]) -> int:
        """Remove these manifests and references, and artifacts without any; return how many of the last."""
        self._delete(listed)
        self._delete(_ref_prefix(digest, ref.type, ref.key) + ref.digest for digest, ref in refs)
        # In this order: what is put meanwhile is not listed, and its reference comes after it.
        present = list(self.store.keys(_ARTIFACT))
        referred = {key.rpartition("/")[2] for key in self.store.keys(_REF)}
        return self._delete(key for key in present if key.removeprefix(_ARTIFACT) not in referred)

    def clear(self) -> int:
        """Remove all entries, for all environments and notebooks; return how many."""
        self.history.clear()
        return sum(self._delete(self.store.keys(prefix)) for prefix in (_MANIFEST, _REF, _ARTIFACT))

    def _delete(self, keys: Iterable[str]) -> int:
        listed = list(keys)
        for key in listed:
            self.store.delete(key)
        return len(listed)

    def admitted(self, manifest: Manifest) -> Manifest:
        refs = tuple(filter(self._admits, manifest.artifacts))
        return manifest if len(refs) == len(manifest.artifacts) else restricted(manifest, refs)

    def _keep(
        self, environment_digest: str, ref: ArtifactRef, entry: Callable[[], bytes]
    ) -> tuple[ArtifactRef, bool]:
        """Store an entry, if it is not there, and its reference; return it and whether the entry was new."""
        artifact_key = _ARTIFACT + ref.digest
        prefix = _ref_prefix(environment_digest, ref.type, ref.key)
        earlier = self._read_refs(prefix, [prefix + ref.digest], ref.type, ref.key)
        for known in earlier.values():
            ref = replace(
                ref,
                created=known.created,
                used=max(ref.used, known.used),
                cell=ref.cell or known.cell,
                function=ref.function or known.function,
                provenance=self._better(known.provenance, ref),
            )
        encode_ref(ref)  # or the artifact is stored without its reference
        new = not self._holds(artifact_key)
        if new:
            self.store.put(artifact_key, entry())
        self._put_ref(prefix, ref)
        return ref, new

    def _put_ref(self, prefix: str, ref: ArtifactRef) -> None:
        self.store.put(prefix + ref.digest, encode_entry(encode_ref(ref)))
        if type_of(ref.type).grows:
            others = self._read_refs(prefix, self.store.keys(prefix), ref.type, ref.key)
            # Only what is older: two kernels that put at once must not drop each other's.
            self._delete(key for key, other in others.items() if recency(other) < recency(ref))

    def _better(self, known: Provenance | None, ref: ArtifactRef) -> Provenance | None:
        if ref.provenance is None or known is None:
            return None
        if ref.provenance == UNSIGNED or self._admits(replace(ref, provenance=known)):
            return ref.provenance if known == UNSIGNED else known
        return ref.provenance

    def _holds(self, artifact_key: str) -> bool:
        """Return whether an artifact is there; mark it as used now, where the store can."""
        if isinstance(self.store, DirectoryStore):
            return self.store.touch(artifact_key)
        return bool(self.store.present([artifact_key]))

    def _read_refs(self, prefix: str, ref_keys: Iterable[str], type: str, key: str) -> dict[str, ArtifactRef]:
        def decode(ref_key: str, entry: bytes) -> ArtifactRef:
            ref = decode_ref(decode_entry(entry, max_bytes=_MAX_REF_BYTES))
            if (ref.type, ref.key, prefix + ref.digest) != (type, key, ref_key):
                raise CorruptEntry("a reference names another artifact than its key does")
            return ref

        return self._decode_all(self.store.get_many(list(ref_keys)), decode)

    def _read_content(self, entry: bytes, digest: str) -> bytes | None:
        return self._decode(_ARTIFACT + digest, entry, partial(decode_entry, digest=digest))

    def _decode_all(self, entries: Mapping[str, bytes], decode: Callable[[str, bytes], _T]) -> dict[str, _T]:
        decoded = {key: self._decode(key, entry, partial(decode, key)) for key, entry in entries.items()}
        return {key: value for key, value in decoded.items() if value is not None}

    def _decode(self, key: str, entry: bytes, decode: Callable[[bytes], _T]) -> _T | None:
        """Return what `entry` holds, or None after reporting the fault, and then removing it.

        In this order: another thread that finds it gone can rely on the report.
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
        raise CorruptEntry("a manifest is of another environment or notebook than its key says")
    return manifest


def _manifest_prefix(environment: Environment, notebook: str) -> str:
    return f"{_MANIFEST}{environment.digest}/{notebook_digest(notebook)}/"
