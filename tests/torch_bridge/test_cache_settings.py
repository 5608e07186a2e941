"""torch's cache settings: shown as they are in force, switched where torch allows it, and taken back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.front_door import (
    LOAD,
    REPORTS,
    SET_UP,
    RunCells,
    RunPython,
    graphs,
    outcomes,
    printed,
    shown,
)

FX, AUTOGRAD = "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"
FX_REMOTE, AUTOGRAD_REMOTE = "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE"
AUTOTUNE_REMOTE, FORCE = "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE", "TORCHINDUCTOR_FORCE_DISABLE_CACHES"
FOLDER = "TORCHINDUCTOR_CACHE_DIR"
UNDECIDED = "off (torch decides)"


# --- before torch is imported -------------------------------------------------------------------

SHOWN = """\
import json, os, sys
from nbcache.torch_bridge.cache_settings import CacheSettings
found = []
for variables in {cases}:
    os.environ.update(variables)
    rows = CacheSettings().rows()
    found.append({{row.name: (row.value, row.origin, row.note) for row in rows}})
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


# --- switching ----------------------------------------------------------------------------------

TOOLS = """\
import os, sys
from nbcache.core.errors import ConfigError
from nbcache.torch_bridge.cache_settings import CacheSettings, switched_off
settings = CacheSettings()
NAMES = [row.name for row in settings.rows()]

def values():
    return {row.name: row.value.split()[0] for row in settings.rows()}

def origins():
    return {row.origin for row in settings.rows()}

def switch_all():
    for name, value in values().items():
        settings.switch(name, "off" if value == "on" else "on")
"""
IMPORT = "import torch, torch._inductor.config, torch._functorch.config\n"
ATTRIBUTES = """\
def attributes():
    inductor, functorch = torch._inductor.config, torch._functorch.config
    return [
        inductor.fx_graph_cache, functorch.enable_autograd_cache, inductor.fx_graph_remote_cache,
        functorch.enable_remote_autograd_cache, inductor.autotune_remote_cache,
        torch.compiler.config.force_disable_caches,
    ]
DEFAULTS = [True, True, None, None, None, False]
SWITCHED = [False, False, True, True, True, True]
"""


@pytest.mark.compile
@pytest.mark.parametrize("first", [IMPORT, ""])
def test_a_switch_is_an_assignment_with_torch_and_before_it_and_is_taken_back(
    run_python: RunPython, first: str
) -> None:
    code = """\
environ = {name: os.environ.get(name) for name in NAMES}
switch_all()
import torch
assert attributes() == SWITCHED, attributes()
assert origins() == {"%nbcache config"} and {name: os.environ.get(name) for name in NAMES} == environ
settings.restore()
assert attributes() == DEFAULTS, attributes()
assert origins() == {"default"}
"""
    run_python(first + TOOLS + ATTRIBUTES + code, having="torch" if first else "")


@pytest.mark.compile
def test_a_value_that_the_user_has_assigned_since_stays(run_python: RunPython) -> None:
    code = """\
for _ in range(3):
    switch_all()
torch._inductor.config.fx_graph_cache = True  # the user's own, since
torch._functorch.config.enable_autograd_cache = True
torch._functorch.config.enable_autograd_cache = False
print([off.remedy for off in switched_off(settings.switched)])
settings.restore()
assert attributes() == DEFAULTS, attributes()
torch.compiler.config.force_disable_caches = True
print(next(row.origin for row in settings.rows() if row.name.endswith("DISABLE_CACHES")))
print(settings.why_disabled())
"""
    done = run_python(IMPORT + TOOLS + ATTRIBUTES + code, having="torch")

    assert done.stdout.splitlines() == [
        f"['%nbcache config {AUTOGRAD}=on', '%nbcache config {FORCE}=off']",
        "set in this kernel",
        f"torch's caches are off: {FORCE} is on (set in this kernel)",
    ]


@pytest.mark.compile
def test_what_torch_would_ignore_is_refused_and_changes_nothing(
    run_python: RunPython, isolated: dict[str, str]
) -> None:
    code = """\
before = attributes()
print(settings.why_disabled())
for name in NAMES:
    try:
        settings.switch(name, {"on": "off", "off": "on"}[values()[name]])
    except ConfigError as error:
        print(error.what, "|", error.next_step)
settings.restore()
assert attributes() == before == [False, True, True, None, None, False], attributes()
"""
    variables = {FX: "0", AUTOGRAD: "1", "TORCH_COMPILE_FORCE_DISABLE_CACHES": "0", FX_REMOTE: "1"}

    done = run_python(IMPORT + TOOLS + ATTRIBUTES + code, isolated | variables)

    why, first, second, third = done.stdout.splitlines()  # the remote ones can be assigned to in any case
    assert why == f"torch's caches are off: {FX} is off (environment)"
    assert first == (
        f"torch ignores {FX}=on, since {FX}=0 was in the environment when it was imported: nothing is changed"
        f" | unset {FX}, and restart the kernel"
    )
    assert second.startswith(f"torch ignores {AUTOGRAD}=off")
    assert third.endswith("unset TORCH_COMPILE_FORCE_DISABLE_CACHES, and restart the kernel")


# --- %nbcache config ----------------------------------------------------------------------------


def config(notebook: Any, index: int) -> dict[str, dict[str, str]]:
    """Return what `%nbcache config --json` said of torch's settings, by name."""
    return {row["name"]: row for row in json.loads(printed(notebook, index))["torch"]}


@pytest.mark.compile
def test_config_shows_torchs_settings_in_a_block_of_their_own_and_switches_them(
    run_cells: RunCells, isolated: dict[str, str]
) -> None:
    asked = "import os, sys; print('torch' in sys.modules, sorted(n for n in os.environ if 'INDUCTOR' in n))"
    cells = [
        LOAD,
        "%nbcache config",
        f"%nbcache config {FX}=off live=off",
        "%nbcache config --json",
        f"%nbcache config {FORCE}=on",
        "%nbcache config --json",
        asked,
        "%unload_ext nbcache",
        asked,
    ]

    done = run_cells(cells, isolated, forked=False)

    block = shown(done, 1).partition("\ntorch's caches\n")[2]
    assert [line.split()[0] for line in block.splitlines() if line.strip().startswith("TORCH")] == [
        *(FX, AUTOGRAD, FX_REMOTE, AUTOGRAD_REMOTE, AUTOTUNE_REMOTE, FORCE, FOLDER)
    ]
    (output,) = done.cells[1].outputs
    assert output.data["text/html"].count("<table") == 2
    rows = config(done, 3)
    assert (rows[FX]["value"], rows[FX]["origin"]) == ("off", "%nbcache config")
    assert rows[AUTOGRAD]["note"] == f"without effect: it needs {FX}"
    assert f"{FORCE} is on: every graph is compiled anew" in printed(done, 4)
    assert config(done, 5)[FOLDER]["origin"] == "nbcache, for this environment"
    assert printed(done, 6) == f"True {[FOLDER]}\n"
    assert printed(done, 8) == "True []\n"


def test_a_change_that_makes_no_sense_is_one_clean_message(run_python: RunPython) -> None:
    cases = [
        ("TORCHINDUCTOR_FX_GRAPH_CACH=off", f"did you mean '{FX}'?"),
        ("force_disable_caches=on", f"did you mean '{FORCE}'?"),
        ("nothing_like_it=1", f"shared_timeout, shared_connect_timeout, log, notebook, {FX}"),
        (f"{FX}=perhaps", "on or off is needed"),
        (f"{FOLDER}=/tmp/other", "set TORCHINDUCTOR_CACHE_DIR in the environment"),
    ]
    code = f"""\
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "nbcache")
for change, _ in {cases!r}:
    print("@@")
    shell.run_cell("%nbcache config " + change)
"""
    said_to_each = run_python(code, having="IPython").stdout.split("@@")[1:]
    for (_, said), told in zip(cases, said_to_each, strict=True):
        assert "".join(said.split()) in "".join(told.split())
        assert "ConfigError" in told and "Traceback" not in told


# --- in kernels that compile --------------------------------------------------------------------


@pytest.mark.compile
def test_with_caches_off_every_graph_is_disabled_and_names_the_setting(
    with_headers: dict[str, str], run_cells: RunCells
) -> None:
    define = "def f(x):\n    return (x * 2).sin().sum()\nw = x.clone().requires_grad_()"
    call = "torch.compile(f)(w).backward()\nwith torch.no_grad():\n    torch.compile(lambda x: x + 1)(x)"
    attribute = "torch._inductor.config.fx_graph_cache"
    again = "torch._dynamo.reset()\n"
    cells = [
        LOAD,
        SET_UP + define,
        f"%nbcache config {FORCE}=on\n{call}",
        f"%nbcache config {FORCE}=off {FX}=off\n{again}{call}",
        f"%nbcache config {FX}=on\n{attribute} = False\n{again}torch.compile(f)(x)",
        f"{attribute} = True\n{again}torch.compile(f)(x)",
        REPORTS,
    ]

    done = run_cells(cells, with_headers)

    assert outcomes(done) == ["disabled"] * 7 + ["miss"]
    off = "torch's caches are off: {} ({})".format
    assert [graph["reason"] for graph in graphs(done)[:7]] == [
        *[off(f"{FORCE} is on", "%nbcache config")] * 3,
        *[off(f"{FX} is off", "%nbcache config")] * 3,
        off(f"{FX} is off", "set in this kernel"),
    ]
    assert {graph["direction"] for graph in graphs(done)[:3]} == {"forward", "backward", "inference"}
    assert off(f"{FORCE} is on", "%nbcache config") in shown(done, 2)
