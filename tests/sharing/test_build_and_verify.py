"""Snapshots: what is taken comes back, and nothing of what is wrong is used."""

import io
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from nbcache.core.errors import (
    BadSignature,
    CorruptEntry,
    CorruptSnapshot,
    FormatError,
    Unsigned,
    UnsupportedVersion,
    UntrustedSigner,
)
from nbcache.core.key import components, sha256
from nbcache.core.model import (
    Artifact,
    ArtifactRef,
    Direction,
    Environment,
    GraphSummary,
    Manifest,
    Outcome,
    Packed,
    Snapshot,
)
from nbcache.core.settings import Policy
from nbcache.core.signature import Purpose
from nbcache.sharing.provenance import Judge
from nbcache.sharing.snapshots import build as snapshot
from nbcache.sharing.snapshots import verify
from nbcache.sharing.snapshots.build import Draft, Origin, attributed, build_snapshot, makers, merge, signed
from nbcache.sharing.snapshots.file import Signed, SnapshotFile, decode_file, encode_file
from nbcache.sharing.snapshots.verify import Received, receive
from nbcache.sharing.trust import Keyring, Standing
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.encoding import decode_snapshot, encode_snapshot, pack, unpack
from nbcache.storage.store import ArtifactStore
from nbcache.ui.display.snapshots import arrival_line
from support.doctored import the_version

AVX2 = Environment(components({"torch.version": "2.13.0", "cpu.capability": "AVX2"}))
AVX512 = Environment(components({"torch.version": "2.13.0", "cpu.capability": "AVX512"}))
ORIGIN = Origin("quickstart.ipynb", 1700000000.0, "nbcache 0.1.0", user="ada", host="engine")
MAKER = "56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c"
CONTENTS = [b"graph " * 100, b"kernel " * 200, b"profile", b""]


@dataclass
class Somebody:
    """One person's store and keys."""

    store: MemoryStore
    artifacts: ArtifactStore
    keyring: Keyring

    def put(
        self, contents: Iterable[bytes], environment: Environment = AVX2, type: str = "inductor"
    ) -> Manifest:
        refs = [
            self.artifacts.put(environment.digest, Artifact(type, f"key-{sha256(content)[:8]}", content))
            for content in contents
        ]
        return Manifest(environment, "quickstart.ipynb", tuple(refs))

    def snapshot(self, contents: Iterable[bytes] = CONTENTS, environment: Environment = AVX2) -> Draft:
        manifest = self.put(contents, environment)
        return attributed(
            build_snapshot(self.artifacts, with_graphs(manifest), ORIGIN), [], ORIGIN, self.keyring
        )


def summary(refs: Iterable[ArtifactRef] = (), key: str = "fx", seconds: float = 4.5) -> GraphSummary:
    digests = tuple(dict.fromkeys(ref.digest for ref in refs))
    return GraphSummary(
        "0123456789abcdef", "Model.forward", Direction.INFERENCE, Outcome.MISS, key, seconds, digests
    )


def with_graphs(manifest: Manifest, **changes: Any) -> Manifest:
    return replace(manifest, graphs=(summary(manifest.artifacts, **changes),))


@pytest.fixture
def somebody(tmp_path: Path) -> Callable[[str], Somebody]:
    def somebody(name: str) -> Somebody:
        store = MemoryStore()
        clock = iter(range(1700000000, 1800000000)).__next__
        return Somebody(store, ArtifactStore(store, clock=clock), Keyring(tmp_path / name))

    return somebody


@pytest.fixture
def ada(somebody: Callable[[str], Somebody]) -> Somebody:
    return somebody("ada")


@pytest.fixture
def bob(somebody: Callable[[str], Somebody]) -> Somebody:
    return somebody("bob")


def unlocked(received: Received, policy: Policy = Policy.STRICT) -> list[bytes]:
    packed = received.unlock(policy)
    return [
        unpack(packed[ref.digest], size=ref.size, digest=ref.digest)
        for manifest in received.snapshot.manifests
        for ref in manifest.artifacts
    ]


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def archive(members: Iterable[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as made:
        for name, content in members:
            made.writestr(zipfile.ZipInfo(name), content, compression)
    return stream.getvalue()


# --- what is taken comes back -------------------------------------------------------------------


def test_a_snapshot_comes_back_as_it_was_taken(ada: Somebody) -> None:
    draft = ada.snapshot()
    received = the_version(signed(draft, ada.keyring), ada.keyring, where="quickstart.nbcache")
    assert received.snapshot == draft.snapshot
    assert (received.signer, received.standing) == (ada.keyring.own(), Standing.OWN)
    assert unlocked(received) == CONTENTS
    (part,) = received.snapshot.manifests
    assert part.environment == AVX2
    assert part.graphs == (summary(part.artifacts),)
    assert draft.missing == ()


def test_any_zip_and_zstd_tool_reads_it(ada: Somebody, tmp_path: Path) -> None:
    path = tmp_path / "quickstart.nbcache"
    path.write_bytes(signed(ada.snapshot(), ada.keyring))
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-t", str(path)], capture_output=True, text=True, check=True
    )
    assert "Done testing" in listed.stdout
    found = members(path.read_bytes())
    assert list(found)[:2] == ["versions/00/manifest.json", "versions/00/signature.json"]
    frames = {content: f"artifacts/{sha256(pack(content))}.zst" for content in CONTENTS}
    assert list(found)[2:] == sorted(frames.values())
    for content, name in frames.items():
        frame = found[name]
        assert zstandard.ZstdDecompressor().decompress(frame, max_output_size=len(content)) == content


def test_the_same_contents_make_the_same_bytes(ada: Somebody) -> None:
    draft = ada.snapshot()
    turned = replace(draft, packed=dict(reversed(draft.packed.items())))
    assert signed(draft, ada.keyring) == signed(turned, ada.keyring)


def test_a_snapshot_of_version_2_stays_readable(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "snapshot-2.nbcache"  # by the key of test_trust
    received = the_version(golden.read_bytes(), Keyring(tmp_path), where="golden")
    assert received.signer == MAKER
    assert unlocked(received, Policy.OFF) == CONTENTS
    snapshot = received.snapshot
    assert (snapshot.notebook, snapshot.created, snapshot.made_by) == astuple(ORIGIN)[:3]
    assert (snapshot.user, snapshot.host) == ("ada", "engine")
    assert {fingerprint: made.user for fingerprint, made in makers(snapshot).items()} == {MAKER: "ada"}
    (part,) = snapshot.manifests
    assert replace(part, artifacts=tuple(replace(ref, provenance=None) for ref in part.artifacts)) == (
        Manifest(
            AVX2,
            "",
            tuple(
                ArtifactRef(
                    "inductor", f"key-{sha256(each)[:8]}", sha256(each), len(each), 1700000000.0, 1700000001.0
                )
                for each in CONTENTS
            ),
            (summary(map(ref, map(sha256, CONTENTS))),),
        )
    )


def test_a_snapshot_from_before_the_first_release_is_refused(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "snapshot-1.nbcache"
    with pytest.raises(CorruptSnapshot, match="an unknown member") as caught:
        receive(golden.read_bytes(), Keyring(tmp_path), where="golden")
    assert caught.value.next_step and caught.value.where == "golden"


def test_what_the_store_has_lost_is_named_and_left_out(ada: Somebody) -> None:
    manifest = ada.put(CONTENTS)
    lost = manifest.artifacts[1]
    ada.store.delete(f"artifact/{lost.digest}")
    draft = build_snapshot(ada.artifacts, with_graphs(manifest), ORIGIN)
    assert draft.missing == (lost,)
    assert lost.digest not in draft.packed
    assert lost.digest not in draft.snapshot.manifests[0].graphs[0].artifacts
    the_version(signed(draft, ada.keyring), ada.keyring, where="")


# --- merging ------------------------------------------------------------------------------------


def test_merging_loses_nothing_of_either(ada: Somebody, bob: Somebody) -> None:
    one = ada.snapshot([b"a", b"b"])
    two = bob.snapshot([b"b", b"c"])
    three = bob.snapshot([b"b", b"d"], AVX512)
    merged = merge([one, two, three], ORIGIN)
    received = the_version(signed(merged, ada.keyring), ada.keyring, where="")
    parts = {each.environment: each for each in received.snapshot.manifests}
    assert {ref.digest for ref in parts[AVX2].artifacts} == {*map(sha256, [b"a", b"b", b"c"])}
    assert {ref.digest for ref in parts[AVX512].artifacts} == {*map(sha256, [b"b", b"d"])}
    assert received.snapshot.contents.keys() == {*map(sha256, [b"a", b"b", b"c", b"d"])}


def test_of_a_graph_that_both_have_the_longer_compile_counts(ada: Somebody) -> None:
    manifest = ada.put([b"a"])
    compiled, hit = (summary(manifest.artifacts, seconds=seconds) for seconds in (9.0, 8.5))
    other = summary(key="another")
    one = build_snapshot(ada.artifacts, replace(manifest, graphs=(hit, other)), ORIGIN)
    two = build_snapshot(ada.artifacts, replace(manifest, graphs=(compiled,)), ORIGIN)
    for order in ([one, two], [two, one]):
        assert merge(order, ORIGIN).snapshot.manifests[0].graphs == (compiled, other)


# --- what is wrong ------------------------------------------------------------------------------


def test_what_nobody_signed_is_seen_and_not_unlocked(ada: Somebody) -> None:
    draft = ada.snapshot()
    data = with_signature(draft, None)
    received = the_version(data, ada.keyring, where="quickstart.nbcache")
    with pytest.raises(Unsigned, match=r"quickstart\.nbcache"):
        received.unlock(Policy.STRICT)
    assert unlocked(received, Policy.OFF) == CONTENTS


@pytest.mark.parametrize("signed_by_nobody", [True, False])
def test_nothing_that_a_snapshot_says_is_shown_before_its_signature_is_checked(
    ada: Somebody, signed_by_nobody: bool
) -> None:
    draft = ada.snapshot()
    said = encode_snapshot(replace(draft.snapshot, user="SAID", notebook="SAID", host="SAID", made_by="SAID"))
    if signed_by_nobody:
        (received,) = receive(with_manifest(draft, said, None), ada.keyring, where="quickstart.nbcache")
        judge = Judge(lambda: ada.keyring, lambda: Policy.STRICT)
        assert arrival_line(received, AVX512, judge).startswith(
            "quickstart.nbcache: a snapshot · not used: it is not signed"
        )
        trusting = Judge(lambda: ada.keyring, lambda: Policy.OFF)
        assert "SAID" in arrival_line(received, AVX512, trusting)
        return
    (version,) = decode_file(signed(draft, ada.keyring)).versions
    for manifest in (said, said.replace(b'"version":1', b'"version":7'), b"SAID", said[:-1]):
        forged = with_manifest(draft, manifest, version.signature)
        with pytest.raises(BadSignature):
            receive(forged, ada.keyring, where="quickstart.nbcache")


def test_a_signature_must_be_right_whatever_the_policy(ada: Somebody, bob: Somebody) -> None:
    whole = decode_file(signed(ada.snapshot(), ada.keyring))
    (file,) = whole.versions
    (other,) = decode_file(signed(ada.snapshot([b"other"]), ada.keyring)).versions
    (bobs,) = decode_file(signed(bob.snapshot([b"bob's"]), bob.keyring)).versions
    statement = ada.snapshot().snapshot.manifests[0].artifacts[0].provenance
    assert statement is not None
    for wrong in (
        Signed(statement.statement, statement.signature),
        replace(file, signature=other.signature),
        replace(file, signature=bobs.signature),
        replace(other, signature=file.signature),
        replace(file, signature=b"{}"),
        replace(file, manifest=file.manifest.replace(b'"user":"ada"', b'"user":"eve"')),
    ):
        with pytest.raises(BadSignature):
            the_version(encode_file(replace(whole, versions=[wrong])), ada.keyring, where="")


def test_a_corrupt_snapshot_is_refused_or_the_change_is_harmless(ada: Somebody) -> None:
    data = signed(ada.snapshot(), ada.keyring)
    other = signed(ada.snapshot([b"other " * 50, b"things"]), ada.keyring)
    sound = the_version(data, ada.keyring, where="")
    choose = random.Random(0)
    refused = 0
    for number in range(1000):
        changed = corrupted(data, other, choose, number % 6)
        try:
            received = the_version(changed, ada.keyring, where="")
            contents = unlocked(received)
        except (FormatError, BadSignature, Unsigned):
            refused += 1
        else:
            assert (received.snapshot, received.signer) == (sound.snapshot, sound.signer)
            assert contents == CONTENTS
    assert refused > 900


def corrupted(data: bytes, other: bytes, choose: random.Random, kind: int) -> bytes:
    """Return `data` with something changed at random."""
    at = choose.randrange(len(data))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + choose.randbytes(choose.randrange(1, 50)) + data[at:]
    mine, theirs = members(data), members(other)
    artifacts = [name for name in mine if name.startswith("artifacts/")]
    one, two = choose.sample(artifacts, 2)
    if kind == 3:  # artifacts swapped, or another's in place of one
        mine[one], mine[two] = choose.choice(
            [(mine[two], mine[one]), (choose.choice([*theirs.values()]), b"")]
        )
    elif kind == 4:  # a part of another snapshot
        name = choose.choice(["versions/00/manifest.json", "versions/00/signature.json"])
        mine[name] = theirs[name]
        if choose.random() < 0.5:
            mine = {name: content for name, content in mine.items() if name not in artifacts}
            mine |= {name: content for name, content in theirs.items() if name.startswith("artifacts/")}
    else:  # in another order, or not all
        names = choose.sample([*mine], choose.randrange(1, len(mine) + 1))
        if names[0] == "versions/00/manifest.json" and len(names) == len(mine):
            names.pop()
        mine = {name: mine[name] for name in names}
    return archive(mine.items())


@pytest.mark.parametrize(
    "name",
    [
        "../escape",
        "/etc/passwd",
        "artifacts/../../escape.zst",
        "artifacts/" + "A" * 64 + ".zst",
        "artifacts/" + "a" * 64,
        "artifacts/" + "a" * 63 + ".zst",
        "artifacts/",
        "artifacts\\" + "a" * 64 + ".zst",
        "manifest.json",
        "versions/00/Manifest.json",
        "versions/0/manifest.json",
        "versions/000/manifest.json",
        "versions/01/signature.json",
        "",
    ],
)
def test_members_with_other_names_are_refused(ada: Somebody, name: str) -> None:
    file = members(signed(ada.snapshot(), ada.keyring))
    with pytest.raises(CorruptSnapshot):
        the_version(archive([*file.items(), (name, b"")]), ada.keyring, where="")


def test_two_members_of_one_name_are_refused(ada: Somebody) -> None:
    file = [*members(signed(ada.snapshot(), ada.keyring)).items()]
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive([*file, file[-1]])
    with pytest.raises(CorruptSnapshot, match="two members"):
        the_version(twice, ada.keyring, where="")


def test_members_that_would_be_inflated_are_refused(ada: Somebody) -> None:
    file = members(signed(ada.snapshot(), ada.keyring))
    bomb = archive([*file.items(), ("artifacts/" + "a" * 64 + ".zst", bytes(10**6))], zipfile.ZIP_DEFLATED)
    with pytest.raises(CorruptSnapshot, match=r"compressed or encrypted|overlap"):
        the_version(bomb, ada.keyring, where="")


def with_signature(draft: Draft, signature: bytes | None) -> bytes:
    return with_manifest(draft, encode_snapshot(draft.snapshot), signature)


def with_manifest(draft: Draft, manifest: bytes, signature: bytes | None) -> bytes:
    contents = draft.snapshot.contents
    frames = {contents[digest].packed_digest: frame for digest, frame in draft.packed.items()}
    return encode_file(SnapshotFile([Signed(manifest, signature)], frames))


def forged(ada: Somebody, change: Callable[[Snapshot, dict[str, bytes]], Snapshot]) -> bytes:
    """Return a file whose manifest and signature belong together, with something else wrong."""
    draft = ada.snapshot()
    packed = dict(draft.packed)
    snapshot = change(draft.snapshot, packed)
    return signed(Draft(snapshot, packed), ada.keyring)


def with_content(snapshot: Snapshot, digest: str, content: Packed) -> Snapshot:
    (part,) = snapshot.manifests
    refs = tuple(replace(ref, size=content.size) if ref.digest == digest else ref for ref in part.artifacts)
    return replace(
        snapshot, manifests=(replace(part, artifacts=refs),), contents={**snapshot.contents, digest: content}
    )


def test_a_bomb_is_refused_before_it_is_unpacked(ada: Somebody) -> None:
    digest = sha256(CONTENTS[0])

    def change(snapshot: Snapshot, packed: dict[str, bytes]) -> Snapshot:
        packed[digest] = bomb = pack(bytes(200 * 10**6))
        return with_content(snapshot, digest, Packed(200 * 10**6, len(bomb), sha256(bomb)))

    with pytest.raises(CorruptSnapshot, match="2000 times"):
        the_version(forged(ada, change), ada.keyring, where="")


def test_a_frame_that_states_more_than_the_manifest_is_not_unpacked(ada: Somebody) -> None:
    digest = sha256(CONTENTS[0])

    def change(snapshot: Snapshot, packed: dict[str, bytes]) -> Snapshot:
        packed[digest] = bomb = pack(bytes(200 * 10**6))
        return with_content(snapshot, digest, Packed(600, len(bomb), sha256(bomb)))

    received = the_version(forged(ada, change), ada.keyring, where="")
    with pytest.raises(CorruptEntry, match="different lengths"):
        unlocked(received)


def test_a_manifest_that_names_what_is_not_there_cannot_be_made_or_read(ada: Somebody) -> None:
    draft = ada.snapshot()
    (part,) = draft.snapshot.manifests
    for wrong in (
        replace(draft.snapshot, contents={}),
        replace(draft.snapshot, manifests=()),
        replace(draft.snapshot, manifests=(replace(part, graphs=(summary([ref("0" * 64)]),)),)),
        with_content(draft.snapshot, "0" * 64, Packed(0, 9, "0" * 64)),
        replace(draft.snapshot, created=-1.0),
    ):
        with pytest.raises(CorruptEntry):
            encode_snapshot(wrong)


def ref(digest: str) -> ArtifactRef:
    return ArtifactRef("inductor", "key", digest, 0)


def test_a_snapshot_of_a_later_version_says_so(ada: Somebody) -> None:
    draft = ada.snapshot()
    manifest = encode_snapshot(draft.snapshot).replace(b'"version":1}', b'"version":2}')
    signature = ada.keyring.sign(Purpose.SNAPSHOT, manifest).encode()
    data = encode_file(SnapshotFile([Signed(manifest, signature)], {}))
    with pytest.raises(UnsupportedVersion, match=r"version 2.*\(here\)"):
        the_version(data, ada.keyring, where="here")


def test_what_strangers_say_in_one_file_is_read_up_to_a_bound_whether_or_not_it_is_a_manifest(
    ada: Somebody, bob: Somebody, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(content: bytes) -> Snapshot:
        read.append(len(content))
        return decode_snapshot(content)

    for module in (snapshot, verify):
        monkeypatch.setattr(module, "decode_snapshot", counted)
    file = decode_file(signed(ada.snapshot(), ada.keyring))
    noise = [Signed(b"%d" % number + b" " * (3 << 20), None) for number in range(9)]
    data = encode_file(replace(file, versions=[*file.versions, *noise]))
    read.clear()
    (received,) = receive(data, ada.keyring, where="x")
    assert received.standing is Standing.OWN
    assert (1 << 20) < sum(read) <= (8 << 20) + len(file.versions[0].manifest)
    read.clear()
    snapshot.united([data], ada.keyring)
    assert (1 << 20) < sum(read) <= (8 << 20) + len(file.versions[0].manifest)
    with pytest.raises(UntrustedSigner, match="of signers who are not trusted here"):
        receive(encode_file(replace(file, versions=[Signed(b" " * (9 << 20), None)])), bob.keyring, where="x")
