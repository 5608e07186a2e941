"""Why a graph missed: what was changed is named first, through kernels that are restarted."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from kernel.changes import CHANGES, OPERATOR, OPERATORS, OPTIMIZER, PROGRAM, STEPS, TRAINING, TRAININGS
from soundness.conftest import restarts
from soundness.restarts import Restarts

from support.front_door import LOAD, SET_UP, RunCells, printed, shown

__all__ = ["restarts"]  # the fixture

pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("why")]  # for its fixtures

COMMON = (
    "batch",
    "comment",
    "frozen layer",
    "helper",
    "learning rate",
    "number that an operator reads",
    "threads",
)


Compiled = Callable[[str], Path]
"""Returns the folders of a kernel that has compiled a program."""


@pytest.fixture(scope="module")
def compiled(restarts: Restarts, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    @cache
    def folders(program: str) -> Path:
        folder = tmp_path_factory.mktemp("why") / "before"
        assert {outcome for outcome, *_ in restarts.run(program, folder)["graphs"]} == {"miss"}
        return folder

    return folders


ALL = CHANGES | OPERATORS | STEPS | TRAININGS


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in COMMON else pytest.mark.proof) for each in ALL]
)
def test_what_was_changed_is_named_first(
    name: str, restarts: Restarts, compiled: Compiled, tmp_path: Path
) -> None:
    program, told = ALL[name]
    originals = [(OPERATORS, OPERATOR), (STEPS, OPTIMIZER), (TRAININGS, TRAINING)]
    original = next((original for names, original in originals if name in names), PROGRAM)
    shutil.copytree(compiled(original), tmp_path / "now")
    answer = restarts.run(program, tmp_path / "now")
    assert "error" not in answer, answer["error"]
    (outcome, _, reason), *_ = answer["graphs"]
    if told is not None and told.startswith("bypass: "):
        assert f"{outcome}: {reason}" == told
        return
    assert outcome == ("hit" if told is None else "miss"), reason
    assert told is None or re.search(f"^not stored(?::| for) ?{told.removeprefix('for ')}", reason), reason


def test_a_function_that_torch_leaves_to_python_is_told_with_its_line_and_the_cure(
    run_cells: RunCells,
) -> None:
    define = """\
@torch.compile(backend="eager")
def noisy(x):
    for _ in range(2):
        x = x.sin()
        print("noise")
    return x
@torch.compile(backend="eager", fullgraph=True)
def refused(x):
    for _ in range(2):
        print("noise")
    return x
"""
    call = "noisy(x)\ntry: refused(x)\nexcept Exception as error: print(type(error).__name__)"
    begin = (
        "import torch; x = torch.ones(3)\ndef plus(x): return x + 1\ntorch.compile(plus, backend='eager')(x);"
    )
    cells = [LOAD, begin, define, call, "%nbcache why noisy", "2", "%nbcache why", "%nbcache why nobody"]
    cells += ["1 / 0", "%nbcache why", "torch.compile(plus, backend='eager')(x[:2]); 1 / 0", "%nbcache why"]
    flex = (
        "from torch.nn.attention.flex_attention import flex_attention as flex; q = torch.ones(1, 1, 128, 16)"
    )
    twice = "for f in (lambda x: x.sin(), lambda x: x.cos()): torch.compile(f, backend='eager')(x)"
    cells += [twice, "%nbcache why", f"{flex}; flex(q, q, q);", "%nbcache why _flex_attention_hop_wrapper"]

    done = run_cells(cells, allow_errors=True)

    told = "noisy runs as plain Python, and torch compiles no part of it: "
    told += "torch cannot trace the built-in `print`"
    for cell in (3, 4):
        said = " ".join(shown(done, cell).split())
        assert f"! {told} (In[3]:5); print after the compiled function" in said
        assert "refused is left" not in said
    assert "In[4] compiled no graph; what follows is of In[2]" in shown(done, 6)
    assert "In[9] raised an exception and compiled no graph; what follows is of In[2]" in shown(done, 9)
    assert shown(done, 11).startswith("nbcache why · In[11] raised an exception\n")
    assert shown(done, 13).count("\n    as above") == 1
    assert "no graph is called `_flex_attention_hop_wrapper`: this kernel has compiled" in shown(done, -1)
    assert "no graph is called `nobody`: this kernel has compiled plus" in shown(done, 7)


def test_why_names_every_difference_and_one_thing_to_do(run_cells: RunCells) -> None:
    define = "def loss(x, lr): return model(x).sum() * lr\nf = torch.compile(loss, mode='lite')"
    call = "with torch.no_grad(): print(f(x, 0.001).item())"
    run_cells([LOAD, SET_UP, define, call])
    other = call.replace("0.001", "0.0003")

    done = run_cells(
        [LOAD, SET_UP, define, "%nbcache why", other, "%nbcache why", "%nbcache why loss --json"]
    )

    assert "no graph has compiled yet" in shown(done, 3)
    assert "not stored: constant lr: 0.001 before, 0.0003 now" in shown(done, 4)
    said = shown(done, 5)
    assert "differs: constant lr: 0.001 before, 0.0003 now" in said
    assert "differs: constant in the graph: mul.Tensor(_, 0.001) before, mul.Tensor(_, 0.0003) now" in said
    assert "next: make it a tensor, if the code only computes with it" in said
    (row,) = json.loads(printed(done, 6))["graphs"]
    assert row["differences"][0] == {"what": "constant lr", "before": "0.001", "now": "0.0003", "where": ""}
    assert (
        row["graph"]["function"] == "loss" and row["nearest"] and row["action"].startswith("make it a tensor")
    )
