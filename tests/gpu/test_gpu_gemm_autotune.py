"""What max-autotune has measured on a card: another graph with the same multiplication measures nothing."""

from __future__ import annotations

import pytest
from test_gpu_cells import told

from support.front_door import LOAD, REPORTS, graphs
from support.gpu_machines import Machines

pytestmark = pytest.mark.gpu

SET_UP = """\
import json, torch
from torch._dynamo.utils import counters
{inputs}
"""
CALL = "with torch.no_grad():\n    f(*inputs)"
BENCHMARKED = """\
counted = ("select_algorithm_autotune", "pad_mm_bench")
print(json.dumps({name: count for name, count in counters["inductor"].items() if name in counted}))
counters.clear()
"""
MM = "inputs = [torch.randn(256, width, dtype=torch.bfloat16).cuda() for width in (256, 512)]"
BMM = "inputs = [torch.randn(4, 128, width).cuda() for width in (128, 256)]"
ADDMM = "linear = torch.nn.Linear(256, 512).cuda().bfloat16()\n" + MM.replace("(256, 512)", "(256,)")
UNALIGNED = (
    "inputs = [torch.randn(*size, dtype=torch.float16).cuda() for size in ((4096, 4095), (4095, 4096))]"
)
SAMPLES = {
    "mm": (MM, "(x @ y)", "--mode max-autotune-no-cudagraphs"),
    "bmm, with CUDA graphs": (BMM, "(x @ y)", "--mode max-autotune"),
    "a linear layer": (ADDMM, "linear(x)", "--mode max-autotune-no-cudagraphs"),
    "whether to pad": (UNALIGNED, "(x @ y)", ""),
}


def cells(inputs: str, flags: str, result: str, *after: str) -> list[str]:
    define = f"%%compile_cached f {flags}\ndef f(x, y=None):\n    return {result}\n"
    return [SET_UP.format(inputs=inputs), define, CALL, BENCHMARKED, *after]


@pytest.mark.parametrize("name", SAMPLES)
def test_another_graph_with_the_same_multiplication_benchmarks_nothing(name: str, machines: Machines) -> None:
    inputs, product, flags = SAMPLES[name]
    first = machines.make("first")
    snapshot = first.folder / "model.nbcache"
    cold = first.run(
        LOAD, *cells(inputs, flags, f"{product}.relu()", f"%nbcache snapshot {snapshot}", REPORTS)
    )
    assert told(cold, 4)
    (graph,) = graphs(cold)
    assert graph["bytes"]["gemm_autotune"] > 0

    fresh = machines.make("fresh")
    set_up, *rest = cells(inputs, flags, f"{product}.sigmoid() + 1", REPORTS)
    changed = fresh.run(LOAD, set_up, f"%nbcache restore {snapshot}", *rest)
    assert told(changed, 5) == {}
    (graph,) = graphs(changed)
    assert graph["outcome"] == "miss" and graph["bytes"]["gemm_autotune"] > 0
