"""Traces through the front door: what a user sees of them, and where they travel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.front_door import LOAD, REPORTS, SET_UP, Environ, RunCells, graphs, printed, shown

pytestmark = pytest.mark.compile

ON = "%nbcache config trace=on"
COMPILE = "f = torch.compile(model, mode='lite')"
TRAIN = "y = f(x).square().mean()\ny.backward()\nprint(y.item(), model[0].weight.grad.abs().sum().item())"
CELLS = [LOAD, ON, SET_UP, COMPILE, TRAIN, REPORTS]


def test_a_restored_function_is_not_traced_again_and_its_report_says_so(
    run_cells: RunCells, isolated: dict[str, str], wipe: Callable[[Environ], None]
) -> None:
    cold = run_cells(CELLS)
    wipe(isolated)
    restored = run_cells(CELLS)
    changed = run_cells([*CELLS[:4], "model.note = 3", *CELLS[4:]])

    assert printed(cold, 4) == printed(restored, 4) == printed(changed, 5)
    forward, backward = graphs(restored)
    assert (forward["outcome"], backward["outcome"]) == ("hit", "hit")
    assert forward["reason"].startswith("not traced: ") and "facts hold" in forward["reason"]
    assert forward["seconds"]["trace"] > 0
    assert "note: not traced: " in shown(restored, 4)
    assert graphs(changed)[0]["reason"].startswith("traced again: ")
    assert "trace" not in graphs(cold)[0]["reason"]


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
