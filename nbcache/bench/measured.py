"""What is done in the measured kernel around the measured cell, none of it timed with that cell."""

from __future__ import annotations

import copy
import dataclasses
import importlib.metadata
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nbcache
from nbcache.bench.models import Case, converted
from nbcache.errors import NbcacheError

__all__ = ["finish", "save_bundle", "total"]

_TOLERANCE = 1e-3
"""Compiled and eager may differ by this part of the largest value of a tensor, and this much besides."""
_TIMES_AS_FAR = 3.0
"""How much farther from float64 than eager compiled may be."""
_HOT_SECONDS = 1.0
_HOT_CALLS = (5, 50)
"""Least and most calls of which the median is the hot call's seconds."""


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
    training: bool,
    device: str,
    execution_count: int,
    recorded: bool,
) -> None:
    """Compare with eager, time the hot call, and write what there is to report to `path`, as JSON.

    `execution_count` is that of the measured cell; `recorded` tells whether nbcache is loaded.
    """
    found: dict[str, Any] = {"agreement": _agreement(case, output, training)}
    if recorded:
        session = nbcache.session()
        report = session.report(execution_count)
        if report is None:
            raise NbcacheError("nbcache has no report of the measured cell", where=f"In[{execution_count}]")
        session.flush()  # the hot call is timed without what still goes on for the first one
        found["report"] = report.to_json()
        found["overhead_seconds"] = getattr(session, "overhead_seconds", None)
    found["hot_seconds"] = _hot_seconds(case, compiled, training, device)
    found["environment"] = _environment(device)
    Path(path).write_text(json.dumps(found))


@dataclasses.dataclass(frozen=True, slots=True)
class _Results:
    """What a call gave: detached copies, an absent gradient as an empty tensor."""

    outputs: list[Tensor]
    gradients: list[Tensor]

    @property
    def groups(self) -> tuple[list[Tensor], list[Tensor]]:
        return self.outputs, self.gradients


def _agreement(case: Case, output: Any, training: bool) -> dict[str, Any]:
    """Return whether the measured cell's results are eager's, and the largest absolute difference.

    In deep networks rounding alone can change gradients by more than any tolerance, not least where it
    decides on which side of zero a ReLU is: ResNet-50 in float32 and float64 differs by up to 8 %. So
    where the two are apart, they agree if compiled is about as near to float64 as eager is, as in
    PyTorch's own benchmarks (`torch._dynamo.utils.same`), but for all outputs, and all gradients, together.
    """
    mine = _results(case, output, training)
    _forget_gradients(case)
    eager = _eager(case, training)
    found = {"agrees": False, "difference": None, "tolerance": _TOLERANCE, "compared_with": "eager"}
    if not mine.outputs or [*map(_kinds, mine.groups)] != [*map(_kinds, eager.groups)]:
        return found
    pairs = list(zip(mine.outputs + mine.gradients, eager.outputs + eager.gradients, strict=True))
    apart = [_apart(a, b) for a, b in pairs]
    difference = max((float(each.max()) for each in apart if each.numel()), default=0.0)
    found["difference"] = difference if math.isfinite(difference) else None
    found["agrees"] = all(
        bool((each <= _TOLERANCE * (1.0 + _largest(b))).all())
        for each, (_, b) in zip(apart, pairs, strict=True)
    )
    if not found["agrees"] and (exact := _reference(case, training)) is not None:
        found["compared_with"] = "float64"
        found["agrees"] = all(
            _worst(ours, true) <= _TIMES_AS_FAR * _worst(theirs, true) + _TOLERANCE
            for ours, theirs, true in zip(mine.groups, eager.groups, exact.groups, strict=True)
        )
    return found


def _eager(case: Case, training: bool) -> _Results:
    with torch.set_grad_enabled(training):
        output = case.model(*case.args, **case.kwargs)
        if training:
            total(output).backward()
    return _results(case, output, training)


def _results(case: Case, output: Any, training: bool) -> _Results:
    gradients = [each.grad if each.grad is not None else each.new_empty(0) for each in _leaves(case)]
    return _Results(
        [each.detach().clone() for each in _tensors(output)],
        [each.detach().clone() for each in gradients] if training else [],
    )


def _reference(case: Case, training: bool) -> _Results | None:
    """Return eager's results in float64, or None where the model cannot be had in that."""
    if not isinstance(case.model, torch.nn.Module):
        return None
    try:
        model = copy.deepcopy(case.model).double()
        model.zero_grad()
        args, kwargs = _in_float64(case.args), _in_float64(dict(case.kwargs))
        return _eager(Case(model, args, kwargs), training)
    except Exception:  # the user's model: it may cast, or hold what cannot be copied
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
            float(_apart(a, b).square().mean().sqrt()) / max(size, least)
            for a, b, size in zip(tensors, exact, sizes, strict=True)
            if a.numel()
        ),
        default=0.0,
    )


def _in_float64(value: Any) -> Any:
    return converted(value, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


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


def _hot_seconds(case: Case, compiled: Callable[..., Any], training: bool, device: str) -> float:
    """Return the median seconds of a call after the first, forward and backward where `training`."""

    def call() -> float:
        _forget_gradients(case)
        began = time.perf_counter()
        with torch.set_grad_enabled(training):
            output = compiled(*case.args, **case.kwargs)
            if training:
                total(output).backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    call()
    taken: list[float] = []
    least, most = _HOT_CALLS
    while len(taken) < least or (len(taken) < most and sum(taken) < _HOT_SECONDS):
        taken.append(call())
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


def _environment(device: str) -> dict[str, Any]:
    try:
        transformers = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        transformers = None
    return {
        "nbcache": nbcache.__version__,
        "torch": str(torch.__version__),
        "transformers": transformers,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "cuda": torch.version.cuda,
    }
