"""Other sizes of the first dimension that tensors among the arguments share."""

from __future__ import annotations

from collections import Counter
from typing import Any

from nbcache.torch_bridge.diagnosing.copies import Call

__all__ = ["other_sizes", "shared_size", "tensors_in", "with_size"]


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors in a tree of arguments."""
    import torch
    from torch.utils import _pytree

    return [each for each in _pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]


def shared_size(call: Call) -> int | None:
    """Return the size in the first dimension that most tensors among the arguments have."""
    sizes = [
        each.shape[0] for each in tensors_in((call.args, dict(call.kwargs))) if each.ndim and each.shape[0]
    ]
    return Counter(sizes).most_common(1)[0][0] if sizes else None


def other_sizes(size: int) -> list[int]:
    """Return sizes to try: twice as much first, as torch then compiles for any size; none is 1."""
    tried = (2 * size, size + 1, size // 2)
    return list(dict.fromkeys(each for each in tried if each > 1 and each != size))


def with_size(values: Any, size: int, other: int) -> Any:
    """Return arguments with `other` rows in the tensors that have `size`: repeated, or cut off."""
    import torch
    from torch.utils import _pytree

    def resized(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.ndim or value.shape[0] != size:
            return value
        rows = value.detach()
        if other > size:
            rows = torch.cat([rows] * -(-other // size))
        return rows[:other].clone().requires_grad_(value.requires_grad)

    return _pytree.tree_map(resized, values)
