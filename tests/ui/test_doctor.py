"""What the doctor finds: each thing that can be wrong is made wrong, and has its row and its next step."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from ast import literal_eval
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.compiler.config

from nbcache.core.errors import StoreUnavailable
from nbcache.core.key import components
from nbcache.core.model import Environment
from nbcache.core.settings import Policy, Settings
from nbcache.kernel.prewarming import Slice
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing
from nbcache.parts import make_bridge
from nbcache.sharing.trust import Keyring, short
from nbcache.storage.backends.base import Store
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.backends.memory import MemoryStore
from nbcache.torch_bridge import environment, gpus
from nbcache.torch_bridge.gpus import Gpu, GpuReport
from nbcache.ui import doctor
from nbcache.ui.display.words import Check, CheckState
from nbcache.ui.locate import Location
from support.front_door import LOAD, printed, run_interpreter, shown
from support.people import Person, unsigned
from support.testing import FailingStore, FakeBridge
from support.torch_versions import HAS_TRACES

OK, NOTE, PROBLEM = CheckState


def machine(**changes):
    """Return an environment like those of torch, with some components changed: `_` stands for the dot."""
    known = environment.without_torch() | {"device": "cpu", "torch.cuda": "none", "torch.version": "2.13.0"}
    return Environment(components(known | {label.replace("_", "."): each for label, each in changes.items()}))


class Kernel:
    """A kernel in which all is in order, until a test breaks something."""

    def __init__(self, folder):
        self.notebook = folder / "model.ipynb"
        self.notebook.touch()
        self.settings = replace(Settings(), dir=folder / "store", trust_dir=folder / "keys")
        self.bridge = FakeBridge(machine())
        self.store: Store = DirectoryStore(self.settings.dir)
        self.store_error: StoreUnavailable | None = None
        self.location = lambda: Location(str(self.notebook), "VS Code")
        self.has_no_traces = ""
        """Why it has none."""
        self.plain_because = ""
        """Why it goes on as plain torch."""
        self.session = self.start()

    def start(self):
        self.session = Session(
            self.settings, self.bridge, self.store, locate_notebook=lambda: str(self.notebook)
        )
        self.sharing = Sharing(self.session)
        self.session.start()
        self.sharing.look()
        assert self.sharing.wait_for_look(10)
        return self.session

    def rows(self):
        self.session.settings = self.settings
        # The bridge is not installed: which folder torch has in this process does not matter.
        bridge: Any = make_bridge()
        bridge.traces = SimpleNamespace(off_because=lambda: self.has_no_traces)
        bridge.plain_because = self.plain_because
        found = doctor.in_kernel(self.session, bridge, self.sharing, self.location, self.store_error)
        return [check for check in found if check.name != "torch's folder"]

    def row(self, name):
        (found,) = [check for check in self.rows() if check.name == name]
        return found


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    for name in ("CXX", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpus, "find", GpuReport)  # no GPU, whatever this machine has
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.session.close()


def test_where_all_is_in_order_there_is_nothing_to_do(kernel):
    rows = kernel.rows()

    assert {row.state for row in rows} == {OK}, rows
    assert {row.next_step for row in rows} == {""}
    assert "model.ipynb, found by VS Code" in kernel.row("notebook").found
    assert "0 entries" in kernel.row("local store").found
    assert kernel.row("environment").found == kernel.bridge.environment.digest[:16]
    assert kernel.row("trust").found == "strict (default)"
    assert "the temp folder, the local store" in kernel.row("disk").found


def test_a_check_that_fails_is_a_problem_and_stops_no_other(kernel):
    names = [row.name for row in kernel.rows()]

    def location():
        raise RuntimeError("no such luck")

    kernel.location = location
    row = kernel.row("notebook")

    assert (row.state, "no such luck" in row.found, bool(row.next_step)) == (PROBLEM, True, True)
    assert [row.name for row in kernel.rows()] == names


def plain(kernel):
    kernel.session.cache.environment = None
    kernel.plain_because = "ZeroDivisionError('ours')"


def store_is_a_file(kernel):
    shutil.rmtree(kernel.settings.dir)
    kernel.settings.dir.touch()


def store(store, error=None):
    def fault(kernel):
        kernel.store, kernel.store_error = store, error
        kernel.start()

    return fault


def setting(name, value):
    def fault(kernel):
        kernel.settings = kernel.settings.with_value(name, value, origin="%nbcache config")

    return fault


def place(path, found_by):
    return lambda kernel: setattr(kernel, "location", lambda: Location(path, found_by))


def keys_are_open(kernel):
    Keyring(kernel.settings.trust_dir).fingerprint()
    kernel.settings.trust_dir.chmod(0o755)


AWAY = StoreUnavailable("it is away", next_step="wait")
REFUSED = StoreUnavailable("it is refused", where="/store", next_step="remove it")
MEMORY = MemoryStore("memory of this kernel")


@pytest.mark.parametrize(
    ("fault", "name", "state", "found", "next_step"),
    [
        (place("", "not found: kept"), "notebook", NOTE, "not found: kept", "%nbcache config notebook=PATH"),
        (place("/nowhere", "VS Code"), "notebook", NOTE, "by VS Code, and there is no such file", "save it"),
        (plain, "torch", PROBLEM, "restores nothing in this kernel: ZeroDivisionError('ours')", "restart"),
        (store_is_a_file, "local store", PROBLEM, "Not a directory", "NBCACHE_DIR"),
        (store(FailingStore(MemoryStore(), AWAY, ["keys"])), "local store", PROBLEM, "it is away", "wait"),
        (store(MEMORY, REFUSED), "local store", PROBLEM, "(/store); the memory of this kernel", "remove it"),
        (lambda kernel: setattr(kernel.store, "read_only", True), "local store", NOTE, "cannot be", "DIR"),
        (setting("save", "off"), "local store", NOTE, "save=off (%nbcache config)", "save=on"),
        (
            setting("trust", "ask"),
            "trust",
            NOTE,
            "ask (%nbcache config): for each snapshot beside a notebook",
            "trust=strict",
        ),
        (setting("trust", "off"), "trust", NOTE, "off (%nbcache config): anyone's snapshots", "trust=strict"),
        (keys_are_open, "keys", PROBLEM, "", "if nobody has used it, chmod 700"),
    ],
)
def test_a_fault_has_its_row_and_its_next_step(kernel, fault, name, state, found, next_step):
    fault(kernel)

    row = kernel.row(name)

    assert row.state is state
    assert found in row.found and next_step in row.next_step


# --- torch and the machine ----------------------------------------------------------------------


H200 = GpuReport((Gpu("NVIDIA H200"),), driver="580.95.05", cuda=(13, 0))
ON_H200 = {"device": "NVIDIA H200", "triton_version": "3.6.0", "torch_cuda": "13.0"}


@pytest.mark.parametrize(
    ("found", "changes", "state", "said"),
    [
        (GpuReport(), {}, OK, "no NVIDIA GPU found, no Triton"),
        (GpuReport(), {"triton_version": "3.6.0"}, OK, "no NVIDIA GPU found, Triton 3.6.0"),
        (H200, ON_H200, OK, "NVIDIA H200 · driver 580.95.05 · torch for CUDA 13.0 · Triton 3.6.0"),
        (replace(H200, gpus=H200.gpus * 8), ON_H200, OK, "8 x NVIDIA H200 · driver"),
        (H200, ON_H200 | {"device": "cpu"}, OK, "hidden by CUDA_VISIBLE_DEVICES=: graphs compile for"),
        (H200, ON_H200 | {"triton_version": "none"}, NOTE, "without Triton"),
        (H200, ON_H200 | {"torch_cuda": "none"}, NOTE, "torch is built without CUDA"),
        (replace(H200, cuda=(12, 4)), ON_H200, NOTE, "runs CUDA up to 12.4, and torch is built for 13.0"),
        (replace(H200, cuda=(12, 4)), ON_H200 | {"torch_cuda": "12.8"}, OK, "torch for CUDA 12.8"),
        (GpuReport(H200.gpus, failure="versions differ"), ON_H200, NOTE, "cannot be asked: versions differ"),
    ],
)
def test_a_gpu_needs_triton_and_a_torch_and_a_driver_that_fit(
    kernel, monkeypatch, found, changes, state, said
):
    monkeypatch.setattr(gpus, "find", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    kernel.bridge.environment = machine(**({"triton_version": "none"} | changes))
    kernel.start()

    row = kernel.row("GPU")

    assert (row.state, bool(row.next_step)) == (state, state is not OK)
    assert said in row.found


@pytest.mark.parametrize(
    ("name", "variable", "usual", "found", "lost"),
    [
        ("C compiler", "CC", "gcc", f"{sys.executable}, for Triton", "no new graph compiles for the GPU"),
        ("C++ compiler", "CXX", "g++", sys.executable, "no new graph compiles for the CPU; restored ones"),
    ],
)
def test_a_compiler_that_is_not_there_is_a_note(
    kernel, monkeypatch, tmp_path, name, variable, usual, found, lost
):
    monkeypatch.setattr(gpus, "find", lambda: H200)
    kernel.bridge.environment = machine(**ON_H200)
    kernel.start()
    monkeypatch.setenv(variable, sys.executable)
    assert kernel.row(name) == Check(name, OK, found)

    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "include"))
    row = kernel.row(name)
    assert row.state is NOTE and f"without Python's headers: {lost}" in row.found
    assert "python3-dev" in row.next_step

    monkeypatch.setenv(variable, "no-such-compiler")
    row = kernel.row(name)
    assert row.state is NOTE and "no-such-compiler is not there" in row.found and variable in row.next_step

    monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", str(tmp_path))
    row = kernel.row(name)
    assert row.state is NOTE and f"{usual} is not there" in row.found


def test_the_cpu_is_told_by_a_few_of_its_instruction_sets(kernel):
    features = "fpu vme avx avx2 avx512f avx512vl fma lahf_lm"
    changed = {"cpu_features": features, "cpu_machine": "x86_64", "cpu_capability": "AVX512"}
    kernel.bridge.environment = machine(cpu_requested="default", **changed)
    kernel.start()

    assert kernel.row("CPU").found == "x86_64 · avx avx2 fma avx512f · torch uses AVX512"

    kernel.bridge.environment = machine(cpu_requested="avx2", **changed)
    kernel.start()
    assert kernel.row("CPU").found.endswith("ATEN_CPU_CAPABILITY=avx2")


def test_caches_of_torchs_that_are_switched_off_are_a_problem(kernel, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # torch is imported: it does nothing
    assert kernel.row("torch's caches").state is OK
    monkeypatch.delenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES")
    monkeypatch.setattr(torch.compiler.config, "force_disable_caches", True)

    row = kernel.row("torch's caches")

    assert row.state is PROBLEM
    assert row.found == "torch.compiler.config.force_disable_caches = True: no graph can hit"
    assert row.next_step == "torch.compiler.config.force_disable_caches = False"


OFF = (
    "from nbcache.torch_bridge.cache_settings import switched_off\nprint([o.setting for o in switched_off()])"
)


IMPORTED = "import torch, torch._inductor.config, torch._functorch.config\n"


@pytest.mark.compile
@pytest.mark.parametrize(
    ("variables", "off"),
    [
        ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"}, 0),
        ({"TORCH_COMPILE_FORCE_DISABLE_CACHES": "1"}, 1),
        ({"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}, 2),
        ({"TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT": "0"}, 1),
    ],
)
def test_torch_takes_the_variables_that_switch_caches_off_as_was_said_before(
    run_python, isolated, variables, off
):
    before = run_python(OFF, isolated | variables).stdout

    after = run_python(IMPORTED + OFF, isolated | variables).stdout

    assert before == after and len(literal_eval(before)) == off


# --- places -------------------------------------------------------------------------------------


def test_a_temp_folder_with_a_space_is_a_problem(kernel, monkeypatch, tmp_path):
    (tmp_path / "a space").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a space"))

    row = kernel.row("temp folder")

    assert row.state is PROBLEM
    assert "a space" in row.found and "TMPDIR" in row.next_step


def test_a_folder_that_cannot_be_written_to_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "below"))
    settings = replace(Settings(), dir=tmp_path / "store", trust_dir=tmp_path / "keys")

    def row():
        (found,) = [each for each in doctor.in_terminal(settings) if each.name == "torch's folder"]
        return found

    assert row().state is OK  # torch will make it
    (tmp_path / "file").touch()
    assert row().state is PROBLEM
    assert "Not a directory" in row().found and "TORCHINDUCTOR_CACHE_DIR" in row().next_step


def test_a_disk_that_is_nearly_full_is_a_problem(kernel, monkeypatch):
    nearly_full = shutil.disk_usage("/")._replace(free=5 * 10**8)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: nearly_full)

    row = kernel.row("disk")

    assert row.state is PROBLEM
    assert row.found.startswith("500 MB free") and row.next_step.startswith("free 1.0 GB")


# --- trust and snapshots ------------------------------------------------------------------------


def test_keys_are_counted(kernel):
    keyring = Keyring(kernel.settings.trust_dir)
    assert "you have none yet" in kernel.row("keys").found
    keyring.add("0" * 64)
    keyring.fingerprint()
    own = keyring.own() or ""
    assert kernel.row("keys").found == f"yours is {short(own)} · 1 signer trusted"


@pytest.fixture
def person(tmp_path):
    return lambda name: Person(tmp_path / name, machine())


def test_each_snapshot_that_came_along_says_whether_it_is_used(kernel, person):
    ada = person("ada")
    kernel.notebook.with_suffix(".nbcache").write_bytes(ada.make("one"))
    kernel.start()
    row = kernel.row("snapshot")
    assert (row.state, row.next_step) == (NOTE, "%nbcache trust")
    assert (
        "model.nbcache: 1 graph of a stranger (says ada@engine)" in row.found
        and "is not trusted here" in row.found
    )

    Keyring(kernel.settings.trust_dir).add(Keyring(ada.keys).own() or "")
    row = kernel.row("snapshot")
    assert (row.state, row.found.endswith(" · used")) == (OK, True)

    kernel.bridge.environment = machine(torch_version="2.14.0")
    kernel.start()
    row = kernel.row("snapshot")
    assert (row.state, "nbcache inspect" in row.next_step) == (NOTE, True)
    assert "torch.version differ · it has no graph for this environment" in row.found


def test_an_unsigned_snapshot_is_not_used_and_a_broken_one_is_a_problem_beside_a_good_one(kernel, person):
    data = person("ada").make("one")
    kernel.notebook.with_suffix(".nbcache").write_bytes(unsigned(data))
    kernel.start()
    row = kernel.row("snapshot")
    assert (row.state, row.next_step.startswith("ask its author for one")) == (NOTE, True)
    assert "not used: it is not signed" in row.found

    kernel.notebook.with_suffix(".nbcache").write_bytes(data[:-100])
    kernel.start()
    row = kernel.row("snapshot")
    assert (row.state, row.next_step) == (PROBLEM, "ask its author for the file again")

    other = kernel.notebook.with_name("other.nbcache")
    other.write_bytes(data)
    kernel.sharing.receive(str(other))
    kernel.settings = replace(kernel.settings, trust=Policy.OFF)
    assert [row.state for row in kernel.rows() if row.name == "snapshot"] == [PROBLEM, OK]


# --- prewarming and notices ---------------------------------------------------------------------


class BadlyPrewarmed(FakeBridge):
    """A bridge whose prewarming fails at its second slice."""

    def prewarm(self):
        yield Slice("import a thing", lambda: None)
        yield Slice("divide", lambda: 1 // 0)


def test_prewarming_says_how_far_it_is_and_that_a_notice_explains_what_failed(kernel):
    assert "not begun" in kernel.row("prewarming").found
    kernel.settings = kernel.settings.with_value("prewarm", "off", origin="%nbcache config")
    assert kernel.row("prewarming").found == "off (%nbcache config)"
    kernel.settings = kernel.settings.with_value("prewarm", "on", origin="%nbcache config")

    kernel.bridge = BadlyPrewarmed(machine())
    kernel.start()
    kernel.session.prewarm.step()
    assert "longest" in kernel.row("prewarming").found
    kernel.session.prewarm.step()

    assert kernel.row("prewarming").state is PROBLEM
    notice = kernel.row("notice")
    assert (notice.state, "prewarming (divide) failed" in notice.found) == (NOTE, True)


def test_traces_that_there_are_none_of_say_why(kernel):
    assert kernel.row("traces").found == "on"
    kernel.has_no_traces = "not tested with torch 2.15.0"
    assert kernel.row("traces").found == (
        "off: not tested with torch 2.15.0; functions are traced in each kernel"
    )
    kernel.settings = kernel.settings.with_value("trace", "off", origin="%nbcache config")
    assert kernel.row("traces").found == "off (%nbcache config)"


# --- through the front door ---------------------------------------------------------------------


def by_name(text):
    return {check["name"]: check for check in json.loads(text)["checks"]}


@pytest.mark.compile
def test_in_a_kernel_it_says_how_the_notebook_was_found_and_imports_no_torch(run_cells, isolated, tmp_path):
    notebook = tmp_path / "model.ipynb"
    notebook.touch()
    environ = isolated | {"NBCACHE_NOTEBOOK": str(notebook), "CXX": "no-such-compiler"}
    cells = [LOAD, "%nbcache doctor", "%nbcache doctor --json", "import sys; print('torch' in sys.modules)"]

    done = run_cells(cells, environ, forked=False)

    text, checks = shown(done, 1), by_name(printed(done, 2))
    assert checks["notebook"]["found"] == f"{notebook}, found by the setting `notebook`"
    assert (checks["torch"]["state"], checks["C++ compiler"]["state"]) == ("ok", "note")
    assert checks["torch"]["found"].endswith("installed and not imported yet")
    assert checks["notebook"]["next_step"] is None
    notes = [check for check in checks.values() if check["state"] == "note"]
    assert text.startswith(f"nbcache doctor · {len(checks)} checks · {len(notes)} note")
    assert "next: install one (on Debian: apt install g++)" in text
    (output,) = done.cells[1].outputs
    assert "<table" in output.data["text/html"]
    assert {check["name"] for check in output.data["application/vnd.nbcache.checks+json"]["checks"]} == {
        *checks
    }
    assert printed(done, 3) == "False\n"


@pytest.mark.compile
def test_in_a_kernel_with_torch_it_tells_environment_and_folder_and_where_nbcache_only_watches(
    run_cells, isolated
):
    show = "%nbcache doctor --json"
    elsewhere = "import os; os.environ['TORCHINDUCTOR_CACHE_DIR'] = os.environ['TMPDIR'] + '/elsewhere'"
    environ = "import nbcache; print(nbcache.session().environment.digest)"

    done = run_cells([LOAD, "import torch", show, environ, elsewhere, show], isolated, forked=False)

    before, after = by_name(printed(done, 2)), by_name(printed(done, 5))
    digest = printed(done, 3).strip()[:16]
    assert before["torch"]["found"] == f"{torch.__version__}, imported"
    assert before["environment"]["found"] == digest
    assert before["torch's folder"]["state"] == "ok"
    assert f"/{digest} (nbcache, for this environment)" in before["torch's folder"]["found"]
    assert "torch uses" in before["CPU"]["found"]
    untested = f"off: not tested with torch {torch.__version__}; functions are traced in each kernel"
    assert before["traces"]["found"] == ("on" if HAS_TRACES else untested)
    assert after["torch's folder"]["state"] == "problem"
    assert "/elsewhere: nbcache only watches there" in after["torch's folder"]["found"]


@pytest.mark.compile
@pytest.mark.parametrize(
    ("version", "has_traces"), [("2.13.1", True), ("2.15.9+cpu", True), ("2.14.1", False)]
)
def test_a_release_of_torch_is_tested_with_all_its_bug_fixes(run_cells, isolated, version, has_traces):
    as_if = f"import torch; torch.__version__ = torch.torch_version.TorchVersion({version!r})"

    done = run_cells([as_if, LOAD, "%nbcache doctor --json"], isolated, forked=False)

    row = by_name(printed(done, 2))["traces"]["found"]
    assert row.startswith(f"off: not tested with torch {version}") != has_traces, row


@pytest.mark.compile
def test_in_a_terminal_a_problem_is_a_failure(isolated, tmp_path):
    sound = run_interpreter(["-m", "nbcache", "doctor", "--json"], isolated, tmp_path)
    checks = by_name(sound.stdout)
    assert (sound.returncode, sound.stderr) == (0, "")
    assert checks["torch"]["found"] == f"{torch.__version__}, imported"
    assert not {"notebook", "snapshots", "prewarming", "traces", "notices"} & {*checks}

    (tmp_path / "file").touch()
    broken = isolated | {"NBCACHE_DIR": str(tmp_path / "file")}
    done = run_interpreter(["-m", "nbcache", "doctor"], broken, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert " · 1 problem\n" in done.stdout
    assert "local store     problem  local store is refused" in done.stdout
    assert f"next:remove{tmp_path / 'file'}" in "".join(done.stdout.split())  # lines are broken anywhere


@pytest.mark.compile
def test_in_a_terminal_torchs_compiler_is_not_imported_and_a_torch_that_is_too_new_is_a_note(
    run_python, isolated
):
    code = """\
import sys, torch
from nbcache.ui.terminal.parser import main
for version in ("2.13.0", "2.99.0"):
    torch.__version__ = torch.torch_version.TorchVersion(version)
    main(["doctor", "--json"])
    print("--")
print([name for name in sys.modules if name.startswith(("torch._dynamo.", "torch._inductor."))])
"""
    tested, newer, imported = run_python(code, isolated).stdout.split("--\n")

    assert imported == "[]\n"
    assert by_name(tested)["hooks"]["found"] == "tested with torch 2.13"
    assert "hashes_ahead" not in by_name(tested)["torch behavior"]["found"]  # only its compiler knows
    row = by_name(newer)["hooks"]
    assert (row["state"], row["found"][:26]) == ("note", "torch 2.99 is newer than 2")
    assert row["next_step"].startswith("%nbcache doctor")


def with_metadata_of_torch(version, folder):
    information = folder / "packages" / f"torch-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return str(information.parent)


@pytest.mark.compile
def test_a_torch_that_is_too_old_is_a_problem(run_cells, isolated, tmp_path):
    path = f"{with_metadata_of_torch('2.5.1', tmp_path)}:{isolated['PYTHONPATH']}"

    done = run_cells([LOAD, "%nbcache doctor --json"], isolated | {"PYTHONPATH": path}, forked=False)

    row = by_name(printed(done, 1))["torch"]
    assert (row["state"], row["found"]) == (
        "problem",
        "2.5.1 is older than 2.11: nbcache does nothing with it",
    )
    assert "pip install 'torch>=2.11'" in row["next_step"]


@pytest.mark.parametrize("broken", [False, True], ids=["absent", "broken"])
def test_a_torch_that_is_not_there_or_fails_is_a_problem(isolated, tmp_path, broken):
    environment = tmp_path / "environment"
    packages = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name != "torch" and not entry.name.startswith("torch-"):
            (packages / entry.name).symlink_to(entry)
    if broken:
        with_metadata_of_torch("2.13.0", tmp_path)
        (tmp_path / "packages" / "torch.py").write_text("raise OSError('libcuda.so: no such file')")
        for entry in (tmp_path / "packages").iterdir():
            entry.rename(packages / entry.name)
    (environment / "bin").mkdir()
    (environment / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", environment)
    command = [str(environment / "bin" / "python"), "-m", "nbcache", "doctor", "--json"]

    done = subprocess.run(
        command, env=isolated, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (1, "")
    checks = by_name(done.stdout)
    assert checks["torch"]["state"] == "problem"
    if broken:
        assert (
            checks["torch"]["found"] == "2.13.0 is installed and fails: OSError('libcuda.so: no such file')"
        )
    else:
        assert checks["torch"]["found"].startswith("not installed")
    assert checks["environment"]["state"] == checks["CPU"]["state"] == "ok"


def test_the_shared_store_is_asked_whether_it_answers(redis_server, tmp_path):
    def told(url):
        settings = Settings.from_env({"NBCACHE_SHARED_URL": url, "NBCACHE_DIR": str(tmp_path)})
        (check,) = [each for each in doctor.in_terminal(settings) if each.name == "shared store"]
        assert "s3cret" not in repr(check)
        return check

    answers = told(redis_server.url)
    assert answers.state is CheckState.OK
    assert answers.found.endswith("answers (environment, NBCACHE_SHARED_URL)")
    dead = told("redis://ada:s3cret@127.0.0.1:1/0")
    assert dead.state is CheckState.PROBLEM
    assert "cannot be reached" in dead.found and dead.next_step
    assert told("nonsense://x").state is CheckState.PROBLEM
