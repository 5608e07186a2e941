"""Traces through the front door: what a user sees of them, and where they travel."""

from __future__ import annotations

import json
import sys
import textwrap
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
    reports,
    run_interpreter,
    shown,
)
from support.torch_versions import needs_traces

pytestmark = [pytest.mark.compile, needs_traces]

ON = "%nbcache config trace=on audit=0"
OFF = "%nbcache config trace=off"
COMPILE = "f = torch.compile(model, mode='lite')"
TRAIN = "y = f(x).square().mean()\ny.backward()\nprint(y.item(), model[0].weight.grad.abs().sum().item())"
CELLS = [LOAD, ON, SET_UP, COMPILE, TRAIN, REPORTS]


def test_a_restored_function_is_not_traced_again_and_its_report_says_nothing_of_that(
    run_cells: RunCells, isolated: dict[str, str], wipe: Callable[[Environ], None]
) -> None:
    off = [OFF if cell == ON else cell for cell in CELLS]
    run_cells(off)  # it keeps no trace
    cold = run_cells(CELLS)
    wipe(isolated)
    restored = run_cells(CELLS)
    restored_without = run_cells(off)
    changed = run_cells([*CELLS[:4], "model.note = 3", *CELLS[4:]])
    logged = run_cells(CELLS, {**isolated, "TORCH_LOGS": "graph_breaks"})

    assert printed(cold, 4) == printed(restored, 4) == printed(changed, 5)
    forward, backward = graphs(restored)
    assert (forward["outcome"], backward["outcome"]) == ("hit", "hit")
    assert forward["reason"].startswith("not traced: ") and "facts hold" in forward["reason"]
    assert forward["seconds"]["trace"] > 0
    assert forward["saved_seconds"] > graphs(restored_without)[0]["saved_seconds"]
    assert "hit" in shown(restored, 4) and "note:" not in shown(restored, 4)
    assert graphs(changed)[0]["reason"].startswith("traced again: ")
    assert not graphs(cold)[0]["reason"] and not graphs(logged)[0]["reason"]
    assert "trace" not in graphs(restored_without)[0]["seconds"]
    told = [graphs(each)[0]["trace"] for each in (cold, restored, restored_without, changed)]
    assert told == [None, "adopted", None, "outdated"]


HANDLER = """\
import logging
class Handler(logging.Handler):
    def emit(self, record):
        pass
logging.getLogger("nbcache").addHandler(Handler())
logging.getLogger("nbcache").setLevel("DEBUG")
"""


def test_a_handler_of_the_log_takes_no_trace_away(run_cells: RunCells) -> None:
    cells = [LOAD, "%nbcache config audit=0", HANDLER, SET_UP, COMPILE, TRAIN, REPORTS]
    run_cells(cells)
    assert graphs(run_cells(cells))[0]["trace"] == "adopted"


def test_a_fault_while_nbcache_watches_dynamo_costs_no_cell(run_cells: RunCells) -> None:
    fault = """
    from nbcache.traces import recording
    def note_code(*arguments): raise KeyError("f_code")
    recording.Observations.note_code = note_code
    """
    cells = [LOAD, "%nbcache config audit=0", SET_UP, COMPILE, TRAIN, REPORTS]
    failing = run_cells([LOAD, textwrap.dedent(fault), *cells[1:]])
    assert printed(failing, 5) == printed(run_cells(cells), 4)
    failed = "because watching Dynamo trace failed: cells run, and torch traces functions again."
    notice = f"{failed} Please report it: KeyError('f_code') [no-traces]"
    assert notice in " ".join(reports(failing)[-1]["notices"])


def test_a_fault_in_describing_a_frame_hides_none_of_its_graphs(run_cells: RunCells) -> None:
    fault = """
    from nbcache.torch_bridge import events
    def failure(metadata): raise RuntimeError("deque mutated")
    events._failure = failure
    """
    failing = run_cells([LOAD, SET_UP, COMPILE, textwrap.dedent(fault), TRAIN, REPORTS])
    assert [graph["outcome"] for graph in graphs(failing)] == ["miss", "miss"]
    assert "following a compile failed unexpectedly" in str(reports(failing)[-1]["notices"])


def test_a_trace_is_for_a_kernel_that_has_run_the_same_cells_and_no_files(
    run_cells: RunCells, isolated: dict[str, str], tmp_path: Path
) -> None:
    cold = run_cells(CELLS)
    same = run_cells(
        [
            LOAD,
            "%nbcache config trace=rerun audit=0",
            SET_UP,
            f"# a comment\n{COMPILE}",
            "%nbcache status",
            *CELLS[4:],
        ]
    )
    edited = run_cells([*CELLS[:3], "unrelated = 3", *CELLS[3:]])
    edited_again = run_cells([*CELLS[:3], "unrelated = 3", *CELLS[3:]])

    assert printed(cold, 4) == printed(same, 5) == printed(edited, 5) == printed(edited_again, 5)
    assert [graphs(each)[0]["trace"] for each in (cold, same, edited, edited_again)] == [
        *(None, "adopted", "outdated", "adopted")
    ]
    assert [graphs(each)[0]["outcome"] for each in (cold, same, edited)] == ["miss", "hit", "hit"]
    assert graphs(edited)[0]["reason"] == "traced again: this kernel has run other cells"

    file = tmp_path / "part.py"
    file.write_text("part = 1\n")
    (graph, *_) = graphs(run_cells([*CELLS[:3], f"%run {file}", *CELLS[3:]]))
    assert (graph["outcome"], graph["trace"]) == ("hit", "outdated")
    assert graph["reason"].startswith("traced again: a cell runs files")


def test_a_module_that_was_edited_has_its_functions_traced_again(
    run_cells: RunCells, isolated: dict[str, str], tmp_path: Path
) -> None:
    part = tmp_path / "part.py"
    part.write_text("K = 2.0\ndef scale(x):\n    return x * K\n")
    cells = [
        *(LOAD, "%nbcache config trace=on audit=0", f"import sys; sys.path.insert(0, {str(tmp_path)!r})"),
        *("import part, torch", "f = torch.compile(part.scale, mode='lite')"),
        *("with torch.no_grad(): print(f(torch.ones(2)).tolist())", REPORTS),
    ]
    told = []
    for text in ("K = 2.0", "K = 2.0", "# a comment\nK = 2.0", "K = 3.0"):
        part.write_text(f"{text}\ndef scale(x):\n    return x * K\n")
        ran = run_cells(cells)
        told.append((printed(ran, 5), graphs(ran)[0]["trace"]))

    twos = "[2.0, 2.0]\n"
    assert told == [(twos, None), (twos, "adopted"), (twos, "outdated"), ("[3.0, 3.0]\n", "outdated")]


FEWER_GUARDS = """\
import dataclasses
import nbcache.traces.trace_rows as trace_rows
original = trace_rows.from_bytes
def with_fewer_guards(content):
    trace = original(content)
    return dataclasses.replace(trace, guards=trace.guards[:-1])
trace_rows.from_bytes = with_fewer_guards
"""


def test_a_trace_that_an_audit_finds_wrong_is_removed_from_the_stores_and_from_snapshots(
    run_cells: RunCells, tmp_path: Path
) -> None:
    taken, connect = tmp_path / "taken.nbcache", f"%nbcache connect file://{tmp_path / 'shared'}"
    cells = [SET_UP, FEWER_GUARDS, COMPILE, TRAIN, REPORTS]
    run_cells([LOAD, ON, connect, *cells, f"%nbcache snapshot {taken}"])

    audited = run_cells([LOAD, ON.replace("audit=0", "audit=1"), connect, *cells])

    assert graphs(audited)[0]["reason"] == "traced again: its trace was audited, and differs: its guards"
    assert "is not what torch traces now: its guards differ" in str(reports(audited)[-1]["notices"])
    for command in (connect, f"%nbcache restore {taken}"):
        assert graphs(run_cells([LOAD, OFF, command, "%nbcache config trace=on", *cells]))[0]["trace"] is None


def test_a_kernel_that_audits_traces_one_function_again_and_adopts_the_others(
    run_cells: RunCells,
) -> None:
    other = "g = torch.compile(lambda x: x * 2, mode='lite')\nwith torch.no_grad(): g(torch.ones(3))"
    cells = [LOAD, ON, SET_UP, COMPILE, TRAIN, other, REPORTS]
    run_cells(cells)
    cells[1] = ON.replace("audit=0", "audit=1")
    traces = [graph["trace"] for graph in graphs(run_cells(cells))]
    assert traces == ["agrees", None, "adopted"]


def test_a_trace_travels_in_a_snapshot(run_cells: RunCells, isolated: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "taken.nbcache"
    run_cells([*CELLS[:-1], f"%nbcache snapshot {file}"])
    elsewhere = {**isolated, "NBCACHE_DIR": str(tmp_path / "other"), "TMPDIR": str(tmp_path / "scratch")}
    (tmp_path / "scratch").mkdir()

    restored = run_cells([LOAD, ON, f"%nbcache restore {file}", *CELLS[2:]], elsewhere)

    assert graphs(restored)[0]["reason"].startswith("not traced: ")


@pytest.fixture
def saved(isolated: dict[str, str], tmp_path: Path) -> None:
    """Save the cells as `model.ipynb`, for a kernel that there is."""
    kernel_specs(Path(isolated["JUPYTER_DATA_DIR"]), sys.executable, forked=True)
    cells = [nbformat.v4.new_code_cell(source) for source in (SET_UP, COMPILE, TRAIN)]
    metadata = {"kernelspec": {"name": KERNEL, "display_name": ""}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), tmp_path / "model.ipynb")


@pytest.mark.usefixtures("saved")
def test_the_command_audits_the_traces_of_a_notebook(isolated: dict[str, str], tmp_path: Path) -> None:
    def audited() -> tuple[int, dict[str, Any]]:
        command = ["-m", "nbcache", "verify", "--traces", "model.ipynb", "--json"]
        done = run_interpreter(command, isolated, tmp_path, having="IPython")
        return done.returncode, json.loads(done.stdout)

    status, found = audited()
    assert (status, found["agree"], found["differ"]) == (1, 0, 0)
    command = ["-m", "nbcache", "run", "model.ipynb", "--json"]
    ran = json.loads(run_interpreter(command, isolated, tmp_path, having="IPython").stdout)
    assert [graph["trace"] for graph in ran["graphs"]] == ["adopted", None]
    status, found = audited()
    assert (status, found["agree"], found["differ"]) == (0, 1, 0)
    assert found["graphs"][0]["trace"] == "agrees"
