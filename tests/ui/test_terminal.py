"""The `nbcache` command, where it is not about what a verb does."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import nbcache.ui
from nbcache.core.model import Artifact, Direction, GraphSummary, Manifest, Outcome
from nbcache.core.reports import Cell
from nbcache.core.text import counted
from nbcache.sharing.snapshots import in_notebook
from nbcache.sharing.snapshots.sources import destination
from nbcache.sharing.snapshots.verify import receive
from nbcache.sharing.trust import Keyring, Standing, spelled
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.store import ArtifactStore
from nbcache.torch_bridge import environment
from nbcache.ui.display.snapshots import arrival_line, snapshot_lines
from nbcache.ui.terminal.parser import main
from nbcache.ui.terminal.shown import Shown, cell_titles
from support.live_kernels import HERE
from support.people import HOSTILE, ORIGIN, Person, hostile_snapshot, key_of


@pytest.mark.parametrize(
    "arguments", [["trust"], ["trust", "list", "--json"], ["ls", "./store"], ["gc", "./store"], ["--help"]]
)
def test_a_command_ends_quietly_where_nobody_reads_what_it_prints(arguments, isolated, tmp_path):
    (tmp_path / "store").mkdir(exist_ok=True)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "nbcache", *arguments],
        env=isolated,
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)

    assert done.stderr == b""
    assert done.returncode in ((0, 141) if arguments == ["--help"] else (141,))  # argparse hides it


def test_cells_of_a_snapshot_go_by_their_first_line_where_the_notebook_is_at_hand(tmp_path):
    ada = Person(tmp_path / "ada")
    source = "%%compile_cached step\ndef step(x): ..."
    session, bridge, sharing = ada.session()
    session.begin_cell(Cell.of(source, 3))
    bridge.compile("one")
    session.end_cell()
    session.flush(10)
    sharing.write(ada.snapshot, sharing.origin(str(ada.notebook)))
    session.close()

    def shown():
        where = str(ada.snapshot)
        (received,) = receive(ada.snapshot.read_bytes(), Keyring(ada.keys), where=where)
        titles = cell_titles(received)
        return "\n".join(snapshot_lines(received, HERE, titles=titles))

    assert Cell.of(source, 3).digest in shown()
    cells = [nbformat.v4.new_code_cell("1 + 1"), nbformat.v4.new_code_cell(source, execution_count=3)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), ada.notebook)
    assert "In[3] def step(x): ..." in shown()
    ada.notebook.write_text("no notebook")
    assert Cell.of(source, 3).digest in shown()


def test_the_terminal_shows_the_local_store_and_empties_it_after_asking(bob, tmp_path, capsys):
    artifacts = ArtifactStore(DirectoryStore(tmp_path / "store"))
    ref = artifacts.put(HERE.digest, Artifact("inductor", "key0", b"content"))
    graph = GraphSummary("", "f", Direction.INFERENCE, Outcome.MISS, "key0", 15.5, (ref.digest,))
    artifacts.save_manifest(Manifest(HERE, "/model.ipynb", (ref,), (graph,)))

    def said(*arguments, status=0):
        assert main(list(arguments)) == status
        printed = capsys.readouterr()
        return printed.out + printed.err

    assert "nbcache in a terminal" in said() and "the size of the local store" in said()
    assert said("status").endswith(f"{tmp_path / 'store'}\n  1 graph of /model.ipynb\n")
    assert said("stats") == "all notebooks · nothing compiled\n"
    assert "environment, NBCACHE_DIR" in said("config")
    assert "if you are sure, add --yes" in said("clear", status=1)
    assert artifacts.manifests()
    assert said("clear", "--yes") == "removed 3 entries; torch's own folder stays\n"
    assert not artifacts.manifests() and said("status").startswith("local store · 0 entries")


def test_wrong_usage_is_told_apart_from_failure(capsys):
    assert main(["trust", "add", "no fingerprint"]) == 2
    assert "is no fingerprint" in capsys.readouterr().err


@pytest.fixture
def bob(tmp_path, isolated, monkeypatch):
    """Return somebody whose keys the command uses."""
    person = Person(tmp_path / "bob")
    monkeypatch.setenv("NBCACHE_TRUST_DIR", str(person.keys))
    monkeypatch.setenv("NBCACHE_DIR", str(tmp_path / "store"))
    return person


def test_a_file_of_several_signers_is_trusted_by_fingerprint_only(tmp_path, bob, capsys):
    ada, eve = Person(tmp_path / "ada"), Person(tmp_path / "eve")
    ada.make("one")
    shutil.copy(ada.snapshot, eve.snapshot)
    eve.make("two")
    keyring = Keyring(bob.keys)
    keyring.add(key_of(ada), "Ada")

    assert main(["trust", "add", str(eve.snapshot), "--name", "Eve"]) == 1

    refused = capsys.readouterr().err
    assert f"{spelled(key_of(ada))}, trusted: Ada, says ada@engine; " in refused
    assert f"{spelled(key_of(eve))}, not trusted" in refused
    assert "next: name one by the fingerprint. Compare" in refused
    assert keyring.standing(key_of(eve)) is Standing.UNKNOWN


def test_a_stranger_gets_neither_a_trusted_signers_name_nor_their_own(tmp_path, bob, capsys):
    ada, eve = Person(tmp_path / "ada"), Person(tmp_path / "eve")  # both call themselves ada
    ada.make("one")
    eve.make("two")
    assert main(["trust", "add", str(ada.snapshot), "--name", "ada"]) == 0
    assert main(["trust", "add", str(eve.snapshot), "--name", "Ada"]) == 2
    assert "another key that you trust is called 'Ada'" in capsys.readouterr().err
    assert main(["trust", "add", str(eve.snapshot)]) == 0
    assert Keyring(bob.keys).name(key_of(eve)) == ""
    assert main(["trust", "remove", "ada"]) == 0
    assert spelled(key_of(ada)) in capsys.readouterr().out


def test_a_signer_has_the_users_name_in_every_line(tmp_path, bob, capsys):
    ada = Person(tmp_path / "ada")
    ada.make("one")
    store = f"{tmp_path}/shared#model"
    session, bridge, sharing = ada.session()
    bridge.compile("one")
    sharing.write(destination(store), ORIGIN)
    session.close()

    def outputs():
        texts = []
        for command in (["ls", f"{tmp_path}/shared"], ["verify", str(ada.snapshot)], ["inspect", store]):
            main(command)
            texts.append(capsys.readouterr().out)
        session, _, sharing = bob.session()
        (received,) = sharing.receive(ada.snapshot)
        texts.append(arrival_line(received, HERE, session.judge))
        session.close()
        return texts

    listed, verified, inspected, arrived = outputs()
    assert "  not trusted  says ada@engine  " in listed
    assert "is not trusted here" in verified
    assert f"signed by {spelled(key_of(ada))}, not trusted, says ada@engine" in inspected
    assert ": 1 graph of a stranger (says ada@engine) · " in arrived
    Keyring(bob.keys).add(key_of(ada), "Lovelace")
    listed, verified, inspected, arrived = outputs()
    assert "  trusted: Lovelace  says ada@engine  " in listed
    assert "sound; its signer: Lovelace (says ada@engine)" in verified
    assert f"signed by {spelled(key_of(ada))}, trusted: Lovelace, says ada@engine" in inspected
    assert ": 1 graph of Lovelace (says ada@engine) · " in arrived


@pytest.mark.parametrize(
    "cell",
    [
        {"metadata": {}, "source": "x"},
        {"cell_type": "code", "metadata": {}},
        {"cell_type": "code", "metadata": {}, "source": "x", "outputs": [{}]},
        {"cell_type": "code", "metadata": {}, "source": 1, "outputs": []},
    ],
)
@pytest.mark.parametrize("command", ["attach", "detach", "run"])
def test_a_notebook_with_a_broken_cell_gets_one_clear_line(cell, command, tmp_path, bob, capsys):
    bob.make("one")
    content = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"id": "a", **cell}]}
    bob.notebook.write_text(json.dumps(content))
    assert main([command, str(bob.notebook)]) == 1
    error, advice = capsys.readouterr().err.splitlines()
    assert error.startswith("SnapshotError: cell 1 of this notebook lacks its cell_type, ")
    assert advice == "  next: open it in Jupyter and save it"
    assert json.loads(bob.notebook.read_text()) == content


def test_the_command_takes_what_the_present_cells_use_or_all(tmp_path, bob, capsys):
    here = environment.current(None)
    graphs, refs = [], []
    with contextlib.closing(DirectoryStore(tmp_path / "store")) as store:
        artifacts = ArtifactStore(store)
        for source in ("f(old)", "f(new)"):
            cell = Cell.of(source, None).digest
            ref = artifacts.put(
                here.digest, Artifact("inductor", cell, source.encode()), cell=cell, function="f"
            )
            refs.append(ref)
            graphs.append(GraphSummary(cell, "f", Direction.FORWARD, Outcome.MISS, cell, 60.0, (ref.digest,)))
        artifacts.save_manifest(Manifest(here, str(bob.notebook), tuple(refs), tuple(graphs)))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("f(new)")])
    nbformat.write(notebook, bob.notebook)

    for more, count in ([], 1), (["--all"], 2), ([], 1):
        assert main(["snapshot", str(bob.notebook), *more]) == 0
        assert f"holds {counted(count, 'graph')} · {count} min 00 s of compiling" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "{}"],
        ["verify", "{}"],
        ["restore", "{}"],
        ["trust", "add", "{}"],
        ["attach", "{}.ipynb"],
        ["attach", "{}.ipynb", "{}"],
        ["extract", "{}.ipynb"],
        ["snapshot", "{}.ipynb", "{}"],
        ["detach", "{}.ipynb"],
        ["run", "{}.ipynb"],
        ["merge", "{}", "-o", "{}"],
        ["ls", "{}"],
        ["rm", "./store#{}"],
        ["export-mega", "{}", "--from", "{}"],
        ["trust", "show", "{}"],
        ["bench", "{}", "{}"],
        ["{}"],
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_no_command_shows_what_steers_a_terminal(command, there, tmp_path, bob, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if there:
        shutil.copy(hostile_snapshot(tmp_path), HOSTILE)
        notebook = nbformat.v4.new_notebook()
        in_notebook.attach(notebook, Path(HOSTILE).read_bytes())
        Path(f"{HOSTILE}.ipynb").write_text(nbformat.writes(notebook))
        shutil.copy(HOSTILE, f"{HOSTILE}.nbcache")
        Keyring(bob.keys).add(Keyring(tmp_path / "eve" / "keys").fingerprint())
    else:
        (tmp_path / HOSTILE).mkdir(mode=0o755)  # an error's next step names the folder
        monkeypatch.setenv("NBCACHE_TRUST_DIR", str(tmp_path / HOSTILE))
    with contextlib.suppress(SystemExit):
        main([word.replace("{}", HOSTILE) for word in command])
    shown = "".join(capsys.readouterr())
    assert shown
    assert all(line.isprintable() and len(line) < 11_000 for line in shown.split("\n"))
    assert not [line for line in shown.split("\n") if line.startswith(("\x1b", "[200", "?[200"))]


def test_what_an_error_of_a_cell_says_stays_on_its_line():
    shown = Shown([f"cell 3: ValueError: {HOSTILE}", "y" * 10**6], None).text
    first, second = shown.split("\n")
    assert first.startswith("cell 3: ValueError: evil ?[200~rm -rf?1m???x") and len(second) < 11_000


def test_all_that_is_printed_passes_through_the_function_that_cleans_it():
    """Nothing but JSON, which is ASCII, is printed or asked otherwise."""
    forgotten = []
    for path in Path(nbcache.ui.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id in ("print", "input") and node.args:
                text = node.args[0]
                parts = [text.body, text.orelse] if isinstance(text, ast.IfExp) else [text]
                if not all(ast.unparse(part).startswith(_CLEAN) for part in parts):
                    forgotten.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not forgotten


_CLEAN = ("clean(", "json.dumps(", "shown.text")
