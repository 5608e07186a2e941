"""Kernels that start with torch imported, through real ones, as Jupyter starts them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from nbcache.torch_bridge.torch_behavior import release, torch_version
from support.front_door import SESSION, reply_to
from support.nurseries import ROOT, Place, Start, ends, launcher_of, nursery_of, process_of
from support.redis_servers import wait_until

pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("files of packages")]  # for its fixtures

KNOWN = """\
import os, random, resource, signal, sys, threading
def files():  # but those of the history, which a thread writes now and then
    paths = ["/proc/self/fd/" + each for each in os.listdir("/proc/self/fd")]
    kinds = [os.readlink(path).partition(":")[0] for path in paths if os.path.islink(path)]
    others = ("/proc", os.path.join(os.environ["IPYTHONDIR"], "profile_default"))
    return sorted(each for each in kinds if not each.startswith(others))
def known():
    import asyncio, atexit, gc, locale, logging, multiprocessing, tempfile, warnings
    return {
        "modules": sorted(sys.modules),
        "environ": {name: value for name, value in os.environ.items() if name != "JPY_PARENT_PID"},
        "path": sys.path,
        "meta path": [type(each).__name__ for each in sys.meta_path if "Hidden" not in type(each).__name__],
        "flags": str(sys.flags),
        "arguments": [each for each in sys.argv if not each.endswith(".json")],
        "command": [each for each in sys.orig_argv if not each.endswith(".json")],
        "folder": os.getcwd(),
        "umask": os.umask(0o22),
        "limits": [resource.getrlimit(each) for each in range(16)],
        "signals": {each.name: str(signal.getsignal(each)).split(" at ")[0] for each in signal.valid_signals()
                    if isinstance(each, signal.Signals)},
        "threads": sorted(each.name.rstrip("0123456789-") for each in threading.enumerate()),
        "main": threading.main_thread().ident == threading.get_ident(),
        "files": files(),
        "streams": [(each.name, each.mode, each.encoding, each.errors, each.line_buffering)
                    for each in (sys.__stdin__, sys.__stdout__, sys.__stderr__)],
        "folder for files": tempfile.gettempdir(),
        "loggers": sorted(logging.root.manager.loggerDict),
        "warnings": [str(each) for each in warnings.filters],
        "main module": sys.modules["__main__"].__name__,
        "parent": multiprocessing.parent_process() is None,
        "locale": locale.setlocale(locale.LC_ALL),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "name": __name__,
    }
"""
TORCH = """\
import torch, numpy
told = [torch.__config__.show(), torch.__config__.parallel_info(), torch.get_num_threads(),
        torch.is_grad_enabled(), torch.cuda.is_initialized(),
        str(torch.get_default_dtype()), torch.__spec__.name,
        type(torch.__spec__.loader).__name__, torch._C.__spec__.name]
"""


def test_a_forked_kernel_is_as_a_fresh_one_and_has_torch_at_once(place: Place, start: Start) -> None:
    forked, ordinary = start(), start(OMP_PROC_BIND="false")  # for which there is no nursery

    assert nursery_of(forked) in {each["process"] for each in place.nurseries() if each["kernels"]}
    assert nursery_of(ordinary) == 0
    told = []
    for kernel in (forked, ordinary):
        kernel.run(KNOWN)
        known = kernel.ask("known()")
        kernel.run(TORCH)
        told.append({**known, "torch": kernel.ask("told")})
        assert (
            kernel.ask("round(float((numpy.ones((200, 200)) @ numpy.ones((200, 200))).sum()))") == 8_000_000
        )
    one, other = told
    del other["environ"]["OMP_PROC_BIND"]
    more = {*one.pop("modules")} ^ {*other.pop("modules")}
    # Extensions that Cython made, such as CUDA's, share their types in a module that has no spec.
    more = {name.partition(".")[0] for name in more if not name.startswith("_cython_")}
    assert more <= {"gc", "multiprocessing", "nbcache"}
    for made_at_import in ("loggers", "warnings"):  # those of what is imported ahead are there already
        assert {*one.pop(made_at_import)} >= {*other.pop(made_at_import)}
    assert {*one["environ"].items()} ^ {*other["environ"].items()} == set()
    assert one == other
    random = (
        "(__import__('random').random(), __import__('numpy').random.rand(), __import__('uuid').uuid4().hex)"
    )
    keys = "bytes(__import__('multiprocessing').current_process().authkey).hex()"
    again = start()
    seed = "__import__('torch').initial_seed()"
    for each in (random, keys, seed):
        assert forked.ask(each) != again.ask(each)


def test_it_is_interrupted_restarted_and_ended_as_an_ordinary_one(start: Start, tmp_path: Path) -> None:
    kernel, runs = start(), tmp_path / "runs"
    child = f"import time; open({str(runs)!r}, 'w').close(); time.sleep(99)"
    process = process_of(kernel)
    cell = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    sent = kernel.client.execute(cell, stop_on_error=False)  # or what is asked next may be given up as well
    wait_until(runs.exists, "the child runs")  # before, Python itself may lose the interrupt
    children = process.children()
    kernel.manager.interrupt_kernel()
    assert ends(children[0])
    assert reply_to(kernel.client, sent)["content"]["ename"] == "KeyboardInterrupt"
    assert kernel.ask("1 + 1") == 2

    kernel.manager.restart_kernel(now=False)
    kernel.client.wait_for_ready(timeout=60)
    assert ends(process)
    assert nursery_of(kernel)
    process, launcher = process_of(kernel), launcher_of(kernel)
    kernel.manager.shutdown_kernel(now=False)
    assert ends(process) and ends(launcher)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.proof)])
def test_one_does_not_outlive_the_other(start: Start, number: signal.Signals) -> None:
    kernel = start()
    process, launcher = process_of(kernel), launcher_of(kernel)
    launcher.send_signal(number)
    assert ends(process) and ends(launcher)

    kernel = start()
    process, launcher = process_of(kernel), launcher_of(kernel)
    process.send_signal(signal.SIGKILL)
    assert kernel.manager.provisioner is not None
    assert kernel.manager.provisioner.process.wait(60) == -signal.SIGKILL  # type: ignore[attr-defined]

    kernel = start()
    process, launcher = process_of(kernel), launcher_of(kernel)
    watcher = process.parent()
    assert watcher is not None
    watcher.kill()
    assert ends(process) and ends(launcher)


def test_a_file_that_the_launcher_was_given_besides_the_standard_streams_is_the_kernels(
    place: Place, start: Start
) -> None:
    read, write = os.pipe()
    try:
        kernel = place.start_with(pass_fds=(write,))
        assert nursery_of(kernel) == 0
        kernel.run(f"import os; os.write({write}, b'here')")
        assert os.read(read, 4) == b"here"
    finally:
        os.close(read)
        os.close(write)


def test_its_exit_status_is_that_of_the_kernel(start: Start) -> None:
    kernel = start()
    kernel.begin("import os; os._exit(3)")
    assert kernel.manager.provisioner.process.wait(20) == 3  # type: ignore[union-attr]


@pytest.mark.proof
def test_kernels_live_on_without_their_nursery_and_the_next_one_is_ordinary(own_place: Place) -> None:
    own_place.nbcache("start")
    kernel = own_place.start()
    os.kill(nursery_of(kernel), signal.SIGKILL)
    time.sleep(1.5)  # ipykernel looks after its parent each second
    assert kernel.ask("__import__('torch').ones(2).sum().item()") == 2.0
    assert nursery_of(own_place.start()) == 0
    own_place.nbcache("start")  # or the one that the ordinary kernel has started
    assert nursery_of(own_place.start())


@pytest.mark.parametrize(
    ("variables", "file"),
    [
        ({"NBCACHE_TEST": "1"}, ""),
        ({"PYTHONPATH": f"{ROOT}:/nowhere"}, ""),
        ({}, "torch.py"),
        ({}, "torch/__init__.py"),
        ({}, "torch/weights.bin"),  # Python finds the package torch, wherever it is, before such a folder
        ({"VSCODE_PID": "1", "TERM": "dumb"}, "my_torch.py"),
    ],
)
def test_a_kernel_is_forked_only_where_all_that_was_imported_would_be_the_same(
    place: Place, start: Start, variables: dict[str, str], file: str
) -> None:
    if file:
        (place.cwd / file).parent.mkdir(exist_ok=True)
        (place.cwd / file).write_text("")
    try:
        kernel = start(**variables)
        assert bool(nursery_of(kernel)) == (file in ("my_torch.py", "torch/weights.bin"))
        assert kernel.ask("__import__('numpy').ones(2).sum().item()") == 2.0
    finally:
        if file:
            (place.cwd / file).unlink()
            if "/" in file:
                (place.cwd / file).parent.rmdir()


def test_a_notebook_beside_the_package_that_is_imported_ahead_is_forked(place: Place, start: Start) -> None:
    (place.cwd / "nbcache").symlink_to(ROOT / "nbcache")
    try:
        assert nursery_of(start())
    finally:
        (place.cwd / "nbcache").unlink()


def test_signals_are_ignored_and_blocked_as_the_launcher_has_them(place: Place, start: Start) -> None:
    def prepare() -> None:
        for number in (signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

    forked, ordinary = (
        place.start_with(environ, preexec_fn=prepare) for environ in ({}, {"OMP_PROC_BIND": "false"})
    )
    assert nursery_of(forked) and not nursery_of(ordinary)
    asked = "[line for line in open('/proc/self/status') if line.startswith(('SigB', 'SigI'))]"
    assert forked.ask(asked) == ordinary.ask(asked)
    assert int(forked.ask(asked)[0].split()[1], 16) >> (signal.SIGUSR2 - 1) & 1  # else it shows nothing


@pytest.mark.parametrize(
    "file",
    [
        "sitecustomize.py",
        *(pytest.param(each, marks=pytest.mark.proof) for each in ("own_too.py", "sympy.py")),
    ],
)
def test_what_has_changed_on_disk_ends_the_nursery(own_place: Place, file: str) -> None:
    place, library = own_place, own_place.folder / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text("")  # every Python imports it
    (library / "own.py").write_text("")
    place.environ["PYTHONPATH"] = f"{library}:{place.environ['PYTHONPATH']}"
    place.nbcache("start")

    (library / "own.py").write_text("edited = True")  # which is not imported ahead
    (library / "saved.ipynb").write_text("")
    kernel = place.start()
    assert nursery_of(kernel)
    assert kernel.ask("__import__('own').edited")
    (library / file).write_text("edited = True")
    assert not nursery_of(place.start())


def test_the_command_starts_a_nursery_where_one_has_changed_or_is_of_another_environment(
    own_place: Place,
) -> None:
    library = own_place.folder / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text("")
    own_place.environ["PYTHONPATH"] = f"{library}:{own_place.environ['PYTHONPATH']}"

    def started() -> int:
        process: int = json.loads(own_place.nbcache("start", "--json"))["process"]
        return process

    own_place.environ["OMP_NUM_THREADS"] = "1"
    other = started()
    del own_place.environ["OMP_NUM_THREADS"]
    before = started()
    assert before != other and started() == before

    (library / "sitecustomize.py").write_text("edited = True")
    after = started()
    assert after not in (before, other) and nursery_of(own_place.start()) == after


def test_a_folder_that_others_can_use_is_not_used(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.nbcache("status")
    folder = tmp_path / f"nbcache-kernels-{os.geteuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    kernel = place.start()
    assert nursery_of(kernel) == 0
    assert [*folder.iterdir()] == []
    place.end(kernel)


def test_variables_that_come_too_late_for_torch_are_told(start: Start) -> None:
    kernel = start()
    kernel.run("import os; os.environ['OMP_NUM_THREADS'] = '1'")
    said = kernel.run(
        "import warnings\nwith warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n    import torch\nprint([str(each.message) for each in caught])"
    )
    assert "OMP_NUM_THREADS changed after this kernel was started with torch imported" in said


def test_an_ordinary_kernel_says_why_it_was_not_forked(place: Place, start: Start) -> None:
    (place.cwd / "sympy.py").write_text("")
    try:
        kernel = start()
    finally:
        (place.cwd / "sympy.py").unlink()
    assert nursery_of(kernel) == 0
    kernel.run("%load_ext nbcache")
    why = "sympy.py in the notebook's folder has the name of a module that is imported ahead"
    assert why in kernel.run("%nbcache doctor --json")
    said = place.nbcache("status")
    assert "last kernel that was not forked:" in said and why in said


def test_the_extension_finds_the_imports_done(start: Start) -> None:
    kernel = start()
    assert "nbcache: loaded, imports done ahead" in kernel.run("%load_ext nbcache")
    assert json.loads(kernel.run("%nbcache status --json"))["nursery"] == nursery_of(kernel)
    said = kernel.run(
        "import torch\nf = torch.compile(lambda x: x.sin() + 1, backend='eager')\nprint(f(torch.zeros(2)))"
    )
    assert "tensor([1., 1.])" in said
    assert kernel.ask(f"[graph.function for graph in {SESSION}.graphs]") == ["<lambda>"]


def test_loading_the_extension_begins_to_read_what_is_stored(start: Start) -> None:
    kernel = start()
    kernel.run("import os; os.environ['NBCACHE_PREWARM'] = 'on'")
    assert kernel.ask("'torch' in __import__('sys').modules") is False
    kernel.run("%load_ext nbcache\nimport sys\nfound = 'torch' in sys.modules")
    assert kernel.ask("found")
    assert kernel.ask(f"{SESSION}.environment is not None")
    kernel.run("os.environ['OMP_NUM_THREADS'] = '1'")
    kernel.wait_until(f"any('OMP_NUM_THREADS' in each for each in {SESSION}.notices)")


@pytest.mark.skipif(release(torch_version() or "0.0") != (2, 13), reason="the list is of torch 2.13")
def test_a_compile_that_hits_imports_nothing_more_and_finds_torchs_sources_hashed(start: Start) -> None:
    cell = "with torch.no_grad(): print(torch.compile(torch.nn.Linear(4, 4))(torch.ones(2, 4)).shape)"
    for kernel in (start(), start()):
        kernel.run("import sys, torch; utils = torch._dynamo.utils; had = {*sys.modules}")
        assert kernel.ask("dict(utils.compilation_time_metrics)") == {}
        kernel.run(cell)
    counted = kernel.ask("utils.counters['inductor']['fxgraph_cache_hit']")
    hashed = kernel.ask("utils.compilation_time_metrics.get('inductor_codecache_torch_key')")
    more = kernel.ask("sorted(each for each in {*sys.modules} - had if each.startswith('torch.'))")
    assert (counted, hashed) == (1, None)
    assert [each for each in more if ".compile_tasks." not in each] == []


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.proof)])
def test_starts_and_kills_leave_no_process_and_no_open_file(place: Place, start: Start, count: int) -> None:
    process = psutil.Process(nursery_of(start()))
    files = process.num_fds()
    for number in range(count):
        kernel = place.start()
        assert nursery_of(kernel) == process.pid
        if number % 2:
            launcher_of(kernel).kill()
        place.end(kernel)
    # what watches the first kernel, and that kernel
    wait_until(lambda: len(process.children(recursive=True)) == 2, "the other kernels have ended")
    assert process.num_fds() == files and process.num_threads() <= 2  # one of them numpy's
