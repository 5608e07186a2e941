"""What is done in the measured kernel around the measured cell, none of it timed with that cell."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import importlib.metadata
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nbcache
from nbcache.bench.models import Case, moved
from nbcache.bench.options import Precision
from nbcache.core.errors import NbcacheError

__all__ = ["finish", "save_bundle", "total"]

_TOLERANCES = {Precision.FLOAT32: 1e-3, Precision.BFLOAT16: 1e-2, Precision.AMP: 1e-2}
"""Compiled and eager may differ by this part of the largest value of a tensor, and this much besides.

bfloat16 has 8 bits: one rounding alone is up to 0.004.
"""
_TIMES_AS_FAR = 3.0
"""How much farther from float64 than eager compiled may be."""
_HOT_SECONDS = 1.0
_HOT_CALLS = (5, 50)
"""Least and most calls of which the median is the hot call's seconds."""
_CALLS_BEFORE = 3
"""Calls between the first and the hot ones: of CUDA graphs the second records, and later ones replay."""


def total(output: Any) -> Tensor:
    """Return the sum of all floating-point tensors in a model's output: the loss of the benchmark."""
    sums = [tensor.sum() for tensor in _tensors(output) if tensor.is_floating_point()]
    if not sums:
        raise NbcacheError(
            "the model returns no floating-point tensor",
            where="nbcache bench",
            next_step="return one, or measure --inference only",
        )
    return torch.stack([each.to(sums[0]) for each in sums]).sum()


def save_bundle(path: str) -> None:
    """Save torch's bundle of what this process compiled."""
    saved = torch.compiler.save_cache_artifacts()
    Path(path).write_bytes(saved[0] if saved else b"")


def finish(
    path: str,
    case: Case,
    compiled: Callable[..., Any],
    output: Any,
    *,
    execution_count: int,
    recorded: bool,
) -> None:
    """Compare with eager, time the hot call, and write what there is to report to `path`, as JSON.

    `execution_count` is that of the measured cell; `recorded` tells whether nbcache is loaded.
    """
    # Not imported above: the measured cell is to find torch's compiler as a user's would.
    dynamo = sys.modules.get("torch._dynamo.utils")
    found: dict[str, Any] = {
        "counters": {} if dynamo is None else dict(dynamo.counters["inductor"]),
        "benchmarked": _has_benchmarked(),
    }
    found["agreement"] = _agreement(case, _copies(_results(case, output)))
    if recorded:
        session = nbcache.session()
        report = session.report(execution_count)
        if report is None:
            raise NbcacheError("nbcache has no report of the measured cell", where=f"In[{execution_count}]")
        session.flush()  # the hot call is timed without what still goes on for the first one
        found["report"] = report.to_json()
        found["overhead_seconds"] = getattr(session, "overhead_seconds", None)
        found["explaining_seconds"] = getattr(session, "explaining_seconds", None)
    found["next_seconds"] = [_timed(case, compiled) for _ in range(_CALLS_BEFORE)]
    found["hot_seconds"] = _hot_seconds(case, compiled)
    if case.device == "cuda" and found["agreement"]["agrees"]:  # and what a CUDA graph replays?
        found["agreement"] = _worse(found["agreement"], _agreement(case, _copies(_called(case, compiled))))
    found["environment"] = _environment(case.device)
    Path(path).write_text(json.dumps(found))


def _has_benchmarked() -> bool:
    """Tell whether torch has benchmarked anything on a GPU in this process.

    Its counters do not: a graph that hits adds what was counted when it was compiled. What it benchmarks
    with finds out one of these when it first does. Tested on torch 2.11 and 2.13.
    """
    benchmarking = sys.modules.get("torch._inductor.runtime.benchmarking")
    found_out = vars(getattr(benchmarking, "benchmarker", object)).keys()
    return not found_out.isdisjoint({"L2_cache_size", "triton_do_bench"})


@dataclasses.dataclass(frozen=True, slots=True)
class _Results:
    """What a call gave, detached; an absent gradient is an empty tensor."""

    outputs: list[Tensor]
    gradients: list[Tensor]

    @property
    def groups(self) -> tuple[list[Tensor], list[Tensor]]:
        return self.outputs, self.gradients


def _agreement(case: Case, mine: _Results) -> dict[str, Any]:
    """Return whether the results are eager's, and the largest absolute difference.

    In deep networks rounding alone can change gradients by more than any tolerance, not least where it
    decides on which side of zero a ReLU is: ResNet-50 in float32 and float64 differs by up to 8 %. So
    where the two are apart, they agree if compiled is about as near to float64 as eager is, as in
    PyTorch's own benchmarks (`torch._dynamo.utils.same`), but for all outputs, and all gradients, together.
    """
    tolerance = _TOLERANCES[case.precision]
    eager = _called(case, case.model)
    found = {"agrees": False, "difference": None, "tolerance": tolerance, "compared_with": "eager"}
    if not mine.outputs or [*map(_kinds, mine.groups)] != [*map(_kinds, eager.groups)]:
        return found
    difference, within = 0.0, True
    for ours, theirs in zip(mine.outputs + mine.gradients, eager.outputs + eager.gradients, strict=True):
        if ours.numel():
            apart = float(_apart(ours, theirs).max())
            difference = max(difference, apart)
            within = within and apart <= tolerance * (1.0 + _largest(theirs))
    found["difference"] = difference if math.isfinite(difference) else None
    found["agrees"] = within
    if not within and (exact := _reference(case)) is not None:
        found["compared_with"] = "float64"
        found["agrees"] = all(
            _worst(ours, true) <= _TIMES_AS_FAR * _worst(theirs, true) + tolerance
            for ours, theirs, true in zip(mine.groups, eager.groups, exact.groups, strict=True)
        )
    return found


def _worse(agreement: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return that of two which agrees less, or took more to agree."""
    return max(
        agreement,
        other,
        key=lambda each: (
            not each["agrees"],
            each["compared_with"] == "float64",
            math.inf if each["difference"] is None else each["difference"],
        ),
    )


def _called(case: Case, function: Callable[..., Any]) -> _Results:
    """Return what a call gives; the gradients are this call's alone."""
    _forget_gradients(case)
    return _results(case, _call(case, function))


def _call(case: Case, function: Callable[..., Any]) -> Any:
    """Call the model, or what it is compiled to, as the measured cell does; return the output."""
    if case.device == "cuda":
        torch.compiler.cudagraph_mark_step_begin()  # nobody needs what the call before returned
    with torch.set_grad_enabled(case.training):
        with _autocast(case):
            output = function(*case.args, **case.kwargs)
        if case.training:
            total(output).backward()
    return output


def _autocast(case: Case) -> contextlib.AbstractContextManager[Any]:
    if case.precision is not Precision.AMP:  # one that is not enabled would be a reason to recompile
        return contextlib.nullcontext()
    around: contextlib.AbstractContextManager[Any] = torch.autocast(case.device, dtype=torch.bfloat16)
    return around


def _results(case: Case, output: Any) -> _Results:
    gradients = [each.grad if each.grad is not None else each.new_empty(0) for each in _leaves(case)]
    return _Results(
        [each.detach() for each in _tensors(output)],
        [each.detach() for each in gradients] if case.training else [],
    )


def _copies(results: _Results) -> _Results:
    """Return copies, which the next call leaves alone: CUDA graphs write to the same memory again."""
    outputs, gradients = ([each.clone() for each in group] for group in results.groups)
    return _Results(outputs, gradients)


def _reference(case: Case) -> _Results | None:
    """Return eager's results in float64, or None where the model cannot be had in that.

    Where a GPU has too little memory for it, the CPU has to do.
    """
    if not isinstance(case.model, torch.nn.Module):
        return None
    for device in dict.fromkeys((case.device, "cpu")):
        try:
            model = copy.deepcopy(case.model).to(device, torch.float64)
            model.zero_grad()
            args, kwargs = (moved(each, device, torch.float64) for each in (case.args, dict(case.kwargs)))
            return _called(Case(model, args, kwargs, case.training, device), model)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        except Exception:  # the user's model: it may cast, or hold what cannot be copied
            return None
    return None


def _worst(tensors: list[Tensor], exact: list[Tensor]) -> float:
    """Return the largest relative error of a group of tensors, each by its root mean square.

    What is a thousandth of the largest, or less, is measured by that: a gradient that is zero but for
    rounding has no relative error worth the name.
    """
    if [each.shape for each in tensors] != [each.shape for each in exact]:
        return math.inf
    sizes = [float(_wide(each).abs().square().mean().sqrt()) if each.numel() else 0.0 for each in exact]
    least = max(max(sizes, default=0.0) * 1e-3, 1e-30)
    return max(
        (
            float(_apart(a, b.to(a.device)).square().mean().sqrt()) / max(size, least)
            for a, b, size in zip(tensors, exact, sizes, strict=True)
            if a.numel()
        ),
        default=0.0,
    )


def _kinds(tensors: list[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(each.shape, each.dtype) for each in tensors]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """Return the absolute differences; infinite where one of two is no number."""
    wide, other = _wide(a), _wide(b)
    same = (wide == other) | (wide.isnan() & other.isnan())
    return torch.where(same, 0.0, (wide - other).abs()).nan_to_num(math.inf, math.inf)


def _largest(tensor: Tensor) -> float:
    finite = _wide(tensor).abs().nan_to_num(0.0, 0.0, 0.0)
    return float(finite.max()) if finite.numel() else 0.0


def _timed(case: Case, compiled: Callable[..., Any]) -> float:
    """Return the seconds of one call, forward and backward where that is measured."""
    _forget_gradients(case)
    _wait(case)
    began = time.perf_counter()
    _call(case, compiled)
    _wait(case)
    return time.perf_counter() - began


def _wait(case: Case) -> None:
    if case.device == "cuda":
        torch.cuda.synchronize()


def _hot_seconds(case: Case, compiled: Callable[..., Any]) -> float:
    """Return the median seconds of a call once it is warm."""
    taken: list[float] = []
    least, most = _HOT_CALLS
    while len(taken) < least or (len(taken) < most and sum(taken) < _HOT_SECONDS):
        taken.append(_timed(case, compiled))
    return statistics.median(taken)


def _leaves(case: Case) -> list[Tensor]:
    """Return the tensors whose gradients a backward fills: parameters, and inputs that require them."""
    parameters = case.model.parameters() if isinstance(case.model, torch.nn.Module) else ()
    return [*parameters, *(each for each in _tensors([case.args, case.kwargs]) if each.requires_grad)]


def _forget_gradients(case: Case) -> None:
    for leaf in _leaves(case):
        leaf.grad = None


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists, mappings (so ModelOutput) and dataclasses."""
    match value:
        case Tensor():
            yield value
        case Mapping():
            for each in value.values():
                yield from _tensors(each)
        case tuple() | list():
            for each in value:
                yield from _tensors(each)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                yield from _tensors(getattr(value, field.name))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _environment(device: str) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "nbcache": nbcache.__version__,
        "torch": str(torch.__version__),
        "transformers": _version("transformers"),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
    }
