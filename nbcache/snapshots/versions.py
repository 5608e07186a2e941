"""Versions of a snapshot: each signer's own, side by side, and in each of them who compiled what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nbcache.artifacts.manifests import restricted, union
from nbcache.artifacts.provenance import Judge, is_bound, signed_by, statement_of
from nbcache.artifacts.types import type_of
from nbcache.core.errors import FormatError, NbcacheError, TrustError
from nbcache.core.key import sha256
from nbcache.core.model import ArtifactRef, Environment, Manifest, Packed, Snapshot
from nbcache.core.trust import Keyring, Policy, Standing
from nbcache.snapshots.build import Draft, Origin, merge, signed
from nbcache.snapshots.file import Signed, SnapshotFile, decode_file, encode_file
from nbcache.snapshots.verify import Received, is_own, judged, told

__all__ = ["added", "attributed", "merge_into_existing", "united", "vouched"]


def merge_into_existing(
    earlier: Sequence[Received],
    build: Callable[[Mapping[str, Packed]], Draft],
    origin: Origin,
    keyring: Keyring,
    *,
    anew: bool = False,
    current: Callable[[Manifest], Manifest] | None = None,
) -> tuple[Draft, bool]:
    """Return the user's own versions that are there, with what `build` adds; and whether to sign that anew.

    It is where any of it is new, and with `anew`. `build` is told what is there, by digest. What was compiled
    here gets the user's statement, and all else keeps its maker's. `current` returns what a version keeps.
    """
    drafts = [Draft(_select(each.snapshot, current), each.unlock(Policy.STRICT)) for each in earlier]
    known: dict[str, Packed] = {}
    for draft in drafts:
        known = {**draft.snapshot.contents, **known}
    taken = attributed(build(known), drafts, origin, keyring)
    draft = merge([*drafts, taken], origin)
    return draft, anew or len(drafts) != 1 or draft.snapshot.manifests != earlier[0].snapshot.manifests


def _select(snapshot: Snapshot, current: Callable[[Manifest], Manifest] | None) -> Snapshot:
    if current is None:
        return snapshot
    present = [union(manifest.environment, "", [current(manifest)]) for manifest in snapshot.manifests]
    manifests = tuple(manifest for manifest in present if manifest.artifacts)
    digests = {digest for manifest in manifests for digest in manifest.digests}
    contents = {digest: packed for digest, packed in snapshot.contents.items() if digest in digests}
    return replace(snapshot, manifests=manifests, contents=contents)


def attributed(draft: Draft, earlier: Sequence[Draft], origin: Origin, keyring: Keyring) -> Draft:
    """Return `draft` with the user's signed statement of each artifact that was compiled here.

    One that was signed for the same artifact in `earlier` ones is taken from there.
    """
    own = keyring.fingerprint()
    contents = draft.snapshot.contents
    signed_before = {
        (manifest.environment, ref.identity): ref.provenance
        for each in earlier
        for manifest in each.snapshot.manifests
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
        replace(each, artifacts=tuple(signed(each.environment, ref) for ref in each.artifacts))
        for each in draft.snapshot.manifests
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
) -> tuple[bytes, Draft, bool, int]:
    """Return a snapshot file with what `build` adds to the user's version in it; the others stay as they are.

    Also returns what that version holds, whether any of it is new, and how many others there are.
    CorruptSnapshot where what is there is no snapshot.
    """
    if before is None:
        draft, changed = merge_into_existing([], build, origin, keyring)
        return signed(draft, keyring), draft, changed, 0
    with told(where):
        file = decode_file(before)
    found, _ = judged(file, keyring, where=where)
    ours = {each.version: each for each in found if each.standing is Standing.OWN}
    # One's own that are damaged go: what they held and is still here is in the new one.
    others = [each for each in file.versions if each.digest not in ours and not is_own(each, keyring)]
    draft, changed = merge_into_existing([*ours.values()], build, origin, keyring, current=current)
    data = signed(draft, keyring, others, file.packed) if changed else before
    return data, draft, changed, len(others)


def united(files: Sequence[bytes], keyring: Keyring) -> bytes:
    """Return one file with all versions of several, each once; CorruptSnapshot where one is none.

    A version that a later one of the same signer holds the whole of is left out.
    """
    versions: dict[str, Signed] = {}
    packed: dict[str, bytes] = {}
    received: dict[str, Received] = {}
    for data in files:
        file = decode_file(data)
        packed |= {digest: frame for digest, frame in file.packed.items() if sha256(frame) == digest}
        versions |= {each.digest: each for each in file.versions}
        received |= {each.version: each for each in judged(file, keyring, where="")[0]}
    for one in [*received.values()]:
        if any(_absorbs(other, one) for other in received.values()):
            del versions[one.version], received[one.version]
    named = {each.packed_digest for one in received.values() for each in one.snapshot.contents.values()}
    whole = len(versions) == len(received)  # what the others name cannot be told
    frames = {digest: frame for digest, frame in packed.items() if digest in named or not whole}
    return encode_file(SnapshotFile([*versions.values()], frames))


def _absorbs(other: Received, one: Received) -> bool:
    """Tell whether a version holds all of another of the same signer, and was taken later."""
    if other is one or (other.signer, bool(one.signer)) != (one.signer, True):
        return False
    held, more = _slots(one.snapshot), _slots(other.snapshot)
    if held == more:
        return (other.snapshot.created, other.version) > (one.snapshot.created, one.version)
    return held < more and other.snapshot.created >= one.snapshot.created


def _slots(snapshot: Snapshot) -> set[tuple[str, ...]]:
    return {
        (manifest.environment.digest, *(ref.identity[:2] if type_of(ref.type).grows else ref.identity))
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
