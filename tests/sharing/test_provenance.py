"""Who compiled what, and whose versions stand where: two or three people with keys of their own."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest

from nbcache.core.errors import (
    BadSignature,
    CorruptEntry,
    CorruptSnapshot,
    SnapshotError,
    TrustError,
    Unsigned,
    UntrustedSigner,
)
from nbcache.core.key import components, sha256
from nbcache.core.model import (
    UNSIGNED,
    Artifact,
    ArtifactRef,
    Environment,
    Level,
    Manifest,
    Outcome,
    Packed,
    Provenance,
)
from nbcache.core.settings import Policy
from nbcache.core.signature import Purpose
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing
from nbcache.sharing.live.layout import MAX_VARIANTS, decode_shared, slot_of
from nbcache.sharing.live.signing import Signer
from nbcache.sharing.provenance import Judge, made_by, signed_by, statement_of
from nbcache.sharing.snapshots.build import Draft, admitted_part, makers, signed
from nbcache.sharing.snapshots.file import Signed, SnapshotFile, decode_file, encode_file
from nbcache.sharing.snapshots.verify import receive
from nbcache.sharing.trust import Keyring, Standing, short, spelled
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.backends.open import open_store
from nbcache.storage.encoding import encode_snapshot, pack
from nbcache.storage.store import ArtifactStore
from nbcache.ui.display.snapshots import arrival_line, snapshot_json, snapshot_lines
from nbcache.ui.ipython.kernel_verbs import Planner, SnapshotVerbs, publication_lines
from nbcache.ui.terminal.parser import main
from support.doctored import the_version
from support.live_kernels import HERE, SECONDS, Kernel, kernels
from support.people import ORIGIN, Person, key_of, outcomes, trusts
from support.redis_servers import RedisServer
from support.testing import FakeBridge

HIT, MISS = Outcome.HIT, Outcome.MISS
NAME = "team/one"


@pytest.fixture
def cleo(person: Callable[..., Person]) -> Person:
    return person("cleo")


@pytest.fixture(params=["redis", "cluster", "folder", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where several people take snapshots: a name in a store, or a file."""
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_server').url}#{NAME}"
    if request.param == "cluster":
        return f"{request.getfixturevalue('redis_cluster').url}#{NAME}"
    return f"{tmp_path / 'shared'}#{NAME}" if request.param == "folder" else str(tmp_path / "shared.nbcache")


def trusts_no_more(one: Person, other: Person) -> None:
    Keyring(one.keys).remove(key_of(other))


def takes(person: Person, place: str, *graphs: str, policy: Policy = Policy.STRICT) -> list[Outcome]:
    """Run a kernel that compiles these graphs, with what `place` has, and takes a snapshot into it."""
    session, bridge, _ = person.session(policy)
    with suppress(
        SnapshotError, TrustError, CorruptSnapshot
    ):  # nothing is there yet, or nobody's who is trusted
        session.restore(place)
    for graph in graphs:
        bridge.compile(graph)
    session.snapshot(place)
    found = outcomes(session)
    session.close()
    return found


def hits(person: Person, place: str, *graphs: str, policy: Policy = Policy.STRICT) -> set[str]:
    """Return which graphs a new kernel without a local store hits with what it may use of `place`."""
    there, person.store = person.store, MemoryStore()
    session, bridge, _ = person.session(policy)
    try:
        session.restore(place)
        for graph in graphs:
            bridge.compile(graph)
        return {graph.key or "" for graph in session.graphs if graph.outcome is HIT}
    finally:
        session.close()
        person.store = there


Ask = Callable[..., Any]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return a function that runs a command as a person, and returns its JSON: `ask(ada, "inspect", x)`."""

    def ask(person: Person, *arguments: str, status: int = 0) -> Any:
        monkeypatch.setenv("NBCACHE_TRUST_DIR", str(person.keys))
        capsys.readouterr()
        assert main([*arguments, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    return ask


# --- side by side ---------------------------------------------------------------------------------


def test_a_colleague_who_takes_the_same_place_locks_nobody_out(
    place: str, ada: Person, bob: Person, cleo: Person, ask: Ask
) -> None:
    trusts(bob, ada)
    trusts(cleo, ada)
    takes(ada, place, "one")
    assert takes(bob, place, "one", "two") == [HIT, MISS]
    takes(bob, place, "three")

    for reader in (ada, cleo):
        assert hits(reader, place, "one", "two", "three") == {"one"}
        versions = ask(reader, "verify", place)
        assert {each["signer"]: each["sound"] for each in versions} == {key_of(ada): True, key_of(bob): False}
        inspected = ask(reader, "inspect", place)
        assert {each["signer"] for each in inspected} == {key_of(ada), key_of(bob)}
    assert takes(ada, place, "four") == [MISS]
    assert hits(bob, place, "one", "two", "three", "four") == {"one", "two", "three", "four"}
    assert hits(ada, place, "one", "two", "three", "four") == {"one", "four"}
    trusts(cleo, bob)
    assert hits(cleo, place, "one", "two", "three", "four") == {"one", "two", "three", "four"}
    assert ask(cleo, "verify", place)


def test_an_attached_snapshot_stands_beside_what_others_have_attached(
    ada: Person, bob: Person, cleo: Person, ask: Ask
) -> None:
    notebook = cleo.notebook
    nbformat.write(nbformat.v4.new_notebook(), notebook)
    for person, graphs in ((ada, ("one",)), (bob, ("two",)), (ada, ("three",))):
        person.make(*graphs)
        ask(person, "attach", str(notebook), str(person.snapshot))
    inspected = ask(cleo, "inspect", str(notebook))
    assert sorted(each["signer"] for each in inspected) == sorted([key_of(ada), key_of(bob)])
    trusts(cleo, ada)
    assert hits(cleo, str(notebook), "one", "two", "three") == {"one", "three"}

    out = cleo.notebook.parent / "out.nbcache"
    bob.make("four")
    shutil.copy(bob.snapshot, out)
    ask(cleo, "extract", str(notebook), "-o", str(out))
    trusts(cleo, bob)
    assert hits(cleo, str(out), "one", "two", "three", "four") == {"one", "two", "three", "four"}
    assert (
        len(receive(out.read_bytes(), Keyring(cleo.keys), where="")) == 2
    )  # bob's older one is in his newer


def test_a_version_that_is_damaged_costs_nobody_elses(ada: Person, bob: Person, tmp_path: Path) -> None:
    place = tmp_path / "shared.nbcache"
    takes(ada, str(place), "one")
    file = decode_file(place.read_bytes())
    forged = Signed(b'{"format":"nbcache.snapshot"}', file.versions[0].signature)
    place.write_bytes(encode_file(replace(file, versions=[*file.versions, forged])))
    trusts(bob, ada)
    assert hits(bob, str(place), "one") == {"one"}
    takes(ada, str(place), "two")
    assert hits(bob, str(place), "one", "two") == {"one", "two"}
    assert len(decode_file(place.read_bytes()).versions) == 2


def test_a_damaged_artifact_costs_only_the_versions_that_name_it(
    ada: Person, bob: Person, cleo: Person, tmp_path: Path, ask: Ask
) -> None:
    place = tmp_path / "shared.nbcache"
    takes(ada, str(place), "one")
    (adas,) = decode_file(place.read_bytes()).packed
    takes(bob, str(place), "two")
    trusts(bob, ada)
    file = decode_file(place.read_bytes())
    place.write_bytes(encode_file(replace(file, packed={**file.packed, adas: b"no frame"})))
    assert hits(bob, str(place), "one", "two") == {"two"}
    trusts(cleo, bob)  # and not ada, whose damage is no concern of hers
    for person, status in ((bob, 1), (ada, 1), (cleo, 0)):
        versions = ask(person, "verify", str(place), status=status)
        assert sorted(each["sound"] for each in versions) == [False, person is not ada]
    takes(ada, str(place), "three")  # her damaged version goes, with what is still hers in the new one
    assert hits(bob, str(place), "one", "two", "three") == {"one", "two", "three"}
    assert len(decode_file(place.read_bytes()).versions) == 2


def test_what_another_has_damaged_in_a_file_does_not_damage_ones_own(
    ada: Person, bob: Person, cleo: Person, tmp_path: Path, ask: Ask
) -> None:
    damaged, other = tmp_path / "damaged.nbcache", tmp_path / "other.nbcache"
    takes(bob, str(damaged), "one")
    takes(ada, str(other), "one")  # the same bytes
    file = decode_file(damaged.read_bytes())
    (frame,) = file.packed
    damaged.write_bytes(encode_file(replace(file, packed={frame: b"no frame"})))
    trusts(cleo, ada)
    assert frame in decode_file(other.read_bytes()).packed
    nbformat.write(nbformat.v4.new_notebook(), cleo.notebook)
    (shared := tmp_path / "shared.nbcache").write_bytes(damaged.read_bytes())

    takes(ada, str(shared), "one")
    assert hits(cleo, str(shared), "one") == {"one"}
    ask(ada, "attach", str(cleo.notebook), str(other))
    ask(ada, "extract", str(cleo.notebook), "-o", str(shared))
    assert hits(cleo, str(shared), "one") == {"one"}


def test_of_very_many_strangers_in_one_file_loading_tells_of_some_and_of_trusted_signers_first(
    ada: Person, bob: Person, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trusts(bob, ada)
    file = decode_file(ada.make("one"))
    (adas,) = file.versions
    strangers = [
        Keyring(tmp_path / f"{number}").sign(Purpose.SNAPSHOT, adas.manifest) for number in range(30)
    ]
    versions = [adas, *(Signed(adas.manifest, each.encode()) for each in strangers)]
    bob.snapshot.write_bytes(encode_file(replace(file, versions=versions)))
    session, _, _ = bob.session()
    SnapshotVerbs(session, lambda: str(bob.notebook), lambda: HERE).start()
    first, *rest = capsys.readouterr().out.splitlines()
    assert "not used" not in first and len(rest) == 10
    assert rest[-1] == "nbcache: 21 more versions found (nbcache inspect)"
    session.close()


# --- who compiled it ------------------------------------------------------------------------------


@pytest.fixture(params=["snapshot", "local store", "merged"])
def passed_on(
    request: pytest.FixtureRequest,
    ada: Person,
    bob: Person,
    tmp_path: Path,
    ask: Ask,
) -> str:
    """Return where bob has put `one`, which ada compiled, and his own `two`."""
    trusts(bob, ada)
    adas, bobs = str(tmp_path / "adas.nbcache"), str(tmp_path / "bobs.nbcache")
    takes(ada, adas, "one")
    if request.param == "merged":
        takes(bob, bobs, "two")
        ask(bob, "merge", adas, bobs, "-o", str(tmp_path / "merged.nbcache"))
        return str(tmp_path / "merged.nbcache")
    session, bridge, _ = bob.session()
    session.restore(adas)
    assert bridge.compile("one")
    bridge.compile("two")
    if request.param == "local store":
        session.close()
        (tmp_path / "adas.nbcache").unlink()
        session, bridge, _ = bob.session()
        assert bridge.compile("one") and outcomes(session) == [HIT]
    session.snapshot(bobs)
    session.close()
    return bobs


def test_who_compiled_it_is_kept_by_whoever_passes_it_on(
    passed_on: str,
    ada: Person,
    bob: Person,
    cleo: Person,
    ask: Ask,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (inspected,) = ask(cleo, "inspect", passed_on)
    assert inspected["signer"] == key_of(bob)
    assert {each["signer"]: each["artifacts"] for each in inspected["makers"]} == {
        key_of(ada): 1,
        key_of(bob): 1,
    }
    (manifest,) = inspected["manifests"]
    made = {each["key"]: each["maker"] for each in manifest["artifacts"]}
    assert made == {"one": key_of(ada), "two": key_of(bob)}
    assert main(["inspect", passed_on]) == 0
    shown = capsys.readouterr().out
    assert f"compiled by {spelled(key_of(ada))}, not trusted" in shown and key_of(ada) not in shown

    with pytest.raises(UntrustedSigner):
        hits(cleo, passed_on, "one", "two")
    trusts(cleo, bob)
    assert hits(cleo, passed_on, "one", "two") == {"two"}
    (checked,) = ask(cleo, "verify", passed_on)
    assert checked["sound"] and len(checked["left_out"]) == 1
    trusts(cleo, ada)
    assert hits(cleo, passed_on, "one", "two") == {"one", "two"}
    assert ask(cleo, "verify", passed_on)[0]["left_out"] == []
    trusts_no_more(cleo, ada)
    assert hits(cleo, passed_on, "one", "two") == {"two"}


def test_trust_asks_for_who_compiled_what_another_passes_on(
    passed_on: str, ada: Person, cleo: Person, bob: Person
) -> None:
    shutil.copy(passed_on, cleo.snapshot)
    session, bridge, sharing = cleo.session()
    asked = []
    while strangers := sharing.strangers():
        asked.append((strangers[0].fingerprint, strangers[0].name))
        sharing.trust(strangers[0], f"{strangers[0].name} {len(asked)}")
    assert [who for who, _ in asked] == [key_of(bob), key_of(ada)]
    assert all(name for _, name in asked)
    bridge.compile("one")
    assert outcomes(session) == [HIT]
    session.close()


def test_who_is_trusted_no_more_is_refused_in_the_local_store_until_trusted_again(
    ada: Person, bob: Person, tmp_path: Path
) -> None:
    trusts(bob, ada)
    takes(ada, str(tmp_path / "adas.nbcache"), "one")
    takes(bob, str(tmp_path / "adas.nbcache"), "one", "two")
    (tmp_path / "adas.nbcache").unlink()

    def load() -> tuple[str, int]:
        """Return what loading says, and how many artifacts there are for `one`."""
        session, _, sharing = bob.session()
        line, *_ = Planner(session, lambda: HERE, sharing).greeting()
        found = session.find("inductor", "one")
        session.close()
        return line, len(found)

    for trusted in (True, False, True, False):
        (trusts if trusted else trusts_no_more)(bob, ada)
        line, count = load()
        assert ("2 graphs of model.ipynb are stored here" in line) == trusted
        assert count == trusted

    session, bridge, sharing = bob.session()
    bridge.compile("two")
    bridge.compile("one")
    assert outcomes(session) == [HIT, MISS]
    assert [notice for notice in session.notices if "not used" in notice and "trust add" in notice]
    taken = sharing.build(ORIGIN)
    session.close()
    assert {ref.provenance for each in taken.snapshot.manifests for ref in each.artifacts} == {None}

    session, bridge, _ = bob.session()  # it is bob's now: he has compiled it himself
    bridge.compile("one")
    assert outcomes(session) == [HIT]
    session.close()


def test_what_may_not_be_used_is_not_merged(
    ada: Person, bob: Person, cleo: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    adas, bobs, out = (tmp_path / f"{name}.nbcache" for name in ("adas", "bobs", "out"))
    trusts(bob, ada)
    takes(ada, str(adas), "one")
    session, bridge, _ = bob.session()
    session.restore(str(adas))
    bridge.compile("one")
    session.snapshot(str(bobs))
    session.close()
    trusts(cleo, bob)
    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(cleo.keys))
    assert main(["merge", str(bobs), "-o", str(out)]) == 1
    assert "who compiled it, is not trusted here" in capsys.readouterr().err
    assert not out.exists()


def test_a_damaged_file_that_is_not_merged_is_named(
    ada: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(ada.keys))
    data = ada.make("one")
    ada.notebook.write_text(nbformat.writes(nbformat.v4.new_notebook()))
    assert main(["attach", str(ada.notebook)]) == 0
    ada.snapshot.write_bytes(data[: len(data) // 2])
    capsys.readouterr()

    assert main(["merge", str(ada.notebook), "-o", str(tmp_path / "out.nbcache")]) == 0
    assert "left out: " in capsys.readouterr().out


def test_without_a_policy_what_nobody_signed_stays_so(
    ada: Person, bob: Person, cleo: Person, tmp_path: Path
) -> None:
    adas = takes_unsigned(ada, tmp_path / "adas.nbcache", "one")
    bobs = str(tmp_path / "bobs.nbcache")
    session, bridge, _ = bob.session(Policy.OFF)
    session.restore(adas)
    bridge.compile("one")
    bridge.compile("two")
    assert outcomes(session) == [HIT, MISS]
    session.snapshot(bobs)
    session.close()

    received = the_version(Path(bobs).read_bytes(), Keyring(bob.keys))
    assert {who: made.artifacts for who, made in makers(received.snapshot).items()} == {"": 1, key_of(bob): 1}
    trusts(cleo, bob)
    assert hits(cleo, bobs, "one", "two") == {"two"}
    assert hits(cleo, bobs, "one", "two", policy=Policy.OFF) == {"one", "two"}
    session, bridge, _ = bob.session()  # strict again: what came in is not used any more
    bridge.compile("one")
    assert outcomes(session) == [MISS]
    session.close()


def takes_unsigned(person: Person, place: Path, *graphs: str) -> str:
    """Write a snapshot that says nothing of who compiled or took it."""
    session, bridge, sharing = person.session()
    for graph in graphs:
        bridge.compile(graph)
    draft = sharing.build(ORIGIN)
    session.close()
    frames = {draft.snapshot.contents[each].packed_digest: frame for each, frame in draft.packed.items()}
    place.write_bytes(encode_file(SnapshotFile([Signed(encode_snapshot(draft.snapshot), None)], frames)))
    return str(place)


# --- forged ---------------------------------------------------------------------------------------

OTHER = Environment(components({"torch.version": "2.13.0", "device": "cpu", "cpu.capability": "AVX512"}))


def stated(
    person: Person, key: str = "one", content: bytes = b"a graph", environment: Environment = HERE
) -> ArtifactRef:
    """Return an artifact with its maker's statement."""
    ref = ArtifactRef("inductor", key, sha256(content), len(content), 1.0, 1.0)
    packed = Packed(len(content), 9, "1" * 64)
    said = statement_of(environment, ref, packed, "ada", "engine").sign(Keyring(person.keys))
    return replace(ref, provenance=said)


def judge_of(person: Person, policy: Policy = Policy.STRICT) -> Judge:
    return Judge(lambda: Keyring(person.keys), lambda: policy)


def test_a_statement_is_of_one_artifact_in_one_environment(ada: Person, bob: Person) -> None:
    trusts(bob, ada)
    judge, sound = judge_of(bob), stated(ada)
    assert admitted_part(Manifest(HERE, "", (sound,)), judge) == (Manifest(HERE, "", (sound,)), [])
    other = stated(ada, "two", b"another")
    for wrong, environment in (
        (replace(sound, key="two"), HERE),
        (replace(sound, type="aot_autograd"), HERE),
        (replace(sound, digest=other.digest), HERE),
        (replace(sound, size=8), HERE),
        (replace(sound, provenance=other.provenance), HERE),
        (sound, OTHER),
    ):
        for policy in Policy:
            kept, (problem,) = admitted_part(Manifest(environment, "", (wrong,)), judge_of(bob, policy))
            assert kept.artifacts == () and isinstance(problem, CorruptEntry)


def test_a_statement_that_is_taken_off_or_forged_is_not_believed(ada: Person, bob: Person) -> None:
    trusts(bob, ada)
    sound = stated(ada)
    assert sound.provenance is not None
    said = sound.provenance
    for provenance, error in (
        (None, Unsigned),
        (UNSIGNED, Unsigned),
        (replace(said, signature=b""), TrustError),
        (replace(said, statement=b""), BadSignature),
        (replace(said, statement=said.statement.replace(b'"ada"', b'"eve"')), BadSignature),
        (
            replace(said, signature=Keyring(ada.keys).sign(Purpose.SNAPSHOT, said.statement).encode()),
            BadSignature,
        ),
        (
            replace(said, signature=Keyring(ada.keys).sign(Purpose.PUBLICATION, said.statement).encode()),
            BadSignature,
        ),
        (
            replace(said, signature=Keyring(bob.keys).sign(Purpose.ARTIFACT, b"another").encode()),
            BadSignature,
        ),
    ):
        ref = replace(sound, provenance=provenance)
        with pytest.raises(error):
            judge_of(bob).check(ref, lambda statement: True)


def test_beside_a_gpu_a_graph_of_another_cpu_is_told_by_all_but_the_cpu(ada: Person, bob: Person) -> None:
    trusts(bob, ada)
    values = {"torch.version": "2.13.0", "device": "NVIDIA H200", "cpu.features": "avx2"}
    here = Environment(components(values))
    there = Environment(components({**values, "cpu.features": "avx2 avx512f"}))
    newer = Environment(components({**values, "torch.version": "2.14.0"}))
    ref = stated(ada, environment=there)
    assert admitted_part(Manifest(here, "", (ref,)), judge_of(bob))[0].artifacts == (ref,)
    assert admitted_part(Manifest(newer, "", (ref,)), judge_of(bob))[0].artifacts == ()


def test_a_trusted_takers_wrong_statement_costs_nobody_elses_snapshot(
    ada: Person, bob: Person, cleo: Person, tmp_path: Path
) -> None:
    trusts(cleo, ada, bob)
    place = tmp_path / "shared.nbcache"
    takes(bob, str(place), "two")
    received = the_version(place.read_bytes(), Keyring(cleo.keys))
    (manifest,) = received.snapshot.manifests
    wrong = replace(manifest, artifacts=tuple(replace(ref, key="x") for ref in manifest.artifacts))
    draft = Draft(replace(received.snapshot, manifests=(wrong,)), received.unlock(Policy.STRICT))
    place.write_bytes(signed(draft, Keyring(bob.keys)))
    takes(ada, str(place), "one")
    shutil.copy(place, cleo.snapshot)
    session, bridge, _ = cleo.session()
    bridge.compile("one")
    assert outcomes(session) == [HIT]
    assert any("was made for another artifact" in notice for notice in session.notices)
    session.close()


def test_nobody_is_named_for_an_artifact_that_their_statement_is_not_of(ada: Person, bob: Person) -> None:
    """Bob's own artifacts, beside one true statement of ada's."""
    hers = stated(ada)
    assert hers.provenance is not None and made_by([hers])[key_of(ada)].user == "ada"
    forged = replace(hers, provenance=replace(hers.provenance, statement=b"{}"))
    assert [*made_by([forged])] == [""]
    his = [stated(bob, f"bob's {number}") for number in range(3)]
    others = [replace(ref, provenance=hers.provenance) for ref in his]
    assert made_by(others).keys() == {""}
    named = made_by([hers, *others])
    assert {maker: made.artifacts for maker, made in named.items()} == {key_of(ada): 1, "": 3}
    longer = replace(hers, size=hers.size + 1)
    assert made_by([longer]).keys() == {""}


def test_each_signature_counts_not_only_a_makers_first(ada: Person, bob: Person) -> None:
    """Statements that name bob's artifacts, under ada's key, which has not signed them."""
    hers = stated(ada)
    assert hers.provenance is not None
    forged = []
    for number in range(5):
        his = stated(bob, f"bob's {number}")
        assert his.provenance is not None
        by_her = replace(his.provenance, signature=hers.provenance.signature)
        forged.append(replace(his, provenance=by_her))
    for refs in ([hers, *forged], [*forged, hers]):
        assert {maker: made.artifacts for maker, made in made_by(refs).items()} == {key_of(ada): 1, "": 5}


def test_what_was_not_checked_is_nobodys(ada: Person, bob: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbcache.sharing.provenance._MOST_CHECKED", 3)
    hers = [stated(ada, f"{number}") for number in range(5)]
    named = made_by([*hers, stated(bob)])
    assert {maker: made.artifacts for maker, made in named.items()} == {key_of(ada): 3, "": 3}


@pytest.mark.parametrize("said", ["of another artifact", "signed by another"])
def test_in_what_is_shown_of_a_snapshot_nobody_is_named_for_what_another_has_compiled(
    ada: Person, bob: Person, cleo: Person, tmp_path: Path, said: str
) -> None:
    trusts(cleo, bob)
    adas, bobs = (
        the_version(person.make(*keys), Keyring(cleo.keys))
        for person, keys in ((ada, ["one"]), (bob, ["two", "three"]))
    )
    (manifest,) = bobs.snapshot.manifests
    hers = adas.snapshot.manifests[0].artifacts[0].provenance
    refs = []
    for ref in manifest.artifacts:
        assert hers is not None and ref.provenance is not None
        by_her = hers if "artifact" in said else replace(ref.provenance, signature=hers.signature)
        refs.append(replace(ref, provenance=by_her))
    forged = replace(bobs.snapshot, manifests=(replace(manifest, artifacts=tuple(refs)),))
    data = signed(Draft(forged, bobs.unlock(Policy.STRICT)), Keyring(bob.keys))

    received = the_version(data, Keyring(cleo.keys))
    judge = judge_of(cleo)
    line = arrival_line(received, None, judge)
    lines = snapshot_lines(received, None, judge)
    as_json = json.dumps(snapshot_json(received, None, judge))
    assert "nobody has signed them" in line
    assert f"not signed by anyone: {len(refs)} artifacts" in "\n".join(lines)
    for shown in (line, "\n".join(lines), as_json):
        assert key_of(ada) not in shown and short(key_of(ada)) not in shown
    cleo.snapshot.write_bytes(data)
    session, _, sharing = cleo.session()
    assert sharing.strangers() == []  # whom trust is asked for
    session.close()


# --- the local store ------------------------------------------------------------------------------


def test_what_is_compiled_here_as_well_is_ones_own_from_then_on(ada: Person) -> None:
    store = ArtifactStore(MemoryStore())
    ref = stated(ada)
    store.adopt(HERE.digest, ref, pack(b"a graph"))
    own = store.put(HERE.digest, Artifact("inductor", "one", b"a graph"))
    assert own.provenance is None
    store.adopt(HERE.digest, ref, pack(b"a graph"))
    again = store.refresh(HERE.digest, Artifact("inductor", "one", b"a graph"))
    assert again is not None and again.provenance is None


def test_using_what_came_from_elsewhere_keeps_who_compiled_it(ada: Person, bob: Person) -> None:
    store = ArtifactStore(MemoryStore())
    ref = stated(ada)
    store.adopt(HERE.digest, ref, pack(b"a graph"))
    used = store.refresh(HERE.digest, Artifact("inductor", "one", b"a graph"), cell="c", function="f")
    assert used is not None and (used.provenance, used.cell, used.function) == (ref.provenance, "c", "f")
    store.adopt(HERE.digest, stated(bob), pack(b"a graph"))  # ada's stays, as she may be believed
    store.adopt(HERE.digest, replace(ref, provenance=None), pack(b"a graph"))
    used = store.refresh(HERE.digest, Artifact("inductor", "one", b"a graph"))
    assert used is not None and signed_by(used.provenance or UNSIGNED) == key_of(ada)


# --- live -----------------------------------------------------------------------------------------

Make = Callable[..., Kernel]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Make]:
    with kernels(tmp_path) as make:
        yield make


def trust(one: Kernel, *others: Kernel) -> None:
    for other in others:
        one.keyring.add(other.keyring.fingerprint(), other.user)


def signers(server: RedisServer, prefix: str, type: str, key: str) -> list[str]:
    """Return who has signed what lies under a key, newest first."""
    with closing(open_store(f"{server.url}?prefix={prefix}")) as store:
        value = store.get(slot_of(HERE, type, key))
    variants = [] if value is None else decode_shared(value)
    return [signed_by(Provenance(each.statement, each.signature)) for each in variants]


def test_live_too_who_compiled_it_is_kept_by_whoever_passes_it_on(
    redis_server: RedisServer, kernel: Make
) -> None:
    there, here = (f"{redis_server.url}?prefix={prefix}" for prefix in ("there", "here"))
    ada = kernel(there, "ada")
    ada.publish("one")
    store = MemoryStore()
    bob = kernel("", "bob", store=store)
    trust(bob, ada)
    bob = kernel(there, "bob", store=store)
    assert bob.run("one", "two") == [HIT, MISS]
    assert bob.session.flush(SECONDS)
    bob = kernel(here, "bob", store=store)
    assert bob.session.flush(SECONDS)

    assert signers(redis_server, "here", "inductor", "one") == [ada.keyring.own()]
    assert signers(redis_server, "here", "inductor", "two") == [bob.keyring.own()]
    for name, trusted, expected in (
        ("cleo", [ada], [HIT, MISS]),
        ("dora", [bob], [MISS, HIT]),
        ("ella", [ada, bob], [HIT, HIT]),
    ):
        trust(kernel("", name), *trusted)
        reader = kernel(here, name)
        assert reader.run("one", "two") == expected
        shared_client = reader.session.shared_client
        assert shared_client is not None
        lines = publication_lines(
            shared_client.publications(), reader.session.environment, reader.session.judge
        )
        if bob in trusted:
            (line,) = lines
            assert "bob (says bob@engine) · 1 graph · " in line
            called = "ada" if ada in trusted else short(ada.keyring.fingerprint())
            assert f"has 1 graph of {called} · " in line


def test_of_a_profile_the_newest_of_each_signer_is_kept(redis_server: RedisServer, kernel: Make) -> None:
    url = f"{redis_server.url}?prefix=pgo"
    ada, bob = kernel(url, "ada"), kernel(url, "bob")
    trust(bob, ada)
    for one, content in ((ada, b"adas old"), (bob, b"bobs old"), (ada, b"adas"), (bob, b"bobs")):
        one.session.cache.record("pgo", "one", content, made=True)
        assert one.session.flush(SECONDS)
    assert signers(redis_server, "pgo", "pgo", "one") == [bob.keyring.own(), ada.keyring.own()]
    trust(kernel("", "cleo"), ada)
    cleo = kernel(url, "cleo", prefetch=False)
    assert [each.content for each in cleo.session.find("pgo", "one")] == [b"adas"]


def test_nobody_crowds_out_all_of_anothers_variants(redis_server: RedisServer, kernel: Make) -> None:
    url = f"{redis_server.url}?prefix=crowd"
    ada, bob = kernel(url, "ada"), kernel(url, "bob")
    for one, most in ((ada, 2), (bob, MAX_VARIANTS + 2)):
        for number in range(most):
            one.session.cache.record("inductor", "one", b"%s %d" % (one.user.encode(), number), made=True)
            assert one.session.flush(SECONDS)
    found = signers(redis_server, "crowd", "inductor", "one")
    assert (found.count(ada.keyring.own()), len(found)) == (2, MAX_VARIANTS)


def test_what_nobody_signed_is_not_shared(redis_server: RedisServer, kernel: Make) -> None:
    url = f"{redis_server.url}?prefix=off"
    bob = kernel(url, "bob", trust=Policy.OFF)
    content = b"a graph"
    ref = ArtifactRef("inductor", "one", sha256(content), len(content), provenance=UNSIGNED)
    bob.session.cache.adopt(
        HERE, Manifest(HERE, "", (ref,)), {ref.digest: pack(content)}, (Level.L2, "somebody's")
    )
    bob.session.cache.start_reading_ahead()
    bob.settle()
    assert len(bob.session.find("inductor", "one")) == 1
    bob.session.cache.record("inductor", "one", content, made=False)
    bob.publish("two")
    assert signers(redis_server, "off", "inductor", "one") == []
    assert signers(redis_server, "off", "inductor", "two") == [bob.keyring.own()]
    shared_client = bob.session.shared_client
    assert shared_client is not None
    (publication,) = shared_client.publications()
    assert [each.key for each in publication.manifest.artifacts] == ["two"]


@pytest.mark.parametrize("purpose", Purpose)
def test_what_a_holder_says_is_signed_for_leases_alone(ada: Person, purpose: Purpose) -> None:
    keyring = Keyring(ada.keys)
    signer = Signer(lambda: keyring, lambda: Policy.STRICT)
    assert signer.signer_of(b"said", signer.sign(b"said")) == keyring.fingerprint()
    signature = keyring.sign(purpose, b"said").encode()
    assert bool(signer.signer_of(b"said", signature)) is (purpose is Purpose.LEASE)


def test_a_publication_is_no_artifact_and_an_artifact_no_publication(
    redis_server: RedisServer, kernel: Make
) -> None:
    """Each is laid where the other is asked for, as whoever can write to the server could."""
    url = f"{redis_server.url}?prefix=purpose"
    ada = kernel(url, "ada")
    ada.publish("one")
    slot = slot_of(HERE, "inductor", "one")
    with closing(open_store(url)) as store:
        (publication,) = store.keys("notebook/")
        artifact = store.get(slot) or b""
        store.put(slot, store.get(publication) or b"")
        store.put(publication, artifact)
    again = kernel(url, "ada")
    assert again.run("one") == [MISS]
    shared_client = again.session.shared_client
    assert shared_client is not None
    assert shared_client.publications() == []
    assert any("does not match the contents" in each for each in again.session.notices)


# --- anything, in any order -----------------------------------------------------------------------


class Team:
    """People who do at random what people do; the length of what each compiles tells who that was."""

    GRAPHS = ("one", "two", "three")

    def __init__(self, folder: Path, seed: int) -> None:
        self.choose = random.Random(seed)
        self.folder = folder
        self.people = [Person(folder / name) for name in ("ada", "bob", "cleo", "dora")]
        self.places = [
            str(folder / "a.nbcache"),
            str(folder / "b.nbcache"),
            f"memory://team-{folder.name}#x",
            f"memory://team-{folder.name}#y",
        ]
        self.taken: dict[tuple[str, Person], set[str]] = {}
        """What each has put into a place that they had compiled themselves."""
        self.log: list[str] = []
        for person in self.people:
            key_of(person)

    def policy(self, person: Person) -> Policy:
        return Policy.OFF if person is self.people[3] else Policy.STRICT

    def maker(self, size: int) -> Person:
        return self.people[size - 1000]

    def is_trusted(self, reader: Person, maker: Person) -> bool:
        standing = Keyring(reader.keys).standing(key_of(maker))
        return standing in (Standing.OWN, Standing.TRUSTED)

    def kernel(self, person: Person) -> tuple[Session, FakeBridge, Sharing]:
        made = person.session(self.policy(person))
        made[1].size = 1000 + self.people.index(person)
        return made

    def step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        person, other = self.choose.sample(self.people, 2)
        place, another = self.choose.sample(self.places, 2)
        action = self.choose.choice(["work", "work", "work", "trust", "trust", "merge", "distrust", "forget"])
        self.log.append(
            f"{action} {person.notebook.parent.name} {other.notebook.parent.name} {place} {another}"
        )
        if action == "trust":
            trusts(person, other)
        elif action == "distrust" and self.is_trusted(person, other):
            trusts_no_more(person, other)
        elif action == "forget":
            person.store = MemoryStore()
        elif action == "merge" and place.endswith(".nbcache"):
            monkeypatch.setenv("NBCACHE_TRUST_DIR", str(person.keys))
            main(["merge", another, "-o", place])
        elif action == "work":
            self.work(person, self.choose.choice(self.places), place)

    def work(self, person: Person, source: str, target: str) -> None:
        session, bridge, sharing = self.kernel(person)
        with suppress(SnapshotError, TrustError):
            session.restore(source)
        for graph in self.choose.sample(self.GRAPHS, 2):
            content = bridge.compile(graph)
            maker = self.maker(len(content))
            allowed = self.is_trusted(person, maker) or self.policy(person) is Policy.OFF
            assert allowed, "\n".join(self.log)
        session.snapshot(target)
        session.close()
        own = {
            ref.key
            for manifest in sharing.build(ORIGIN).snapshot.manifests
            for ref in manifest.artifacts
            if self.maker(ref.size) is person
        }
        self.taken.setdefault((target, person), set()).update(own)

    def check(self, ask: Ask) -> None:
        for (place, person), graphs in self.taken.items():
            for reader in self.people:
                if not graphs or not self.is_trusted(reader, person):
                    continue
                there, reader.store = reader.store, MemoryStore()
                session, bridge, _ = self.kernel(reader)
                session.restore(place)
                for graph in graphs:
                    content = bridge.compile(graph)
                    assert session.graphs[-1].outcome is HIT, "\n".join([*self.log, graph, place])
                    maker = self.maker(len(content))
                    assert self.is_trusted(reader, maker) or self.policy(reader) is Policy.OFF
                session.close()
                reader.store = there
            for version in ask(person, "inspect", place):
                for artifact in version["manifests"][0]["artifacts"]:
                    named = key_of(self.maker(artifact["bytes"]))
                    assert artifact["maker"] == named, "\n".join([*self.log, place])


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.proof if seed >= 2 else ()) for seed in range(12)]
)
def test_whoever_does_what_in_whatever_order_nobody_is_locked_out_or_named_for_another(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    team = Team(tmp_path, seed)
    for _ in range(40):
        team.step(monkeypatch)
    team.check(ask)
