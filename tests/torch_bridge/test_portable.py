"""Portable CPU code: compiled for a baseline, used on every CPU that has its features."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from nbcache.core.cpu_levels import BASELINES, LABEL, Baseline
from nbcache.core.errors import ConfigError
from nbcache.core.key import Difference, components
from nbcache.core.model import ArtifactRef, Environment, Manifest
from nbcache.core.settings import Policy, Settings
from nbcache.sharing.trust import Keyring
from nbcache.storage.compatibility import baseline_for, differences, fit_lines, fitting
from nbcache.storage.encoding import unpack
from nbcache.torch_bridge import environment
from nbcache.torch_bridge.portable import baseline_of
from support.doctored import the_version
from support.front_door import (
    CALL,
    DEFINE,
    LOAD,
    REPORTS,
    SET_UP,
    Kernel,
    RunCells,
    RunPython,
    environ_below,
    execute,
    give_to_client,
    graphs,
    outcomes,
    printed,
    run_interpreter,
    shown,
)

pytestmark = pytest.mark.xdist_group("portable")  # for its fixtures

V3 = BASELINES["x86-64-v3"]
HASWELL = "fpu sse2 cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3 abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"


def of(features: str, **more: str) -> Environment:
    """Return the environment of a CPU with these features, as it is without a baseline."""
    values = {"torch.version": "2.13.0", "device": "cpu", "cpu.machine": "x86_64", "cpu.capability": "AVX2"}
    return Environment(components(values | {"cpu.features": features} | more))


def portable(baseline: Baseline = V3) -> Manifest:
    there = Environment(components(of("").values | baseline.components()))
    return Manifest(there, "", tuple(ArtifactRef(type, "k", type, 1) for type in ("inductor", "cpp_kernel")))


def test_the_compiler_agrees_on_what_a_baseline_has() -> None:
    """Each feature is a macro of the compiler's."""
    macros = {
        "abm": "LZCNT",
        "bmi1": "BMI",
        "cx16": "GCC_HAVE_SYNC_COMPARE_AND_SWAP_16",
        "lahf_lm": "LAHF_SAHF",
        "pni": "SSE3",
    }
    for name, baseline in BASELINES.items():
        command = ["g++", f"-march={name}", "-dM", "-E", "-x", "c++", "/dev/null"]
        defined = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for feature in baseline.features:
            macro = macros.get(feature, feature.upper())
            assert f"#define __{macro}" in defined, (name, feature)
        beyond = {"x86-64-v2": "AVX", "x86-64-v3": "AVX512F", "x86-64-v4": "AVX512VNNI"}[name]
        assert f"#define __{beyond}__" not in defined


@pytest.mark.parametrize("features", [HASWELL, f"{HASWELL} avx512f avx512_vnni amx_tile"])
def test_it_fits_every_cpu_that_has_the_features(features: str) -> None:
    here = of(features, **{"cpu.capability": "AVX512"})
    assert differences(portable(), here) == []
    assert baseline_for([portable()], here) == V3.name
    there = Environment(components(here.values | V3.components()))
    assert fitting([portable()], there) == portable()
    assert baseline_for([portable()], there) is None


def test_it_fits_no_cpu_that_lacks_one_and_the_difference_names_it() -> None:
    here = of(HASWELL.replace("avx2 ", "").replace("fma ", ""))
    assert differences(portable(), here) == [Difference("cpu.features", "avx2 fma", None)]
    assert fitting([portable()], here) is None
    assert baseline_for([portable()], here) is None


def test_of_two_cpus_only_what_one_of_them_lacks_is_shown() -> None:
    native = Manifest(of(f"{HASWELL} avx512f"), "", ())
    shown = fit_lines(differences(native, of(f"{HASWELL} sha_ni")))
    assert shown[1].split()[:3] == ["cpu.features", "avx512f", "sha_ni"]
    assert "nbcache warm --portable" in shown[1]


def test_what_else_differs_still_counts() -> None:
    for label in ("torch.version", "cpu.machine", "cpu.requested"):
        here = of(HASWELL, **{label: "another"})
        assert [each.label for each in differences(portable(), here)] == [label]
        assert baseline_for([portable()], here) is None


def test_a_kernel_uses_code_for_what_it_compiles_for_itself_and_no_other() -> None:
    native = Manifest(of(HASWELL), "", portable().artifacts)
    smaller = portable(BASELINES["x86-64-v2"])
    every = [native, portable(), smaller]
    for one in every:
        assert fitting(every, one.environment) == one
        assert fitting([each for each in every if each != one], one.environment) is None


def test_code_for_this_cpu_is_preferred() -> None:
    native = Manifest(of(HASWELL), "", portable().artifacts[:1])
    assert baseline_for([portable(), native], of(HASWELL)) is None


def test_the_environment_is_the_same_on_all_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(environment, "_CPU_INFO", file)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = []
    for features in (HASWELL, f"{HASWELL} avx512f"):
        file.write_text(f"flags : {features}\n")
        found.append((environment.current(V3), environment.foreseen(V3), environment.lacking(V3)))
    assert found[0] == found[1] and found[0][2] == []
    assert environment.current(V3) != environment.current()
    file.write_text(f"flags : {HASWELL.replace('avx2 ', '')}\n")
    assert environment.lacking(V3) == ["avx2"]
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert set(environment.lacking(V3)) == V3.features


def test_what_a_manifest_claims_is_not_believed() -> None:
    here = of("sse2")
    for claim in ({LABEL: "x86-64-v3", "cpu.features": "sse2"}, {LABEL: "x86-64-v9", "cpu.features": ""}):
        manifest = Manifest(Environment(components(of("").values | claim)), "", portable().artifacts)
        assert differences(manifest, here)
        assert baseline_for([manifest], here) is None
        assert fitting([manifest], here) is None


def test_what_cannot_be_compiled_for_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment.lacking(V3):
        pytest.skip("this CPU cannot run x86-64-v3")
    assert baseline_of("off") is None and baseline_of("x86-64-v3") == V3
    with monkeypatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_FX_COMPILE_MODE", "SUBPROCESS")
        with pytest.raises(ConfigError, match="torch compiles where nbcache is not"):
            baseline_of("x86-64-v3")
    old = tmp_path / "old-g++"
    old.write_text("#!/bin/sh\necho bad value for -march= >&2; exit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    with pytest.raises(ConfigError, match="does not know -march=x86-64-v3"):
        baseline_of("x86-64-v3")


def test_a_baseline_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="x86-64-v2, x86-64-v3 or x86-64-v4"):
        Settings().with_value("portable", "haswell", origin="test")


LOST = """\
import torch, torch._inductor.cpp_builder, torch.compiler.config
from nbcache.core.cpu_levels import LABEL
from nbcache.core.errors import ConfigError
from nbcache.core.settings import Settings
from nbcache.kernel.session import Session
from nbcache.parts import make_bridge
from nbcache.storage.backends.memory import MemoryStore

del torch._inductor.cpp_builder._get_optimization_cflags
session = Session(Settings(portable="x86-64-v3"), make_bridge(), MemoryStore("store"))
session.start()
for name, value in (("trust", "off"), ("portable", "off"), ("portable", "x86-64-v3"), ("trust", "ask")):
    try:
        session.configure(session.settings.with_value(name, value, origin="test"))
    except ConfigError as error:
        print(error)
    assert not torch.compiler.config.cache_key_tag and LABEL not in session.environment.values
print(len(session.notices), session.settings.portable)
"""


@pytest.mark.compile
def test_without_the_part_that_makes_code_portable_no_change_of_settings_compiles_for_a_baseline(
    run_python: RunPython,
) -> None:
    if environment.lacking(V3):
        pytest.skip("this CPU cannot run x86-64-v3")

    refusal, state = run_python(LOST, having="torch").stdout.splitlines()

    assert "portable=x86-64-v3 cannot be used: part of nbcache (compile_for_baseline) is off" in refusal
    assert state == "1 off"


# --- with a compiler ------------------------------------------------------------------------------

MACHINE = "import nbcache.torch_bridge.environment as machine, pathlib\n"
"""Stands for another CPU: torch's own eyes are not deceived, so nothing of it may be compiled there."""


SIMPLE = """\
simple = torch.compile(lambda x: (x * 2).exp().sum(0))
simple(x);
"""
AGAIN = "\ntorch._dynamo.reset(); simple(x);"


def elsewhere(folder: Path, features: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], str]:
    """Return an environment with empty folders, and the cell that makes its CPU have these features."""
    environ = environ_below(folder) | {"NBCACHE_NOTEBOOK": str(folder / "model.ipynb")}
    give_to_client(environ, monkeypatch)
    (folder / "cpuinfo").write_text(f"flags : {features}\n")
    return environ, f"{MACHINE}machine._CPU_INFO = pathlib.Path({str(folder / 'cpuinfo')!r})"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nbformat.NotebookNode]:
    """Return a folder in which a kernel has compiled for x86-64-v3, and its notebook."""
    if environment.lacking(V3):
        pytest.skip("this CPU cannot run x86-64-v3")
    folder = tmp_path_factory.mktemp("portable")
    with pytest.MonkeyPatch.context() as patch:
        environ = environ_below(folder) | {"NBCACHE_NOTEBOOK": str(folder / "model.ipynb")}
        give_to_client(environ, patch)
        switch = "%nbcache config portable=x86-64-v3"
        cells = [LOAD, SET_UP + SIMPLE, switch + AGAIN, DEFINE, CALL, "%nbcache snapshot", "%nbcache config"]
        notebook = execute([*cells, REPORTS], environ, folder)
    return folder, notebook


def keyring_of(folder: Path) -> Keyring:
    """Return the keys in the environment that `environ_below` has made for `folder`."""
    return Keyring(folder / "home" / ".config" / "nbcache")


@pytest.mark.compile
def test_its_kernels_hold_the_instructions_of_the_baseline_and_no_others(
    made: tuple[Path, nbformat.NotebookNode],
) -> None:
    """Though the kernel has compiled one of them for this CPU before."""
    received = the_version((made[0] / "model.nbcache").read_bytes(), keyring_of(made[0]), where="")
    packed = received.unlock(Policy.STRICT)
    (manifest,) = received.snapshot.manifests
    assert manifest.environment.values[LABEL] == "x86-64-v3"
    kernels = [ref for ref in manifest.artifacts if ref.type == "cpp_kernel"]
    assert len(kernels) >= 4
    code = ""
    for kernel in kernels:
        file = made[0] / "kernel.so"
        file.write_bytes(unpack(packed[kernel.digest], size=kernel.size, digest=kernel.digest))
        command = ["objdump", "-d", str(file)]
        code += subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "%ymm" in code and "%zmm" not in code
    assert outcomes(made[1]) == ["miss"] * 6
    assert "x86-64-v3" in shown(made[1], 6)


@pytest.mark.compile
def test_torchs_keys_tell_portable_code_from_code_for_one_cpu(
    made: tuple[Path, nbformat.NotebookNode],
    cold: tuple[Path, nbformat.NotebookNode],
    run_cells: RunCells,
    isolated: dict[str, str],
) -> None:
    assert {graph["key"] for graph in graphs(made[1])}.isdisjoint(graph["key"] for graph in graphs(cold[1]))
    tag = "print(repr(torch.compiler.config.cache_key_tag))"
    notebook = run_cells(
        [
            "import torch; torch.compiler.config.cache_key_tag = 'mine'",
            LOAD,
            f"%nbcache config portable=x86-64-v3\n{tag}",
            f"%nbcache config portable=x86-64-v2\n{tag}",
            f"%nbcache config portable=off\n{tag}",
            f"%nbcache config portable=x86-64-v3\n%unload_ext nbcache\n{tag}",
        ],
        isolated,
    )
    said = [printed(notebook, index).strip() for index in range(2, 6)]
    assert said == ["'mine x86-64-v3'", "'mine x86-64-v2'", "'mine'", "'mine'"]


@pytest.mark.compile
def test_torchs_keys_name_the_baseline_in_cells_and_their_threads_after_idle_imports(
    isolated: dict[str, str], start_kernel: Callable[..., Kernel]
) -> None:
    kernel = start_kernel({**isolated, "NBCACHE_PREWARM": "on", "NBCACHE_PORTABLE": "x86-64-v3"})
    kernel.run(LOAD)
    kernel.wait_until("'torch._dynamo.pgo' in __import__('sys').modules")
    compiles = """
import threading, torch

def told():
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    print(torch.compiler.config.cache_key_tag, torch.compiler.config.job_id)

told()
thread = threading.Thread(target=told)
thread.start()
thread.join()
"""
    assert kernel.run(compiles).split() == ["x86-64-v3", "None"] * 2


@pytest.mark.compile
def test_a_portable_snapshot_serves_another_cpu(
    made: tuple[Path, nbformat.NotebookNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, become = elsewhere(tmp_path, HASWELL + " of_another_cpu", monkeypatch)
    shutil.copy(made[0] / "model.nbcache", tmp_path)
    signer = keyring_of(made[0]).own()
    assert signer is not None
    run_interpreter(["-m", "nbcache", "trust", "add", signer], environ, tmp_path)
    environ["PATH"] = ""  # nor is there a compiler

    notebook = execute([become, LOAD, SET_UP, DEFINE, CALL, REPORTS], environ, tmp_path)

    said = printed(notebook, 1)
    assert "for any x86-64-v3 CPU" in said and "differ" not in said and "CPU only" not in said
    notice = " ".join(shown(notebook, 1).split())
    assert "! this kernel compiles for any x86-64-v3 CPU from now on, as the snapshot model.nbcache" in notice
    assert outcomes(notebook) == ["hit"] * 4
    assert {graph["kernels_compiled"] for graph in graphs(notebook)} == {0}
    assert printed(notebook, 4).splitlines()[-1] == printed(made[1], 4).splitlines()[-1]


@pytest.mark.compile
def test_a_portable_snapshot_is_not_used_where_the_cpu_lacks_a_feature(
    made: tuple[Path, nbformat.NotebookNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, become = elsewhere(tmp_path, HASWELL.replace("bmi2 ", ""), monkeypatch)
    shutil.copy(made[0] / "model.nbcache", tmp_path)
    environ |= {"NBCACHE_TRUST": "off", "NBCACHE_PORTABLE": "x86-64-v3"}

    notebook = execute(
        [become, LOAD, "import torch", "%nbcache restore", "%nbcache config portable=x86-64-v3", "1 + 1"],
        environ,
        tmp_path,
        allow_errors=True,
    )

    said = "".join(str(cell.outputs) for cell in notebook.cells)
    assert "cpu.features differ" in printed(notebook, 1)
    assert "no graph in this snapshot fits this machine" in said and "cpu.features  bmi2" in said
    assert "this CPU lacks bmi2" in str(notebook.cells[4].outputs)
    assert "What is compiled here is for this CPU only" in said
    assert "2" in str(notebook.cells[5].outputs)
