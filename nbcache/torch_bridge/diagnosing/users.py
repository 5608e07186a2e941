"""Puts back what calls change of the user's own: tensors, their gradients and generators, wherever they are.

Copies keep most calls from it. What no copy covers, as globals that an object's methods read, is found here
by its version, which torch counts up with each change.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

__all__ = ["put_back_later"]


def put_back_later() -> Callable[[], tuple[int, int]]:
    """Keep the values of all tensors, of their gradients and of generators; return what puts them back.

    That returns how many tensors had changed, and how many of these could not be put back. It takes the
    memory of all tensors once more, on the CPU; where there is not so much, a tensor stays as calls left it.
    """
    import torch

    every = gc.get_objects()
    tensors = [each for each in every if type(each) in (torch.Tensor, torch.nn.Parameter)]
    gradients = [each.grad for each in tensors if each.is_leaf and each.grad is not None]
    # Both: gc does not list a gradient that nobody has asked for yet.
    distinct = {id(each): each for each in (*tensors, *gradients)}
    kept = [_Kept(each) for each in distinct.values()]
    referred = {id(each): each for each in gc.get_referents(*every) if type(each) is torch.Generator}
    generators = [(each, each.get_state()) for each in referred.values()]  # which gc itself does not list

    def put_back() -> tuple[int, int]:
        for generator, state in generators:
            generator.set_state(state)
        changed = [each for each in kept if each.has_changed()]
        return len(changed), sum(not each.put_back() for each in changed)

    return put_back


class _Kept:
    """One tensor, as it was."""

    def __init__(self, tensor: Any) -> None:
        import torch

        self._tensor = tensor
        self._version = _version(tensor)
        self._gradient = tensor.grad if tensor.is_leaf else None
        self._copy: Any = None
        if tensor.layout is torch.strided and tensor.device.type != "meta" and self._version is not None:
            with contextlib.suppress(Exception):  # no memory for it
                self._copy = tensor.detach().to("cpu", copy=True)

    def has_changed(self) -> bool:
        """Tell whether the value has changed since, or another gradient is there."""
        return _version(self._tensor) != self._version or self._has_other_gradient()

    def put_back(self) -> bool:
        """Put the value and the gradient back; return whether that could be done."""
        import torch

        tensor = self._tensor
        if self._has_other_gradient():
            tensor.grad = self._gradient
        if _version(tensor) == self._version:
            return True
        if self._copy is None or self._copy.shape != tensor.shape:
            return False
        with torch.no_grad():
            tensor.copy_(self._copy)
        return True

    def _has_other_gradient(self) -> bool:
        return bool(self._tensor.is_leaf and self._tensor.grad is not self._gradient)


def _version(tensor: Any) -> int | None:
    """Return how often a tensor has changed; None of one that does not count."""
    return None if tensor.is_inference() else int(tensor._version)
