"""Compares what two calls came to: what they returned, and the gradients and buffers that they left."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from nbcache.core.text import one_line
from nbcache.explain.diagnosis import TOLERANCES, Comparison, Spot

__all__ = ["compared", "parts_of"]

_DEEP = 32
"""How deeply results are looked into."""
_OF_NUMBERS = "float32"
"""The dtype whose tolerance Python's numbers have: most come from a tensor of it, by `.item()`."""
_SHORT = 80


def parts_of(output: Any, modules: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors and numbers of what a call returned, and what it left in modules, by their places.

    Parameters are left out: where an optimizer divides by tiny gradients, they differ for no bad reason.
    """
    parts = dict(_leaves(output, "output", 0))
    for name, module in modules.items():
        for path, each in module.named_buffers():
            parts[f"{name}.{path}"] = each
        for path, each in module.named_parameters():
            if each.grad is not None:
                parts[f"{name}.{path}.grad"] = each.grad
    return parts


def _leaves(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    import torch
    from torch.utils import _pytree

    if depth > _DEEP:
        return
    if isinstance(value, torch.Tensor | bool | int | float | complex):
        yield place, value
        return
    inner: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        inner = [(f"{place}[{key!r}]", each) for key, each in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        inner = [(f"{place}.{name}", getattr(value, name)) for name in value._fields]
    elif isinstance(value, tuple | list):
        inner = [(f"{place}[{index}]", each) for index, each in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value) if hasattr(value, each.name)]
        inner = [(f"{place}.{name}", getattr(value, name)) for name in names]
    elif (node := _pytree.SUPPORTED_NODES.get(type(value))) is not None:
        inner = [(f"{place}<{index}>", each) for index, each in enumerate(node.flatten_fn(value)[0])]
    for deeper, each in inner:
        yield from _leaves(each, deeper, depth + 1)


def compared(eager: Mapping[str, Any], compiled: Mapping[str, Any]) -> Comparison:
    """Return how the parts of results differ; both by their places."""
    if eager.keys() != compiled.keys():
        ours = next(iter(each for each in eager if each not in compiled), "")
        theirs = next(iter(each for each in compiled if each not in eager), "")
        only = f"{ours} is there eager only" if ours else f"{theirs} is there compiled only"
        return Comparison(mismatch=one_line(only, _SHORT))
    worst = Comparison()
    for place, one in eager.items():
        try:
            found = _compared(place, one, compiled[place])
        except Exception as error:  # a layout or subclass that has no such operators
            return Comparison(unknown=f"{place} cannot be compared: {one_line(str(error), _SHORT)}")
        if found.mismatch:
            return found
        worst = _worse(worst, found)
    return worst


def _worse(one: Comparison, other: Comparison) -> Comparison:
    """Return the worst of two: each of their measures where it is larger."""
    worst = max((one, other), key=lambda each: each.ratio)
    absolute = _larger(one.absolute, other.absolute)
    return dataclasses.replace(worst, absolute=absolute, relative=_larger(one.relative, other.relative))


def _larger(one: Spot | None, other: Spot | None) -> Spot | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda spot: spot.difference)


def _compared(place: str, one: Any, two: Any) -> Comparison:
    import torch

    if not isinstance(one, torch.Tensor) and not isinstance(two, torch.Tensor):
        kind = _OF_NUMBERS if isinstance(one, float | complex) else "int64"
        return _measured(place, torch.tensor(one), torch.tensor(two), kind)
    told = [_told(each) for each in (one, two)]
    if told[0] != told[1]:
        return Comparison(mismatch=f"{place} is {told[0]} eager, {told[1]} compiled")
    one, two = (each.detach() for each in (one, two))
    if one.layout is not torch.strided:
        one, two = one.to_dense(), two.to_dense()
    return _measured(place, one, two, str(one.dtype).removeprefix("torch."))


def _told(value: Any) -> str:
    """Return the dtype and shape of a tensor, or the type of something else."""
    import torch

    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _measured(place: str, one: Any, two: Any, dtype: str) -> Comparison:
    """Return how two tensors of one shape and dtype differ."""
    import torch

    if not one.numel() or torch.equal(one, two):
        return Comparison()
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, two = one.to(wide), two.to(wide)
    same = (one == two) | (one.isnan() & two.isnan())
    off = (one - two).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0.0)
    if not off.any():
        return Comparison()
    rtol, atol = TOLERANCES.get(dtype, (0.0, 0.0))
    size = one.abs()
    ratio = (off / (atol + rtol * size)).nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0.0)
    shares = (off / size).masked_fill(~(size > atol) | same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
    absolute = _spot(place, one, two, off)
    relative = _spot(place, one, two, shares) if shares.any() else None
    return Comparison(float(ratio.max()), dtype, absolute, relative)


def _spot(place: str, one: Any, two: Any, measure: Any) -> Spot:
    """Return where `measure` is largest."""
    import torch

    index = tuple(int(each) for each in torch.unravel_index(measure.argmax(), measure.shape))
    at = f"{place}[{', '.join(map(str, index))}]" if index else place
    eager, compiled = (_number(each[index]) for each in (one, two))
    return Spot(at, eager, compiled, float(measure[index]))


def _number(value: Any) -> float:
    """Return a number; of a complex one its absolute value."""
    return float(value.abs() if value.is_complex() else value)
