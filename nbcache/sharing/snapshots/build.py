"""Snapshots: artifacts and a signed manifest, in one file or, by name, in a store. Take, check, merge.

The versions of several people stand side by side: each writes their own, and leaves the others alone. A
snapshot passes, in this order: length, digests, signature, policy (`Received.unlock`), and for each artifact
that is to be used its maker (`vouched`). Only then is anything of it decompressed, stored or handed to torch.
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
    check,
    is_own,
    judged,
    packed_bytes,
    selected,
    told,
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
    """By digest of their content; it may lack those that are there already."""
    missing: tuple[ArtifactRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    where: str
    draft: Draft
    data: bytes
    changed: bool
    lost: int = 0
    left: int = 0
    """Versions that stand beside: of others, or damaged."""

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
    known: Mapping[str, Packed] = MappingProxyType({}),
) -> Draft:
    """Return a snapshot of `manifest`. Contents are read unless `known`; raises StoreError."""
    packed: dict[str, bytes] = {}
    contents: dict[str, Packed] = {}
    kept, missing = [], []
    for ref in manifest.artifacts:
        if ref.digest not in contents:
            if (there := known.get(ref.digest)) is None:
                content = artifacts.packed(ref)
                if content is None or is_bomb(ref.size, len(content)):
                    missing.append(ref)
                    continue
                packed[ref.digest] = content
                there = Packed(ref.size, len(content), sha256(content))
            contents[ref.digest] = there
        kept.append(ref)
    held = union(manifest.environment, "", [replace(manifest, artifacts=tuple(kept))])
    return Draft(_snapshot(origin, [held], contents), packed, tuple(missing))


def of_manifests(received: Received, manifests: Sequence[Manifest]) -> Draft:
    packed = received.unlock(Policy.STRICT)
    snapshot = selected(replace(received.snapshot, manifests=tuple(manifests)), lambda manifest: manifest)
    return Draft(snapshot, {digest: packed[digest] for digest in snapshot.contents if digest in packed})


def merge(drafts: Sequence[Draft], origin: Origin) -> Draft:
    """Return the union of `drafts`: of what grows, as torch's profile of sizes, only the newest."""
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
    """Return a snapshot's file, signed with the user's key, beside `others` and the frames that they name."""
    frames = _named_by(others, packed)  # which may be damaged, under a digest that is right for one's own
    for digest, content in draft.snapshot.contents.items():
        frames[content.packed_digest] = draft.packed[digest]
    return encode_file(SnapshotFile([sign(draft.snapshot, keyring), *others], frames))


def sign(snapshot: Snapshot, keyring: Keyring) -> Signed:
    manifest = encode_snapshot(snapshot)
    check(snapshot)
    return Signed(manifest, keyring.sign(Purpose.SNAPSHOT, manifest).encode())


def _named_by(versions: Sequence[Signed], packed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the frames that versions name; all of them, where a version cannot be read."""
    named: set[str] = set()
    for version in versions:
        try:
            contents = decode_snapshot(version.manifest).contents
        except FormatError:
            return dict(packed)
        named |= {each.packed_digest for each in contents.values()}
    return {digest: frame for digest, frame in packed.items() if digest in named}


def _snapshot(origin: Origin, manifests: Sequence[Manifest], contents: Mapping[str, Packed]) -> Snapshot:
    named = dict.fromkeys(ref.digest for manifest in manifests for ref in manifest.artifacts)
    held = {digest: contents[digest] for digest in named}
    return Snapshot(**asdict(origin), manifests=tuple(manifests), contents=held)


# --- versions of several signers ------------------------------------------------------------------


def merge_into_existing(
    earlier: Sequence[Received],
    build: Callable[[Mapping[str, Packed]], Draft],
    origin: Origin,
    keyring: Keyring,
    *,
    anew: bool = False,
    current: Callable[[Manifest], Manifest] | None = None,
) -> tuple[Draft, bool]:
    """Return the union of the user's own versions and what `build` adds, and whether to sign it again.

    `build` gets the contents that are there, by digest. What was compiled here gets the user's statement, and
    all else keeps its maker's. `current` returns the part of a manifest that a version keeps.
    """
    drafts = [
        Draft(selected(one.snapshot, current) if current else one.snapshot, one.unlock(Policy.STRICT))
        for one in earlier
    ]
    known: dict[str, Packed] = {}
    for draft in drafts:
        known = {**draft.snapshot.contents, **known}
    taken = attributed(build(known), drafts, origin, keyring)
    draft = merge([*drafts, taken], origin)
    return draft, anew or len(drafts) != 1 or draft.snapshot.manifests != earlier[0].snapshot.manifests


def attributed(draft: Draft, earlier: Sequence[Draft], origin: Origin, keyring: Keyring) -> Draft:
    """Return `draft` with the user's statements of what was compiled here, taken from `earlier` if there."""
    own = keyring.fingerprint()
    contents = draft.snapshot.contents
    signed_before = {
        (manifest.environment, ref.identity): ref.provenance
        for draft in earlier
        for manifest in draft.snapshot.manifests
        for ref in manifest.artifacts
        if ref.provenance is not None and signed_by(ref.provenance) == own
    }

    def signed(environment: Environment, ref: ArtifactRef) -> ArtifactRef:
        if ref.provenance is not None:
            return ref
        if (provenance := signed_before.get((environment, ref.identity))) is None:
            said = statement_of(environment, ref, contents[ref.digest], origin.user, origin.host)
            provenance = said.signed(keyring)
        return replace(ref, provenance=provenance)

    manifests = tuple(
        replace(manifest, artifacts=tuple(signed(manifest.environment, ref) for ref in manifest.artifacts))
        for manifest in draft.snapshot.manifests
    )
    return replace(draft, snapshot=replace(draft.snapshot, manifests=manifests))


def added(
    before: bytes | None,
    build: Callable[[Mapping[str, Packed]], Draft],
    origin: Origin,
    keyring: Keyring,
    *,
    where: str,
    current: Callable[[Manifest], Manifest] | None = None,
) -> Taken:
    """Add to the user's version in a file, and leave the others; CorruptSnapshot if it is no snapshot."""
    file = SnapshotFile([], {})
    ours: dict[str, Received] = {}
    if before is not None:
        with told(where):
            file = decode_file(before)
        found, _ = judged(file, keyring, where=where)
        ours = {received.version: received for received in found if received.is_own}
    # The user's own that are damaged go: what they held and is still here is in the new one.
    others = [
        version for version in file.versions if version.digest not in ours and not is_own(version, keyring)
    ]
    draft, changed = merge_into_existing([*ours.values()], build, origin, keyring, current=current)
    data = signed(draft, keyring, others, file.packed) if changed or before is None else before
    return Taken(where, draft, data, changed, left=len(others))


def united(files: Sequence[bytes], keyring: Keyring) -> bytes:
    """Return one file of all versions of several; without those that a later one by the signer holds."""
    versions: dict[str, Signed] = {}
    packed: dict[str, bytes] = {}
    received: dict[str, Received] = {}
    for data in files:
        file = decode_file(data)
        packed |= {digest: frame for digest, frame in file.packed.items() if sha256(frame) == digest}
        versions |= {version.digest: version for version in file.versions}
        received |= {version.version: version for version in judged(file, keyring, where="")[0]}
    for one in [*received.values()]:
        if any(_absorbs(other, one) for other in received.values()):
            del versions[one.version], received[one.version]
    if len(versions) == len(received):  # else nobody can tell what the others name
        named = {each.packed_digest for one in received.values() for each in one.snapshot.contents.values()}
        packed = {digest: frame for digest, frame in packed.items() if digest in named}
    return encode_file(SnapshotFile([*versions.values()], packed))


def _absorbs(other: Received, one: Received) -> bool:
    if other is one or (other.signer, bool(one.signer)) != (one.signer, True):
        return False
    held, more = _slots(one.snapshot), _slots(other.snapshot)
    if held == more:
        return (other.snapshot.created, other.version) > (one.snapshot.created, one.version)
    return held < more and other.snapshot.created >= one.snapshot.created


def _slots(snapshot: Snapshot) -> set[tuple[str, ...]]:
    return {
        (manifest.environment.digest, *slot(ref))
        for manifest in snapshot.manifests
        for ref in manifest.artifacts
    }


def vouched(manifest: Manifest, judge: Judge) -> tuple[Manifest, list[NbcacheError]]:
    """Return what of a snapshot's manifest may be used, by who compiled it; and why the rest may not."""
    kept: list[ArtifactRef] = []
    problems: dict[str, NbcacheError] = {}
    for ref in manifest.artifacts:
        try:
            judge.check(ref, lambda statement: is_bound(statement, manifest.environment))
            kept.append(ref)
        except (TrustError, FormatError) as error:
            problems.setdefault(error.what, error)
    return restricted(manifest, kept), list(problems.values())
