"""Kernels that are forked from a process with torch imported, wherever the tests are run from."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.front_door import RunCells, environ_below, give_to_client, printed

pytestmark = pytest.mark.compile


def test_what_a_shell_tells_its_python_makes_no_kernel_import_torch_anew(
    run_cells: RunCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environ = environ_below(tmp_path / "shell")
    give_to_client(environ, monkeypatch)
    assert printed(run_cells(["import sys; print('torch' in sys.modules)"], environ), 0) == "True\n"
