"""What is done in the measured kernel around the measured cell, none of it timed with that cell."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nbcache
from nbcache.bench.models import Case
from nbcache.errors import NbcacheError

__all__ = ["finish", "save_bundle", "total"]

_TOLERANCE = 1e-3
"""Compiled and eager may differ by this part of the largest value of a tensor, and this much besides."""
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


def _agreement(case: Case, output: Any, training: bool) -> dict[str, Any]:
    """Return whether the measured cell's results are eager's, and the largest absolute difference."""
    pairs: list[tuple[Tensor, Tensor]] = []
    gradients = [None if each.grad is None else each.grad.clone() for each in _leaves(case)]
    _forget_gradients(case)
    with torch.set_grad_enabled(training):
        expected = case.model(*case.args, **case.kwargs)
        if training:
            total(expected).backward()
            for leaf, gradient in zip(_leaves(case), gradients, strict=True):
                if (gradient is None) != (leaf.grad is None):
                    return {"agrees": False, "difference": None, "tolerance": _TOLERANCE}
                if gradient is not None:
                    pairs.append((gradient, leaf.grad))
    ours, theirs = list(_tensors(output)), list(_tensors(expected))
    if not ours or len(ours) != len(theirs):
        return {"agrees": False, "difference": None, "tolerance": _TOLERANCE}
    pairs += zip(ours, theirs, strict=True)
    agrees, difference = True, 0.0
    for mine, eager in pairs:
        if mine.shape != eager.shape or mine.dtype != eager.dtype:
            return {"agrees": False, "difference": None, "tolerance": _TOLERANCE}
        if mine.numel() == 0:
            continue
        wide = torch.complex128 if mine.is_complex() else torch.float64
        a, b = mine.detach().to(wide), eager.detach().to(wide)
        apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
        allowed = _TOLERANCE * (1.0 + b.abs().nan_to_num(0.0, 0.0, 0.0).max())
        agrees = agrees and bool((apart <= allowed).all())  # a NaN on one side only is in no order
        difference = max(difference, float(apart.nan_to_num(float("inf")).max()))
    finite = difference if difference != float("inf") else None
    return {"agrees": agrees, "difference": finite, "tolerance": _TOLERANCE}


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
