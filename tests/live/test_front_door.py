"""The main job through the front door: real kernels, real torch.compile, folders wiped in between."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import DeadKernelError

from nbcache.storage.encoding import decode_entry, decode_ref
from support.front_door import (
    CALL,
    DEFINE,
    EAGER,
    LOAD,
    REPORTS,
    SET_UP,
    client_for,
    errors,
    graphs,
    outcomes,
    printed,
    reports,
    shown,
    with_old_compiler,
)
from support.torch_versions import HAS_TRACES

pytestmark = pytest.mark.compile


@pytest.fixture
def count_compilers(tmp_path):
    """Return a function that puts a `g++` which notes each run on a PATH; it returns the notes."""
    real = shutil.which("g++")
    assert real, "these tests need g++"

    def count(environ):
        notes, folder = tmp_path / "compiler-runs", tmp_path / "bin"
        folder.mkdir()
        wrapper = folder / "g++"
        wrapper.write_text(f'#!/bin/sh\necho "$@" >> {notes}\nexec {real} "$@"\n')
        wrapper.chmod(0o755)
        environ["PATH"] = f"{folder}{os.pathsep}{environ['PATH']}"
        notes.touch()
        return notes

    return count


def test_a_first_kernel_misses_and_says_so(cold):
    _, notebook = cold

    assert outcomes(notebook) == ["miss"] * 4
    assert {graph["direction"] for graph in graphs(notebook)} == {"forward", "backward"}
    first = graphs(notebook)[0]
    assert first["function"] == "loss_of"
    assert first["location"] == "In[3]:2"
    assert "print" in first["graph_break_reason"] and "In[3]:4" in first["graph_break_reason"]
    assert first["kernels"] == first["kernels_compiled"] > 0
    assert set(first["bytes"]) >= {"inductor", "cpp_kernel"}
    assert first["seconds"]["total"] == pytest.approx(
        sum(seconds for phase, seconds in first["seconds"].items() if phase != "total")
    )
    assert "0 of 4 hits" in shown(notebook, 3) and "stored for next time" in shown(notebook, 3)
    by_cell = {report["cell"]["execution_count"]: report["graphs"] for report in reports(notebook)}
    assert [len(by_cell[number]) for number in (1, 2, 3, 4)] == [0, 0, 0, 4]
    assert {graph["cell"]["execution_count"] for graph in by_cell[4]} == {4}
    assert first["function_cell"]["execution_count"] == 3


def test_a_restarted_kernel_with_all_folders_wiped_hits_every_graph_and_runs_no_compiler(
    cold, warm, run_cells, count_compilers
):
    notes = count_compilers(warm)

    bundle = "print(len(torch.compiler.save_cache_artifacts()[1].inductor_artifacts))"
    notebook = run_cells([LOAD, SET_UP, DEFINE, CALL, bundle, REPORTS], warm)
    eager = run_cells([SET_UP, EAGER], warm)

    assert outcomes(notebook) == ["hit"] * 4
    assert {graph["level"] for graph in graphs(notebook)} == {"L1"}
    assert {graph["source"] for graph in graphs(notebook)} == {"local store"}
    assert sum(graph["kernels_compiled"] for graph in graphs(notebook)) == 0
    assert sum(graph["kernels"] for graph in graphs(notebook)) >= 4
    assert all(graph["saved_seconds"] is not None for graph in graphs(notebook))
    assert notes.read_text() == ""
    assert not list(Path(warm["TMPDIR"]).rglob("*.gch"))
    assert printed(notebook, 3) == printed(cold[1], 3)
    last = [text.splitlines()[-1].split() for text in (printed(notebook, 3), printed(eager, 1))]
    assert [float(number) for number in last[0]] == pytest.approx(
        [float(number) for number in last[1]], rel=1e-4
    )
    assert "4 of 4 graphs reused in " in shown(notebook, 3)
    assert printed(notebook, 4) == "4\n"  # torch's own bundle is as whole as without nbcache


def test_an_edited_function_misses_and_answers_anew(with_headers, run_cells):
    edited = DEFINE.replace(".square()", ".square().mul(3.0)")
    call = "print(loss_of(x).item() / model(x).softmax(-1).square().mean().item())"

    cells = [LOAD, SET_UP, edited, f"%nbcache config log=debug\n{call}", "%nbcache config log=off", REPORTS]
    notebook = run_cells(cells, with_headers)

    by_function = {graph["function"]: graph for graph in graphs(notebook)}
    assert by_function["loss_of"]["outcome"] == "hit"  # up to the graph break nothing has changed
    said = [each.text for each in notebook.cells[3].outputs if each.get("name") == "stderr"]
    looked_up = re.findall(r"looked up (\w+) \w+ here: (\d) found", "".join(said))
    assert {"1", "0"} <= {found for type, found in looked_up if type == "inductor"}
    assert not errors(notebook, 3) and "stderr" not in [
        each.get("name") for each in notebook.cells[4].outputs
    ]
    changed = by_function["loss_of (resumed)"]
    assert changed["outcome"] == "miss"
    assert changed["reason"].startswith("not stored: ") and "graph: " in changed["reason"]
    assert float(printed(notebook, 3).split()[-1]) == pytest.approx(3.0, rel=1e-5)


def test_a_miss_and_a_hit_that_is_traced_again_name_their_cause(with_headers, run_cells):
    new = "%%compile_cached new\ndef new(x):\n    return x.sin() * 3\nnew(x).sum().item()"
    renamed = DEFINE.replace("loss_of(x)", "loss_of(z)").replace("model(x)", "model(z)")
    threads = "before = torch.get_num_threads(); torch.set_num_threads(before + 1)\ntorch._dynamo.reset()"

    unsaved = new.replace("new", "unsaved").replace(" unsaved\n", " unsaved --no-save\n", 1).replace("3", "5")

    notebook = run_cells([LOAD, SET_UP, new, renamed, CALL, threads, CALL, unsaved, REPORTS], with_headers)

    reasons = {report["cell"]["execution_count"]: report["graphs"] for report in reports(notebook)}
    said = {number: [graph["reason"] for graph in listed] for number, listed in reasons.items()}
    assert said[3] == ["compiled for the first time in this notebook"]
    assert outcomes(notebook)[1] == "hit"
    assert said[5][0].startswith("traced again: AOTAutograd has no entry for these names")
    assert "nothing stored: --no-save" in " ".join(shown(notebook, 7).split())
    (count,) = {graph["threads"] for graph in reasons[5]}
    assert said[7][0] == f"not stored for this number of threads: {count + 1} now, {count} before"


def test_what_cells_compile_is_there_in_the_next_kernel_but_for_what_is_not_to_be_saved(
    with_headers, run_cells, wipe
):
    failing = (
        "%%compile_cached double\ndef double(x):\n    return x * 2 + 1\ndouble(x)\nraise ValueError('mine')\n"
    )
    required = (
        "%%compile_cached triple --require-hit\ndef triple(x):\n    return x * 3\ntriple(x)\nprint('ran')\n"
    )
    unsaved = "%%compile_cached four --no-save --quiet\ndef four(x):\n    return x * 4\nfour(x);\n"
    define = "%%compile_cached grow\ndef grow(x):\n    return x.exp().sum(1)\n"
    calls = "for rows in (3, 5, 9):\n    print(grow(torch.ones(rows, 4)).sum().item())\n"
    cells = [LOAD, SET_UP, failing, required, unsaved, define, calls, REPORTS]

    first = run_cells(cells, with_headers, allow_errors=True)
    wipe(with_headers)
    second = run_cells([cell.replace("raise", "#") for cell in cells], with_headers)

    assert outcomes(first) == ["miss"] * 5
    assert outcomes(second) == ["hit", "hit", "miss", "hit", "hit"]
    (error,) = errors(first, 2)  # once
    assert (error.ename, error.evalue) == ("ValueError", "mine")
    assert "stored for next time, though the cell raised" in " ".join(shown(first, 2).split())
    assert "line 5" in "\n".join(error.traceback)
    (error,) = errors(first, 3)
    assert error.ename == "HitRequired"
    assert "triple 1/0" in error.evalue and "miss" in error.evalue
    assert printed(first, 3) == printed(second, 3) == "ran\n"
    # A torch for CUDA warns where there is a compiler for it and no GPU.
    assert [each for each in first.cells[4].outputs if "No CUDA runtime" not in each.get("text", "")] == []
    assert "size mismatch" in graphs(first)[4]["recompile_reason"]
    assert printed(first, 6) == printed(second, 6)


def test_arguments_reach_torch_and_modules_are_compiled_in_place(with_headers, run_cells):
    cell = """\
%%compile_cached model --dynamic --options max_autotune=False shape_padding=False
keys = list(model.state_dict())
with torch.no_grad():
    for rows in (2, 7):
        model(torch.ones(rows, 16))
print(keys == list(model.state_dict()), type(model).__name__)
"""
    notebook = run_cells([LOAD, SET_UP, cell, REPORTS], with_headers)

    assert printed(notebook, 2) == "True Sequential\n"
    (graph,) = graphs(notebook)  # dynamic from the start: the second shape needs no graph of its own
    assert (graph["function"], graph["location"]) == ("Sequential", "")  # and not where nbcache wraps it


WRAPPERS = """\
import functools
def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
def applied(function):
    def inner(x): return function(x)
    return inner
def double(x): return x * 2
for each in (logged(double), applied(double), lambda x: x + 1):
    torch.compile(each, backend="eager")(torch.ones(3))
"""


def test_a_graph_is_named_for_what_a_wrapper_wraps_and_what_torch_leaves_out_is_said_once(
    isolated, run_cells
):
    breaks = "torch.compile(lambda x: {}[x], fullgraph=True)(torch.ones(3))"
    module = "net = torch.nn.Sequential(torch.nn.ReLU()); net.compile(); y = net(torch.ones(3))"
    cells = [LOAD, "import torch", breaks, WRAPPERS, module, module.replace("ones", "zeros"), REPORTS]
    notebook = run_cells(cells, isolated, allow_errors=True)

    (error,) = errors(notebook, 2)
    assert 'File "In[3]", line 1, in <lambda>' in error.evalue
    assert [graph["function"] for graph in graphs(notebook)][-3:] == ["double", "inner", "<lambda>"]
    assert "net.compile() compiles nothing" in shown(notebook, 4) and not notebook.cells[5].outputs


def test_a_store_whose_every_artifact_is_damaged_is_a_miss_with_one_warning(with_headers, run_cells, cold):
    damaged = 0
    for file in Path(with_headers["NBCACHE_DIR"]).rglob("artifact/*"):
        content = file.read_bytes()
        file.write_bytes([content[: len(content) // 2], content[:-1] + b"\xff", b""][damaged % 3])
        damaged += 1
    assert damaged > 4

    notebook = run_cells([LOAD, SET_UP, DEFINE, CALL, REPORTS], with_headers)

    assert outcomes(notebook) == ["miss"] * 4
    assert printed(notebook, 3) == printed(cold[1], 3)
    notices = [notice for report in reports(notebook) for notice in report["notices"]]
    assert len(notices) == 1 and "damaged" in notices[0]
    assert notices[0] in " ".join(" ".join(shown(notebook, index) for index in range(4)).split())
    assert {graph["reason"] for graph in graphs(notebook)} == {
        "the stored graph was damaged, and nbcache removed it"
    }


def test_a_folder_for_torch_that_the_user_has_set_is_used_and_never_cleaned(
    with_headers, run_cells, tmp_path
):
    own = tmp_path / "my-torch-cache"
    own.mkdir()
    (own / "keep.txt").write_text("mine")

    notebook = run_cells(
        [LOAD, SET_UP, DEFINE, CALL, REPORTS, "%nbcache clear --yes"],
        {**with_headers, "TORCHINDUCTOR_CACHE_DIR": str(own)},
    )
    notebook.cells.pop()

    assert outcomes(notebook) == ["hit"] * 4
    assert (own / "fxgraph").is_dir() and (own / "keep.txt").read_text() == "mine"
    assert not list(Path(with_headers["NBCACHE_DIR"]).rglob("artifact/*"))


def test_within_fresh_cache_nothing_is_served(with_headers, run_cells):
    call = f"from torch._inductor.utils import fresh_cache\nwith fresh_cache():\n    {CALL.splitlines()[0]}\n"

    notebook = run_cells([LOAD, SET_UP, DEFINE, call, REPORTS], with_headers)

    assert set(outcomes(notebook)) == {"miss"}


UNLOADING = """\
import gc, sys, torch, torch._dynamo, torch._inductor.compile_fx, torch._inductor.codecache as codecache
import torch._dynamo.pgo, torch._inductor.cpu_vec_isa, torch._inductor.async_compile
import torch._inductor.runtime.autotune_cache, torch._inductor.remote_cache
from torch._inductor.codecache import CppCodeCache, FxGraphCache, GuardedCache
shell = get_ipython()

def ours(value):  # not torch's own counters, which change as it compiles
    log = torch._dynamo.utils.ChromiumEventLogger
    return callable(value) or isinstance(value, (classmethod, staticmethod, log))

def state():
    owners = [
        torch, torch._dynamo.utils, torch._dynamo.pgo, torch.compiler._cache.CacheArtifactManager, codecache,
        CppCodeCache, FxGraphCache, GuardedCache, torch._inductor.cpu_vec_isa.VecISA,
        torch._inductor.async_compile.AsyncCompile, torch._inductor.remote_cache,
    ]
    owners.append(getattr(torch._inductor.remote_cache, "LocalCacheBackend", codecache))
    manager = shell.magics_manager
    magics = {kind: sorted(table) for kind, table in manager.magics.items()}
    dispatchers = shell.strdispatchers.items()
    return {
        "torch": {f"{owner}.{name}": id(v) for owner in owners for name, v in vars(owner).items() if ours(v)},
        "job": torch.compiler.config.job_id,
        "environment": dict(os.environ),
        "meta_path": list(sys.meta_path),
        "magics": magics,
        "events": {name: list(calls) for name, calls in shell.events.callbacks.items()},
        "transformers": [list(shell.input_transformers_cleanup), list(shell.ast_transformers)],
        "compiler": sorted(vars(shell.compile)),
        "dispatch": {name: sorted(map(str, table.strs)) for name, table in dispatchers if table.strs},
        "names": sorted(name for name in shell.user_ns if name.startswith("__nbcache")),
    }

import os
codecache.cache_dir()
before = state()
"""


def test_unloading_leaves_the_kernel_as_it_was_found(isolated, run_cells):
    load_and_use = """\
get_ipython().run_line_magic("load_ext", "nbcache")
get_ipython().run_line_magic("load_ext", "nbcache")
import nbcache
during = state()
session = nbcache.session()
"""
    use = "%%compile_cached plain --backend eager\ndef plain(x):\n    return x * 5\nplain(torch.ones(3))"
    compare = """\
get_ipython().run_line_magic("unload_ext", "nbcache")
after = state()
print([name for name in before if before[name] != during[name]])
left = [name for name in before if name != "torch" and before[name] != after[name]]
left += [name for name, value in before["torch"].items() if after["torch"].get(name) != value]
print([(name, before.get(name), after.get(name)) for name in left])
"""
    notebook = run_cells([UNLOADING, load_and_use, use, compare], isolated)

    changed, left = printed(notebook, 3).splitlines()[-2:]
    assert set(json.loads(changed.replace("'", '"'))) >= {
        "torch",
        "environment",
        "magics",
        "events",
        "compiler",
    }
    assert left == "[]"


def test_a_store_folder_of_somebody_else_is_refused_and_the_cells_run(isolated, run_cells):
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    store = Path(isolated["NBCACHE_DIR"])
    store.mkdir()
    os.chown(store, 12345, 12345)

    notebook = run_cells([LOAD, "%%compile_cached\n40 + 2"], isolated)

    assert "StoreUnavailable" in printed(notebook, 0) and str(store) in printed(notebook, 0)
    (result,) = [each for each in notebook.cells[1].outputs if each.output_type == "execute_result"]
    assert result.data["text/plain"] == "42"


def test_the_store_is_its_owners_only(cold):
    assert stat.S_IMODE((cold[0] / "store").stat().st_mode) == 0o700
    (folder,) = (cold[0] / "tmp").glob("nbcache_*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


CPU_SAMPLE = """\
import torch
torch.manual_seed(0)

def eager(x):
    whole = x.to(torch.int32).float().amax(-1)
    return torch.softmax(x.exp() * 1.5 - x.sin(), -1).cumsum(-1), (x * 2).sum(-1), whole

x = torch.randn(37, 61)
error = max((a - b).abs().max().item() for a, b in zip(torch.compile(eager)(x), eager(x)))
from torch._dynamo.utils import counters
print(counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"], error)
"""


@pytest.mark.proof
def test_what_was_compiled_for_another_cpu_is_never_made_present(
    with_headers, run_cells, run_python, tmp_path
):
    import torch

    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("needs a CPU with AVX-512, to pretend that it has none")
    lesser = {"ATEN_CPU_CAPABILITY": "avx2"}
    plain = {**with_headers, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "plain")}
    run_python(CPU_SAMPLE, plain)
    alone = run_python(CPU_SAMPLE, {**plain, **lesser}, check=False)
    first = run_cells([LOAD, CPU_SAMPLE, REPORTS], with_headers)
    same = run_cells([LOAD, CPU_SAMPLE, REPORTS], with_headers)
    other = run_cells([LOAD, CPU_SAMPLE, REPORTS], {**with_headers, **lesser})

    if alone.returncode == 0:  # else it died of it, which shows the same
        hits, error = alone.stdout.split()
        assert int(hits) > 0
        assert not float(error) < 1e-3  # NaN, where this was written
    assert [outcomes(notebook) for notebook in (first, same, other)] == [["miss"], ["hit"], ["miss"]]
    assert float(printed(other, 1).split()[-1]) < 1e-4


@pytest.mark.proof
def test_what_torch_hits_wrongly_in_a_shared_folder_never_enters_the_store(with_headers, run_cells, tmp_path):
    import torch

    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("needs a CPU with AVX-512, to pretend that it has none")
    shared = {**with_headers, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "shared")}
    lesser = {"ATEN_CPU_CAPABILITY": "avx2"}
    run_cells([LOAD, CPU_SAMPLE], shared)
    try:
        wrong = run_cells([LOAD, CPU_SAMPLE, REPORTS], {**shared, **lesser}, allow_errors=True)
    except DeadKernelError:  # what torch hits by itself may write past its buffers: 2.11 ends in a SIGSEGV
        assert tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
    else:
        assert any("another CPU" in notice for report in reports(wrong) for notice in report["notices"])

    right = run_cells([LOAD, CPU_SAMPLE, REPORTS], {**with_headers, **lesser})

    assert outcomes(right) == ["miss"]
    assert float(printed(right, 1).split()[-1]) < 1e-4


def test_a_kernel_that_a_kernel_starts_gets_a_folder_for_its_own_environment(warm, run_cells):
    inner = "%load_ext nbcache\nimport torch, os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    start = f"""\
import os, subprocess, sys
print(os.environ["TORCHINDUCTOR_CACHE_DIR"])
for changes in ({{}}, {{"ATEN_CPU_CAPABILITY": "default"}}):
    command = [sys.executable, "-m", "IPython", "--colors=nocolor", "-c", {inner!r}]
    done = subprocess.run(command, env=os.environ | changes, capture_output=True, text=True)
    print(done.stdout.split()[-1])
"""
    notebook = run_cells([LOAD, "import torch", start], warm)

    outer, same, other = printed(notebook, 2).split()
    assert outer == same
    assert outer != other


def test_another_compiler_is_probed_anew_and_the_cell_runs(with_headers, run_cells, tmp_path):
    notebook = run_cells([LOAD, CPU_SAMPLE, REPORTS], with_old_compiler(with_headers, tmp_path))

    assert outcomes(notebook) == ["miss"]
    assert float(printed(notebook, 1).split()[-1]) < 1e-4


def test_a_damaged_kernel_in_the_temp_folder_is_not_loaded(warm, run_cells):
    first = run_cells([LOAD, SET_UP, DEFINE, CALL, REPORTS], warm)
    kernels = list(Path(warm["TMPDIR"]).rglob("nbcache_kernels/*/*.so"))
    assert kernels
    for kernel in kernels:
        kernel.write_bytes(bytes(kernel.stat().st_size))

    second = run_cells([LOAD, SET_UP, DEFINE, CALL, REPORTS], warm)

    assert outcomes(second) == ["hit"] * 4
    assert printed(second, 3) == printed(first, 3)


def test_a_graph_whose_kernel_is_gone_from_the_store_is_compiled_whole(with_headers, run_cells, wipe, cold):
    run_cells([LOAD, SET_UP, DEFINE, CALL], with_headers)
    removed = 0
    for kernels in Path(with_headers["TMPDIR"]).glob("nbcache_*/*/nbcache_kernels"):
        shutil.rmtree(kernels)  # while the graphs stay in torch's folder
        removed += 1
    assert removed == 1
    for reference in (Path(with_headers["NBCACHE_DIR"]) / "v2" / "ref").rglob("*"):
        if reference.is_file() and decode_ref(decode_entry(reference.read_bytes())).type == "cpp_kernel":
            reference.unlink()
            removed += 1
    assert removed > 1

    notebook = run_cells([LOAD, SET_UP, DEFINE, CALL, REPORTS], with_headers)

    assert outcomes(notebook) == ["miss"] * 4
    assert "a C++ kernel of it is missing" in graphs(notebook)[0]["reason"]
    assert printed(notebook, 3) == printed(cold[1], 3)
    wipe(with_headers)
    healed = run_cells([LOAD, SET_UP, DEFINE, CALL, REPORTS], with_headers)
    assert outcomes(healed) == ["hit"] * 4
    refs = [each for each in Path(with_headers["NBCACHE_DIR"], "v2", "ref").rglob("*") if each.is_file()]
    assert [decode_ref(decode_entry(each.read_bytes())).type for each in refs].count("inductor") == 4


def test_a_running_kernel_whose_temp_folder_is_emptied_still_hits(warm, run_cells):
    empty = """\
import glob, os, shutil
for folder in glob.glob(os.environ["TMPDIR"] + "/nbcache_*"):
    shutil.rmtree(folder)
torch._dynamo.reset()
from torch._inductor.utils import clear_caches
clear_caches()
model.zero_grad()
"""
    notebook = run_cells([LOAD, SET_UP, DEFINE, CALL, empty, CALL, REPORTS], warm)

    assert outcomes(notebook) == ["hit"] * 8
    assert sum(graph["kernels_compiled"] for graph in graphs(notebook)) == 0
    assert printed(notebook, 3) == printed(notebook, 5)


def test_arguments_without_a_target_are_defaults_of_torch_compile_in_the_cell(isolated, run_cells):
    cell = """\
%%compile_cached --backend eager --dynamic
seen = []
def backend(graph, inputs):
    seen.append([str(each) for each in inputs])
    return graph
print(torch.compile(lambda x: x * 2)(x).shape, torch.compile(lambda x: x * 3, backend=backend)(x).shape)
print(len(seen[0]) > 1)
"""
    notebook = run_cells([LOAD, SET_UP, cell, "print(torch.compile.__module__)", REPORTS], isolated)

    assert [graph["outcome"] for graph in graphs(notebook)] == ["bypass", "bypass"]
    assert printed(notebook, 2).splitlines()[-1] == "True"  # --dynamic: the size is an input of its own
    assert printed(notebook, 3).strip() == "torch"


def test_an_interrupted_compile_says_so_and_the_function_can_be_run_again(with_headers, run_cells):
    define = """\
import os, psutil, signal, threading, time

def compiles():
    try:
        return any("cc1plus" in each.name() for each in psutil.Process().children(recursive=True))
    except psutil.NoSuchProcess:  # one has just ended
        return False

def strike():  # as a notebook's interrupt does: the compilers that run get the signal, too
    while not compiles():
        time.sleep(0.01)
    os.killpg(0, signal.SIGINT)

@torch.compile
def heavy(x):
    for _ in range(4):
        x = torch.softmax(x.sin() @ x.cos().T @ x, -1).cumsum(-1).exp().sum(0, keepdim=True) + x
    return x
"""
    strike = "threading.Thread(target=strike, daemon=True).start()\nheavy(x)"

    notebook = run_cells([LOAD, SET_UP, define, strike, "print(heavy(x).shape)", REPORTS], allow_errors=True)

    (error,) = errors(notebook, 3)
    assert error.ename == "KeyboardInterrupt"
    assert printed(notebook, 4) == "torch.Size([3, 16])\n"
    by_cell = {report["cell"]["execution_count"]: report["graphs"] for report in reports(notebook)}
    assert [graph["reason"] for graph in by_cell[4]] == ["not compiled: interrupted"]
    assert [graph["outcome"] for graph in by_cell[5]] == ["miss"]


def test_a_best_configuration_is_there_when_torch_reads_it(with_headers, run_cells, wipe):
    # Autotuning needs a GPU: here an artifact of its type is recorded as torch does, and looked for.
    record = """\
from torch._inductor.runtime.autotune_cache import AutotuneCacheArtifact
from torch.compiler._cache import CacheArtifactManager
for key in ("ab/tuned.best_config", "../../../escape", "/tmp/nbcache-escape"):
    CacheArtifactManager.record_artifact("autotune", key, {"XBLOCK": 128})
"""
    found = """\
import glob, os
import torch._inductor.remote_cache, torch._inductor.runtime.autotune_cache as autotune_cache
backend = vars(torch._inductor.remote_cache).get("LocalCacheBackend")
backend = backend or autotune_cache._LocalAutotuneCacheBackend
for path in (os.environ["TORCHINDUCTOR_CACHE_DIR"] + "/ab/tuned.best_config", "/tmp/nbcache-escape"):
    print(backend()._get(path))
"""
    escaped = (
        "print(os.path.exists('/tmp/nbcache-escape'), len(glob.glob(os.environ['TMPDIR'] + '/**/escape')))"
    )
    run_cells([LOAD, SET_UP, DEFINE, CALL, record], with_headers)
    wipe(with_headers)

    notebook = run_cells([LOAD, SET_UP, DEFINE, CALL, found, escaped, REPORTS], with_headers)

    assert outcomes(notebook) == ["hit"] * 4
    assert printed(notebook, 4) == "b'{\"XBLOCK\": 128}'\nNone\n"
    assert printed(notebook, 5) == "False 0\n"


def test_options_count_in_their_cell_only_and_unknown_names_get_the_nearest(isolated, run_cells):
    target = """\
%%compile_cached model --backend eager
model = torch.nn.Sequential(torch.nn.Linear(16, 4))
model(x);
"""
    look = """\
import gc, weakref
kept = weakref.ref(model)
del model
torch._dynamo.reset()
gc.collect()
print(kept())
"""
    where = "print(torch.ones(2).device)"
    cells = [
        target,
        look,
        f"%%compile_cached --device meta\n{where}",
        where,
        "%%compile_cached --device nowhere\n1",
        "%%compile_cached --options max_autotun=True\n1",
        "%%compile_cached --mode max-autotun\n1",
        "%%compile_cached --backend inducter\n1",
        "%%capture\n%%compile_cached f --backend eager --require-hit\ndef f(x): return x * 2\nf(x)",
    ]
    notebook = run_cells([LOAD, SET_UP, *cells], isolated, allow_errors=True)

    assert [printed(notebook, index) for index in (3, 4, 5)] == ["None\n", "meta\n", "cpu\n"]
    raised = [error for index in range(6, 11) for error in errors(notebook, index)]
    said = [error.evalue for error in raised]
    assert len(said) == 5
    assert "nowhere" in said[0]
    assert "`max_autotune`" in said[1] and "`max-autotune`" in said[2] and "`inductor`" in said[3]
    assert raised[4].ename == "HitRequired"


def test_what_is_used_after_clearing_is_stored_anew(with_headers, run_cells, wipe):
    again = "torch._dynamo.reset()\nmodel.zero_grad()\n" + CALL
    first = run_cells([LOAD, SET_UP, DEFINE, CALL, "%nbcache clear --yes", again, REPORTS], with_headers)
    wipe(with_headers)
    second = run_cells([LOAD, SET_UP, DEFINE, CALL, REPORTS], with_headers)

    assert outcomes(first) == ["hit"] * 4 + ["miss"] * 4
    assert "it was stored, and has been evicted or removed since" in graphs(first)[4]["reason"]
    assert outcomes(second) == ["hit"] * 4
    assert printed(first, 5) == printed(second, 3)


def test_what_is_hit_in_the_folder_that_nbcache_gave_torch_is_stored_too(warm, run_cells, wipe):
    cells = [LOAD, SET_UP, DEFINE, CALL, REPORTS]
    run_cells(cells, warm)
    shutil.rmtree(warm["NBCACHE_DIR"])

    second = run_cells(cells, warm)
    wipe(warm)
    third = run_cells(cells, warm)

    assert {graph["level"] for graph in graphs(second)} == {"L0"}
    assert outcomes(third) == ["hit"] * 4
    assert {graph["level"] for graph in graphs(third)} == {"L1"}


def test_what_a_bundle_brought_is_used_and_not_stored(warm, run_cells, wipe, tmp_path):
    save = f"open({str(tmp_path / 'bundle')!r}, 'wb').write(torch.compiler.save_cache_artifacts()[0]);"
    load = f"torch.compiler.load_cache_artifacts(open({str(tmp_path / 'bundle')!r}, 'rb').read());"
    run_cells([LOAD, SET_UP, DEFINE, CALL, save], warm)
    wipe(warm)
    shutil.rmtree(warm["NBCACHE_DIR"])

    notebook = run_cells([LOAD, SET_UP, load, DEFINE, CALL, REPORTS], warm)

    assert outcomes(notebook) == ["hit"] * 4
    stored = Path(warm["NBCACHE_DIR"], "v2", "ref").rglob("*")
    types = {decode_ref(decode_entry(each.read_bytes())).type for each in stored if each.is_file()}
    traces = {"rerun", "trace"} if HAS_TRACES else set()
    assert types == {"cpp_kernel", "probe"} | traces  # what was compiled and traced here


INTERRUPT = """\
import torch._inductor.graph as lowering
def interrupt(self):
    raise KeyboardInterrupt
original = lowering.GraphLowering.compile_to_module
lowering.GraphLowering.compile_to_module = interrupt
"""


def test_an_interrupted_compile_gives_no_graph_to_a_snapshot_and_no_promise(
    with_headers, run_cells, tmp_path
):
    undo = "lowering.GraphLowering.compile_to_module = original"
    other = "@torch.compile\ndef other(x):\n    return (x * 2).sin()\nother(x)"
    cells = [LOAD, SET_UP, DEFINE, INTERRUPT, CALL, undo, other, f"%nbcache snapshot {tmp_path}/a.nbcache"]
    environ = {**with_headers, "NBCACHE_NOTEBOOK": str(tmp_path / "model.ipynb")}
    notebook = run_cells(cells, environ, allow_errors=True)

    assert "KeyboardInterrupt" in str(errors(notebook, 4)[0])
    assert "1 graph" in shown(notebook, 4) and "stored for next time" not in shown(notebook, 4)
    assert "stored for next time" in shown(notebook, 6)
    assert "holds 1 graph " in shown(notebook, 7)


def test_a_cell_that_raises_drops_no_graph_of_its_earlier_runs_from_the_file(
    with_headers, run_cells, tmp_path
):
    cell = """\
f(x)
if "FAILS" in os.environ:
    raise ValueError("no luck")
f(x.double())
"""
    define = "import os\n@torch.compile\ndef f(x):\n    return (x * 2).sin()"
    snapshot = f"%nbcache snapshot {tmp_path}/model.nbcache"
    cells = [LOAD, SET_UP, define, cell, snapshot]
    notebook = tmp_path / "model.ipynb"
    sources = [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=sources), notebook)
    environ = {**with_headers, "NBCACHE_NOTEBOOK": str(notebook)}
    assert "holds 2 graphs" in shown(run_cells(cells, environ), 4)

    failed = run_cells(cells, {**environ, "FAILS": "1"}, allow_errors=True)

    assert "no luck" in str(errors(failed, 3)[0])
    assert "holds 2 graphs" in shown(failed, 4)


NOTE_LOGGERS = """\
import threading
import torch
import torch._dynamo.utils as utils
import torch._inductor.codecache as codecache
threads, make = [], utils.ChromiumEventLogger.__init__
def note(logger):
    threads.append(threading.current_thread())
    make(logger)
utils.ChromiumEventLogger.__init__ = note
assert utils.CHROMIUM_EVENT_LOG is None
"""


def test_no_other_thread_replaces_torchs_logger_while_a_cell_compiles(isolated, run_cells):
    hashed = "codecache.torch_key()\nprint(threads == [threading.main_thread()])"

    notebook = run_cells([NOTE_LOGGERS, LOAD, hashed], isolated)

    assert printed(notebook, 2) == "True\n"


def test_two_kernels_at_once_share_one_store(with_headers, run_cells, wipe, tmp_path):
    def cells(number):
        own = f"@torch.compile\ndef own(x):\n    return x.sin() + {number}\nprint(own(x).sum().item())"
        return [LOAD, SET_UP, DEFINE, CALL, own, REPORTS]

    async def at_once():
        clients = [client_for(cells(number), with_headers, tmp_path) for number in (1, 2)]
        runs = [client.async_execute(cleanup_kc=True, env=dict(with_headers)) for client in clients]
        return await asyncio.gather(*runs)

    both = asyncio.run(at_once())
    wipe(with_headers)
    third = [run_cells(cells(number), with_headers) for number in (1, 2)]

    assert [outcomes(notebook) for notebook in both] == [["hit"] * 4 + ["miss"]] * 2
    assert [outcomes(notebook) for notebook in third] == [["hit"] * 5] * 2
    assert [printed(notebook, 4) for notebook in third] == [printed(notebook, 4) for notebook in both]


@pytest.fixture
def mount(tmp_path):
    """Return a function that mounts a small file system in memory, `mount(name, options)`."""
    mounted: list[Path] = []

    def mount(name, options):
        folder = tmp_path / name
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("needs the right to mount a file system")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_on_a_full_disk_the_cell_runs_and_one_warning_says_so(with_headers, run_cells, mount):
    disk = mount("disk", "size=16k")
    cell = "%%compile_cached\nprint(torch.compile(lambda x: x * 7)(x).sum().item())\n%nbcache flush"

    notebook = run_cells(
        [LOAD, SET_UP, cell, "1", REPORTS], {**with_headers, "NBCACHE_DIR": str(disk / "store")}
    )

    assert outcomes(notebook) == ["miss"]
    notices = [notice for report in reports(notebook) for notice in report["notices"]]
    assert len(notices) == 1 and "no room" in notices[0]


def test_a_store_that_cannot_be_written_to_is_still_read(with_headers, run_cells, mount):
    disk = mount("disk", "size=64m")
    shutil.copytree(with_headers["NBCACHE_DIR"], disk / "store")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    more = "%%compile_cached\nprint(torch.compile(lambda x: x * 8)(x).sum().item())"

    notebook = run_cells(
        [LOAD, SET_UP, DEFINE, CALL, more, "%nbcache flush", REPORTS],
        {**with_headers, "NBCACHE_DIR": str(disk / "store")},
    )

    assert outcomes(notebook) == ["hit"] * 4 + ["miss"]
    notices = [notice for report in reports(notebook) for notice in report["notices"]]
    assert len(notices) == 1


def test_where_nobody_can_press_a_button_a_panel_is_static_html(run_cells):
    done = run_cells([LOAD, "%nbcache panel", "%nbcache panel settings"])

    (panel,) = done.cells[1].outputs
    assert set(panel.data) == {"text/plain", "text/html"}
    assert "<details" in panel.data["text/html"] and "<style" not in panel.data["text/html"]
    assert "run this cell again" not in panel.data["text/plain"]
    assert "widgets" not in done.metadata
    assert shown(done, 2).startswith("nbcache panel") and "GRAPHS" not in shown(done, 2)
