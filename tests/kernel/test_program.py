"""What tells that a kernel has run the same as another."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbcache.kernel.program import Program, _own_modules
from support.front_door import RunPython


@pytest.fixture(autouse=True)
def without_other_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the other modules of this process, of which other tests may have removed the files."""

    def own_modules() -> Iterator[tuple[str, str]]:
        return (each for each in _own_modules() if each[0] == "nbcache_test_module")

    monkeypatch.setattr("nbcache.kernel.program._own_modules", own_modules)


def ran(*cells: str) -> str:
    program = Program()
    for each in cells:
        program.note_cell(each)
    return program.digest()


def test_cells_count_in_their_order_and_comments_and_layout_do_not() -> None:
    assert ran("a = 1", "b = 2") == ran("a = 1  # one", "\n\nb = (2)") != ran("b = 2", "a = 1")
    assert ran("a = 1") != ran("a = 2") != ran("a = 1", "a = 1")
    assert ran("a = 1\nb = 2") != ran("a = 1", "b = 2")
    assert ran("%time f(1)") == ran("%time f(1)\n") != ran("%time f(2)")
    assert ran("s = '\ud800'") == ran("s = '\ud800'")


def test_what_only_has_nbcache_do_something_does_not_count() -> None:
    ours = (
        "%load_ext nbcache",
        "%nbcache status\n%nbcache config trace=on",
        "",
        "# nothing",
        "%nbcache panel ",
    )
    assert ran("a = 1", *ours) == ran("a = 1")
    assert ran("%nbcache_of_mine") != ran() != ran("%load_ext nbcache\na = 1")
    assert ran("%nbcache status\na = 1") != ran()


@pytest.mark.parametrize(
    "cell",
    [
        *("%run model.py", "a = 1\n  %run x", "%time %run x", "get_ipython().run_line_magic('run', 'x')"),
        "get_ipython().run_line_magic(name, 'x')",
    ],
)
def test_after_a_file_was_run_nothing_is_told(cell: str) -> None:
    assert ran("a = 1", cell) == "" == ran(cell, "a = 1")
    assert ran("run = 1\nrun %run") == ""  # which may be a magic
    assert ran("run = 1\nrun % run") and ran("get_ipython().run_line_magic('time', 'x')")


def test_more_cells_change_what_was_told() -> None:
    program = Program()
    program.note_cell("a = 1")
    first = program.digest()
    assert program.digest() == first
    program.note_cell("a = 1")
    assert program.digest() != first


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Import a module of the user's, written an hour ago, and return its file."""
    file = tmp_path / "nbcache_test_module.py"
    file.write_text("K = 1")
    os.utime(file, (time.time() - 3600,) * 2)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("nbcache_test_module")
    yield file
    del sys.modules["nbcache_test_module"]


def test_modules_that_torch_has_generated_do_not_count(module: Path) -> None:
    program = Program()
    os.utime(module)
    assert program.digest() == "" != program.digest(generated=str(module.parent))
    assert program.digest(generated=str(module.parent)[:-1]) == ""


@pytest.mark.parametrize("load", ["store_history=True", "silent=True"])
def test_cells_before_nbcache_was_loaded_count_however_it_is_loaded(run_python: RunPython, load: str) -> None:
    done = run_python(
        f"""
from IPython.core.interactiveshell import InteractiveShell
from nbcache.kernel.program import Program
shell = InteractiveShell.instance()
shell.run_cell("a = 1", store_history=True)
shell.run_cell("%load_ext nbcache", {load})
shell.run_cell("b = 2", store_history=True)
import nbcache
known = Program()
known.note_cell("a = 1")
known.note_cell("b = 2")
print("the same:", nbcache.session().program.digest() == known.digest() != "")
""",
        having="IPython",
    )
    assert "the same: True" in done.stdout


def test_files_of_the_users_modules_count_and_their_place_does_not(module: Path) -> None:
    before = ran("a = 1")
    moved = module.with_name("elsewhere.py")
    module.rename(moved)
    sys.modules["nbcache_test_module"].__file__ = str(moved)
    assert ran("a = 1") == before
    moved.write_text("K = 2")
    os.utime(moved, (time.time() - 3600,) * 2)
    assert ran("a = 1") not in (before, "")
    sys.modules["nbcache_test_module"].__file__ = None
    assert ran("a = 1") != before


def test_a_file_that_was_edited_since_or_is_gone_tells_nothing(module: Path) -> None:
    program = Program()
    program.note_cell("a = 1")
    assert program.digest()
    module.write_text("K = 1")
    assert program.digest() == ""
    module.unlink()
    assert program.digest() == ""
