"""Cells that compile for a GPU, through the front door: on one machine, then restored on a fresh one.

What a hit must not do is counted there: compilers, in whatever process, by wrappers around them; benchmarks
by torch's own counters.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import nbformat
import pytest

from support.front_door import LOAD, printed
from support.gpu_machines import Card, Machines

pytestmark = pytest.mark.gpu

MODEL = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512))
model.to("cuda"{more})
inputs = [torch.randn(64, 256).to("cuda"{more})]
def f(x):
    return model(x).softmax(-1)
"""
INFERENCE = """\
with torch.no_grad():
    result = [f(x) for x in inputs]
"""
TRAINING = """\
result = [f(x) for x in inputs]
sum(each.float().square().sum() for each in result).backward()
result += [each.grad.clone() for each in model.parameters()]
"""
AMP = """\
with torch.autocast("cuda", torch.bfloat16):
    result = [f(x) for x in inputs]
sum(each.float().square().sum() for each in result).backward()
result += [each.grad.clone() for each in model.parameters()]
"""
OWN_KERNEL = """\
import pathlib, sys, torch
pathlib.Path("own_kernels.py").write_text('''
import torch, triton, triton.language as tl
{tuned}
@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
def f(x):
    y = torch.empty_like(x)
    doubled[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(){block})
    return y.sin() + x
''')
sys.path.insert(0, ".")
from own_kernels import f
inputs = [torch.linspace(0, 1, 5000).cuda()]
"""
TUNED = "@triton.autotune([triton.Config({'BLOCK': size}) for size in (128, 256, 1024)], key=['n'])"
FP8 = """\
import torch
torch.manual_seed(0)
a = torch.randn(64, 128).to(torch.float8_e4m3fn).cuda()
b = torch.randn(256, 128).to(torch.float8_e4m3fn).cuda().t()
one = torch.ones((), device="cuda")
inputs = [torch.randn(64, 256).cuda()]
def f(x):
    product = torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return (product.float() + x).relu()
"""
ATTENTION = """\
import torch
from torch.nn.attention.flex_attention import flex_attention
torch.manual_seed(0)
inputs = [torch.randn(1, 2, 128, 64).to("cuda", torch.bfloat16)]
def f(x):
    return flex_attention(x, x, x, score_mod=lambda score, b, h, i, j: score - (i - j).abs())
"""
CONVOLUTION = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.ReLU()).cuda()
inputs = [torch.randn(4, 3, 32, 32).cuda()]
def f(x):
    return model(x).mean((2, 3))
"""
REPLAYED = """\
for _ in range(2):
    with torch.no_grad():
        result = [f(x).clone() for x in inputs]
"""
SEVERAL = "inputs = [torch.randn(rows, 256).cuda() for rows in (64, 48, 33)]\n"
AGAIN = "inputs = [inputs[0]] * 4\n"
WATCH = """\
import json, os, pathlib
from torch._inductor.runtime import benchmarking
benchmarks = []
def watch(name):
    run = getattr(benchmarking.benchmarker, name)
    def watched(*args, **kwargs):
        benchmarks.append(name)
        return run(*args, **kwargs)
    setattr(benchmarking.benchmarker, name, watched)
for name in ("benchmark", "benchmark_gpu"):
    watch(name)
"""
TELL = """\
session = __import__("nbcache").session()
log = pathlib.Path(os.environ["COMPILERS_LOG"])
print(json.dumps({
    "reports": [each.to_json() for each in session.reports],
    "notices": session.notices,
    "compilers": log.read_text().splitlines() if log.exists() else [],
    "benchmarks": len(benchmarks),
}))
"""
COMPARE = """\
torch.compiler.reset()
mine = [each.detach().float().cpu() for each in result]
[each.grad.zero_() for each in getattr(globals().get("model"), "parameters", list)() if each.grad is not None]
with torch.compiler.set_stance("force_eager"):
{call}
apart = [(a - b.detach().float().cpu()).abs().max().item() for a, b in zip(mine, result, strict=True)]
largest = max(each.abs().max().item() for each in mine)
print(json.dumps([max(apart), largest]))
"""


@dataclass(frozen=True)
class Sample:
    """Something to compile: cells, and what they need of the card."""

    set_up: str
    call: str = INFERENCE
    flags: str = ""
    capability: tuple[int, int] = (7, 0)
    tolerance: float = 1e-3
    """The largest difference to eager, as part of the largest result."""
    needs_cudnn: bool = False
    environ: dict[str, str] = field(default_factory=dict)


SAMPLES = {
    "inference": Sample(MODEL.format(more="")),
    "bfloat16": Sample(MODEL.format(more=", torch.bfloat16"), tolerance=2e-2),
    "training": Sample(MODEL.format(more=""), TRAINING),
    "training under autocast": Sample(MODEL.format(more=""), AMP, tolerance=3e-2),
    "dynamic shapes": Sample(MODEL.format(more="") + SEVERAL, flags="--dynamic"),
    "shapes become dynamic": Sample(MODEL.format(more="") + SEVERAL, TRAINING),
    "reduce-overhead": Sample(
        MODEL.format(more="") + AGAIN,
        REPLAYED,
        "--mode reduce-overhead",
    ),
    "max-autotune": Sample(
        MODEL.format(more=", torch.bfloat16"),
        REPLAYED,
        "--mode max-autotune",
        tolerance=2e-2,
    ),
    "max-autotune, training": Sample(MODEL.format(more=""), TRAINING, "--mode max-autotune-no-cudagraphs"),
    "coordinate descent": Sample(MODEL.format(more=""), flags="--options coordinate_descent_tuning=True"),
    "a Triton kernel of one's own": Sample(OWN_KERNEL.format(tuned="", block=", BLOCK=256")),
    "one's own that is tuned": Sample(OWN_KERNEL.format(tuned=TUNED, block="")),
    "FP8": Sample(FP8, capability=(8, 9), tolerance=2e-2),
    "flex attention": Sample(ATTENTION, capability=(8, 0), tolerance=2e-2),
    "a convolution": Sample(CONVOLUTION, needs_cudnn=True),
    "without static launchers": Sample(
        MODEL.format(more=""),
        TRAINING,
        environ={
            "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER": "0",
            "TORCHINDUCTOR_USE_STATIC_TRITON_LAUNCHER": "0",
        },
    ),
    "compiled in this process": Sample(
        MODEL.format(more=""), TRAINING, environ={"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    ),
    "compiled by threads": Sample(  # since torch 2.15; others start processes all the same
        MODEL.format(more=""), TRAINING, environ={"TORCH_COMPILE_WORKER_MODE": "thread"}
    ),
    "max-autotune, by threads": Sample(
        MODEL.format(more=", torch.bfloat16"),
        REPLAYED,
        "--mode max-autotune",
        tolerance=2e-2,
        environ={"TORCH_COMPILE_WORKER_MODE": "thread"},
    ),
}


def cells(sample: Sample, *after: str) -> list[str]:
    return [LOAD, sample.set_up, WATCH, f"%%compile_cached f {sample.flags}\n{sample.call}", *after]


def told(notebook: nbformat.NotebookNode, index: int = -1) -> Any:
    return json.loads(printed(notebook, index).splitlines()[-1])


def graphs_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for report in found["reports"] for each in report["graphs"]]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_fresh_machine_compiles_and_tunes_nothing(name: str, card: Card, machines: Machines) -> None:
    sample = SAMPLES[name]
    if card.capability < sample.capability:
        pytest.skip(f"needs compute capability {sample.capability}")
    if sample.needs_cudnn and not card.computes:
        pytest.skip("needs cuDNN")
    first = machines.make("first", **sample.environ)
    snapshot = first.folder / "model.nbcache"
    cold = first.run(*cells(sample, TELL, f"%nbcache snapshot {snapshot}"))
    before = told(cold, 4)
    assert {each["outcome"] for each in graphs_of(before)} == {"miss"}
    assert before["compilers"] and not before["notices"]

    fresh = machines.make("fresh", **sample.environ)
    compare = COMPARE.format(call="".join(f"    {line}\n" for line in sample.call.splitlines()))
    load, *rest = cells(sample, TELL, compare)
    notebook = fresh.run(load, f"%nbcache restore {snapshot}", *rest)

    found = told(notebook, 5)
    hits = graphs_of(found)
    assert [(each["outcome"], each["reason"]) for each in hits] == [("hit", None)] * len(hits) and hits
    assert (found["compilers"], found["benchmarks"], found["notices"]) == ([], 0, [])
    compiled = graphs_of(before)  # more of them where torch had yet to learn which shapes are dynamic
    assert {each["kernels"] for each in hits} <= {each["kernels"] for each in compiled}
    difference, largest = told(notebook, 6)
    assert not card.computes or difference <= sample.tolerance * largest
