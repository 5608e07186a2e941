"""Runs in the measured kernel, around the measured cells: none of it is timed with them."""

from __future__ import annotations

import contextlib
import copy
import datetime
import importlib
import importlib.metadata
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import nbcache
from benchmarks import models

__all__ = ["Case", "build", "finish", "total"]

_TOLERANCES = {"float32": 1e-3, "bfloat16": 1e-2, "amp": 1e-2}
"""Relative and absolute difference that compiled and eager may have; bfloat16 has 8 bits."""
_HOT_SECONDS, _HOT_CALLS = 1.0, (5, 50)
"""Duration, and least and most calls, of which the median is the seconds of a hot call."""
_CALLS_BEFORE = 3
"""Calls between the first one and the hot ones: the second records CUDA graphs, later ones replay them."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its inputs."""

    model: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    training: bool = False
    precision: str = "float32"


def build(name: str, size: str, device: str, training: bool, precision: str) -> Case:
    """Return a standard model, or the one that `module:function` returns, with its inputs on `device`."""
    torch.manual_seed(0)
    module, _, function = name.partition(":")
    if function:
        model, inputs = getattr(importlib.import_module(module), function)()
    else:
        model, inputs = models.model(name, size, device)
    dtype = torch.bfloat16 if precision == "bfloat16" else None
    model.to(device, dtype).train(training)
    inputs = _moved(inputs if isinstance(inputs, (dict, tuple)) else (inputs,), device, dtype)
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    return Case(model, args, kwargs, device, training, precision)


def total(output: Any) -> Tensor:
    """Return the sum of all floating-point tensors in a model's output: the loss in training."""
    sums = [tensor.sum() for tensor in _tensors(output) if tensor.is_floating_point()]
    return torch.stack([term.to(sums[0]) for term in sums]).sum()


def finish(file: str, case: Case, compiled: Callable[..., Any], output: Any, *, loads: bool) -> None:
    """Compare `output` with eager's, time further calls, and write the figures to `file` as JSON.

    `loads` where nbcache is loaded.
    """
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {"inductor": {}})
    figures: dict[str, Any] = {"counters": dict(counters["inductor"]), "benchmarked": _has_benchmarked()}
    agreement = _agreement(case, _results(case, output))
    if loads:
        session = nbcache.session()
        session.flush()  # nothing that goes on for the first call disturbs the hot ones
        figures["reports"] = [report.to_json() for report in session.reports]
        for name in ("overhead_seconds", "explaining_seconds"):
            figures[name] = getattr(session, name, None)
    figures["next_seconds"] = [_timed(case, compiled) for _ in range(_CALLS_BEFORE)]
    figures["hot_seconds"] = _hot_seconds(case, compiled)
    if case.device == "cuda" and agreement["agrees"]:  # CUDA graphs are replayed since
        agreement = _agreement(case, _call(case, compiled))
    Path(file).write_text(json.dumps({**figures, **agreement, "environment": _environment()}))


def _has_benchmarked() -> bool:
    """Return whether torch has benchmarked anything on a GPU in this process.

    Its counters include those of the kernel that compiled a graph. The benchmarker computes one of these
    attributes at first use. Tested on torch 2.11 and 2.13.
    """
    benchmarking = sys.modules.get("torch._inductor.runtime.benchmarking")
    attributes = vars(getattr(benchmarking, "benchmarker", object)).keys()
    return not attributes.isdisjoint({"L2_cache_size", "triton_do_bench"})


_Results = tuple[list[Tensor], list[Tensor]]
"""Copies of outputs, and of gradients in training; an absent gradient is an empty tensor."""


def _results(case: Case, output: Any) -> _Results:
    gradients = [leaf.new_empty(0) if leaf.grad is None else leaf.grad for leaf in _leaves(case)]
    outputs = [tensor.detach().clone() for tensor in _tensors(output)]
    return outputs, [gradient.detach().clone() for gradient in gradients] if case.training else []


def _call(case: Case, function: Callable[..., Any]) -> _Results:
    """Call the model, or its compiled form, as the measured cell does."""
    return _results(case, _run(case, function))


def _run(case: Case, function: Callable[..., Any]) -> Any:
    for leaf in _leaves(case):
        leaf.grad = None
    if case.device == "cuda":
        torch.compiler.cudagraph_mark_step_begin()  # nobody needs the results of earlier calls
    around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if case.precision == "amp":  # entered only then: a disabled one would be a reason to recompile
        around = torch.autocast(case.device, dtype=torch.bfloat16)
    with torch.set_grad_enabled(case.training):
        with around:
            output = function(*case.args, **case.kwargs)
        if case.training:
            total(output).backward()
    return output


def _agreement(case: Case, mine: _Results) -> dict[str, Any]:
    """Return whether the results agree with eager's, and the largest absolute difference.

    In deep networks rounding alone can change gradients by more than any tolerance: those of ResNet-50 in
    float32 and float64 differ by up to 8 %. Where results differ by more, they agree if compiled is about
    as near to float64 as eager is.
    """
    from torch._dynamo.utils import same  # imported late: the measured cell imports the compiler

    eager, tolerance = _call(case, case.model), _TOLERANCES[case.precision]
    pairs = [pair for group in zip(mine, eager, strict=True) for pair in zip(*group, strict=True)]
    apart = [float((ours - theirs).abs().max()) for ours, theirs in pairs if ours.numel()]
    agrees, compared_with = same(eager, mine, tol=tolerance, equal_nan=True), "eager"
    if not agrees:
        model = copy.deepcopy(case.model).to(dtype=torch.float64)
        args, kwargs = _moved((case.args, dict(case.kwargs)), case.device, torch.float64)
        exact = _call(Case(model, args, kwargs, case.device, case.training), model)
        agrees, compared_with = same(eager, mine, exact, tol=tolerance, equal_nan=True), "float64"
    return {"agrees": agrees, "difference": max(apart, default=0.0), "compared_with": compared_with}


def _timed(case: Case, compiled: Callable[..., Any]) -> float:
    """Return the seconds of one call, forward and backward in training."""
    wait = torch.cuda.synchronize if case.device == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    _run(case, compiled)
    wait()
    return time.perf_counter() - began


def _hot_seconds(case: Case, compiled: Callable[..., Any]) -> float:
    """Return the median seconds of a warm call."""
    taken: list[float] = []
    least, most = _HOT_CALLS
    while len(taken) < least or (len(taken) < most and sum(taken) < _HOT_SECONDS):
        taken.append(_timed(case, compiled))
    return statistics.median(taken)


def _leaves(case: Case) -> list[Tensor]:
    """Return the tensors whose gradients a backward fills: parameters, and inputs that require them."""
    return [
        *case.model.parameters(),
        *(leaf for leaf in _tensors((case.args, case.kwargs)) if leaf.requires_grad),
    ]


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _moved(value: Any, device: str, dtype: torch.dtype | None) -> Any:
    """Return `value` with each tensor as a leaf on `device`, floating-point ones as `dtype` where given."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        moved = leaf.detach().to(device, dtype if leaf.is_floating_point() else None)
        return moved.requires_grad_(leaf.requires_grad)

    return tree_map(move, value)


def _environment() -> dict[str, Any]:
    versions = {}
    for package in ("transformers", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "date": datetime.date.today().isoformat(),
        "nbcache": nbcache.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,
        "cuda": torch.version.cuda,
        **versions,
    }
