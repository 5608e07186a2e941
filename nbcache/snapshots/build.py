"""Snapshots: artifacts and a signed manifest, in one file or, by name, in a store. Take, check, merge.

Where several people take snapshots their versions stand side by side: each writes anew what is theirs, and
leaves alone what is not. What is read passes, in this order: length, digests, signature, policy
(`Received.unlock`), and for each artifact that is to be used who compiled it (`nbcache.snapshots.versions.vouched`).
Only then is anything of it decompressed, stored or handed to torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from nbcache.artifacts.encoding import (
    MAX_CONTENT_BYTES,
    MAX_RATIO,
    decode_snapshot,
    encode_snapshot,
    is_bomb,
    unpack,
)
from nbcache.artifacts.provenance import Made, Statement, made_by
from nbcache.artifacts.store import MAX_MANIFEST_ARTIFACTS, ArtifactStore, union
from nbcache.core.cpu_levels import BASELINES, LABEL
from nbcache.core.errors import CorruptEntry, FormatError, NbcacheError, TrustError, UntrustedSigner
from nbcache.core.key import Difference, diff, sha256
from nbcache.core.model import ArtifactRef, Environment, GraphRecord, GraphSummary, Manifest, Packed, Snapshot
from nbcache.core.trust import Keyring, Policy, Purpose, Signature, Standing, admit, spelled
from nbcache.snapshots.file import Signed, SnapshotFile, decode_file, encode_file, refused

__all__ = [
    "Draft",
    "Origin",
    "Received",
    "announced",
    "baseline_for",
    "differences",
    "fitting",
    "foreseen_differences",
    "is_bound",
    "is_own",
    "is_vouched",
    "judged",
    "judged_file",
    "makers",
    "merge",
    "of_manifests",
    "receive",
    "scope",
    "signed",
    "signed_manifest",
    "summaries",
    "take",
    "told",
    "without",
]

_MAX_MANIFEST_BYTES = 64 << 20
_MAX_STRANGERS_BYTES = 8 << 20
"""Of all manifests of a file: reading them takes time and memory that nobody has agreed to yet."""
_MAX_ENVIRONMENTS = 64
_GRAPHS = frozenset({"inductor", "aot_autograd"})
_BOUND_TO = {
    "inductor": frozenset({"torch", "triton", "python", "device"}),
    "aot_autograd": frozenset({"torch", "triton", "python", "device"}),
    "autotune": frozenset({"torch", "triton", "device"}),
    "remote_autotune": frozenset({"torch", "triton", "device"}),
    "gemm_autotune": frozenset({"torch", "triton", "device"}),
    "pgo": frozenset({"torch", "python"}),
    "cpp_kernel": frozenset({"torch", "python", "compiler", "cpu"}),
    "triton_kernel": frozenset({"torch", "triton", "device"}),
    "triton_module": frozenset({"torch", "triton", "python", "compiler"}),
}
"""What artifacts depend on, by the first part of the environment's labels; other types on all of it."""
_TIMES = "gemm_autotune"
"""Type of what was timed: where there is no GPU, on the CPU."""
_OF_LITTLE_USE = frozenset({"pgo", "triton_module"})
"""Types of artifacts that are worth nothing where no graph can be used."""
_FEATURES = "cpu.features"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a snapshot says of where it comes from; see `Snapshot`."""

    notebook: str
    created: float
    made_by: str
    user: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Received:
    """A snapshot whose lengths, digests and signature are right. Whose it is, the policy judges."""

    snapshot: Snapshot
    where: str
    """What it was read from, in words: a path, a URL without secrets, `URL#NAME` of one in a store."""
    signer: str = ""
    """Fingerprint of the key that signed it; empty where nobody did."""
    standing: Standing | None = None
    """Who the signer is to this user; None where nobody signed."""
    version: str = ""
    """Digest of its manifest and signature: what tells it from other versions."""
    _packed: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """What to call it in a line: the file's name without its folders, or where in a store it is."""
        return self.where if "#" in self.where else Path(self.where).name

    def unlock(self, policy: Policy) -> Mapping[str, bytes]:
        """Return compressed artifacts by digest of their content; TrustError where `policy` forbids them."""
        try:
            admit(policy, self.standing, self.signer)
        except NbcacheError as error:
            error.where = self.where
            raise
        return self._packed

    def unpack_all(self, policy: Policy) -> None:
        """As `unlock`, and check every content against its digest: CorruptSnapshot where one is another."""
        packed = self.unlock(policy)
        for digest, each in self.snapshot.contents.items():
            try:
                unpack(packed[digest], size=each.size, digest=digest)
            except CorruptEntry as error:
                raise refused(error.what, self.where) from error


def receive(data: bytes, keyring: Keyring, *, where: str) -> list[Received]:
    """Return the versions of a snapshot that `data` holds, checked; nothing is decompressed or believed yet.

    Raises CorruptSnapshot, UnsupportedVersion or a TrustError, whatever the bytes are, where none is whole.
    """
    found, problems = judged_file(data, keyring, where=where)
    if not found:
        raise problems[0]
    return found


def judged_file(data: bytes, keyring: Keyring, *, where: str) -> tuple[list[Received], list[NbcacheError]]:
    """Return the same, and what is wrong with the other versions; CorruptSnapshot where it is no snapshot."""
    with told(where):
        file = decode_file(data)
    return judged(file, keyring, where=where)


def judged(file: SnapshotFile, keyring: Keyring, *, where: str) -> tuple[list[Received], list[NbcacheError]]:
    """Return the versions in a file that are whole, and what is wrong with the others.

    CorruptSnapshot where it holds what no version names.
    """
    found: list[Received] = []
    problems: list[NbcacheError] = []
    with told(where):
        sound = {digest: frame for digest, frame in file.packed.items() if sha256(frame) == digest}
    left = _MAX_STRANGERS_BYTES
    named: set[str] = set()
    for version in file.versions:
        standing = None
        try:
            with told(where):
                signer, standing = _signer(version, keyring)
                most = left
                if not is_vouched(standing) and len(version.manifest) <= left:
                    left -= len(version.manifest)  # whether it turns out to be one or not
                received = _read(version, where, signer, standing, most)
                packed = _frames(received.snapshot, sound)
        except NbcacheError as error:
            error.of_trusted = is_vouched(standing)
            problems.append(error)
        else:
            named |= {each.packed_digest for each in received.snapshot.contents.values()}
            found.append(replace(received, _packed=packed))
    if not problems and named != file.packed.keys():
        raise refused("it holds other artifacts than its manifests name", where)
    return found, problems


def announced(data: bytes, keyring: Keyring, *, where: str) -> Received:
    """Return what a snapshot file without its artifacts says, checked as `receive` does, signature and all.

    It unlocks nothing: its artifacts are elsewhere.
    """
    with told(where):
        file = decode_file(data)
        if file.packed or len(file.versions) != 1:
            raise refused("it holds artifacts or versions where only a manifest belongs")
        version = file.versions[0]
        return _read(version, where, *_signer(version, keyring), _MAX_STRANGERS_BYTES)


def without(received: Received, gone: Collection[str]) -> Received:
    """Return `received` as if it had never named the contents `gone`, by their digests."""
    snapshot = received.snapshot
    manifests = []
    for manifest in snapshot.manifests:
        refs = tuple(ref for ref in manifest.artifacts if ref.digest not in gone)
        if refs:
            manifests.append(union(manifest.environment, "", [replace(manifest, artifacts=refs)]))
    contents = {digest: each for digest, each in snapshot.contents.items() if digest not in gone}
    return replace(received, snapshot=replace(snapshot, manifests=tuple(manifests), contents=contents))


@contextmanager
def told(where: str) -> Iterator[None]:
    """Have what is wrong with a snapshot say where it is."""
    try:
        yield
    except CorruptEntry as error:
        raise refused(error.what, where) from error
    except NbcacheError as error:
        error.where = where
        raise


def _signer(version: Signed, keyring: Keyring) -> tuple[str, Standing | None]:
    """Return who signed a version, and who they are to this user; raises what is wrong with the signature."""
    if version.signature is None:
        return "", None
    signature = Signature.decode(version.signature)
    signature.verify(Purpose.SNAPSHOT, version.manifest)
    return signature.fingerprint, keyring.standing(signature.fingerprint)


def _read(
    version: Signed, where: str, signer: str, standing: Standing | None, most_of_strangers: int
) -> Received:
    """Return what a version's manifest says, without artifacts; raises what is wrong with it."""
    size = len(version.manifest)
    if is_vouched(standing):
        if size > _MAX_MANIFEST_BYTES:
            raise refused(f"its manifest has {size:,} bytes")
    elif size > most_of_strangers:
        raise UntrustedSigner(
            f"its manifest has {size:,} bytes, and of signers who are not trusted here "
            f"{_MAX_STRANGERS_BYTES:,} are read of one file",
            next_step=f"if you know whose it is: %nbcache trust add {spelled(signer)}"
            if signer
            else "have it signed by who made it",
        )
    snapshot = decode_snapshot(version.manifest)
    _check(snapshot)
    return Received(snapshot, where, signer, standing, version.digest)


def is_own(version: Signed, keyring: Keyring) -> bool:
    """Tell whether the user has signed a version, whatever else is wrong with it."""
    try:
        signature = Signature.decode(version.signature or b"")
        signature.verify(Purpose.SNAPSHOT, version.manifest)
        return keyring.standing(signature.fingerprint) is Standing.OWN
    except (TrustError, FormatError):
        return False


def is_vouched(standing: Standing | None) -> bool:
    """Tell whether a signer is the user, or trusted."""
    return standing in (Standing.OWN, Standing.TRUSTED)


def differences(manifest: Manifest, here: Environment) -> list[Difference]:
    """Return what differs between the environment of `manifest` and `here`; empty where all of it fits.

    What was compiled for a baseline fits every CPU that has its features, once a kernel compiles for it, too.
    """
    there = manifest.environment.values
    found = diff(manifest.environment.components, here.components)
    if (baseline := BASELINES.get(there.get(LABEL, ""))) is None:
        return found
    claimed, has = (set(values.get(_FEATURES, "").split()) for values in (there, here.values))
    needed = claimed | baseline.features
    found = [each for each in found if each.label not in (LABEL, "cpu.capability", _FEATURES)]
    if lacking := needed - has:
        found.append(Difference(_FEATURES, " ".join(sorted(lacking)), None))
    return found


def foreseen_differences(manifest: Manifest, here: Environment) -> list[Difference]:
    """Return what differs of those components that `here` holds: before torch is imported, some of them."""
    labels = {part.label for part in here.components}
    return [
        each
        for each in differences(manifest, here)
        if each.label in labels and not (each.label == "torch.version" and _same_release(each))
    ]


def _same_release(version: Difference) -> bool:
    """Tell whether two versions differ only in that one names no build: wheels' metadata often do not."""
    there, here = version.old or "", version.new or ""
    return there.partition("+")[0] == here.partition("+")[0] and not ("+" in there and "+" in here)


def baseline_for(manifests: Sequence[Manifest], here: Environment) -> str | None:
    """Return the baseline that a kernel must compile for to use these; None where that does not help.

    It does not where one of them fits as it is. `here` may hold those components only that are known.
    """
    fits = [manifest for manifest in manifests if not foreseen_differences(manifest, here)]
    names = [manifest.environment.values.get(LABEL) for manifest in fits]
    return None if here.values.get(LABEL) in names else next(filter(None, names), None)


def fitting(manifests: Iterable[Manifest], here: Environment) -> Manifest | None:
    """Return what of a snapshot may be used here: the manifest of this environment, or most of another's.

    None where nothing fits. What an artifact depends on, `_BOUND_TO` says; what runs on a GPU only does not
    depend on the CPU. Code for a baseline is found by kernels that compile for it, too, and by no others.
    """
    baseline = here.values.get(LABEL)
    alike = [each for each in manifests if each.environment.values.get(LABEL) == baseline]
    fits = [_fitting(manifest, here) for manifest in alike]
    found = [each for each in fits if any(ref.type not in _OF_LITTLE_USE for ref in each.artifacts)]
    return max(found, key=lambda each: (each.environment == here, len(each.artifacts)), default=None)


def scope(environment: Environment, type: str, *, cpu: bool = True) -> str:
    """Return a digest of what an artifact of this type depends on: the same where it can be shared.

    Beside a GPU, too, a graph may be for the CPU, and its key does not tell: all of them depend on it.
    Without `cpu`, as if none did.
    """
    parts = environment.components
    if (bound := _BOUND_TO.get(type)) is not None:
        if type in _GRAPHS or (type == _TIMES and _has_no_gpu(environment)):
            bound = bound | {"cpu"}
        if not cpu:
            bound = bound - {"cpu"}
        parts = tuple(part for part in parts if part.label.partition(".")[0] in bound)
    return Environment(parts).digest


def is_bound(statement: Statement, environment: Environment) -> bool:
    """Tell whether what a statement names was compiled for `environment`.

    A graph beside a GPU may be for the CPU or not, and nothing tells: who took the snapshot answers for that.
    """
    type = statement.ref.type
    if statement.environment == scope(environment, type):
        return True
    beside_gpu = type in _GRAPHS and not _has_no_gpu(environment)
    return beside_gpu and statement.without_cpu == scope(environment, type, cpu=False)


def _has_no_gpu(environment: Environment) -> bool:
    return environment.values.get("device") == "cpu"


def _fitting(manifest: Manifest, here: Environment) -> Manifest:
    differing = {each.label.partition(".")[0] for each in differences(manifest, here)}
    if not differing:
        return manifest
    # Which graphs run a C++ kernel is not told, and one kernel may serve several: so all count as such.
    timed_on_cpu = _has_no_gpu(manifest.environment)
    on_cpu = timed_on_cpu or any(ref.type == "cpp_kernel" for ref in manifest.artifacts)

    def fits(ref: ArtifactRef) -> bool:
        bound = _BOUND_TO.get(ref.type)
        if bound is None:
            return False
        if (ref.type in _GRAPHS and on_cpu) or (ref.type == _TIMES and timed_on_cpu):
            bound = bound | {"cpu"}
        return not bound & differing

    kept = {ref.digest for ref in manifest.artifacts if fits(ref)}
    return replace(
        manifest,
        artifacts=tuple(ref for ref in manifest.artifacts if fits(ref)),
        graphs=tuple(graph for graph in manifest.graphs if kept.issuperset(graph.artifacts)),
    )


def _check(snapshot: Snapshot) -> None:
    """Raise CorruptSnapshot unless what the manifest says is within bounds."""
    if len(snapshot.manifests) > _MAX_ENVIRONMENTS or any(
        max(len(each.artifacts), len(each.graphs)) > MAX_MANIFEST_ARTIFACTS for each in snapshot.manifests
    ):
        raise refused("it names more artifacts than a snapshot may")
    if sum(each.size for each in snapshot.contents.values()) > MAX_CONTENT_BYTES:
        raise refused("its artifacts are longer than a snapshot's may be")
    for digest, expected in snapshot.contents.items():
        if is_bomb(expected.size, expected.packed_size):
            raise refused(f"the artifact {digest[:16]} would be more than {MAX_RATIO} times its bytes")


def _check_packed(snapshot: Snapshot, packed: Mapping[str, bytes]) -> None:
    """Raise CorruptSnapshot unless `packed`, by digest of the content, is what the manifest says."""
    if snapshot.contents.keys() != packed.keys():
        raise refused("it holds other artifacts than its manifest names")
    for digest, expected in snapshot.contents.items():
        if len(packed[digest]) != expected.packed_size:
            raise refused(f"the artifact {digest[:16]} is not as long as the manifest says")
    for digest, expected in snapshot.contents.items():
        if sha256(packed[digest]) != expected.packed_digest:
            raise refused(f"the artifact {digest[:16]} does not have the digest that the manifest says")


def _frames(snapshot: Snapshot, packed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the frames that a version names, by digest of their content, of those of its file.

    CorruptSnapshot where one is not there. Their digests were checked.
    """
    found = {}
    for digest, expected in snapshot.contents.items():
        frame = packed.get(expected.packed_digest)
        if frame is None:
            raise refused(f"the artifact {digest[:16]} is not there, or not what the manifest says")
        if len(frame) != expected.packed_size:
            raise refused(f"the artifact {digest[:16]} is not as long as the manifest says")
        found[digest] = frame
    return found


@dataclass(frozen=True, slots=True)
class Draft:
    """A snapshot in the making: what it will say, and the compressed artifacts."""

    snapshot: Snapshot
    packed: Mapping[str, bytes] = field(repr=False)
    """By digest of their content; of what is there already, where it goes, it may lack some."""
    missing: tuple[ArtifactRef, ...] = ()
    """What was to be in it, and is not there any more, or cannot be in a snapshot."""


def take(
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


def summaries(graphs: Iterable[GraphRecord], refs: Iterable[ArtifactRef]) -> tuple[GraphSummary, ...]:
    """Return what a manifest tells of `graphs`, each with those of `refs` that belong to its function."""
    artifacts: dict[tuple[str, str], dict[str, None]] = {}
    for ref in refs:
        artifacts.setdefault((ref.cell, ref.function), {})[ref.digest] = None
    found = []
    for graph in graphs:
        cell = graph.cell.digest if graph.cell else ""
        if (cell, graph.function) not in artifacts:
            continue  # not cached, not to be saved, or of another environment
        found.append(
            GraphSummary(
                cell=cell,
                function=graph.function,
                direction=graph.direction,
                outcome=graph.outcome,
                key=graph.key or "",
                seconds=max(0.0, _compiling(graph)),
                artifacts=tuple(artifacts[cell, graph.function]),
                threads=graph.threads,
            )
        )
    return tuple(found)


def _compiling(graph: GraphRecord) -> float:
    """Return the seconds that a hit saves: all but tracing and loading, which it has itself."""
    if graph.saved_seconds is not None:
        return graph.saved_seconds
    return graph.total_seconds - sum(graph.seconds.get(phase, 0.0) for phase in ("dynamo", "load"))


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
