"""Kernels and interpreters that are forked: they are what they stand for, wherever the tests are run from."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.front_door import RunCells, RunPython, environ_below, give_to_client, printed

pytestmark = pytest.mark.compile


def test_what_a_shell_tells_its_python_makes_no_kernel_import_torch_anew(
    run_cells: RunCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
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
