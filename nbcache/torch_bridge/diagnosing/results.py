"""Comparison of two calls: their results, and the gradients, buffers and argument tensors that they leave."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nbcache.core.text import one_line
from nbcache.explain.diagnosis import Agreement, Comparison

__all__ = ["compare", "parts_of"]

_LEVELS = ((0.0, Agreement.EQUAL), (1.0, Agreement.USUAL), (100.0, Agreement.LARGER))
"""Multiples of the tolerance, and the agreement that each means."""
_HALF, _SINGLE, _DOUBLE = (1e-3, 1e-5), (1.3e-6, 1e-5), (1e-7, 1e-7)
_TOLERANCES = {
    "float16": _HALF,
    "bfloat16": (1.6e-2, 1e-5),
    "float32": _SINGLE,
    "float64": _DOUBLE,
    "complex32": _HALF,
    "complex64": _SINGLE,
    "complex128": _DOUBLE,
    "float": _SINGLE,
    "complex": _SINGLE,
}
"""Relative and absolute tolerances of torch.testing.assert_close, 0 for integers.

Most Python numbers come from a tensor of float32, by `.item()`.
"""
_LONGEST = 200
_NUMBER = re.compile(r"\d+\.\d{3,}(?:e[-+]\d+)?")
_SEVERITY = list(Agreement)


def parts_of(output: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors and numbers of a result, and the state that a call leaves in `tensors`, by place.

    Tensors are copied to the CPU. Parameters are left out: an optimizer that divides by tiny gradients makes
    much of small differences.
    """
    import torch

    parts = dict(_leaves("output", output))
    for place, tensor in tensors.items():
        if not isinstance(tensor, torch.nn.Parameter):
            parts[place] = tensor
        if tensor.is_leaf and tensor.grad is not None:
            parts[f"{place}.grad"] = tensor.grad
    return {
        place: part.detach().to("cpu", copy=True) if isinstance(part, torch.Tensor) else part
        for place, part in parts.items()
    }


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    import torch
    from torch.utils import _pytree

    for path, leaf in _pytree.tree_leaves_with_path(value):
        at = place + _pytree.keystr(path)
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from _leaves(f"{at}.{field.name}", getattr(leaf, field.name, None))
        elif isinstance(leaf, torch.Tensor | bool | int | float | complex):
            yield at, leaf


def compare(eager: Mapping[str, Any], compiled: Mapping[str, Any]) -> Comparison:
    """Return the comparison of two calls' parts, where they agree least."""
    for place in {**eager, **compiled}:
        if not (place in eager and place in compiled):
            only = "eager" if place in eager else "compiled"
            return Comparison(Agreement.DIFFERENT, place, f"only the {only} call has it")
    comparisons = [_compare(place, eager[place], compiled[place]) for place in eager]
    return max(comparisons, key=lambda one: _SEVERITY.index(one.agreement), default=Comparison())


def _compare(place: str, eager: Any, compiled: Any) -> Comparison:
    import torch

    kinds = [str(getattr(part, "dtype", type(part).__name__)) for part in (eager, compiled)]
    if kinds[0] != kinds[1]:
        return Comparison(Agreement.DIFFERENT, place, f"{kinds[0]} eager, {kinds[1]} compiled")
    relative, absolute = _TOLERANCES.get(kinds[0].removeprefix("torch."), (0.0, 0.0))
    message = ""
    for factor, agreement in _LEVELS:
        try:
            torch.testing.assert_close(
                compiled, eager, rtol=factor * relative, atol=factor * absolute, equal_nan=True
            )
        except AssertionError as error:
            message = message or _figures(str(error))
        except Exception as error:  # a layout or subclass that has no such operators
            return Comparison(Agreement.UNKNOWN, place, one_line(str(error), _LONGEST))
        else:
            return Comparison(agreement, place if message else "", message)
    return Comparison(Agreement.DIFFERENT, place, message)


def _figures(message: str) -> str:
    """Return the figures of a failed assert_close, with three digits, in one line."""
    text = ", ".join(message.splitlines()[2:]) or message
    return one_line(_NUMBER.sub(lambda match: f"{float(match[0]):.3g}", text), _LONGEST)
