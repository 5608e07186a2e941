"""Takes, signs and merges snapshots: artifacts and a signed manifest, in one file or by name in a store.

A snapshot may have versions of several signers; each signer writes only their own. A version passes these
checks: length, digests, signature, policy (`Received.unlock`), and the maker of each artifact that is to be
used (`admitted_part`). Only then is an artifact decompressed, stored or given to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType

from nbcache.core.errors import FormatError, NbcacheError, TrustError
from nbcache.core.key import sha256
from nbcache.core.model import ArtifactRef, Environment, Manifest, Packed, Snapshot, SnapshotTaken
from nbcache.core.settings import Policy
from nbcache.core.signature import Purpose
from nbcache.sharing.provenance import Judge, Made, is_bound, made_by, signed_by, statement_of
from nbcache.sharing.snapshots.file import Signed, SnapshotFile, decode_file, encode_file
from nbcache.sharing.snapshots.verify import (
    MAX_ENVIRONMENTS,
    Received,
    check_bounds,
    errors_at,
    examine,
    is_own,
    packed_bytes,
    select_refs,
)
from nbcache.sharing.trust import Keyring
from nbcache.storage.encoding import decode_snapshot, encode_snapshot, is_bomb
from nbcache.storage.manifests import restricted, slot, union
from nbcache.storage.store import ArtifactStore


@dataclass(frozen=True, slots=True)
class Origin:
    notebook: str
    created: float
    made_by: str
    user: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    snapshot: Snapshot
    packed: Mapping[str, bytes] = field(repr=False)
    """Content digest → frame; frames that the target already has may be missing."""
    missing: tuple[ArtifactRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    where: str
    draft: Draft
    data: bytes
    changed: bool
    lost: int = 0
    left: int = 0
    """Other versions at this place: of other signers, or damaged."""

    def summary(self) -> SnapshotTaken:
        snapshot = self.draft.snapshot
        return SnapshotTaken(
            where=self.where,
            graphs=sum(len(manifest.graphs) for manifest in snapshot.manifests),
            artifacts=len(snapshot.contents),
            packed_bytes=packed_bytes(snapshot),
            changed=self.changed,
            missing=len(self.draft.missing) + self.lost,
            left=self.left,
        )


def build_snapshot(
    artifacts: ArtifactStore,
    manifest: Manifest,
    origin: Origin,
    existing: Mapping[str, Packed] = MappingProxyType({}),
) -> Draft:
    """Return a snapshot of `manifest`. Contents are read unless `existing` has them; raises StoreError."""
    packed: dict[str, bytes] = {}
    contents: dict[str, Packed] = {}
    refs, missing = [], []
    for ref in manifest.artifacts:
        if ref.digest not in contents:
            if (sizes := existing.get(ref.digest)) is None:
                content = artifacts.read_packed(ref)
                if content is None or is_bomb(ref.size, len(content)):
                    missing.append(ref)
                    continue
                packed[ref.digest] = content
                sizes = Packed(ref.size, len(content), sha256(content))
            contents[ref.digest] = sizes
        refs.append(ref)
    restricted_manifest = union(manifest.environment, "", [replace(manifest, artifacts=tuple(refs))])
    return Draft(_snapshot(origin, [restricted_manifest], contents), packed, tuple(missing))


def draft_of(received: Received, manifests: Sequence[Manifest]) -> Draft:
    """Return a draft of `manifests`, which are parts of those in `received`, and of their contents."""
    packed = received.unlock(Policy.STRICT)
    snapshot = select_refs(replace(received.snapshot, manifests=tuple(manifests)), lambda manifest: manifest)
    return Draft(snapshot, {digest: packed[digest] for digest in snapshot.contents if digest in packed})


def merge(drafts: Sequence[Draft], origin: Origin) -> Draft:
    """Return the union of `drafts`. Of growing artifacts, like torch's profile of sizes, the newest stays."""
    by_environment: dict[Environment, list[Manifest]] = {}
    contents: dict[str, Packed] = {}
    frames: dict[str, bytes] = {}
    for draft in drafts:
        for digest in draft.snapshot.contents.keys() - contents.keys():
            contents[digest] = draft.snapshot.contents[digest]
            if digest in draft.packed:
                frames[digest] = draft.packed[digest]
        for manifest in draft.snapshot.manifests:
            by_environment.setdefault(manifest.environment, []).append(manifest)
    manifests = [union(environment, "", every) for environment, every in by_environment.items()]
    by_use = sorted(
        manifests, key=lambda manifest: max((ref.used for ref in manifest.artifacts), default=0.0)
    )
    manifests = [manifest for manifest in manifests if manifest in by_use[-MAX_ENVIRONMENTS:]]
    snapshot = _snapshot(origin, manifests, contents)
    packed = {digest: frames[digest] for digest in snapshot.contents if digest in frames}
    return Draft(snapshot, packed, tuple(ref for draft in drafts for ref in draft.missing))


def makers(snapshot: Snapshot) -> dict[str, Made]:
    refs = {ref.identity: ref for manifest in snapshot.manifests for ref in manifest.artifacts}
    return made_by(refs.values())


def signed(
    draft: Draft,
    keyring: Keyring,
    others: Sequence[Signed] = (),
    packed: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """Return a file with the snapshot, signed by the user, and `others` with the frames that they name."""
    frames = _named_by(others, packed)  # any of them may be damaged, so the user's own replace them
    for digest, content in draft.snapshot.contents.items():
        frames[content.packed_digest] = draft.packed[digest]
    return encode_file(SnapshotFile([sign(draft.snapshot, keyring), *others], frames))


def sign(snapshot: Snapshot, keyring: Keyring) -> Signed:
    manifest = encode_snapshot(snapshot)
    check_bounds(snapshot)
    return Signed(manifest, keyring.sign(Purpose.SNAPSHOT, manifest).encode())


def _named_by(versions: Sequence[Signed], packed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the frames that versions name; all frames if a version is unreadable."""
    named: set[str] = set()
    for version in versions:
        try:
            contents = decode_snapshot(version.manifest).contents
        except FormatError:
            return dict(packed)
        named |= {content.packed_digest for content in contents.values()}
    return {digest: frame for digest, frame in packed.items() if digest in named}


def _snapshot(origin: Origin, manifests: Sequence[Manifest], contents: Mapping[str, Packed]) -> Snapshot:
    named = dict.fromkeys(ref.digest for manifest in manifests for ref in manifest.artifacts)
    used = {digest: contents[digest] for digest in named}
    return Snapshot(**asdict(origin), manifests=tuple(manifests), contents=used)


# --- versions of several signers ------------------------------------------------------------------


def merge_into_existing(
    earlier: Sequence[Received],
    build: Callable[[Mapping[str, Packed]], Draft],
    origin: Origin,
    keyring: Keyring,
    *,
    sign_again: bool = False,
    current: Callable[[Manifest], Manifest] | None = None,
) -> tuple[Draft, bool]:
    """Return the union of the user's own versions and the draft of `build`, and whether to sign it again.

    `build` gets the existing contents by digest. Artifacts compiled here get the user's statement; the others
    keep their maker's. `current` returns the part of a manifest that a version keeps.
    """
    drafts = [
        Draft(select_refs(old.snapshot, current) if current else old.snapshot, old.unlock(Policy.STRICT))
        for old in earlier
    ]
    existing: dict[str, Packed] = {}
    for draft in drafts:
        existing = {**draft.snapshot.contents, **existing}
    addition = attributed(build(existing), drafts, origin, keyring)
    draft = merge([*drafts, addition], origin)
    return draft, sign_again or len(drafts) != 1 or draft.snapshot.manifests != earlier[0].snapshot.manifests


def attributed(draft: Draft, earlier: Sequence[Draft], origin: Origin, keyring: Keyring) -> Draft:
    """Return `draft` with the user's statements on artifacts compiled here, reusing those in `earlier`."""
    own = keyring.fingerprint()
    contents = draft.snapshot.contents
    signed_before = {
        (manifest.environment, ref.identity): ref.provenance
        for draft in earlier
        for manifest in draft.snapshot.manifests
        for ref in manifest.artifacts
        if ref.provenance is not None and signed_by(ref.provenance) == own
    }

    def attest(environment: Environment, ref: ArtifactRef) -> ArtifactRef:
        if ref.provenance is not None:
            return ref
        if (provenance := signed_before.get((environment, ref.identity))) is None:
            statement = statement_of(environment, ref, contents[ref.digest], origin.user, origin.host)
            provenance = statement.sign(keyring)
        return replace(ref, provenance=provenance)

    manifests = tuple(
        replace(manifest, artifacts=tuple(attest(manifest.environment, ref) for ref in manifest.artifacts))
        for manifest in draft.snapshot.manifests
    )
    return replace(draft, snapshot=replace(draft.snapshot, manifests=manifests))


def add_to_file(
    content: bytes | None,
    build: Callable[[Mapping[str, Packed]], Draft],
    origin: Origin,
    keyring: Keyring,
    *,
    where: str,
    current: Callable[[Manifest], Manifest] | None = None,
) -> Taken:
    """Add a draft to the user's version in a file; others stay. CorruptSnapshot if it is no snapshot."""
    file = SnapshotFile([], {})
    own: dict[str, Received] = {}
    if content is not None:
        with errors_at(where):
            file = decode_file(content)
        valid, _ = examine(file, keyring, where=where)
        own = {received.version: received for received in valid if received.is_own}
    # The user's damaged versions go: the new one has those of their artifacts that are still stored.
    other_versions = [
        version for version in file.versions if version.digest not in own and not is_own(version, keyring)
    ]
    draft, changed = merge_into_existing([*own.values()], build, origin, keyring, current=current)
    data = signed(draft, keyring, other_versions, file.packed) if changed or content is None else content
    return Taken(where, draft, data, changed, left=len(other_versions))


def united(files: Sequence[bytes], keyring: Keyring) -> bytes:
    """Return one file with the versions in `files`, less those that a later one by the signer contains."""
    versions: dict[str, Signed] = {}
    packed: dict[str, bytes] = {}
    received: dict[str, Received] = {}
    for data in files:
        file = decode_file(data)
        packed |= {digest: frame for digest, frame in file.packed.items() if sha256(frame) == digest}
        versions |= {version.digest: version for version in file.versions}
        received |= {version.version: version for version in examine(file, keyring, where="")[0]}
    for version in [*received.values()]:
        if any(_absorbs(other, version) for other in received.values()):
            del versions[version.version], received[version.version]
    if len(versions) == len(received):  # otherwise an unreadable version may name any frame
        named = {part.packed_digest for one in received.values() for part in one.snapshot.contents.values()}
        packed = {digest: frame for digest, frame in packed.items() if digest in named}
    return encode_file(SnapshotFile([*versions.values()], packed))


def _absorbs(other: Received, one: Received) -> bool:
    """Return whether `other` has all artifacts of `one`, and is its signer's later version."""
    if other is one or (other.signer, bool(one.signer)) != (one.signer, True):
        return False
    slots, other_slots = _slots(one.snapshot), _slots(other.snapshot)
    if slots == other_slots:
        return (other.snapshot.created, other.version) > (one.snapshot.created, one.version)
    return slots < other_slots and other.snapshot.created >= one.snapshot.created


def _slots(snapshot: Snapshot) -> set[tuple[str, ...]]:
    return {
        (manifest.environment.digest, *slot(ref))
        for manifest in snapshot.manifests
        for ref in manifest.artifacts
    }


def admitted_part(manifest: Manifest, judge: Judge) -> tuple[Manifest, list[NbcacheError]]:
    """Return the part of a snapshot's manifest whose makers `judge` admits, and errors of other parts."""
    admitted: list[ArtifactRef] = []
    problems: dict[str, NbcacheError] = {}
    for ref in manifest.artifacts:
        try:
            judge.check(ref, lambda statement: is_bound(statement, manifest.environment))
            admitted.append(ref)
        except (TrustError, FormatError) as error:
            problems.setdefault(error.what, error)
    return restricted(manifest, admitted), list(problems.values())
