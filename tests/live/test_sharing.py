"""Sharing through the front door: one person's notebook, opened by another on another machine."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

import nbcache
from nbcache.sharing.trust import spelled
from nbcache.storage.mega_cache import decode_bundle
from support.front_door import (
    CALL,
    DEFINE,
    KERNEL,
    LOAD,
    REPORTS,
    SET_UP,
    environ_below,
    execute,
    give_to_client,
    graphs,
    kernel_specs,
    outcomes,
    printed,
    reports,
    run_interpreter,
    shown,
    with_old_compiler,
)

# For its fixtures, and those of others: what it links has another status after that, which ends nurseries.
pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("files of packages")]

CELLS = [LOAD, SET_UP, DEFINE, CALL]
MIME = "application/vnd.nbcache.snapshot"
NOBODY = 65534
FOUND = """\
import json, os
from pathlib import Path
numbers = f"{loss.item():.7f} {model[0].weight.grad.abs().sum().item():.5f}"
Path("found.json").write_text(json.dumps([numbers, os.getuid(), torch.__file__]))
"""


class Machine:
    """One person's machine: a home, a store, a temp folder, and a folder with the notebook."""

    def __init__(self, folder: Path, *, user: int | None = None) -> None:
        """`user` is the id of another user whose commands they are, which takes root; None for one's own."""
        folder.mkdir()
        self.user = user
        self.folder = folder
        self.notebook = folder / "work" / "model.ipynb"
        self.notebook.parent.mkdir()
        self.snapshot = self.notebook.with_suffix(".nbcache")
        self.environ = environ_below(folder) | {"NBCACHE_NOTEBOOK": str(self.notebook)}

    def run(self, *cells: str, allow_errors: bool = False) -> nbformat.NotebookNode:
        return execute(cells, self.environ, self.folder, allow_errors=allow_errors)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        if self.user is not None:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, self.user, self.user, follow_symlinks=False)
        having = "IPython" if self.user is None else ""
        return run_interpreter(
            ["-m", "nbcache", *arguments], self.environ, self.folder, user=self.user, having=having
        )

    def said(self, *arguments: str) -> str:
        done = self.command(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.said(*arguments, "--json"))

    def save(self, notebook: nbformat.NotebookNode) -> None:
        nbformat.write(notebook, self.notebook)


@pytest.fixture(scope="session")
def ada(
    cold: tuple[Path, nbformat.NotebookNode], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Machine, nbformat.NotebookNode]:
    """Return a machine whose notebook was run, saved, and has a snapshot beside it and one in an output."""
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(tmp_path_factory.mktemp("ada") / "machine")
        give_to_client(machine.environ, patch)
        shutil.copytree(cold[0] / "store", machine.environ["NBCACHE_DIR"])
        notebook = machine.run(*CELLS, "%nbcache snapshot", "%nbcache snapshot notebook")
    machine.save(notebook)
    return machine, notebook


@pytest.fixture
def bob(cold: tuple[Path, nbformat.NotebookNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine with nothing but torch's precompiled headers, for what compiles anew."""
    machine = Machine(tmp_path / "bob")
    (headers,) = (cold[0] / "tmp").glob("torchinductor_*")
    (Path(machine.environ["TMPDIR"]) / headers.name).symlink_to(headers)
    give_to_client(machine.environ, monkeypatch)
    return machine


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Path]:
    """Return a folder that every user can reach, with another virtual environment, torch in it, and nbcache.

    The Python that it is made of is there as well: root's may be where nobody else can go. Packages are hard
    links, so there in seconds. Python is a copy: other environments use it, and a link changes the status of
    a file, which ends their nurseries.
    """

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # another filesystem
            shutil.copy2(source, target)

    with tempfile.TemporaryDirectory(prefix="nbcache-elsewhere-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        python = folder / "python" / "bin" / "python3"
        python.parent.mkdir(parents=True)
        installed = Path(sys.executable).resolve()
        shutil.copy2(installed, python)
        standard, libraries = Path(sysconfig.get_path("stdlib")), folder / "python" / "lib"
        ignored = shutil.ignore_patterns("site-packages", "dist-packages", "test")
        shutil.copytree(standard, libraries / standard.name, symlinks=True, ignore=ignored)
        for library in installed.parents[1].glob("lib/libpython*.so*"):
            shutil.copy2(library, libraries / library.name)
        environ = os.environ | {"LD_LIBRARY_PATH": str(libraries)}
        made = [str(python), "-m", "venv", "--without-pip", str(folder / "venv")]
        subprocess.run(made, env=environ, check=True, capture_output=True)
        (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        shutil.copytree(
            sysconfig.get_path("purelib"), packages, symlinks=True, copy_function=link, dirs_exist_ok=True
        )
        shutil.copytree(Path(nbcache.__file__).parent, folder / "source" / "nbcache")
        yield folder


@pytest.fixture
def carol(elsewhere: Path) -> Iterator[Machine]:
    """Return the machine of another user with another virtual environment, and nothing else.

    Of the same user, where the tests do not run as root.
    """
    with tempfile.TemporaryDirectory(prefix="nbcache-carol-") as name:
        Path(name).chmod(0o755)
        machine = Machine(Path(name) / "carol", user=NOBODY if os.geteuid() == 0 else None)
        machine.environ |= {
            "LD_LIBRARY_PATH": str(elsewhere / "python" / "lib"),
            "LOGNAME": "carol",
            "PYTHONPATH": str(elsewhere / "source"),
            "TEST_PYTHON": str(elsewhere / "venv" / "bin" / "python"),
            "USER": "carol",
        }
        yield machine


@pytest.fixture
def signer(ada: tuple[Machine, nbformat.NotebookNode]) -> str:
    return str(ada[0].json("trust")["own"])


def empty_temp(machine: Machine) -> None:
    """Remove torch's cache folder and all else in the temp folder, but for its precompiled headers."""
    for each in Path(machine.environ["TMPDIR"]).iterdir():
        if not each.is_symlink():
            shutil.rmtree(each)


def plain(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a notebook without outputs."""
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.source) for cell in notebook.cells])


def bring_file(ada: Machine, bob: Machine, notebook: nbformat.NotebookNode) -> None:
    bob.save(plain(notebook))
    shutil.copy(ada.snapshot, bob.snapshot)


def bring_output(ada: Machine, bob: Machine, notebook: nbformat.NotebookNode) -> None:
    shutil.copy(ada.notebook, bob.notebook)


def bring_attachment(ada: Machine, bob: Machine, notebook: nbformat.NotebookNode) -> None:
    bring_file(ada, bob, notebook)
    bob.said("attach", str(bob.notebook))
    bob.snapshot.unlink()


@pytest.mark.parametrize("bring", [bring_file, bring_output, bring_attachment])
def test_a_notebook_runs_warm_for_another_user_with_another_environment_once_its_signer_is_trusted(
    ada: tuple[Machine, nbformat.NotebookNode],
    carol: Machine,
    signer: str,
    bring: Callable[[Machine, Machine, nbformat.NotebookNode], None],
) -> None:
    bring(ada[0], carol, ada[1])
    notebook = nbformat.read(carol.notebook, as_version=4)
    for cell in notebook.cells:
        cell.source = "" if cell.source.startswith("%nbcache snapshot") else cell.source
    notebook.cells.append(nbformat.v4.new_code_cell(FOUND))
    carol.save(notebook)

    refused = carol.command("verify", str(carol.notebook))
    assert refused.returncode == 1 and "is not trusted here" in refused.stdout
    carol.said("trust", "add", signer, "--name", "Ada")
    trusted = Path(carol.environ["HOME"], ".config", "nbcache", "trusted")
    assert [path.name for path in trusted.iterdir()] == [signer]
    ran = carol.json("run", str(carol.notebook), "--require-hit")

    assert ran["hits"] == len(ran["graphs"]) == 4
    assert {graph["level"] for graph in ran["graphs"]} == {"L2"}
    assert {graph["source"] for graph in ran["graphs"]} <= {"model.nbcache", "model.ipynb"}
    assert sum(graph["kernels"] for graph in ran["graphs"]) > 0
    assert {graph["kernels_compiled"] for graph in ran["graphs"]} == {0}
    numbers, user, torch = json.loads(carol.notebook.with_name("found.json").read_text())
    assert numbers == printed(ada[1], 3).splitlines()[-1]
    assert user == (os.geteuid() if carol.user is None else carol.user)
    assert Path(torch).is_relative_to(Path(carol.environ["TEST_PYTHON"]).parents[1])


def test_nothing_of_a_strangers_snapshot_is_used_until_it_is_trusted(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine
) -> None:
    bring_file(ada[0], bob, ada[1])
    look = "import os; print(sum(len(files) for _, _, files in os.walk(os.environ['NBCACHE_DIR'])))"

    notebook = bob.run(
        LOAD, SET_UP, look, "%nbcache trust", "%nbcache trust --yes", DEFINE, CALL, REPORTS, allow_errors=True
    )

    assert "is not trusted here (%nbcache trust)" in printed(notebook, 0)
    assert printed(notebook, 2) == "0\n"
    assert "loss_of" in printed(notebook, 3) and "runs as you" in printed(notebook, 3)
    assert "add --yes" in str(notebook.cells[3].outputs)
    assert "is trusted" in printed(notebook, 4)
    assert outcomes(notebook) == ["hit"] * 4


def test_who_is_trusted_no_more_runs_nothing_here_any_more(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine, signer: str
) -> None:
    """Neither from the snapshot, nor from the local store, nor from torch's folder, where it all was."""
    bring_file(ada[0], bob, ada[1])
    bob.said("trust", "add", signer)
    assert outcomes(bob.run(*CELLS, REPORTS)) == ["hit"] * 4
    bob.snapshot.unlink()
    assert outcomes(bob.run(*CELLS, REPORTS)) == ["hit"] * 4
    assert "use nothing that they compiled" in bob.said("trust", "remove", signer)

    notebook = bob.run(*CELLS, REPORTS)

    assert outcomes(notebook) == ["miss"] * 4
    said = "".join(shown(notebook, cell) for cell in range(4))  # once, as soon as the store was read
    assert "an artifact from elsewhere is not used" in said
    assert "C++ kernel of it is missing" not in said  # the graphs themselves are refused
    assert outcomes(bob.run(*CELLS, REPORTS)) == ["hit"] * 4  # what was compiled here since


def test_nor_from_a_folder_that_the_user_has_set(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine, signer: str
) -> None:
    own = bob.folder / "own"
    bob.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own)
    bring_file(ada[0], bob, ada[1])
    bob.said("trust", "add", signer)
    where = "import os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    first = bob.run(*CELLS, where, REPORTS)
    assert outcomes(first) == ["hit"] * 4 and printed(first, 4) == f"{own}\n"
    bob.snapshot.unlink()
    bob.said("trust", "remove", signer)

    notebook = bob.run(*CELLS, where, REPORTS)

    assert outcomes(notebook) == ["miss"] * 4
    assert printed(notebook, 4).startswith(bob.environ["TMPDIR"])
    said = " ".join(notice for report in reports(notebook) for notice in report["notices"])
    assert "is not used: it may hold code of signers who are no longer trusted" in said


def test_what_others_compiled_stays_theirs_where_torchs_folder_is_removed_meanwhile(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine, signer: str
) -> None:
    bring_file(ada[0], bob, ada[1])
    bob.said("trust", "add", signer)
    bob.environ["NBCACHE_TRACE"] = "off"  # which trace is for what bob has run, he says himself
    remove = "import os, shutil; shutil.rmtree(os.path.dirname(os.environ['TORCHINDUCTOR_CACHE_DIR']))"
    mine = bob.folder / "mine.nbcache"

    again = [f"{remove}; torch._dynamo.reset()", CALL, f"%nbcache snapshot {mine}", REPORTS]
    notebook = bob.run(*CELLS, *again)

    assert set(outcomes(notebook)) == {"hit"}
    (version,) = bob.json("inspect", str(mine))
    assert [maker["signer"] for maker in version["makers"]] == [signer]


def test_a_weaker_policy_is_said_under_every_report(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine
) -> None:
    bring_file(ada[0], bob, ada[1])
    bob.environ["NBCACHE_TRUST"] = "off"
    notebook = bob.run(*CELLS, "torch._dynamo.reset()", CALL, REPORTS)
    assert outcomes(notebook)[:4] == ["hit"] * 4
    for cell in (3, 5):
        assert "trust=off" in shown(notebook, cell)


def test_where_the_policy_is_to_ask_the_answer_counts(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine
) -> None:
    bring_file(ada[0], bob, ada[1])
    bob.environ["NBCACHE_TRUST"] = "ask"
    for answer, expected in (("n", False), ("", False), ("y", True)):
        shutil.rmtree(bob.environ["NBCACHE_DIR"], ignore_errors=True)
        load = "get_ipython().run_line_magic('load_ext', 'nbcache')"
        say = f"import builtins; builtins.input = lambda question: print(question) or {answer!r}; {load}"
        used = "import nbcache, torch; print(nbcache.session().cache.keys_of('inductor', 20) != [])"
        notebook = bob.run(say, used)
        assert "from now on? [y/N]" in printed(notebook, 0)
        assert printed(notebook, 1) == f"{expected}\n"
    assert len(bob.json("trust")["trusted"]) == 1


def test_a_file_named_as_a_fingerprint_is_not_trusted_in_its_place(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine, signer: str
) -> None:
    friend = "a1" * 32
    shutil.copy(ada[0].snapshot, bob.folder / friend)
    assert spelled(friend) in bob.said("trust", "add", friend)
    assert [each["fingerprint"] for each in bob.json("trust")["trusted"]] == [friend]
    assert spelled(signer) in bob.said("trust", "add", str(ada[0].snapshot), "--name", "Ada")
    assert "Ada" in bob.said("trust", "remove", signer[:8])


def test_a_bundle_is_imported_and_its_kernels_are_compiled_once(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine
) -> None:
    path = bob.folder / "bundle"
    ada[0].said("export-mega", str(path))
    unasked = bob.command("import-mega", str(path), "--assume-same-cpu")
    assert unasked.returncode == 1 and "add --yes" in unasked.stderr
    assert "import-mega" not in unasked.stdout and not Path(bob.environ["NBCACHE_DIR"], "v1", "ref").exists()
    without = bob.json("import-mega", str(path), "--yes")
    assert without["left"] == 4 and without["stored"] > 0  # four graphs with C++ in them
    assert bob.json("import-mega", str(path), "--yes", "--assume-same-cpu")["left"] == 0

    first = bob.run(*CELLS, REPORTS)
    empty_temp(bob)
    second = bob.run(*CELLS, REPORTS)

    assert outcomes(first) == outcomes(second) == ["hit"] * 4
    assert sum(graph["kernels_compiled"] for graph in graphs(first)) > 0
    assert sum(graph["kernels_compiled"] for graph in graphs(second)) == 0
    for notebook in (first, second):
        assert printed(notebook, 3) == printed(ada[1], 3)


def test_a_bundle_whose_kernels_cannot_be_built_here_costs_hits_and_nothing_else(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine
) -> None:
    path = bob.folder / "bundle"
    ada[0].said("export-mega", str(path))
    bob.said("import-mega", str(path), "--yes", "--assume-same-cpu")
    bob.environ = with_old_compiler(bob.environ, bob.folder)

    notebook = bob.run(*CELLS, REPORTS)

    assert outcomes(notebook) == ["miss"] * 4
    assert "a C++ kernel of it is missing" in graphs(notebook)[0]["reason"]
    ours, theirs = (float(printed(each, 3).split()[-2]) for each in (notebook, ada[1]))
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_plain_torch_loads_an_exported_bundle_and_hits(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine, signer: str
) -> None:
    path = bob.folder / "bundle"
    refused = bob.command("export-mega", str(path), "--from", str(ada[0].snapshot))
    assert refused.returncode == 1 and "not trusted here" in refused.stderr and not path.exists()
    bob.said("trust", "add", signer)
    bob.said("export-mega", str(path), "--from", str(ada[0].snapshot))
    mine = ada[0].folder / "bundle"
    ada[0].said("export-mega", str(mine))
    assert set(decode_bundle(mine.read_bytes())) >= set(decode_bundle(path.read_bytes()))
    load = f"torch.compiler.load_cache_artifacts(open({str(path)!r}, 'rb').read())"
    define = DEFINE.replace("%%compile_cached loss_of\n", "@torch.compile\n")
    hits = "from torch._dynamo.utils import counters; print(counters['aot_autograd']['autograd_cache_hit'])"
    bob.environ["TORCHINDUCTOR_CACHE_DIR"] = str(bob.folder / "torch")
    assert printed(bob.run("import torch", load, SET_UP, define, CALL, hits), 5) == "2\n"


def test_a_notebook_is_warmed_and_then_required_to_hit_without_a_person(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine, signer: str
) -> None:
    bring_file(ada[0], bob, ada[1])
    notebook = nbformat.read(bob.notebook, as_version=4)
    notebook.cells = notebook.cells[1:4]  # without `%load_ext`
    kernel_specs(Path(bob.environ["JUPYTER_DATA_DIR"]), sys.executable, forked=True)
    notebook.metadata.kernelspec = {"name": KERNEL, "display_name": KERNEL}
    bob.save(notebook)
    before = bob.notebook.read_bytes()

    bob.snapshot.unlink()
    missed = bob.command("run", str(bob.notebook), "--require-hit")
    assert missed.returncode == 1
    assert "0 of 4 graphs hit" in missed.stdout and "loss_of 0/0 forward: miss, " in missed.stdout

    assert "4 graphs" in bob.said("warm", str(bob.notebook))
    shutil.rmtree(bob.environ["NBCACHE_DIR"])
    shutil.rmtree(bob.environ["TMPDIR"])
    Path(bob.environ["TMPDIR"]).mkdir()
    assert bob.json("run", str(bob.notebook), "--require-hit")["hits"] == 4
    assert bob.notebook.read_bytes() == before

    notebook.cells[-1].source = "1 / 0"
    bob.save(notebook)
    failed = bob.command("run", str(bob.notebook))
    assert failed.returncode == 1 and "cell 3: ZeroDivisionError" in failed.stdout


def test_autosnapshot_writes_as_soon_as_compiling_ends(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine, signer: str
) -> None:
    bring_output(ada[0], bob, ada[1])
    bob.said("trust", "add", signer)
    bob.environ["NBCACHE_AUTOSNAPSHOT"] = "on"

    bob.run(*CELLS)

    (found,) = bob.json("inspect", str(bob.snapshot))
    assert found["standing"] == "own"
    assert {graph["function"] for graph in found["manifests"][0]["graphs"]} >= {"loss_of"}


@pytest.mark.parametrize("tool", ["clear", "nbconvert", "nbstripout", "papermill"])
def test_an_attached_snapshot_survives_what_tools_do(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine, tool: str
) -> None:
    bring_attachment(ada[0], bob, ada[1])
    after = bob.notebook.with_name("after.ipynb")
    shutil.copy(bob.notebook, after)
    convert = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "notebook", str(bob.notebook)]
    commands = {
        "clear": [*convert, "--clear-output", "--output", after.name],
        "nbconvert": [*convert, "--output", after.name],
        "nbstripout": [sys.executable, "-m", "nbstripout", str(after)],
        "papermill": [sys.executable, "-m", "papermill", "--prepare-only", str(bob.notebook), str(after)],
    }
    subprocess.run(commands[tool], env=bob.environ, check=True, capture_output=True, cwd=bob.notebook.parent)
    bob.said("extract", str(after), "-o", str(bob.folder / "extracted.nbcache"))
    assert (bob.folder / "extracted.nbcache").read_bytes() == ada[0].snapshot.read_bytes()


def test_attaching_and_detaching_leaves_the_notebook_as_it_was(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine
) -> None:
    bob.save(plain(ada[1]))
    before = bob.notebook.read_bytes()
    bob.said("attach", str(bob.notebook), str(ada[0].snapshot))
    nbformat.validate(nbformat.read(bob.notebook, as_version=4))
    assert base64.b64encode(ada[0].snapshot.read_bytes()) in bob.notebook.read_bytes()
    bob.said("attach", str(bob.notebook), str(ada[0].snapshot))
    assert bob.notebook.read_bytes().count(MIME.encode()) == 1
    bob.said("detach", str(bob.notebook))
    assert bob.notebook.read_bytes() == before
    assert bob.command("detach", str(bob.notebook)).returncode == 1
    assert os.listdir(bob.notebook.parent) == [bob.notebook.name]


def test_keys_that_others_can_read_cost_hits_and_not_the_extension(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine
) -> None:
    bring_file(ada[0], bob, ada[1])
    keys = Path(bob.environ["HOME"]) / ".config" / "nbcache"
    keys.mkdir(parents=True, mode=0o755)
    keys.chmod(0o755)
    notebook = bob.run(LOAD, "import torch\nprint(1 + 1)", "%nbcache status")
    assert "others can read or write this" in printed(notebook, 0)
    assert printed(notebook, 1) == "2\n"
    assert "0 entries" in shown(notebook, 2)


def test_a_changed_snapshot_is_refused_whole_and_the_cells_run(
    ada: tuple[Machine, nbformat.NotebookNode], bob: Machine, signer: str
) -> None:
    bob.save(plain(ada[1]))
    data = bytearray(ada[0].snapshot.read_bytes())
    with zipfile.ZipFile(ada[0].snapshot) as archive:
        largest = max(archive.infolist(), key=lambda each: each.compress_size)
    begin = largest.header_offset + 30 + len(largest.filename)
    data[begin + largest.compress_size // 2] ^= 1
    bob.snapshot.write_bytes(data)
    bob.said("trust", "add", signer)

    notebook = bob.run(LOAD, SET_UP, "%nbcache status")
    verified = bob.command("verify", str(bob.snapshot))

    assert "refused whole" in printed(notebook, 0) and "0 entries" in shown(notebook, 2)
    assert verified.returncode == 1 and "refused whole" in verified.stdout
