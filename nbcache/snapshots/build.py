"""Snapshots: artifacts and a signed manifest, in one file or, by name, in a store. Take, check, merge.

Where several people take snapshots their versions stand side by side: each writes anew what is theirs, and
leaves alone what is not. What is read passes, in this order: length, digests, signature, policy
(`Received.unlock`), and for each artifact that is to be used who compiled it
(`nbcache.snapshots.versions.vouched`).
Only then is anything of it decompressed, stored or handed to torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from nbcache.artifacts.encoding import (
    decode_snapshot,
    encode_snapshot,
    is_bomb,
)
from nbcache.artifacts.manifests import union
from nbcache.artifacts.provenance import Made, made_by
from nbcache.artifacts.store import ArtifactStore
from nbcache.core.errors import FormatError
from nbcache.core.key import sha256
from nbcache.core.model import ArtifactRef, Environment, Manifest, Packed, Snapshot
from nbcache.core.signature import Purpose
from nbcache.core.trust import Keyring, Policy
from nbcache.snapshots.file import Signed, SnapshotFile, encode_file
from nbcache.snapshots.verify import _MAX_ENVIRONMENTS, Received, _check, _check_packed

__all__ = [
    "Draft",
    "Origin",
    "build_snapshot",
    "makers",
    "merge",
    "of_manifests",
    "signed",
    "signed_manifest",
]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a snapshot says of where it comes from; see `Snapshot`."""

    notebook: str
    created: float
    made_by: str
    user: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A snapshot in the making: what it will say, and the compressed artifacts."""

    snapshot: Snapshot
    packed: Mapping[str, bytes] = field(repr=False)
    """By digest of their content; of what is there already, where it goes, it may lack some."""
    missing: tuple[ArtifactRef, ...] = ()
    """What was to be in it, and is not there any more, or cannot be in a snapshot."""


def build_snapshot(
    artifacts: ArtifactStore,
    manifest: Manifest,
    origin: Origin,
    known: Mapping[str, Packed] = MappingProxyType({}),
) -> Draft:
    """Return a snapshot of what `manifest` names: read from `artifacts`, but for what is `known` already.

    What is known, by digest, is named and not read. Raises StoreError where the store fails.
    """
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
    """Return a draft of `manifests`, which are of the unlocked snapshot `received`, or parts of such."""
    packed = received.unlock(Policy.STRICT)
    named = {ref.digest for manifest in manifests for ref in manifest.artifacts}
    contents = {digest: each for digest, each in received.snapshot.contents.items() if digest in named}
    held = tuple(manifest for manifest in manifests if manifest.artifacts)
    snapshot = replace(received.snapshot, manifests=held, contents=contents)
    return Draft(snapshot, {digest: packed[digest] for digest in contents if digest in packed})


def merge(drafts: Sequence[Draft], origin: Origin) -> Draft:
    """Return all that `drafts` hold, losing nothing of any.

    Only of torch's profile of dynamic shapes, which grows, the newest is kept.
    """
    by_environment: dict[Environment, list[Manifest]] = {}
    contents: dict[str, Packed] = {}
    held: dict[str, bytes] = {}
    for draft in drafts:
        for digest in draft.snapshot.contents.keys() - contents.keys():
            contents[digest] = draft.snapshot.contents[digest]
            if digest in draft.packed:
                held[digest] = draft.packed[digest]
        for manifest in draft.snapshot.manifests:
            by_environment.setdefault(manifest.environment, []).append(manifest)
    manifests = [union(environment, "", every) for environment, every in by_environment.items()]
    newest = sorted(manifests, key=_last_used)[-_MAX_ENVIRONMENTS:]
    manifests = [manifest for manifest in manifests if manifest in newest]
    snapshot = _snapshot(origin, manifests, contents)
    packed = {digest: held[digest] for digest in snapshot.contents if digest in held}
    missing = tuple(ref for draft in drafts for ref in draft.missing)
    return Draft(snapshot, packed, missing)


def makers(snapshot: Snapshot) -> dict[str, Made]:
    """Return who compiled what a snapshot holds, by fingerprint; empty for what is not signed."""
    refs = {ref.identity: ref for manifest in snapshot.manifests for ref in manifest.artifacts}
    return made_by(refs.values())


def signed(
    draft: Draft,
    keyring: Keyring,
    others: Sequence[Signed] = (),
    packed: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """Return the file of a snapshot, signed with the user's key; CorruptSnapshot where it breaks a bound.

    `others` are versions that stand beside it, and `packed` has the frames that they name, by their digests.
    """
    contents = draft.snapshot.contents
    _check_packed(draft.snapshot, draft.packed)
    frames = _named_by(others, packed)  # which may be damaged, under a digest that is right for one's own
    frames |= {contents[digest].packed_digest: frame for digest, frame in draft.packed.items()}
    return encode_file(SnapshotFile([_signed(draft.snapshot, keyring), *others], frames))


def signed_manifest(draft: Draft, keyring: Keyring) -> bytes:
    """Return the same file without the artifacts: they lie elsewhere."""
    return encode_file(SnapshotFile([_signed(draft.snapshot, keyring)], {}))


def _signed(snapshot: Snapshot, keyring: Keyring) -> Signed:
    manifest = encode_snapshot(snapshot)
    _check(snapshot)
    return Signed(manifest, keyring.sign(Purpose.SNAPSHOT, manifest).encode())


def _named_by(versions: Sequence[Signed], packed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return those frames that versions name; all, where one of them cannot be read."""
    named: set[str] = set()
    for version in versions:
        try:
            contents = decode_snapshot(version.manifest).contents
        except FormatError:
            return dict(packed)
        named |= {each.packed_digest for each in contents.values()}
    return {digest: frame for digest, frame in packed.items() if digest in named}


def _last_used(manifest: Manifest) -> float:
    return max((ref.used for ref in manifest.artifacts), default=0.0)


def _snapshot(origin: Origin, manifests: Sequence[Manifest], contents: Mapping[str, Packed]) -> Snapshot:
    """Return a snapshot of `manifests`; `contents` has what they name, and may have more."""
    named = dict.fromkeys(ref.digest for manifest in manifests for ref in manifest.artifacts)
    return Snapshot(
        notebook=origin.notebook,
        created=origin.created,
        made_by=origin.made_by,
        manifests=tuple(manifests),
        contents={digest: contents[digest] for digest in named},
        user=origin.user,
        host=origin.host,
    )
