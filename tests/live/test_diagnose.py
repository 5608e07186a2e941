"""`%nbcache diagnose` in a kernel that compiles: what it finds, and what it leaves alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.front_door import LOAD, REPORTS, SET_UP, RunCells, errors, graphs, printed, shown

pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("diagnose")]  # for its fixtures

DEFINE = """\
import random, numpy
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history = []

@torch.compile
def train(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return {"loss": loss.detach()}

@torch.compile
def score(x, scale=1.0):
    return x.softmax(-1) * scale

def breaks(x):
    y = x.sin()
    print("between two graphs")
    return y.softmax(-1)

def grows(x):
    history.append(1)
    return x * 2 + len(history)

def state():
    streams = torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()
    held = [each.tolist() for each in (*model.parameters(), x)], [each.grad for each in model.parameters()]
    return streams, held, len(optimizer.state), history, torch.is_grad_enabled()

def entries(f):
    return len(torch._dynamo.eval_frame._debug_get_cache_entry_list(f._torchdynamo_orig_callable.__code__))
"""
BEFORE = "score(x); names = {*globals()}; before = state(), entries(score), torch._dynamo.pgo._CODE_STATE"
AFTER = """\
print(state() == before[0], entries(score) == before[1], torch._dynamo.pgo._CODE_STATE is before[2])
compiled = len(__import__("nbcache").session().graphs)
score(x)
print(len(__import__("nbcache").session().graphs) - compiled, [n for n in {*globals()} - names if "__" in n])
"""


def told(notebook: Any, index: int) -> dict[str, Any]:
    return json.loads(printed(notebook, index))  # type: ignore[no-any-return]


@pytest.mark.proof
def test_a_call_is_measured_and_nothing_of_the_users_changes(
    with_headers: dict[str, str], run_cells: RunCells
) -> None:
    lines = ["breaks(x)", "train(x) --json", "score(x, scale=2.0) --json", "grows(x)"]
    lines = [f"{line} --runs 3" for line in lines]
    cells = [LOAD, SET_UP, DEFINE, BEFORE, *(f"%nbcache diagnose {line}" for line in lines), AFTER, REPORTS]
    notebook = run_cells(cells, with_headers)

    text = shown(notebook, 4)
    assert "nbcache diagnose · breaks(x) · cpu · " in text
    assert "graph breaks: 1 (2 graphs)" in text
    line = DEFINE.splitlines().index('    print("between two graphs")') + 1
    assert "print" in text and f"(In[3]:{line})" in text
    assert "fix: print after the compiled function, or not at all" in text
    assert "between two graphs" not in printed(notebook, 4)
    assert "sizes other than 3: 1 of 2 recompiled" in text
    assert "\n  next: " in text

    train = told(notebook, 5)
    assert train["expression"] == "train(x)" and train["size"] == 3
    (mode,) = train["modes"]
    assert mode["failure"] is None and mode["results"]["agreement"] in ("equal", "usual", "larger")
    assert mode["timing"]["runs"] >= 3 and mode["compile_seconds"] > 0

    score = told(notebook, 6)
    assert (score["graphs"], score["graph_breaks"]) == (1, [])
    assert [each["size"] for each in score["other_sizes"]] == [6, 4]
    assert [each["recompiled"] for each in score["other_sizes"]] == [True, False]
    assert "dynamic=True" in score["other_sizes"][0]["action"]
    assert "size" in score["other_sizes"][0]["guards"][0]

    text = " ".join(shown(notebook, 7).split())
    assert "grows: " in text and "and it goes on: len(G['history']) ==" in text
    assert "sizes other than" not in text
    assert "! grows" not in text  # which would be about the user's own calls
    assert "next: keep grows from being compiled again at each call" in text

    assert printed(notebook, 8) == "True True True\n0 []\n"

    again = run_cells([LOAD, SET_UP, DEFINE, f"%nbcache diagnose {lines[2]}", REPORTS], with_headers)
    assert told(again, 3)["modes"][0]["saved_seconds"] > 0  # what was diagnosed is stored
    assert graphs(again) == []


def test_what_is_wrong_is_said_as_it_is_and_leaves_the_kernel_as_it_was(
    with_headers: dict[str, str], run_cells: RunCells
) -> None:
    stop = "def stop(x):\n    torch.manual_seed(1)\n    raise KeyboardInterrupt\n"
    stop += "few = (each for each in range(6))\ndef ends(x): return x + next(few)"
    shown_as_theirs = {
        "model(x.T)": "RuntimeError",
        "nosuch(x)": "NameError",
        "model(1 / 0)": "ZeroDivisionError",
        "stop(x)": "KeyboardInterrupt",
        "ends(x)": "StopIteration",
    }
    refused = {
        "x(x)": "`x` cannot be called: it is a Tensor",
        "torch.nn.Linear(4, 4)": "`torch.nn.Linear` is a class: name a function",
        "model(x).sum()": "`model(x).sum` computes the function that it calls",
        "model(x) --mode max-autotun": "unknown mode `max-autotun` (torch has default",
    }
    lines = [f"%nbcache diagnose {line}" for line in (*shown_as_theirs, *refused)]
    cells = [LOAD, SET_UP, DEFINE, stop, "before = state()", *lines, "print(state() == before)"]
    notebook = run_cells(cells, with_headers, allow_errors=True)

    for index, name in enumerate(shown_as_theirs.values(), 5):
        assert [each.ename for each in errors(notebook, index)] == [name]
    for index, said in enumerate(refused.values(), 5 + len(shown_as_theirs)):
        assert said in "".join(each.get("text", "") for each in notebook.cells[index].outputs)
    assert printed(notebook, -1) == "True\n"


def test_globals_that_inner_functions_change_are_put_back_and_a_function_without_a_graph_says_why(
    run_cells: RunCells,
) -> None:
    define = """\
import torch
from torch import nn
torch.manual_seed(0)
model, x = nn.Linear(8, 8), torch.ones(4, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(1)
def step(x):
    optimizer.zero_grad()
    (model(x) + torch.rand(8, generator=generator)).sum().backward()
    optimizer.step()
other = nn.Linear(8, 8)
other(x).sum().backward()
def accumulate(x): other(x).sum().backward()
steps = [step, accumulate]
def fit(x):
    for each in steps: each(x)
def loop(x):
    for _ in range(3):
        x = x.sin()
        if x.sum() > 100: break
    return x
before = (model.weight.detach().clone(), generator.get_state(), other.weight.grad.clone())"""
    same = "print(torch.equal(model.weight, before[0]), model.weight.grad is None, end=' ')\n"
    same += "print(torch.equal(other.weight.grad, before[2]), end=' ')\n"
    same += "print(torch.equal(generator.get_state(), before[1]), torch.is_grad_enabled())"
    wrapped = "c = torch.compile(nn.Sequential(nn.Linear(8, 8)), mode='lite')\nc(x);"
    off = "import torch._dynamo.config; torch._dynamo.config.disable = True"
    cells = [LOAD, define, "%nbcache diagnose fit(x) --mode lite --runs 1", same]
    cells += ["%nbcache diagnose loop(x) --mode lite --runs 1", wrapped, off, "%nbcache diagnose loop(x)"]
    cells += [REPORTS]

    done = run_cells(cells, allow_errors=True)

    assert printed(done, 3).split() == ["True"] * 5
    said = shown(done, 4)
    assert "graph breaks: 1 (0 graphs)" in said and "Data-dependent branching" in said
    assert "fix: use torch.where or torch.cond" in said
    assert "Sequential " in shown(done, 5) and "external_utils" not in shown(done, 5)
    (error,) = [output for output in done.cells[7].outputs if output.output_type == "error"]
    assert "torch.compile is switched off" in error.evalue
    assert [graph["function"] for graph in graphs(done)] == ["Sequential"]  # no trial of a diagnosis
