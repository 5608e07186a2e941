"""torch's cache settings: shown as they are in force, with their origin."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nbcache.torch_bridge import cache_settings
from support.front_door import (
    LOAD,
    REPORTS,
    SET_UP,
    RunCells,
    RunPython,
    graphs,
    outcomes,
    shown,
)

FX, AUTOGRAD = "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"
FX_REMOTE, AUTOGRAD_REMOTE = "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE"
AUTOTUNE_REMOTE, FORCE = "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE", "TORCHINDUCTOR_FORCE_DISABLE_CACHES"
UNDECIDED = "off (torch decides)"


# --- before torch is imported -------------------------------------------------------------------

SHOWN = """\
import json, os, sys
from nbcache.torch_bridge import cache_settings
found = []
for variables in {cases}:
    os.environ.update(variables)
    found.append({{row.name: (row.value, row.origin, row.note) for row in cache_settings.rows()}})
    for name in variables:
        del os.environ[name]
assert "torch" not in sys.modules
print(json.dumps(found))
"""


@pytest.fixture
def rows_with(run_python: RunPython) -> Any:
    """Return a function: the rows for each set of variables, by name, in an interpreter without torch."""

    def rows_with(*cases: dict[str, str]) -> Any:
        return json.loads(run_python(SHOWN.format(cases=list(cases))).stdout)

    return rows_with


def test_the_environment_decides_and_is_named_and_what_is_not_set_is_a_default(rows_with: Any) -> None:
    nothing, some = rows_with({}, {FX: "0", "TORCH_COMPILE_FORCE_DISABLE_CACHES": "0", FX_REMOTE: "1"})

    assert {name: value for name, (value, _, _) in nothing.items()} == {
        FX: "on",
        AUTOGRAD: "on",
        FX_REMOTE: UNDECIDED,
        AUTOGRAD_REMOTE: UNDECIDED,
        AUTOTUNE_REMOTE: UNDECIDED,
        FORCE: "off",
    }
    assert {(origin, note) for _, origin, note in nothing.values()} == {("default", "")}
    assert some[FX] == ["off", f"environment, {FX}", ""]
    assert some[FORCE] == ["off", "environment, TORCH_COMPILE_FORCE_DISABLE_CACHES", ""]
    assert some[FX_REMOTE][:2] == ["on", f"environment, {FX_REMOTE}"]


def test_a_value_that_torch_does_not_know_is_shown_as_torch_takes_it(rows_with: Any) -> None:
    ((fx, autograd, remote),) = [
        [row[name] for name in (FX, AUTOGRAD, FX_REMOTE)]
        for row in rows_with({FX: "off", AUTOGRAD: "", FX_REMOTE: "on"})
    ]

    only = "torch knows 1 and 0 only: with"
    assert (fx[0], fx[2]) == ("on", f"{only} {FX}=off it is on")
    assert (autograd[0], autograd[2]) == ("off", f"{only} {AUTOGRAD}= it is off")
    assert remote == [UNDECIDED, "default", f"{only} {FX_REMOTE}=on it is {UNDECIDED}"]


def test_a_refusal_says_to_unset_a_variable_that_makes_torch_ignore_assignments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assign = "assign True or False to torch._inductor.config.fx_graph"
    for name, step in ((FX, f"unset {FX}, and restart the kernel"), (FX_REMOTE, assign)):
        monkeypatch.delenv(name, raising=False)
        assert assign in str(cache_settings.refusal(name).next_step)
        monkeypatch.setenv(name, "0")
        assert step in str(cache_settings.refusal(name).next_step)


def test_what_makes_a_setting_ineffective_is_noted(rows_with: Any) -> None:
    without_graphs, remote_graphs, forced = rows_with(
        {FX: "0", AUTOGRAD_REMOTE: "1"}, {FX: "0", FX_REMOTE: "1"}, {FORCE: "1", FX_REMOTE: "1"}
    )

    needs = f"without effect: it needs {FX}"
    assert without_graphs[AUTOGRAD][2] == needs
    assert without_graphs[AUTOGRAD_REMOTE][2].startswith(needs)
    assert remote_graphs[AUTOGRAD][2] == ""  # either cache of graphs will do
    assert "outcome is disabled" in forced[FORCE][2]
    overridden = f"without effect: {FORCE} is on"
    assert {name for name, row in forced.items() if row[2] == overridden} == {FX, AUTOGRAD, FX_REMOTE}


# --- in kernels that compile --------------------------------------------------------------------


@pytest.mark.compile
def test_with_caches_off_every_graph_is_disabled_and_names_the_setting(
    with_headers: dict[str, str], run_cells: RunCells
) -> None:
    define = "def f(x):\n    return (x * 2).sin().sum()\nw = x.clone().requires_grad_()"
    call = "torch.compile(f)(w).backward()\nwith torch.no_grad():\n    torch.compile(lambda x: x + 1)(x)"
    forced, graphs_cached = (
        "torch.compiler.config.force_disable_caches",
        "torch._inductor.config.fx_graph_cache",
    )
    again = "torch._dynamo.reset()\n"
    cells = [
        LOAD,
        SET_UP + define,
        f"{forced} = True\n{call}",
        f"{forced} = {graphs_cached} = False\n{again}{call}",
        f"{graphs_cached} = True\n{again}torch.compile(f)(x)",
        REPORTS,
    ]

    done = run_cells(cells, with_headers)

    assert outcomes(done) == ["disabled"] * 6 + ["miss"]
    by_force, by_graphs = (
        f"torch's caches are off: {it} (set in this kernel)" for it in (f"{FORCE} is on", f"{FX} is off")
    )
    assert [graph["reason"] for graph in graphs(done)[:6]] == [*[by_force] * 3, *[by_graphs] * 3]
    assert {graph["direction"] for graph in graphs(done)[:3]} == {"forward", "backward", "inference"}
    assert by_force in shown(done, 2)
