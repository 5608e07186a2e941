"""Prewarming, through real kernels that are left idle."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import psutil
import pytest

from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.encoding import decode_entry, decode_ref
from support.front_door import CALL, DEFINE, LOAD, LOG, REPORTS, SESSION, SET_UP, Kernel, RunPython
from support.torch_versions import needs_traces

pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("prewarm")]  # for its fixtures

EXTENSION = "__import__('nbcache').ui.ipython.extension._extension"
StartKernel = Callable[..., Kernel]

COUNT = """\
import sys
started = []
def hook(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"):
        if arguments[:1] != ("/sbin/ldconfig",):  # by which a torch for CUDA looks for its libraries
            started.append((event, repr(arguments)[:200]))
sys.addaudithook(hook)
"""
STARTED = "print(started)"
THREAD = """\
import threading
go = threading.Event()
threading.Thread(target=go.wait, daemon=True).start()
"""
TORCH_KNOWS = """\
import torch._dynamo.utils as utils, torch._dynamo.convert_frame as convert_frame, torch._dynamo.pgo as pgo
print([
    dict(utils.counters), len(utils.get_compilation_metrics()), utils.graph_break_reasons,
    convert_frame.FRAME_COUNTER, dict(convert_frame.FRAME_COMPILE_COUNTER), utils.curr_frame,
    pgo._CODE_STATE, torch.compiler.save_cache_artifacts() is None,
    torch.is_grad_enabled(), torch._dynamo.config.automatic_dynamic_shapes, torch.initial_seed(),
])
"""


def kernel_after(start_kernel: StartKernel, environ: dict[str, str], *cells: str) -> Kernel:
    kernel = start_kernel(environ)
    for cell in cells:
        kernel.run(cell)
    return kernel


def graphs(kernel: Kernel) -> list[dict[str, object]]:
    return [graph for report in json.loads(kernel.run(REPORTS)) for graph in report["graphs"]]


def slices(kernel: Kernel) -> list[str]:
    return kernel.ask(f"[each.name for each in {SESSION}.prewarm.slices]")  # type: ignore[no-any-return]


def test_an_idle_kernel_sets_the_compiler_up_and_starts_no_process(
    prewarming: dict[str, str], start_kernel: StartKernel, cold: tuple[Path, nbformat.NotebookNode]
) -> None:
    kernel = kernel_after(start_kernel, prewarming, f"{COUNT}\n{LOG}", LOAD)
    kernel.idle()

    assert kernel.ask("'torch._inductor.compile_fx' in __import__('sys').modules")
    names = [name for name in slices(kernel) if not name.startswith("read torch.")]
    begun = names.index("trace a sample")
    assert names[begun + 1 : begun + 4] == [*["restore a sample for cpu"] * 2, "vector instruction sets"]
    assert {*names[begun + 4 :]} <= {"record a trace", "adopt a trace", "read a trace"}
    read = kernel.ask("[*__import__('torch')._dynamo.funcname_cache.cache]")
    assert {"conv.py", "normalization.py"} <= {Path(file).name for file in read}
    assert kernel.ask(f"{SESSION}.graphs") == []
    for cell in (SET_UP, DEFINE):
        kernel.run(cell)
    said = kernel.run(CALL)
    assert said.splitlines()[-1] == last_line(cold[1])
    found = graphs(kernel)
    assert [graph["outcome"] for graph in found] == ["hit"] * 4
    assert {graph["level"] for graph in found} == {"L1"}
    assert {graph["compile_id"] for graph in found} == {"0/0", "1/0"}
    assert kernel.run(STARTED) == "[]\n"
    assert not list(Path(prewarming["TMPDIR"]).rglob("*.gch"))


def last_line(notebook: nbformat.NotebookNode) -> str:
    return "".join(
        each.text for each in notebook.cells[3].outputs if each.output_type == "stream"
    ).splitlines()[-1]


def test_the_sample_leaves_no_trace_in_torch_or_in_random_numbers(
    prewarming: dict[str, str], start_kernel: StartKernel
) -> None:
    state = "import torch; torch.manual_seed(3)"
    told = []
    for prewarm in ("off", "on"):
        kernel = kernel_after(start_kernel, {**prewarming, "NBCACHE_PREWARM": prewarm}, state, LOAD)
        if prewarm == "on":
            kernel.idle()
            assert slices(kernel).count("restore a sample for cpu") == 2
        told.append((kernel.run("print(torch.rand(4))"), kernel.run(TORCH_KNOWS)))
    assert told[0] == told[1]


def test_an_incomplete_sample_is_compiled_again_by_a_process_of_its_own(
    prewarming: dict[str, str], start_kernel: StartKernel, run_python: RunPython
) -> None:
    """Graphs and kernels are gone from the store, and what says that they are there is not."""
    forget = """\
import os
from nbcache.storage.backends.directory import DirectoryStore
from nbcache.storage.encoding import decode_entry, decode_ref
store = DirectoryStore(os.environ["NBCACHE_DIR"])
for key in list(store.keys("ref/")):
    if decode_ref(decode_entry(store.get(key), max_bytes=1 << 20)).type != "probe":
        store.delete(key)
"""
    run_python(forget, prewarming)
    kernel = kernel_after(start_kernel, prewarming, COUNT, LOAD)
    kernel.idle()

    assert kernel.run(STARTED).count("nbcache.torch_bridge") == 1
    assert "vector instruction sets" in slices(kernel)  # what comes after a sample that was a hit
    assert kernel.ask(f"{SESSION}.prewarm.state") == "done"


def test_where_the_sample_cannot_be_compiled_that_is_tried_once(
    isolated: dict[str, str], start_kernel: StartKernel, tmp_path: Path
) -> None:
    del isolated["NBCACHE_PREWARM"]
    (tmp_path / "bin").mkdir()
    isolated["PATH"] = str(tmp_path / "bin")  # no compiler
    tried = []
    for _ in range(2):
        kernel = kernel_after(start_kernel, isolated, COUNT, LOAD)
        kernel.idle()
        kernel.run("%nbcache flush")
        tried.append(kernel.run(STARTED).count("nbcache.torch_bridge"))
        assert kernel.ask(f"{SESSION}.prewarm.state") == "done"
    assert tried == [1, 0]


def test_cells_that_run_and_await_are_left_alone_and_off_is_off(
    prewarming: dict[str, str], start_kernel: StartKernel
) -> None:
    kernel = start_kernel(prewarming)
    kernel.run(LOAD + "\nimport asyncio, nbcache\nwarm = nbcache.session().prewarm")
    kernel.run("before = len(warm.slices)\nawait asyncio.sleep(1.5)\nprint(len(warm.slices) - before)")
    assert kernel.run("print(len(warm.slices) - before)") == "0\n"
    kernel.wait_until("len(warm.slices) > before")
    kernel.run("%nbcache config prewarm=off")
    done = kernel.ask("len(warm.slices)")
    kernel.run("import time; time.sleep(0.01)")
    with pytest.raises(AssertionError, match="never came true"):
        kernel.wait_until(f"len(warm.slices) > {done}", seconds=1)
    kernel.run("%nbcache config prewarm=on")
    kernel.idle()
    assert kernel.ask("warm.state") == "done"


def test_a_variable_that_torch_has_read_already_is_warned_of(
    prewarming: dict[str, str], start_kernel: StartKernel
) -> None:
    kernel = kernel_after(start_kernel, prewarming, LOAD)
    kernel.wait_until("'torch' in __import__('sys').modules")  # amid the imports
    kernel.run("import os; os.environ['OMP_NUM_THREADS'] = '1'; os.environ['CUDA_VISIBLE_DEVICES'] = '0'")
    kernel.wait_until(f"{SESSION}.notices")
    kernel.run("1")

    (notice,) = kernel.ask(f"{SESSION}.reports[-1].notices")
    assert notice.startswith("OMP_NUM_THREADS changed after nbcache had imported torch ahead")
    kernel.run("import torch; os.environ['OMP_NUM_THREADS'] = '2'")  # now it is the user's own import


BACKGROUND = """\
import psutil
def background():
    "Return the states of the process that compiles the sample, and of its children."
    own = psutil.Process()
    return {each.status() for child in own.children() for each in (child, *child.children(recursive=True))}
"""


UNTIL_STOPPED = """\
import time
while background() - {"stopped"}:  # it is stopped once it holds no lock
    time.sleep(0.05)
"""


def test_the_sample_is_compiled_only_between_cells_and_its_finished_graphs_stay(
    with_headers: dict[str, str], start_kernel: StartKernel
) -> None:
    del with_headers["NBCACHE_PREWARM"]
    store = DirectoryStore(with_headers["NBCACHE_DIR"])

    def stored() -> set[str]:
        refs = (
            decode_ref(decode_entry(store.get(key) or b"", max_bytes=1 << 20)) for key in store.keys("ref/")
        )
        return {ref.key for ref in refs if ref.type == "inductor"}

    before = stored()
    kernel = kernel_after(start_kernel, with_headers, BACKGROUND + LOAD)
    kernel.wait_until("background()")
    kernel.run(UNTIL_STOPPED)
    kernel.wait_until("background() - {'stopped'}")
    while not (finished := stored() - before):
        kernel.wait_until("True")
    kernel.begin("import time; time.sleep(600)")  # the process is stopped while the kernel ends
    kernel.end()
    assert finished <= stored()


def test_a_stopped_sample_compile_ends_with_its_killed_kernel(
    with_headers: dict[str, str], start_kernel: StartKernel
) -> None:
    del with_headers["NBCACHE_PREWARM"]
    kernel = kernel_after(start_kernel, with_headers, BACKGROUND + LOAD)
    kernel.wait_until("background()")
    own = psutil.Process(kernel.ask("psutil.Process().pid"))
    kernel.begin("import time; time.sleep(600)")
    (child,) = own.children()
    while child.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    own.kill()
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running()


def test_unloading_ends_it(with_headers: dict[str, str], start_kernel: StartKernel) -> None:
    del with_headers["NBCACHE_PREWARM"]
    kernel = kernel_after(start_kernel, with_headers, "import psutil", LOAD)
    kernel.wait_until("len(psutil.Process().children())")
    kernel.run("%unload_ext nbcache")
    assert kernel.run("print([child.status() for child in psutil.Process().children()])") == "[]\n"


def test_what_was_imported_before_torch_changes_no_key(
    prewarming: dict[str, str], start_kernel: StartKernel
) -> None:
    """Torch's keys hold the name of the first module that knows torch: here it would be `__mp_main__`."""
    kernel = kernel_after(start_kernel, {**prewarming, "NBCACHE_PREWARM": "off"}, "import multiprocessing")
    for cell in (LOAD, SET_UP, DEFINE, CALL):
        kernel.run(cell)
    assert [graph["outcome"] for graph in graphs(kernel)] == ["hit"] * 4


POOL = """\
import concurrent.futures, threading
go = threading.Event()
pool = concurrent.futures.ThreadPoolExecutor(1)
pool.submit(go.wait)
"""
ASYNCIO = """\
import asyncio, threading
go = threading.Event()
waiting = asyncio.ensure_future(asyncio.to_thread(go.wait))
await asyncio.sleep(0.1)
"""


NAMED = """\
import threading
go = threading.Event()
threading.Thread(target=lambda: go.wait(), name="loader", daemon=True).start()
"""


def test_no_import_of_ours_runs_beside_a_thread_of_the_users(
    prewarming: dict[str, str], start_kernel: StartKernel
) -> None:
    kernel = kernel_after(start_kernel, prewarming, LOAD)
    for begin in (THREAD, NAMED, POOL, ASYNCIO):
        kernel.run(begin)
        assert kernel.ask(f"{EXTENSION}._imported_elsewhere()")
        kernel.run("go.set()")
        kernel.wait_until(f"not {EXTENSION}._imported_elsewhere()")
    kernel.idle()


def test_a_hot_call_passes_through_nothing_of_ours(
    prewarming: dict[str, str], start_kernel: StartKernel
) -> None:
    profile = """\
import os, sys
import nbcache
ours, folder = set(), os.path.dirname(nbcache.__file__)
def note(frame, event, argument):
    if frame.f_code.co_filename.startswith(folder):
        ours.add(frame.f_code.co_qualname)
sys.setprofile(note)
loss = loss_of(x); loss.backward()
sys.setprofile(None)
print(ours)
"""
    # The function prints, and a live line has to know of what is printed.
    environ = {**prewarming, "NBCACHE_PREWARM": "off", "NBCACHE_LIVE": "off"}
    kernel = kernel_after(start_kernel, environ, LOAD, SET_UP, DEFINE, CALL, CALL)
    # Of a trace, a function stands for one of torch's that hands its arguments on as a list.
    assert kernel.run(profile).splitlines()[-1] == "{'load_graph.<locals>.forward'}"
    kernel.run("%nbcache config trace=off\ntorch._dynamo.reset()")
    for cell in (DEFINE, CALL, CALL):
        kernel.run(cell)
    assert kernel.run(profile).splitlines()[-1] == "set()"


def test_the_samples_backward_stays_on_its_thread(run_python: RunPython) -> None:
    """On a GPU another thread of autograd's would wait for the lock that the sample's compile holds."""
    run_python(
        """\
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from nbcache.kernel.session import Session
from nbcache.core.settings import Settings
from nbcache.storage.backends.memory import MemoryStore
from nbcache.parts import make_bridge
from nbcache.torch_bridge import prewarm

multithreaded = []
def compile_backward(graph, inputs):
    multithreaded.append(torch.autograd.is_multithreading_enabled())
    return make_boxed_func(graph.forward)
forward = lambda graph, inputs: make_boxed_func(graph.forward)
backend = aot_autograd(fw_compiler=forward, bw_compiler=compile_backward)
torch._dynamo.register_backend(backend, name="watched")
session = Session(Settings(), make_bridge(), MemoryStore("store"))
session.start()
prewarm.compile_sample(session, "cpu", training=True, backend="watched")
assert multithreaded == [False], multithreaded
assert torch.autograd.is_multithreading_enabled()
""",
        having="torch",
    )


CELLS = (
    SET_UP,
    "f = torch.compile(model, mode='lite')",
    "y = f(x).square().mean()\ny.backward()\nprint(y.item())",
    "with torch.no_grad(), torch.autocast('cpu'):\n    print(f(torch.ones(3, 16)).sum().item())",
)
TRIED = ["record a trace", "adopt a trace"]


def slices_of_traces(kernel: Kernel) -> list[str]:
    return [name for name in slices(kernel) if "trace" in name and name != "trace a sample"]


@needs_traces
def test_a_trace_is_tried_and_read_ahead_while_no_cell_runs_and_then_adopted(
    prewarming: dict[str, str], start_kernel: StartKernel
) -> None:
    tracing = {**prewarming, "NBCACHE_NOTEBOOK": "traced.ipynb"}
    cold = kernel_after(start_kernel, tracing, LOAD)
    expected = [cold.run(cell) for cell in CELLS]
    cold.idle()
    assert slices_of_traces(cold) == TRIED
    assert cold.ask(f"{SESSION}.notices") == []
    cold.end()

    kernel = kernel_after(start_kernel, tracing, LOAD)
    kernel.idle()
    assert slices_of_traces(kernel) == [*TRIED, "read a trace", "read a trace"]
    assert [kernel.run(cell) for cell in CELLS] == expected
    assert [graph["trace"] for graph in graphs(kernel)] == ["adopted", None, "adopted"]
    assert kernel.ask(f"{SESSION}.notices") == []


@needs_traces
@pytest.mark.proof
def test_without_a_sample_nothing_is_tried_and_traces_stay(
    isolated: dict[str, str], start_kernel: StartKernel, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    del isolated["NBCACHE_PREWARM"]
    without_compiler = {**isolated, "NBCACHE_TRACE": "on", "PATH": str(tmp_path / "empty")}
    kernel = kernel_after(start_kernel, without_compiler, LOAD)
    kernel.idle()
    assert slices_of_traces(kernel) == TRIED
    assert kernel.ask(f"{SESSION}.notices") == []
