"""Checks of a received snapshot: length, digests, signature, policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from nbcache.core.errors import CorruptEntry, FormatError, NbcacheError, TrustError, UntrustedSigner
from nbcache.core.key import sha256
from nbcache.core.model import MAX_CONTENT_BYTES, Manifest, Snapshot
from nbcache.core.settings import Policy
from nbcache.core.signature import Purpose, Signature
from nbcache.sharing.snapshots.file import Signed, SnapshotFile, decode_file, refusal
from nbcache.sharing.trust import Keyring, Standing, admit, spelled
from nbcache.storage.encoding import MAX_RATIO, decode_snapshot, is_bomb, unpack
from nbcache.storage.manifests import MAX_MANIFEST_ARTIFACTS, union

_MAX_MANIFEST_BYTES = 64 << 20
_MAX_STRANGERS_BYTES = 8 << 20
"""Bound on a file's manifests by untrusted signers, since decoding them takes time."""
MAX_ENVIRONMENTS = 64


@dataclass(frozen=True, slots=True)
class Received:
    """A snapshot with right lengths, digests and signature. The policy decides about its signer."""

    snapshot: Snapshot
    where: str
    signer: str = ""
    standing: Standing | None = None
    version: str = ""
    """Digest of its manifest and signature."""
    _packed: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.where if "#" in self.where else Path(self.where).name

    @property
    def is_own(self) -> bool:
        return self.standing is Standing.OWN

    def with_frames(self, frames: Mapping[str, bytes]) -> Received:
        """Return the version with its frames, given by checked digest; CorruptSnapshot if one is wrong."""
        packed = {}
        for digest, expected in self.snapshot.contents.items():
            frame = frames.get(expected.packed_digest)
            if frame is None or len(frame) != expected.packed_size:
                raise refusal(f"the artifact {digest[:16]} is missing, or differs from the manifest")
            packed[digest] = frame
        return replace(self, _packed=packed)

    def unlock(self, policy: Policy) -> Mapping[str, bytes]:
        """Return compressed artifacts by digest of their content; TrustError if `policy` forbids them."""
        try:
            admit(policy, self.standing, self.signer)
        except NbcacheError as error:
            error.where = self.where
            raise
        return self._packed

    def unpack_all(self, policy: Policy) -> None:
        """Check all contents against their digests; CorruptSnapshot, or TrustError as `unlock`."""
        packed = self.unlock(policy)
        for digest, expected in self.snapshot.contents.items():
            try:
                unpack(packed[digest], size=expected.size, digest=digest)
            except CorruptEntry as error:
                raise refusal(error.what, self.where) from error


def receive(data: bytes, keyring: Keyring, *, where: str) -> list[Received]:
    """Return the valid versions in `data`, locked and packed; an NbcacheError without any."""
    versions, problems = check_file(data, keyring, where=where)
    if not versions:
        raise problems[0]
    return versions


def check_file(data: bytes, keyring: Keyring, *, where: str) -> tuple[list[Received], list[NbcacheError]]:
    """Return the valid versions in `data`, and the errors of others; CorruptSnapshot if it is no snapshot."""
    with errors_at(where):
        file = decode_file(data)
    return examine(file, keyring, where=where)


def examine(file: SnapshotFile, keyring: Keyring, *, where: str) -> tuple[list[Received], list[NbcacheError]]:
    """Return the valid versions in a file, and the errors of others; CorruptSnapshot for stray artifacts."""
    valid: list[Received] = []
    problems: list[NbcacheError] = []
    right_frames = {digest: frame for digest, frame in file.packed.items() if sha256(frame) == digest}
    budget = _MAX_STRANGERS_BYTES
    named: set[str] = set()
    for version in file.versions:
        standing = None
        try:
            with errors_at(where):
                signer, standing = _signer(version, keyring)
                most = budget
                if not is_vouched(standing) and len(version.manifest) <= budget:
                    budget -= len(version.manifest)  # also if it is invalid
                received = _decode(version, where, signer, standing, most).with_frames(right_frames)
        except NbcacheError as error:
            error.of_trusted = is_vouched(standing)
            problems.append(error)
        else:
            named |= {packed.packed_digest for packed in received.snapshot.contents.values()}
            valid.append(received)
    if not problems and named != file.packed.keys():
        raise refusal("its artifacts are not those that its manifests name", where)
    return valid, problems


def read_manifest(data: bytes, keyring: Keyring, *, where: str) -> Received:
    """Return the snapshot in a file with a manifest and no artifacts; its signature is checked."""
    with errors_at(where):
        file = decode_file(data)
        if file.packed or len(file.versions) != 1:
            raise refusal("it has artifacts or versions, and may only have a manifest")
        version = file.versions[0]
        return _decode(version, where, *_signer(version, keyring), _MAX_STRANGERS_BYTES)


def packed_bytes(snapshot: Snapshot) -> int:
    return sum(packed.packed_size for packed in snapshot.contents.values())


def without(received: Received, gone: Collection[str]) -> Received:
    """Return `received` without the artifacts whose digests are in `gone`."""

    def restrict(manifest: Manifest) -> Manifest:
        return replace(manifest, artifacts=tuple(ref for ref in manifest.artifacts if ref.digest not in gone))

    return replace(received, snapshot=select_refs(received.snapshot, restrict))


def select_refs(snapshot: Snapshot, select: Callable[[Manifest], Manifest]) -> Snapshot:
    """Apply `select` to each manifest; drop empty manifests, and contents that no manifest names."""
    restricted = [union(manifest.environment, "", [select(manifest)]) for manifest in snapshot.manifests]
    manifests = tuple(manifest for manifest in restricted if manifest.artifacts)
    named = {digest for manifest in manifests for digest in manifest.digests}
    contents = {digest: packed for digest, packed in snapshot.contents.items() if digest in named}
    return replace(snapshot, manifests=manifests, contents=contents)


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Set the place of a snapshot in errors of the block; CorruptEntry becomes CorruptSnapshot."""
    try:
        yield
    except CorruptEntry as error:
        raise refusal(error.what, where) from error
    except NbcacheError as error:
        error.where = where
        raise


def _signer(version: Signed, keyring: Keyring) -> tuple[str, Standing | None]:
    if version.signature is None:
        return "", None
    signer = Signature.signer(version.signature, Purpose.SNAPSHOT, version.manifest)
    return signer, keyring.standing(signer)


def _decode(
    version: Signed, where: str, signer: str, standing: Standing | None, most_of_strangers: int
) -> Received:
    size = len(version.manifest)
    if is_vouched(standing):
        if size > _MAX_MANIFEST_BYTES:
            raise refusal(f"its manifest has {size:,} bytes")
    elif size > most_of_strangers:
        raise UntrustedSigner(
            f"its manifest has {size:,} bytes, and of signers who are not trusted here "
            f"{_MAX_STRANGERS_BYTES:,} are read of one file",
            next_step=f"if you know the signer: %nbcache trust add {spelled(signer)}"
            if signer
            else "ask its author to sign it",
        )
    snapshot = decode_snapshot(version.manifest)
    check_bounds(snapshot)
    return Received(snapshot, where, signer, standing, version.digest)


def is_own(version: Signed, keyring: Keyring) -> bool:
    try:
        return _signer(version, keyring)[1] is Standing.OWN
    except (TrustError, FormatError):
        return False


def is_vouched(standing: Standing | None) -> bool:
    return standing in (Standing.OWN, Standing.TRUSTED)


def check_bounds(snapshot: Snapshot) -> None:
    if len(snapshot.manifests) > MAX_ENVIRONMENTS or any(
        max(len(manifest.artifacts), len(manifest.graphs)) > MAX_MANIFEST_ARTIFACTS
        for manifest in snapshot.manifests
    ):
        raise refusal("it names too many artifacts")
    if sum(packed.size for packed in snapshot.contents.values()) > MAX_CONTENT_BYTES:
        raise refusal("its artifacts are too long")
    for digest, expected in snapshot.contents.items():
        if is_bomb(expected.size, expected.packed_size):
            raise refusal(f"the artifact {digest[:16]} would be more than {MAX_RATIO} times its bytes")
