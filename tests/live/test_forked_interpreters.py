"""Kernels and interpreters that are forked: they are what they stand for, wherever the tests are run from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.front_door import RunCells, RunPython, environ_below, give_to_client, printed

pytestmark = pytest.mark.compile


SHELL = {
    "COLUMNS": "30",
    "FORCE_COLOR": "1",
    "LD_PRELOAD": "libm.so.6",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_CORETYPE": "Haswell",
    "PYTHONUNBUFFERED": "1",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
}
"""Variables of somebody's shell that libraries, reports and torch read."""


def test_the_shell_that_starts_pytest_sets_no_variable_of_a_test() -> None:
    code = "import os; from support import environ; environ.clean_own(); print(*os.environ)"
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", code]
    plain, within_shell = (
        subprocess.run(command, env={**os.environ, **path, **more}, capture_output=True, check=True).stdout
        for more in ({}, SHELL)
    )
    assert plain == within_shell


def test_kernels_are_forked_whatever_the_shell_sets(
    run_cells: RunCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    environ = environ_below(tmp_path / "shell")
    give_to_client(environ, monkeypatch)
    assert printed(run_cells(["import sys; print('torch' in sys.modules)"], environ), 0) == "True\n"


def test_a_forked_interpreter_ends_as_a_fresh_one_does(run_python: RunPython) -> None:
    code = """\
import atexit, sys, threading, time
atexit.register(print, "last")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print(__name__, sys.argv, sys.path[0], 'nbcache' in sys.modules)
sys.exit("that is all")
"""
    fresh = run_python(code, check=False)
    forked = run_python(code, check=False, having="IPython")

    assert (forked.returncode, forked.stdout, forked.stderr) == (1, fresh.stdout, fresh.stderr)
    failed = run_python("1 / 0", check=False, having="IPython")
    assert failed.returncode == 1 and "ZeroDivisionError" in failed.stderr
    assert run_python("import os; os.kill(os.getpid(), 9)", check=False, having="IPython").returncode == -9
