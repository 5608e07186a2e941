"""What a hit must have that no key tells: guards that a compile makes, and inputs of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.dependencies.graphs import is_leaf, sharing
from nbcache.torch_bridge.patches import Intended

if TYPE_CHECKING:
    from nbcache.torch_bridge.patches import Patches

__all__ = ["guard_hits"]


class _Unguarded(Intended):
    """A hit may lack a guard; torch compiles instead."""


def guard_hits(torch: ModuleType, results: ModuleType, patches: Patches) -> None:
    """Have a hit guard what a compile would: `GenericAOTAutogradResult.wrap_post_compile`.

    Where inputs of dynamic shapes share memory and one is written to, AOTAutograd adds a guard on which of
    them overlap. Nothing of it is stored. What fails in here makes torch compile.

    AOTAutograd also compiles for whether each input that requires a gradient is a leaf: others are detached
    where their gradient is None. What was stored for other inputs is a miss.
    """
    from torch._functorch._aot_autograd.input_output_analysis import compute_overlapping_inputs

    def guarded(original: Any, entry: Any, args: Any, aot_config: Any, *more: Any, **kwargs: Any) -> Any:
        try:
            stored, shared = entry.runtime_metadata.input_info, sharing(torch, args)
            if any(info.mutates_data for info in stored):
                for numbers in shared:
                    compute_overlapping_inputs(aot_config, list(args), numbers)
            fits = bool(shared) or _fits(torch, stored, args)
        except Exception as error:
            raise _Unguarded("it could not be told whether what is stored fits these inputs") from error
        if not fits:
            from torch._functorch._aot_autograd.autograd_cache import FXGraphCacheMiss

            raise type("_OtherInputs", (Intended, FXGraphCacheMiss), {})  # what torch takes for a miss
        return original(entry, args, aot_config, *more, **kwargs)

    result = results.GenericAOTAutogradResult
    patches.hook(result, "wrap_post_compile", guarded, takes="self args aot_config")


def _fits(torch: ModuleType, stored: Sequence[Any], args: Sequence[Any]) -> bool:
    """Tell whether those of the inputs are leaves that were when this was stored.

    Where inputs share memory, `stored` may have one for several of them: there the key tells it of all.
    """
    if len(stored) != len(args):
        return False
    pairs = zip(stored, args, strict=True)
    return all(info.is_leaf == is_leaf(value) for info, value in pairs if isinstance(value, torch.Tensor))
