"""`nbcache bench`: its command line, and notebooks and functions measured through the front door."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest

from nbcache.bench import command
from nbcache.bench.command import run_in_notebook
from nbcache.bench.report import VARIANTS, Run, medians
from nbcache.bench.runner import CellFailed, Home, kernel, schedule, wait_for_prewarming
from nbcache.core.errors import NbcacheError
from nbcache.ui.terminal import parser as cli
from support.front_door import run_interpreter

OWN = """\
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return model, torch.linspace(-1, 1, 24).reshape(3, 8)

def number():
    return 3
"""
COMPILES = """\
%%compile_cached total
def total(x):
    return (x * 2 + 1).relu().sum()

print(total(torch.ones(5)).item())"""


@pytest.fixture
def own(tmp_path):
    """Return a folder with a user's module and notebooks."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "bench_own.py").write_text(OWN)
    write_notebook(folder / "mine.ipynb", "%load_ext nbcache", "import torch", COMPILES, "%nbcache status")
    return folder


def write_notebook(path, *cells):
    code = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Mine"), *code]), path)


def bench(own, environ, *arguments):
    return run_interpreter(["-m", "nbcache", "bench", *arguments], environ, own)


def outcomes(row):
    return set(row["outcomes"])


# --- the command line -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nanogpt", "'nanogpt' is neither a notebook nor a function"),
        ("absent.ipynb", "there is no notebook 'absent.ipynb'"),
        ("mine.ipynb --training", "a notebook has its own cells"),
        ("my:f --runs 0", "0 is no number of runs"),
        ("--json my:f my:f", "put SUBJECT before --json"),
        ("my:f --json no/such/folder/out.json", "is no .json file in a folder"),
    ],
)
def test_wrong_usage_is_one_error_with_a_next_step(line, message, own, monkeypatch, capsys):
    monkeypatch.chdir(own)
    assert cli.main(["bench", *line.split()]) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert "next: " in shown.err


def test_a_missing_package_is_one_error_with_the_pip_command(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nbclient" else find(name))

    assert cli.main(["bench", "my:f"]) == 1
    error = capsys.readouterr().err
    assert "needs nbclient" in error
    assert "pip install 'nbcache[bench]'" in error


def test_the_command_loads_neither_torch_nor_jupyter_before_it_measures(run_python):
    code = "import json, sys, nbcache.ui.terminal.parser; print(json.dumps(sorted(sys.modules)))"
    loaded = {name.partition(".")[0] for name in json.loads(run_python(code).stdout)}

    assert not loaded & {"torch", "IPython", "ipykernel", "jupyter_client", "nbclient", "zstandard"}


def test_help_explains_variants(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["bench", "--help"])

    text = capsys.readouterr().out
    assert all(name in text for name in VARIANTS)


# --- what is measured -------------------------------------------------------------------------------


@pytest.mark.compile
def test_a_notebook_is_run_cold_with_torchs_cache_and_restored_side_by_side(own, isolated):
    before = (own / "mine.ipynb").read_bytes()

    done = bench(own, isolated, "mine.ipynb", "--json", "out.json")

    assert done.returncode == 0, done.stdout + done.stderr
    values = json.loads((own / "out.json").read_text())
    assert (values["format"], values["version"], values["interrupted"]) == ("nbcache.bench", 1, False)
    (subject,) = values["subjects"]
    rows = {row["variant"]: row for row in subject["medians"]}
    assert [*rows] == ["cold", "torch-warm", "restart", "fresh"]
    assert outcomes(rows["cold"]) == {"miss"} and rows["cold"]["kernels_compiled"] == 1
    for name in ("restart", "fresh"):
        assert outcomes(rows[name]) == {"hit"} and rows[name]["kernels_compiled"] == 0
        assert rows[name]["times_torch_warm"] > 0
    assert rows["torch-warm"]["graphs"] is None  # nbcache only stands in for its magics there
    assert all(row["agrees"] for row in rows.values())
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["seconds", *rows] in lines
    assert ["kernels", "compiled", "1", "–", "0", "0"] in lines
    assert ["printed", "text", *["same"] * 4] in lines
    assert [line[:2] for line in lines if line[0].startswith("In[3]")] == [["In[3]", "%%compile_cached"]]
    assert (own / "mine.ipynb").read_bytes() == before
    assert not list(Path(isolated["TMPDIR"]).iterdir())  # nothing is left behind


@pytest.mark.compile
def test_a_function_is_measured_and_its_results_are_those_of_the_cold_run(own, isolated):
    done = bench(own, isolated, "bench_own:make", "--training", "--idle", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    (subject,) = json.loads(done.stdout)["subjects"]
    assert (subject["model"], subject["mode"]) == ("bench_own:make", "training")
    idle = [(row["variant"], row["idle"]) for row in subject["medians"]]
    assert idle[2:] == [(name, idle) for name in ("restart", "fresh") for idle in (0.0, "full")]
    rows = {row["variant"]: row for row in subject["medians"]}
    assert outcomes(rows["cold"]) == {"miss"} and outcomes(rows["restart"]) == {"hit"}
    assert all(row["agrees"] for row in rows.values())
    cold, restart = rows["cold"]["cells"], rows["restart"]["cells"]
    assert [*cold] == ["%load_ext nbcache", "make the model", "compile and call", "call again"]
    assert rows["restart"]["cell_seconds"] == restart["compile and call"] < cold["compile and call"]
    runs = {run["variant"]: run for run in subject["runs"]}
    assert runs["restart"]["prewarm"] == "done"


@pytest.mark.compile
def test_a_cell_that_fails_is_shown_without_what_steers_a_terminal(own, isolated):
    write_notebook(own / "bad.ipynb", "# \x1b[31mred", "raise ValueError('\x1b[2Jgone\\nFAILED nothing')")

    done = bench(own, isolated, "bad.ipynb")

    assert done.returncode == 1
    assert "\x1b" not in done.stdout + done.stderr
    (failed,) = [line for line in done.stdout.splitlines() if "FAILED" in line]
    error = "ValueError: ?[2Jgone FAILED nothing (in the cell `raise ValueError("
    assert failed.startswith(f"  FAILED the first kernel: {error}")


@pytest.mark.compile
def test_without_nbcache_its_magic_compiles_with_its_options_and_forgets_them(run_python):
    code = """\
import torch
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
calls = []
def backend(graph, inputs):
    calls.append(len(inputs))
    return graph
torch._dynamo.register_backend(backend, "counted")
for cell in (
    "%load_ext nbcache.ui.ipython.torch_alone",
    "import torch",
    "%%compile_cached f --backend counted\\ndef f(x):\\n    return x + 1\\ny = f(torch.ones(3))",
    "%nbcache status",
    "g = torch.compile(lambda x: x + 1, backend='eager')(torch.ones(3))",
):
    shell.run_cell(cell).raise_error()
import sys
print(calls, shell.user_ns["y"].tolist(), "nbcache.kernel.session" in sys.modules)
"""
    assert run_python(code).stdout.splitlines()[-1] == "[1] [2.0, 2.0, 2.0] False"


def test_runs_alternate_between_variants():
    variants = [VARIANTS[name] for name in ("cold", "torch-warm", "restart")]

    planned = [(plan.variant.name, plan.number, plan.idle) for plan in schedule(variants, (0.0, "full"), 2)]

    one_round = [("cold", None), ("torch-warm", None), ("restart", 0.0), ("restart", "full")]
    assert planned == [(name, number, idle) for number in (1, 2) for name, idle in one_round]


def a_run(variant, seconds, number=1, **more):
    values = {"idle": None, "cells": {"a": seconds}, "printed": ["7"], "ready_seconds": 0.5} | more
    return Run(variant, number, cell_seconds=seconds, start_seconds=seconds + 1, **values)


def test_medians_compare_and_show_the_run_with_the_fewest_hits():
    hit: dict[str, Any] = {"outcome": "hit"}
    restored = [{"graphs": [hit | {"kernels_compiled": count}]} for count in (0, 0, 2)]
    restored[1] = {"graphs": [hit | {"outcome": "miss"}]}
    runs = [a_run("cold", 20.0), a_run("torch-warm", 4.0, printed=["8"])]
    runs += [
        a_run("restart", seconds, number, idle=0.0, reports=[report])
        for number, (seconds, report) in enumerate(zip((1.0, 2.0, 9.0), restored, strict=True), 1)
    ]

    cold, warm, restart = medians(runs)

    assert (cold["times_torch_warm"], warm["times_torch_warm"]) == (0.2, 1.0)
    assert (warm["agrees"], restart["agrees"]) == (False, True)
    assert [restart[f"cell_{name}"] for name in ("fastest", "seconds", "slowest")] == [1.0, 2.0, 9.0]
    assert (restart["outcomes"], restart["kernels_compiled"]) == ({"miss": 1}, 2)


# --- kernels ----------------------------------------------------------------------------------------


def test_a_kernel_gets_folders_of_its_own_and_none_of_the_callers_settings(tmp_path):
    settings = ("ATEN_CPU_CAPABILITY", "JPY_SESSION_NAME", "NBCACHE_SAVE", "TORCHINDUCTOR_CACHE_DIR")
    settings += ("TORCH_LOGS", "TRITON_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")
    others = (
        "CUDA_VISIBLE_DEVICES",
        "HOME",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "TRITON_PTXAS_PATH",
        "TORCH_HOME",
    )
    places = ("TMPDIR", "TRITON_HOME", "CUDA_CACHE_PATH", "NBCACHE_DIR", "NBCACHE_TRUST_DIR", "IPYTHONDIR")

    environ = Home(tmp_path / "here").environment(dict.fromkeys((*settings, *others, "TMPDIR"), "caller's"))

    assert not environ.keys() & {*settings}
    assert {environ[name] for name in others} == {"caller's"}
    assert all(environ[name].startswith(str(tmp_path / "here")) for name in places)


def test_empty_folders_keep_only_what_a_variant_is_to_find(tmp_path):
    stored, home = tmp_path / "stored", Home(tmp_path / "here")
    stored.mkdir()
    (stored / "entry").touch()
    home.empty()
    left = home.root / "tmp" / "left"
    left.touch()

    home.empty(keep_caches=True, store=stored)
    assert left.exists() and [file.name for file in home.store.iterdir()] == ["entry"]

    home.empty()
    assert left.parent.exists() and not left.exists() and not home.store.exists()


class Asked:
    """A kernel whose prewarming is in one state after the other."""

    def __init__(self, *states):
        self.states = list(states)

    def ask(self, expression):
        assert "session.prewarm.state" in expression
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


def test_prewarming_is_waited_for_until_it_is_over():
    def state(*states, most=60.0):
        return wait_for_prewarming(Asked(*states), settle=0.0, poll=0.0, most=most)

    assert state("off", "running", "done") == "done"
    assert state("switched off") == "switched off"
    assert state(None) is None
    assert state("running", most=0.0) == "running"


@contextmanager
def fresh(folder):
    home = Home(folder / "here")
    home.empty()
    with kernel(home, folder, home.environment(os.environ)) as running:
        yield running


def test_a_kernel_runs_cells_answers_and_leaves_no_process(tmp_path):
    with fresh(tmp_path) as running:
        cell = running.run("import os, subprocess; child = subprocess.Popen(['sleep', '600']); print(6 * 7)")
        assert cell.printed == "42\n" and 0 < cell.seconds < cell.ended - running.started
        assert running.ask("'a' + 'b'") == "ab"
        assert running.ask("no_such_name") is None
        with pytest.raises(CellFailed, match=r"ValueError: wrong more \(in the cell `raise"):
            running.run("raise ValueError('wrong\\nmore')")
        processes = running.ask("f'{os.getpid()} {child.pid}'") or ""
        assert len(processes.split()) == 2

    for process in processes.split():
        stat = Path(f"/proc/{process}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.compile
def test_a_kernel_that_dies_says_so(tmp_path):
    with fresh(tmp_path) as running, pytest.raises(CellFailed, match="the kernel died"):
        running.run("import os; os._exit(3)")


# --- interrupts, and notebooks ----------------------------------------------------------------------


@pytest.mark.compile
def test_an_interrupt_shows_what_was_measured_and_leaves_no_kernel(own, isolated):
    write_notebook(own / "quick.ipynb", "1 + 1")
    process = subprocess.Popen(
        [sys.executable, "-m", "nbcache", "bench", "quick.ipynb", "--runs=1000"],
        cwd=own,
        env=isolated,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "run 1 · restart" in line:
            break
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "quick.ipynb" in shown and "In[1] 1 + 1" in shown
    assert not list(Path(isolated["TMPDIR"]).iterdir())


@pytest.mark.compile
def test_an_interrupted_cell_ends_the_command_that_it_runs(own, isolated, run_python):
    write_notebook(own / "quick.ipynb", "1 + 1")
    code = textwrap.dedent(f"""\
        import os, signal, sys
        from nbcache.bench.command import run_in_notebook

        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a kernel does

        class Interrupting:
            def write(self, text):
                sys.__stdout__.write(text)
                if "run 1 · restart" in text:
                    os.kill(os.getpid(), signal.SIGINT)

            def flush(self):
                pass

        sys.stdout = Interrupting()
        try:
            run_in_notebook([{str(own / "quick.ipynb")!r}, "--runs", "1000"])
        except KeyboardInterrupt:
            print("it was interrupted")
    """)
    shown = run_python(code).stdout

    assert "medians of 1000" in shown and shown.endswith("it was interrupted\n")
    assert not list(Path(isolated["TMPDIR"]).iterdir())


@pytest.mark.compile
def test_a_kernel_whose_start_is_interrupted_ends_before_its_folder_is_removed(tmp_path, run_python):
    code = textwrap.dedent(f"""\
        import os
        from pathlib import Path
        from nbclient import NotebookClient
        from nbcache.bench import runner

        def interrupt(client):
            started.append(runner._children())
            raise KeyboardInterrupt

        started, folder = [], Path({str(tmp_path)!r})
        NotebookClient.start_new_kernel_client = interrupt
        home = runner.Home(folder)
        home.empty()
        try:
            with runner.kernel(home, folder, home.environment(os.environ)):
                pass
        except KeyboardInterrupt:
            print([len(started[0]), len(runner._children())])
    """)
    assert json.loads(run_python(code).stdout) == [1, 0]


def test_a_command_that_stays_alive_after_its_output_is_killed_and_is_one_error(monkeypatch, capsys):
    stays = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)\n"
        "os.close(1); os.close(2); time.sleep(600)"
    )
    real = subprocess.Popen
    processes = []

    def popen(arguments, **options):
        processes.append(real([sys.executable, "-c", stays], **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(command, "_STOP_SECONDS", 0.1)

    with pytest.raises(NbcacheError, match="has not ended 0 s after its last output, and is killed"):
        run_in_notebook(["my:f"])

    assert capsys.readouterr().out == "1\n" and processes[0].returncode == -signal.SIGKILL
