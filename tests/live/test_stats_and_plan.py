"""`%nbcache stats` and `plan` through kernels that are restarted, with and without a notebook."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from support.front_door import LOAD, SET_UP, Environ, RunCells, printed, shown

pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("stats and plan")]

DEFINE = "def loss(x, lr): return model(x).sum() * lr\nf = torch.compile(loss, mode='lite')"
CALL = "with torch.no_grad(): print(f(x, 0.001).item())"
EDITED = CALL.replace("0.001", "0.0003")
BYPASSED = "g = torch.compile(lambda x: x + 1, backend='aot_eager')\nprint(g(x).sum().item())"
GREET = f"""\
import nbcache.ui.ipython.extension as extension
extension._GREETING_SECONDS = 60.0  # on a busy machine, the greeting takes longer than loading waits for it
{LOAD}"""
CELLS = (GREET, SET_UP, DEFINE, CALL, BYPASSED)
ASK = ("%nbcache plan --json", "%nbcache stats --json", "%nbcache plan", "%nbcache stats")


def save(path: Path, *sources: str) -> None:
    """Save a notebook with these code cells."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


def asked(done: Any) -> tuple[Any, Any, str, str]:
    """Return what the last cells, ASK, have said: the plan and the figures as data, and both as text."""
    plan, stats = (json.loads(printed(done, index)) for index in (-4, -3))
    return plan, stats, shown(done, -2), shown(done, -1)


def expected(plan: Any) -> list[list[str]]:
    return [[graph["expected"] for graph in cell["graphs"]] for cell in plan["cells"]]


def test_what_it_came_to_and_what_comes_next(
    isolated: dict[str, str], run_cells: RunCells, wipe: Callable[[Environ], None], tmp_path: Path
) -> None:
    path = tmp_path / "model.ipynb"
    environ = {**isolated, "NBCACHE_NOTEBOOK": str(path)}
    save(path, *CELLS, *ASK)

    plan, stats, said, figures = asked(run_cells([*CELLS, *ASK], environ))
    assert expected(plan) == [["hit"], ["bypass"]]
    assert plan["notes"][0].startswith("by the file as it was saved")
    assert plan["cold_seconds"] > 0
    assert (stats["session"]["missed"], stats["session"]["bypassed"]) == (1, 1)
    assert (stats["stored"], stats["notebook"]["kernels"]) == ([], 1)
    assert "1 of 1 graph hit" in said and "1 bypassed" in said
    assert figures.startswith("nbcache stats · this kernel · 2 graphs")

    wipe(environ)
    again = run_cells([*CELLS, "%nbcache timeline", *ASK], environ)
    bars = shown(again, len(CELLS))
    assert bars.startswith("nbcache timeline · model.ipynb") and "    cold  " in bars and "    now  " in bars
    assert "this one  1 of 2 graphs" in bars
    assert printed(again, 0).startswith("nbcache: loaded · 1 graph of model.ipynb is stored here")
    assert "edited" not in printed(again, 0)
    plan, stats, _, figures = asked(again)
    assert [each["fate"] for each in stats["stored"]] == ["used"]
    assert [(each["level"], each["hits"]) for each in stats["session"]["levels"]] == [("L1", 1)]
    assert (stats["notebook"]["kernels"], stats["notebook"]["graphs"]) == (2, 4)
    assert ("inductor", 1, 1) in [(each["type"], each["named"], each["restored"]) for each in stats["types"]]
    assert plan["cells"][0]["graphs"][0]["restored_seconds"] > 0
    assert "1 graph stored before · 1 used" in figures and "in 2 kernels since" in figures

    # the file is edited: told before torch is imported; and once it ran, by what change it was not used
    wipe(environ)
    save(path, GREET, SET_UP, DEFINE, EDITED, BYPASSED, *ASK)
    edited = run_cells([GREET, "%nbcache plan --json", SET_UP, DEFINE, EDITED, *ASK], environ, forked=False)
    assert "1 cell was edited since" in printed(edited, 0)
    assert expected(json.loads(printed(edited, 1))) == [["edited"], ["bypass"]]
    plan, stats, _, figures = asked(edited)
    assert (expected(plan), plan["edited"]) == ([["hit"], ["bypass"]], 0)
    (changed,) = stats["stored"]
    assert (changed["fate"], changed["why"]) == (
        "changed",
        "constant lr: 0.001 before, 0.0003 now; and 1 more, see %nbcache why",
    )
    assert "changed since: loss inference" in figures
