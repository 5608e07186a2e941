"""What is done of traces while no cell runs, through real kernels that are left idle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.front_door import LOAD, REPORTS, SESSION, SET_UP, Environ, Kernel
from support.torch_versions import needs_traces

pytestmark = [
    *(pytest.mark.compile, needs_traces),
    pytest.mark.xdist_group("prewarm"),  # for its fixtures
]

StartKernel = Callable[[Environ], Kernel]

COMPILE = "f = torch.compile(model, mode='lite')"
TRAIN = "y = f(x).square().mean()\ny.backward()\nprint(y.item())"
INFER = "with torch.no_grad(), torch.autocast('cpu'):\n    print(f(torch.ones(3, 16)).sum().item())"
CELLS = (SET_UP, COMPILE, TRAIN, INFER)


@pytest.fixture
def tracing(prewarming: dict[str, str]) -> dict[str, str]:
    """Return an environment with prewarming and traces on, without audits."""
    return {**prewarming, "NBCACHE_NOTEBOOK": "traced.ipynb"}


def slices(kernel: Kernel) -> list[str]:
    names: list[str] = kernel.ask(f"[each.name for each in {SESSION}.prewarm.slices]")
    return [name for name in names if "trace" in name and name != "trace a sample"]


def graphs(kernel: Kernel) -> list[dict[str, Any]]:
    return [graph for report in json.loads(kernel.run(REPORTS)) for graph in report["graphs"]]


def run(kernel: Kernel, *cells: str) -> list[str]:
    return [kernel.run(cell) for cell in cells]


def test_a_trace_is_tried_and_read_ahead_while_no_cell_runs_and_then_adopted(
    tracing: dict[str, str], start_kernel: StartKernel
) -> None:
    cold = start_kernel(tracing)
    expected = run(cold, LOAD, *CELLS)
    cold.idle()
    assert slices(cold) == ["record a trace", "adopt a trace"]
    assert cold.ask(f"{SESSION}.notices") == []
    cold.end()

    kernel = start_kernel(tracing)
    run(kernel, LOAD)
    kernel.idle()
    assert slices(kernel) == ["record a trace", "adopt a trace", "read a trace", "read a trace"]
    assert run(kernel, *CELLS) == expected[1:]
    assert [graph["trace"] for graph in graphs(kernel)] == ["adopted", None, "adopted"]
    assert kernel.ask(f"{SESSION}.notices") == []


@pytest.mark.proof
def test_without_a_sample_nothing_is_tried_and_traces_stay(
    isolated: dict[str, str], start_kernel: StartKernel, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    del isolated["NBCACHE_PREWARM"]
    without_compiler = {**isolated, "NBCACHE_TRACE": "on", "PATH": str(tmp_path / "empty")}
    kernel = start_kernel(without_compiler)
    run(kernel, LOAD)
    kernel.idle()
    assert slices(kernel) == ["record a trace", "adopt a trace"]
    assert kernel.ask(f"{SESSION}.notices") == []
