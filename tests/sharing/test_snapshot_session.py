"""Sharing without torch: what a session does with snapshots of people who are trusted more or less."""

from __future__ import annotations

import base64
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import nbformat
import pytest

from nbcache.core.errors import CorruptSnapshot, EnvironmentMismatch, SnapshotError, UntrustedSigner
from nbcache.core.files import read
from nbcache.core.key import components, sha256
from nbcache.core.model import Environment, GraphSummary, Manifest, Outcome
from nbcache.core.reports import Cell
from nbcache.core.settings import Policy
from nbcache.kernel.session import Session
from nbcache.sharing.provenance import Judge
from nbcache.sharing.snapshots import in_notebook, sources
from nbcache.sharing.snapshots.build import Draft, Taken, signed
from nbcache.sharing.snapshots.verify import Received, receive
from nbcache.sharing.trust import Keyring, Standing
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.compatibility import differences, fit_lines, fitting
from nbcache.ui.display.snapshots import arrival_line, snapshot_lines
from nbcache.ui.ipython.kernel_verbs import SnapshotVerbs
from nbcache.ui.terminal.parser import main
from support.doctored import the_version
from support.front_door import serving
from support.live_kernels import ELSEWHERE, HERE
from support.people import ORIGIN, Person, outcomes, unsigned
from support.testing import FakeBridge


def carrying(*snapshots: bytes | str) -> str:
    notebook = nbformat.v4.new_notebook()
    for data in snapshots:
        cell = nbformat.v4.new_raw_cell("", metadata={})
        text = data if isinstance(data, str) else base64.b64encode(data).decode()
        cell["attachments"] = {"snapshot.nbcache": {in_notebook.MIME: text}}
        notebook.cells.append(cell)
    return str(nbformat.writes(notebook))


def test_what_snapshots_bring_keeps_within_the_bound_of_the_store(
    ada: Person, bob: Person, tmp_path: Path
) -> None:
    session, bridge, sharing = ada.session()
    bridge.size = 300_000
    for number in range(12):
        bridge.compile(f"k{number}")
    sharing.write(bob.snapshot, ORIGIN)
    session.close()
    Keyring(bob.keys).add(Keyring(ada.keys).own() or "")
    with closing(DirectoryStore(tmp_path / "store")) as store:
        bob.store = store
        session, bridge, _ = bob.session()
        session.settings = session.settings.with_value("max_bytes", "1MB", origin="test")

        assert session.flush(10)

        assert 300_000 < store.size("artifact/") <= 1_000_000 + 300_000 + 1_000
        for number in range(12):  # the snapshot is still there
            bridge.compile(f"k{number}")
        assert outcomes(session) == [Outcome.HIT] * 12
        session.close()


@pytest.mark.parametrize("change", [bytes, unsigned])
def test_without_a_policy_what_a_file_has_is_used_and_yet_not_signed_by_adding_to_it(
    ada: Person, bob: Person, change: Callable[[bytes], bytes]
) -> None:
    bob.snapshot.write_bytes(change(ada.make("one")))
    session, bridge, sharing = bob.session(Policy.OFF)
    bridge.compile("one")
    bridge.compile("mine")
    assert outcomes(session) == [Outcome.HIT, Outcome.MISS]
    session.end_cell()
    written = sharing.write(bob.snapshot, ORIGIN)
    assert (written.changed, written.left) == (True, 1)
    old, new = receive(written.data, Keyring(bob.keys), where="")
    if old.signer == Keyring(bob.keys).own():
        old, new = new, old
    assert old.signer == ("" if change is unsigned else Keyring(ada.keys).own())
    assert old.snapshot.manifests[0].artifacts[0].key == "one"
    assert new.signer == Keyring(bob.keys).own()
    session.close()


def test_trust_that_is_taken_back_counts_at_once(ada: Person, bob: Person) -> None:
    bob.snapshot.write_bytes(ada.make("one"))
    keys = Keyring(bob.keys)
    keys.add(Keyring(ada.keys).own() or "")
    session, bridge, sharing = bob.session()
    (received,) = sharing.snapshots()
    assert received.standing is Standing.TRUSTED
    keys.remove(received.signer)
    sharing.forget()
    session.clear()
    with pytest.raises(UntrustedSigner):
        sharing.restore([received])
    session.cache.start_reading_ahead()
    session.cache.keys_of("inductor", 10)
    bridge.compile("one")
    assert outcomes(session) == [Outcome.MISS]


def test_of_several_snapshots_in_a_notebook_the_good_ones_count(
    ada: Person, bob: Person, person: Callable[..., Person]
) -> None:
    own = bob.make("mine")
    strangers = person("mallory").make("theirs")
    bob.store = MemoryStore()
    bob.notebook.write_text(carrying(strangers, "no base64!", own, strangers))
    bob.snapshot.unlink()
    bob.snapshot.mkdir()  # nor does that hide them

    session, bridge, sharing = bob.session()
    bridge.compile("mine")
    assert outcomes(session) == [Outcome.HIT]
    assert len(sharing.snapshots()) == 2
    assert len(sharing.problems()) == 2
    restored = sharing.restore(sharing.receive(str(bob.notebook)))
    assert [received.standing for received, _ in restored] == [Standing.OWN]
    assert sum("a version is not used" in notice for notice in session.notices) == 2


def test_of_very_many_broken_snapshots_in_a_notebook_some_are_told() -> None:
    output = {"output_type": "display_data", "metadata": {}, "data": {in_notebook.MIME: "no base64!"}}
    cell = {"cell_type": "code", "metadata": {}, "source": "", "execution_count": None}
    cells = [{**cell, "outputs": [output] * 100_000}]
    notebook = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells}

    found, problems = in_notebook.snapshots_of(json.dumps(notebook).encode())

    assert found == [] and len(problems) == 100


def test_a_broken_attachment_can_be_taken_out(tmp_path: Path) -> None:
    notebook = in_notebook.decode_notebook(carrying("no base64!").encode(), "here")
    assert in_notebook.detach(notebook) == 1
    assert in_notebook.MIME not in json.dumps(notebook)
    in_notebook.attach(notebook, b"sound")
    assert in_notebook.snapshots_of(in_notebook.encode_notebook(notebook)) == ([b"sound"], [])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"cells": 3}', '{"cells": [1, {"outputs": [2, {"data": 3}]}]}']
)
def test_what_is_no_notebook_carries_nothing(text: str) -> None:
    data = (text + " " * 10 + in_notebook.MIME + in_notebook.MANIFEST_MIME).encode()
    assert in_notebook.snapshots_of(data) == ([], [])
    assert in_notebook.referenced_digests(data) == set()
    for broken in (text.encode(), data):
        with pytest.raises(SnapshotError):
            in_notebook.decode_notebook(broken, "here")


def test_a_pipe_in_place_of_a_snapshot_does_not_hang(bob: Person) -> None:
    os.mkfifo(bob.snapshot)
    with pytest.raises(SnapshotError, match="not a file"):
        read(bob.snapshot, max_bytes=10)
    session, _, sharing = bob.session()
    assert len(sharing.problems()) == 1
    session.close()


def test_nothing_that_a_snapshot_says_can_steer_a_terminal(ada: Person, tmp_path: Path) -> None:
    evil = "x\x1b[2J\nfaked: signed by you\r\u202e"
    environment = Environment(components({evil: evil, "cpu.capability": evil, "device": "cpu"}))
    received = the_version(ada.make("one"), Keyring(tmp_path / "nobody"), where=f"/tmp/{evil}.nbcache")
    (manifest,) = received.snapshot.manifests
    graphs = tuple(replace(graph, function=evil, cell=evil) for graph in manifest.graphs)
    refs = tuple(replace(ref, function=evil, cell=evil) for ref in manifest.artifacts)
    snapshot = replace(
        received.snapshot,
        manifests=(replace(manifest, environment=environment, graphs=graphs, artifacts=refs),),
        user=evil,
        host=evil,
        notebook=evil,
        made_by=evil,
    )
    received = replace(received, snapshot=snapshot)
    judge = Judge(lambda: Keyring(tmp_path / "nobody"), lambda: Policy.STRICT)
    lines = [*snapshot_lines(received, HERE, judge), arrival_line(received, HERE, judge)]
    error = EnvironmentMismatch("nothing fits", [evil], where=evil)
    keys = Keyring(tmp_path / "keys")
    keys.add("0" * 64, evil)
    lines += [
        *str(error).split("\n"),
        *(line for line in error.diagnostics()),
        keys.trusted_signers()[0].name,
    ]
    assert all(line.isprintable() for text in lines for line in text.split("\n")), lines
    assert not any(line.startswith("faked") for line in lines[:-1])


def test_of_very_many_differences_some_are_listed() -> None:
    many = Manifest(Environment(components({f"made.up.{number}": "x" for number in range(1000)})), "", ())

    lines = fit_lines(differences(many, HERE))

    assert len(lines) < 50 and "963 more differences" in lines[-1]


def test_a_graph_for_one_cpu_never_fits_another(ada: Person, tmp_path: Path) -> None:
    gpu = {"torch.version": "2.13.0", "device": "H200", "python.abi": "cp311"}
    there = Environment(components(gpu | {"cpu.capability": "AVX512", "compiler.abi": "glibc 2.36"}))
    here = Environment(components(gpu | {"cpu.capability": "AVX2", "compiler.abi": "glibc 2.40"}))
    received = the_version(ada.make("one", "two"), Keyring(tmp_path / "nobody"), where="")
    (manifest,) = received.snapshot.manifests
    manifest = replace(manifest, environment=there)
    assert fitting([manifest], there) == manifest
    assert fitting([manifest], here) == replace(manifest)  # nothing of it runs on the CPU
    one, two = manifest.artifacts
    shared = replace(two, type="cpp_kernel", function="another")
    assert fitting([replace(manifest, artifacts=(one, shared))], here) is None
    other_gpu = Environment(components(gpu | {"device": "B200"}))
    assert fitting([manifest], other_gpu) is None


def test_what_is_signed_can_be_read_again(ada: Person, tmp_path: Path) -> None:
    received: Received = the_version(ada.make("one"), Keyring(ada.keys), where="")
    (manifest,) = received.snapshot.manifests
    many = tuple(
        replace(manifest, environment=Environment(components({"cpu": str(number)}))) for number in range(65)
    )
    draft = Draft(replace(received.snapshot, manifests=many), received.unlock(Policy.STRICT))
    with pytest.raises(CorruptSnapshot):
        signed(draft, Keyring(ada.keys))


def test_a_graph_belongs_to_the_manifest_that_names_its_artifacts(ada: Person) -> None:
    from nbcache.core.errors import CorruptEntry
    from nbcache.storage.encoding import encode_snapshot

    received = the_version(ada.make("one", "two"), Keyring(ada.keys), where="")
    (manifest,) = received.snapshot.manifests
    one, two = manifest.artifacts
    apart = (
        replace(manifest, artifacts=(one,)),
        replace(manifest, environment=Environment(()), artifacts=(two,), graphs=()),
    )
    with pytest.raises(CorruptEntry, match="its manifest does not name"):
        encode_snapshot(replace(received.snapshot, manifests=apart))


def test_a_snapshot_that_was_renamed_is_found_only_by_its_digest(ada: Person, bob: Person) -> None:
    data = ada.make("one")
    Keyring(bob.keys).add(Keyring(ada.keys).own() or "")
    told = {"digest": sha256(data), "file": "model.nbcache"}
    output = nbformat.v4.new_output("display_data", {in_notebook.MANIFEST_MIME: told})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=[output])])
    nbformat.write(notebook, bob.notebook)
    bob.notebook.with_name("another.nbcache").write_bytes(data + b" ")
    bob.notebook.with_name("yet another.nbcache").write_bytes(data)
    shutil.copy(bob.notebook, bob.notebook.with_name("copy.ipynb"))
    session, _, sharing = bob.session()
    assert [received.where for received in sharing.snapshots()] == [
        str(bob.notebook.with_name("yet another.nbcache"))
    ]
    session.close()


@pytest.fixture
def given_up() -> Iterator[threading.Event]:
    """Return an event that is set at the end of the test: servers that drip look at it."""
    event = threading.Event()
    yield event
    event.set()


def verified(respond: Callable[[BaseHTTPRequestHandler], None]) -> tuple[int, float]:
    """Verify the snapshot at a server's URL; return the exit status and the seconds that it took."""
    with serving(respond) as http, pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "*")
        began = time.monotonic()
        status = main(["verify", f"http://127.0.0.1:{http.server_port}/model.nbcache?token=secret"])
        return status, time.monotonic() - began


def test_a_snapshot_is_fetched_from_a_url(
    ada: Person, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ada.make("one")

    def respond(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(data)

    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(ada.keys))
    assert verified(respond)[0] == 0
    assert "/model.nbcache: sound" in capsys.readouterr().out


@pytest.mark.parametrize("headers", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_server_that_drips_is_given_up(
    headers: bytes,
    given_up: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sources, "_DOWNLOAD_SECONDS", 0.3)

    def respond(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(headers)
        while not given_up.wait(0.01):
            request.wfile.write(b"x")

    status, seconds = verified(respond)

    assert status == 1 and seconds < 60
    said = capsys.readouterr().err
    assert "not whole after 0.3 s (http://127.0.0.1:" in said and "/model.nbcache)" in said
    assert "next: check the URL, or download the file" in said
    assert "secret" not in said
    fetching = [thread for thread in threading.enumerate() if thread.name == "nbcache-fetch"]
    for thread in fetching if headers else ():  # with no header it waits for one, but nobody waits for it
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("length", "sent", "said"),
    [
        (2_000_000, 10, "it has 2,000,000 bytes; at most 1,000,000 are read"),
        (None, 2_000_000, "the snapshot has more than 1,000,000 bytes, the limit"),
        (1000, 10, "the connection ended after 10 of 1,000 bytes"),
    ],
)
def test_a_download_that_cannot_be_a_whole_snapshot_is_refused(
    length: int | None,
    sent: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sources, "MAX_SNAPSHOT_BYTES", 1_000_000)

    def respond(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        if length is not None:
            request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(b"x" * sent)

    assert verified(respond)[0] == 1
    assert f"the snapshot cannot be fetched: {said} (http://" in capsys.readouterr().err


def run_cell(session: Session, bridge: FakeBridge, source: str, key: str) -> None:
    session.program.note_cell(source, "a cell")
    session.begin_cell(Cell.of(source, 1))
    bridge.compile(key, function="f")
    session.end_cell()


def write_notebook(person: Person, *sources: str) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), person.notebook)


def test_a_snapshot_holds_and_announces_what_the_present_cells_use(ada: Person) -> None:
    write_notebook(ada, "f(old)")
    session, bridge, sharing = ada.session()
    run_cell(session, bridge, "f(old)", "one")
    assert [graph.key for graph in graphs_of(sharing.write(ada.snapshot, ORIGIN))] == ["one"]
    session.close()

    session, bridge, sharing = ada.session()
    run_cell(session, bridge, "f(new)", "two")  # edited, and not saved yet
    run_cell(session, bridge, "f(newer)", "three")
    everything = sharing.build(ORIGIN, everything=True).snapshot.manifests[0].graphs
    assert {graph.key for graph in everything} == {"one", "two", "three"}
    write_notebook(ada, "f(newer)")
    present = sharing.write(ada.snapshot, ORIGIN)
    assert present.changed and [graph.key for graph in graphs_of(present)] == ["three"]
    assert not sharing.write(ada.snapshot, ORIGIN).changed
    all_graphs = sharing.write(ada.snapshot, ORIGIN, everything=True)
    assert {graph.key for graph in graphs_of(all_graphs)} == {"one", "two", "three"}
    session.close()

    session, _, sharing = ada.session()
    (received,) = sharing.snapshots()
    judge = session.judge
    assert ": 1 graph of " in arrival_line(received, HERE, judge, sharing.cells)
    assert ": 3 graphs of " in arrival_line(received, HERE, judge)
    session.close()


def test_restore_names_the_graphs_that_fit_no_more_although_their_cells_are_unchanged(
    ada: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    write_notebook(ada, "f(one)", "f(two)")
    for environment, key in ((HERE, "one"), (ELSEWHERE, "two"), (ELSEWHERE, "gone")):
        ada.environment = environment
        session, bridge, sharing = ada.session()
        run_cell(session, bridge, f"f({key})", key)
        sharing.write(ada.snapshot, ORIGIN, everything=True)
        session.close()
    line = "1 graph of unchanged cells not restored: cpu.features differs (nbcache inspect)"

    ada.environment = HERE
    session, _, _ = ada.session()
    verbs = SnapshotVerbs(session, lambda: str(ada.notebook), lambda: HERE)
    verbs.sharing.look()
    assert verbs.sharing.wait_for_look(10)
    restored = verbs.restore(str(ada.snapshot))
    assert restored[:2] == [f"restored 1 graph, 1 artifact, of {ada.snapshot}", f"  {line}"]
    assert f"model.nbcache: {line} [snapshot]" in session.notices
    session.close()

    ada.environment = ELSEWHERE
    session, _, sharing = ada.session()
    (received,) = sharing.snapshots()
    sharing.restore([received])
    assert "1 graph of unchanged cells" in sharing.unfit_line(received)
    write_notebook(ada, "f(two)")
    sharing.look()
    assert sharing.wait_for_look(10)
    assert sharing.unfit_line(received) == ""
    session.close()


def graphs_of(taken: Taken) -> tuple[GraphSummary, ...]:
    (manifest,) = taken.draft.snapshot.manifests
    return manifest.graphs
