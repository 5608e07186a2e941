"""What is done of traces while no cell runs, through real kernels that are left idle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.front_door import LOAD, LOG, REPORTS, SESSION, SET_UP, Environ, Kernel
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
KNOWN = """\
import gc, torch._dynamo.utils as utils, torch._dynamo.convert_frame as convert_frame
gc.collect()
print([
    dict(utils.counters), len(utils.get_compilation_metrics()), utils.graph_break_reasons,
    convert_frame.FRAME_COUNTER, dict(convert_frame.FRAME_COMPILE_COUNTER), torch._dynamo.pgo._CODE_STATE,
    torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_rng_state().sum(),
    sorted(name for name in globals() if not name.startswith("_i")),
    sorted(vars(torch._dynamo.external_utils)),
])
"""
FEWER_GUARDS = """\
import dataclasses
import nbcache.torch_bridge.traces.reading as reading
original = reading.from_bytes
def with_fewer_guards(content):
    trace = original(content)
    return dataclasses.replace(trace, guards=trace.guards[:-1])
reading.from_bytes = with_fewer_guards
"""
OTHER_KEY = """\
import nbcache.torch_bridge.traces.later as later
original = later.KeptCall.compile
def with_another_key(call, frame):
    with torch._inductor.config.patch(epilogue_fusion=False):
        original(call, frame)
later.KeptCall.compile = with_another_key
"""


@pytest.fixture
def tracing(prewarming: dict[str, str]) -> dict[str, str]:
    """Return an environment with prewarming and traces on, in which every kernel audits."""
    return {**prewarming, "NBCACHE_TRACE": "on", "NBCACHE_AUDIT": "1", "NBCACHE_NOTEBOOK": "traced.ipynb"}


def slices(kernel: Kernel) -> list[str]:
    names: list[str] = kernel.ask(f"[each.name for each in {SESSION}.prewarm.slices]")
    return [name for name in names if "trace" in name and name != "trace a sample"]


def audits(kernel: Kernel, count: int) -> list[str]:
    """Leave the kernel idle until it has done `count` audits; return what it logged of them."""
    kernel.wait_until(f"sum('audit' in each.name for each in {SESSION}.prewarm.slices) == {count}")
    kernel.idle()
    said: list[str] = kernel.ask("Lines.said")
    return [line for line in said if "audit" in line]


def graphs(kernel: Kernel) -> list[dict[str, Any]]:
    return [graph for report in json.loads(kernel.run(REPORTS)) for graph in report["graphs"]]


def run(kernel: Kernel, *cells: str) -> list[str]:
    return [kernel.run(cell) for cell in cells]


def test_a_trace_is_tried_and_what_was_adopted_is_audited_while_no_cell_runs(
    tracing: dict[str, str], start_kernel: StartKernel
) -> None:
    cold = start_kernel(tracing)
    expected = run(cold, LOAD, *CELLS)
    cold.idle()
    assert slices(cold) == ["record a trace", "adopt a trace"]
    assert cold.ask(f"{SESSION}.notices") == []
    cold.end()

    kernel = start_kernel(tracing)
    run(kernel, LOG, LOAD)
    kernel.idle()
    assert slices(kernel) == ["record a trace", "adopt a trace", "read a trace", "read a trace"]
    assert run(kernel, *CELLS[:-1]) == expected[1:-1]
    assert len(audits(kernel, 1)) == 1
    result, before = kernel.run(f"{INFER}\n{KNOWN}").splitlines()
    said = audits(kernel, 2)

    assert kernel.run(KNOWN).strip() == before
    assert said == ["wrap_inline.<locals>.inner() was traced to audit its trace, which agrees"] * 2
    assert [graph["trace"] for graph in graphs(kernel)] == ["adopted", None, "adopted"]
    assert kernel.ask(f"{SESSION}.notices") == []
    assert result == expected[-1].strip()


def test_with_rerun_a_trace_is_adopted_after_prewarming_as_without(
    tracing: dict[str, str], start_kernel: StartKernel
) -> None:
    rerun = {**tracing, "NBCACHE_TRACE": "rerun", "NBCACHE_AUDIT": "0"}
    cold = start_kernel(rerun)
    run(cold, LOAD, *CELLS[:3])
    cold.end()

    kernel = start_kernel(rerun)
    run(kernel, LOAD)
    kernel.idle()
    run(kernel, *CELLS[:3])

    assert graphs(kernel)[0]["trace"] == "adopted"


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


@pytest.mark.proof
def test_a_kept_call_keeps_nothing_alive_and_is_not_audited_without_what_it_was_given(
    tracing: dict[str, str], start_kernel: StartKernel
) -> None:
    cold = start_kernel(tracing)
    run(cold, LOAD, *CELLS)
    cold.end()

    kernel = start_kernel(tracing)
    run(kernel, LOG, LOAD)
    freed = """\
import gc, weakref
seen = weakref.ref(model), weakref.ref(x)
del model, x, y, f
gc.collect()
print([each() is None for each in seen])
"""
    said = run(kernel, "\n".join((SET_UP, COMPILE, TRAIN, "torch._dynamo.reset()", freed)))
    assert said[0].splitlines()[-1] == "[True, True]"
    assert audits(kernel, 1) == [
        "the trace of wrap_inline.<locals>.inner() is not audited: what it was called with is gone"
    ]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("doctored", "differs"),
    [
        (FEWER_GUARDS, "its guards"),
        pytest.param(OTHER_KEY, "the keys of its graph", marks=pytest.mark.proof),
    ],
)
def test_a_trace_that_differs_is_removed_from_where_it_came_and_from_snapshots(
    tracing: dict[str, str], start_kernel: StartKernel, tmp_path: Path, doctored: str, differs: str
) -> None:
    taken, connect = tmp_path / "taken.nbcache", f"%nbcache connect file://{tmp_path / 'shared'}"
    cold = start_kernel(tracing)
    run(
        cold,
        LOAD,
        connect,
        *CELLS[:3],
        f"%nbcache snapshot {taken}",
        "import nbcache; nbcache.session().flush()",
    )
    (key,) = cold.ask(f"[*{{ref.key for ref in {SESSION}.cache.stored().artifacts if ref.type == 'trace'}}]")
    shared = f"len({SESSION}.shared_client.find({SESSION}.environment, 'trace', {key!r}))"
    assert cold.ask(shared) == 1
    cold.end()

    kernel = start_kernel(tracing)
    run(kernel, LOG, LOAD, connect, SET_UP, doctored, *CELLS[1:3])
    assert graphs(kernel)[0]["trace"] == "adopted"
    audits(kernel, 1)
    (notice,) = kernel.ask(f"{SESSION}.notices")
    assert f"is not what torch traces now: {differs} differ" in notice
    kernel.wait_until(f"{shared} == 0")
    kernel.end()

    last = start_kernel(tracing)
    run(last, LOAD, f"%nbcache restore {taken}", *CELLS[:3])
    assert graphs(last)[0]["trace"] is None
    assert last.ask(f"{SESSION}.notices") == []
