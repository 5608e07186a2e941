"""Guards that a compile makes, and a hit must have."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.dependencies.graphs import sharing
from nbcache.torch_bridge.patches import Intended

if TYPE_CHECKING:
    from nbcache.torch_bridge.patches import Patches

__all__ = ["guard_hits"]


class _Unguarded(Intended):
    """A hit would lack a guard; torch compiles instead."""


def guard_hits(torch: ModuleType, results: ModuleType, patches: Patches) -> None:
    """Have a hit guard what a compile would: `GenericAOTAutogradResult.wrap_post_compile`.

    Where inputs of dynamic shapes share memory and one is written to, AOTAutograd adds a guard on which of
    them overlap. Nothing of it is stored. What fails in here makes torch compile.
    """
    from torch._functorch._aot_autograd.input_output_analysis import compute_overlapping_inputs

    def guarded(original: Any, entry: Any, args: Any, aot_config: Any, *more: Any, **kwargs: Any) -> Any:
        try:
            if any(info.mutates_data for info in entry.runtime_metadata.input_info):
                for numbers in sharing(torch, args):
                    compute_overlapping_inputs(aot_config, list(args), numbers)
        except Exception as error:
            raise _Unguarded("a guard on inputs that share memory could not be made") from error
        return original(entry, args, aot_config, *more, **kwargs)

    result = results.GenericAOTAutogradResult
    patches.hook(result, "wrap_post_compile", guarded, takes="self args aot_config")
