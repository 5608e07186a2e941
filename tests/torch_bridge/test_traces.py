"""Traces through the front door: what a user sees of them, and where they travel."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from support.front_door import (
    KERNEL,
    LOAD,
    REPORTS,
    SET_UP,
    Environ,
    RunCells,
    graphs,
    kernel_specs,
    printed,
    run_interpreter,
    shown,
)

pytestmark = pytest.mark.compile

ON = "%nbcache config trace=on audit=0"
COMPILE = "f = torch.compile(model, mode='lite')"
TRAIN = "y = f(x).square().mean()\ny.backward()\nprint(y.item(), model[0].weight.grad.abs().sum().item())"
CELLS = [LOAD, ON, SET_UP, COMPILE, TRAIN, REPORTS]


def test_a_restored_function_is_not_traced_again_and_its_report_says_so(
    run_cells: RunCells, isolated: dict[str, str], wipe: Callable[[Environ], None]
) -> None:
    cold = run_cells(CELLS)
    wipe(isolated)
    restored = run_cells(CELLS)
    restored_without = run_cells([cell for cell in CELLS if cell != ON])
    changed = run_cells([*CELLS[:4], "model.note = 3", *CELLS[4:]])

    assert printed(cold, 4) == printed(restored, 4) == printed(changed, 5)
    forward, backward = graphs(restored)
    assert (forward["outcome"], backward["outcome"]) == ("hit", "hit")
    assert forward["reason"].startswith("not traced: ") and "facts hold" in forward["reason"]
    assert forward["seconds"]["trace"] > 0
    assert forward["saved_seconds"] > graphs(restored_without)[0]["saved_seconds"]
    assert "note: not traced: " in shown(restored, 4)
    assert graphs(changed)[0]["reason"].startswith("traced again: ")
    assert "trace" not in graphs(cold)[0]["reason"]
    told = [graphs(each)[0]["trace"] for each in (cold, restored, restored_without, changed)]
    assert told == [None, "adopted", None, "outdated"]


def test_a_trace_travels_in_a_snapshot(run_cells: RunCells, isolated: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "taken.nbcache"
    run_cells([*CELLS[:-1], f"%nbcache snapshot {file}"])
    elsewhere = {**isolated, "NBCACHE_DIR": str(tmp_path / "other"), "TMPDIR": str(tmp_path / "scratch")}
    (tmp_path / "scratch").mkdir()

    restored = run_cells([LOAD, ON, f"%nbcache restore {file}", *CELLS[2:]], elsewhere)

    assert graphs(restored)[0]["reason"].startswith("not traced: ")


def test_without_the_setting_nothing_is_kept_and_nothing_adopted(
    run_cells: RunCells, isolated: dict[str, str]
) -> None:
    off = [cell for cell in CELLS if cell != ON]
    run_cells(off)
    first = run_cells(CELLS)
    assert not graphs(first)[0]["reason"]
    second = run_cells(off)
    assert not graphs(second)[0]["reason"]
    assert "trace" not in graphs(second)[0]["seconds"]
    assert graphs(run_cells(CELLS))[0]["reason"].startswith("not traced: ")


def test_the_command_audits_the_traces_of_a_notebook(isolated: dict[str, str], tmp_path: Path) -> None:
    kernel_specs(Path(isolated["JUPYTER_DATA_DIR"]), sys.executable, forked=True)
    cells = [nbformat.v4.new_code_cell(source) for source in (SET_UP, COMPILE, TRAIN)]
    metadata = {"kernelspec": {"name": KERNEL, "display_name": ""}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), tmp_path / "model.ipynb")

    def audited() -> tuple[int, dict[str, Any]]:
        command = ["-m", "nbcache", "verify", "--traces", "model.ipynb", "--json"]
        done = run_interpreter(command, isolated, tmp_path, having="IPython")
        return done.returncode, json.loads(done.stdout)

    status, found = audited()
    assert (status, found["agree"], found["differ"]) == (1, 0, 0)
    status, found = audited()
    assert (status, found["agree"], found["differ"]) == (0, 1, 0)
    assert found["graphs"][0]["trace"] == "agrees"
