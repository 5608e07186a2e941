"""`nbcache run` of notebooks that go wrong, in real kernels."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import nbformat
import pytest

from nbcache.ui.terminal import headless
from support import kernel_ports
from support.front_door import KERNEL, kernel_specs, run_interpreter

pytestmark = pytest.mark.compile

Ran = Callable[..., "CompletedProcess[str]"]

DIE_NEXT = "import os; get_ipython().events.register('pre_run_cell', lambda info: os._exit(1))"


@pytest.fixture
def ran(isolated, tmp_path):
    """Return a function that runs a notebook of some cells by the command.

    `ran(*cells, spec=None, **environ)`: a cell is its source, or a cell; `spec` changes the kernel's
    specification.
    """

    def ran(*cells, spec=None, **environ):
        data = Path(isolated["JUPYTER_DATA_DIR"])
        kernel_specs(data, sys.executable, forked=True)
        described = data / "kernels" / KERNEL / "kernel.json"
        described.write_text(json.dumps(json.loads(described.read_text()) | (spec or {})))
        notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": KERNEL, "display_name": ""}})
        for cell in cells:
            notebook.cells.append(nbformat.v4.new_code_cell(cell) if isinstance(cell, str) else cell)
        nbformat.write(notebook, tmp_path / "model.ipynb")
        return run_interpreter(
            ["-m", "nbcache", "run", "model.ipynb"], {**isolated, **environ}, tmp_path, having="IPython"
        )

    return ran


def test_what_cells_do_with_their_names_and_expected_errors_is_no_failure(ran):
    expected = nbformat.v4.new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]})
    done = ran("json = nbcache = print = None", "del print", "def print(*_): raise OSError", expected)
    assert (done.returncode, done.stdout) == (0, "model.ipynb: 0 of 0 graphs hit\n")


def test_what_the_kernel_warned_of_is_told(ran):
    done = ran("1", NBCACHE_SHARED_URL="nothing://hunter2@host")
    assert done.returncode == 0
    origin = "environment, NBCACHE_SHARED_URL"
    told = f"no shared store ({origin}), so only the local one is used: there is no store with"
    assert f"\n  ! {told}" in done.stdout
    assert "Next: give a path, or a URL" in done.stdout and "hunter2" not in done.stdout + done.stderr


def test_a_miss_in_a_cell_that_is_the_same_as_last_time_is_named(ran):
    define = "import torch\ndef f(x): return x + 1\nf = torch.compile(f, mode='lite')"
    call = "with torch.no_grad(): f(torch.ones(3))"
    first = ran(define, call)
    again = ran(define, "torch.set_num_threads(torch.get_num_threads() + 1)", call)

    assert [done.stdout.splitlines()[0] for done in (first, again)] == ["model.ipynb: 0 of 1 graph hit"] * 2
    line = "  1 graph missed in cells that are the same as last time: In[4] f inference"
    assert line not in first.stdout and line in again.stdout.splitlines()


@pytest.mark.parametrize(
    ("cells", "what", "next_step"),
    [
        (["%unload_ext nbcache"], "did not answer which graphs they compiled: ", "neither unload nbcache"),
        (["import sys; sys.stdout = open('out', 'w')"], "compiled: its output", "print or sys.stdout"),
        (["import os", "os._exit(1)", "1"], "its kernel died at cell 2", "ends the kernel"),
        ([DIE_NEXT], "its kernel died at its end", "ends the kernel"),
    ],
)
def test_a_notebook_that_cannot_tell_what_compiled_fails_with_one_line_and_a_next_step(
    ran, cells, what, next_step
):
    done = ran(*cells)

    assert (done.returncode, done.stdout) == (1, "")
    progress, error, following = done.stderr.splitlines()[-3:]
    assert progress.startswith("cell ")
    assert error.startswith("SnapshotError: ") and what in error and error.endswith("(model.ipynb)")
    assert following.startswith("  next: ") and next_step in following


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"argv": ["false"]}, "its kernel 'nbcache-test' does not start: "),
        ({"env": {"NBCACHE_MAX_BYTES": "lots"}}, "its kernel cannot load nbcache: ConfigError: max_bytes"),
    ],
)
def test_a_kernel_that_cannot_be_used_is_told_by_its_fault(ran, spec, what):
    done = ran("1", spec=spec)

    assert (done.returncode, done.stdout) == (1, "")
    assert f"SnapshotError: {what}" in done.stderr and "Traceback" not in done.stderr


def test_a_cell_that_fails_is_told_by_its_place_in_the_file_whatever_else_fails(ran):
    done = ran("%unload_ext nbcache", "1 / 0", "2")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        1,
        "cell 2: ZeroDivisionError: division by zero",
    )


def test_a_kernel_whose_ports_were_taken_at_its_start_is_started_again(isolated, tmp_path):
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), tmp_path / "model.ipynb"
    )
    told: list[str] = []
    with kernel_ports.taken() as given:
        done = headless.run(tmp_path / "model.ipynb", isolated, say=told.append)

    assert len(given) == 10
    assert told[0] == "its kernel did not start, and is started again"
    assert done.error == "cell 1: ZeroDivisionError: division by zero"
