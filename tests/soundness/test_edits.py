"""Whatever is edited between two kernels, no answer is stale, and what changes nothing is hit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from soundness.answers import adopts, difference, outcomes
from soundness.program_files import CELL, Edit, Program, apply, programs
from soundness.restarts import Restarts

from support import rotation

pytestmark = pytest.mark.compile
PROGRAMS = programs(of_keys=True)
COLD = 'AGAINST = "cold"\n'
"""The line of a program that does something else when it is compiled: only two compiles can be compared."""
COMPILED = 'MODE = "default"'
"""The line of a program that is compiled in full, since "lite" leaves out what it is about."""


def rows() -> Iterator[Any]:
    """Yield the programs, those of other days marked as proofs, and all that need a C++ compiler."""
    for number, (name, program) in enumerate(PROGRAMS.items()):
        slow = COMPILED in program.source
        yield pytest.param(program, id=name, marks=pytest.mark.proof if slow else rotation.marks(number))


def together(source: str, edits: Iterable[Edit]) -> list[Edit]:
    """Return fewer edits that do the same: one for all that keep out of each other's way, in any order."""

    def apart(one: Edit, other: Edit) -> bool:
        try:
            return apply(source, one + other) == apply(source, other + one)
        except AssertionError:
            return False

    found: list[Edit] = []
    for edit in edits:
        for number, before in enumerate(found):
            if apart(before, edit):
                found[number] = before + edit
                break
        else:
            found.append(edit)
    return found


@pytest.mark.parametrize("program", [*rows()])
def test_after_an_edit_and_a_restart_every_answer_is_the_new_one(
    program: Program, restarts: Restarts, tmp_path: Path
) -> None:
    folder = tmp_path / "kernels"
    first = restarts.run(program.source, folder)
    before = outcomes(first)
    again = ["hit" if outcome == "miss" else outcome for outcome in before]
    assert "hit" not in before
    if not program.same:  # else it is restarted below with no more than those edits
        assert outcomes(restarts.run(program.source, folder)) == again

    problems = []
    for number, edit in enumerate((*program.changes, *together(program.source, program.same))):
        source = apply(program.source, edit)
        found = restarts.run(source, folder)
        after = [outcome for outcome, *_ in found.get("graphs", ())]
        changes = number < len(program.changes)
        against = []
        if COLD not in source and ("hit" in after or "error" in found):  # else torch has compiled all of it
            against.append(restarts.run(source, tmp_path / "eager", eager=True))
        if changes and "hit" in after:
            against.append(restarts.run(source, tmp_path / f"cold{number}"))
        elif not changes and COLD in source:
            against.append(first)
        wrong = [difference(found, expected) for expected in against or [found]]
        if not changes and after != again:
            wrong.append(f"{after}, not {again}")
        wrong += found.get("notices", ())
        problems += [(edit, each) for each in wrong if each]
    assert not problems


OPTIMIZERS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 8)
def results(compile):
    for kind in (torch.optim.Adam, torch.optim.AdamW):  # which have another weight decay, so that it varies
        optimizer = kind(model.parameters(), 0.01)
        step = compile(optimizer.step)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(8, 4)).sum().backward()
            step()
    return [*model.parameters()]
"""


def test_a_number_that_varies_and_is_in_no_graph_costs_no_hit_on_any_restart(
    restarts: Restarts, tmp_path: Path
) -> None:
    runs = [restarts.run(OPTIMIZERS, tmp_path) for _ in range(4)]

    assert [{*outcomes(run), *run["notices"]} for run in runs] == [{"miss"}, {"hit"}, {"hit"}, {"hit"}]


def test_what_lies_under_one_key_is_chosen_by_its_inputs_each_time(
    restarts: Restarts, tmp_path: Path
) -> None:
    program = PROGRAMS["keys/leaves"]
    leaf, other = program.source, apply(program.source, program.changes[0])
    sources = (leaf, other, other, leaf, leaf, other, leaf)

    found = [restarts.run(source, tmp_path / "kernels") for source in sources]

    traced = [any("traced again" in reason for *_, reason in each["graphs"]) for each in found]
    assert traced == [False, True, *5 * [False]]
    assert ["miss" in outcomes(each) for each in found] == [True, *6 * [False]]
    expected = {source: restarts.run(source, tmp_path / "eager", eager=True) for source in (leaf, other)}
    for source, each in zip(sources, found, strict=True):
        assert not difference(each, expected[source])


def test_what_was_edited_in_another_cell_and_put_back_is_hit(restarts: Restarts, tmp_path: Path) -> None:
    model = "m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))\n"
    run = "def results(compile):\n    return [compile(m)(torch.ones(2, 4))]\n"
    program = f"import torch\n{model}{CELL}{run}"
    other = program.replace("LayerNorm(4)", "LayerNorm(4, eps=0.5)")

    found = [restarts.run(source, tmp_path / "kernels") for source in (program, other, program, other)]

    assert [outcomes(each) for each in found] == [["miss"], ["miss"], ["hit"], ["hit"]]


TRAINING = f"""
import torch
torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
{CELL}SCRATCH
{CELL}
def results(compile):
    g, found = compile(m), []
    for rows in (6, 6, 6):
        found.append(g(torch.ones(rows, 3)).sum())
        found[-1].backward()
    with torch.no_grad():
        return [*found, g(torch.ones(9, 3))]
"""
UNCHANGED = {
    "training at one size and evaluation at another": TRAINING.replace("SCRATCH", ""),
    "strides": """
import torch
conv = torch.nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
def images(count): return torch.ones(count, 3, 5, 5).to(memory_format=torch.channels_last)
def results(compile):
    g = compile(conv)
    g(images(4)).sum().backward()
    with torch.no_grad():
        return [g(images(1)), g(images(6)), g(torch.ones(1, 3, 5, 5))]
""",
    "two instances of one class": """
import torch
class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, width), torch.nn.Linear(width, 2)
    def forward(self, x): return self.b(self.a(x).relu())
def results(compile):
    nets = [compile(Net(width)) for width in (4, 8)]
    found = [net(torch.ones(rows, 3)) for net in nets for rows in (2, 5)]
    sum(each.sum() for each in found).backward()
    return found
""",
    "graph breaks": """
import torch
def helper(x): return x.sin() + 1
def f(x):
    y = helper(x) * 2
    print("between")
    if y.sum() > 0:
        y = y - 1
    return y.cos()
def results(compile):
    g = compile(f)
    return [g(torch.ones(rows)) for rows in (5, 5, 7)]
""",
    "transforms": """
import torch
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x
def per_row(x): return torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x)
def results(compile):
    x, rows = torch.ones(4, requires_grad=True), compile(per_row)
    compile(lambda x: Square.apply(x).sum())(x).backward()
    return [x.grad, *(rows(torch.ones(count, 5)) for count in (3, 6))]
""",
}
"""Programs that meet more than one size in one kernel."""


@pytest.mark.parametrize("program", UNCHANGED.values(), ids=list(UNCHANGED))
def test_a_program_that_nobody_edited_hits_in_each_later_kernel_what_it_compiled_in_the_first(
    program: str, restarts: Restarts, tmp_path: Path
) -> None:
    first, *later = (restarts.run(program, tmp_path / "kernels") for _ in range(4))

    assert {*outcomes(first)} == {"miss"}
    assert [outcomes(each) for each in later] == [["hit"] * len(first["graphs"])] * 3


@pytest.mark.parametrize(
    "scratch",
    ["torch.compile(m, mode='lite')(torch.ones(7, 3))", "torch.set_num_threads(torch.get_num_threads() + 1)"],
    ids=["another size", "another number of threads"],
)
def test_a_scratch_cell_that_was_deleted_changes_nothing_for_the_others(
    scratch: str, tracing: Restarts, tmp_path: Path
) -> None:
    without = TRAINING.replace("SCRATCH", "")
    tracing.run(TRAINING.replace("SCRATCH", scratch), tmp_path / "kernels")
    first, *later = (tracing.run(without, tmp_path / "kernels") for _ in range(3))

    assert outcomes(first)[:2] == ["miss", "miss"]  # as in plain torch, which compiled other graphs
    assert [outcomes(each) for each in later] == [["hit"] * 3] * 2
    assert [adopts(answer)[0] for answer in later] == [True, True]


def test_what_can_no_longer_be_traced_for_any_size_is_traced_for_those_that_are_there(
    restarts: Restarts, tmp_path: Path
) -> None:
    run = (
        "def f(x):\n    return x + factor(len(x))\n"
        "def results(compile):\n    g = compile(f, fullgraph=True)\n"
        "    return [g(torch.ones(rows, 2)) for rows in ROWS]\n"
    )
    first = f"import math, torch\n{run}{CELL}def factor(n):\n    return n * 2\nROWS = (6, 8, 10)\n"
    last = first.replace("n * 2", "math.comb(n, 2)").replace("(6, 8, 10)", "(8,)")

    found = [restarts.run(source, tmp_path / "kernels") for source in (first, first, last, last)]

    assert [outcomes(each) for each in found] == [["miss", "miss"], ["hit", "hit"], ["miss"], ["hit"]]
    assert not difference(found[2], restarts.run(last, tmp_path / "eager", eager=True))


def test_a_number_that_torch_takes_for_a_constant_is_that_of_each_call(
    restarts: Restarts, tmp_path: Path
) -> None:
    program = """
import torch
K = 3.0
def f(x):
    global K
    y = x * K
    K = K + 1
    return y
def results(compile):
    compiled = compile(f)
    with torch.no_grad():
        return [each for _ in range(4) for each in (compiled(torch.ones(2)), torch.tensor(K))]
"""
    for start in ("3.0", "3.0", "4.0"):
        source = program.replace("K = 3.0", f"K = {start}")
        found = restarts.run(source, tmp_path / "kernels")
        assert not difference(found, restarts.run(source, tmp_path / "eager", eager=True))


def test_numbers_that_only_arithmetic_needs_vary_within_one_graph(restarts: Restarts, tmp_path: Path) -> None:
    program = """
import torch
def f(x, k): return (x * k + k * 2) / (k - 1)
def results(compile):
    compiled = compile(f)
    with torch.no_grad():
        return [compiled(torch.ones(2), k) for k in (2.0, 3.0, 4.0, 5.5)]
"""
    first = restarts.run(program, tmp_path / "kernels")
    again = restarts.run(program, tmp_path / "kernels")
    assert not difference(first, restarts.run(program, tmp_path / "eager", eager=True))
    assert not difference(again, first)
    assert outcomes(again) == ["hit", "hit"]  # one graph for the first number, one for all others
