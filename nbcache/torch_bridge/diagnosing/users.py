"""Puts back what calls change of the user's own: tensors, their gradients and generators, wherever they are.

Copies keep most calls from it. What no copy covers, as globals that an object's methods read, is found here
by its version, which torch counts up with each change.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

__all__ = ["put_back_later"]


def put_back_later() -> Callable[[], int]:
    """Keep the values of all tensors, of their gradients and of generators; return what puts them back.

    That returns how many tensors had changed. It takes the memory of all tensors once more, on the CPU; where
    there is not so much, a tensor that has changed is counted, and stays as it is.
    """
    import torch

    every = gc.get_objects()
    tensors = [_Kept(each) for each in every if type(each) in (torch.Tensor, torch.nn.Parameter)]
    referred = {id(each): each for each in gc.get_referents(*every) if type(each) is torch.Generator}
    generators = [(each, each.get_state()) for each in referred.values()]  # which gc itself does not list

    def put_back() -> int:
        for generator, state in generators:
            generator.set_state(state)
        return sum(each.put_back() for each in tensors)

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
            try:
                self._copy = tensor.detach().to("cpu", copy=True)
            except Exception:  # no memory, or a subclass that has no such operator
                self._copy = None

    def put_back(self) -> bool:
        """Put the value and the gradient back; return whether either had changed."""
        import torch

        tensor, changed = self._tensor, False
        if tensor.is_leaf and tensor.grad is not self._gradient:
            tensor.grad, changed = self._gradient, True
        if _version(tensor) != self._version:
            changed = True
            if self._copy is not None and self._copy.shape == tensor.shape:
                with torch.no_grad():
                    tensor.copy_(self._copy)
        return changed


def _version(tensor: Any) -> int | None:
    """Return how often a tensor has changed; None of one that does not count."""
    return None if tensor.is_inference() else int(tensor._version)
