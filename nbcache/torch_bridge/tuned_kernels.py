"""Have torch 2.11 use the best configuration of a Triton kernel that came with its graph.

That release compares what it finds with the configurations that the graph has, and forgets that coordinate
descent, which `max-autotune` turns on, has found it already: such kernels are tuned again in each process,
with a compile for each configuration that is tried. 2.13 does what is done here
(`recheck_autotune_cache`, and `_dynamic_scale_rblock`, which adds no configuration to one that was tuned).

Tested on torch 2.11.0.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.environment import torch_release

if TYPE_CHECKING:
    from nbcache.kernel_session import Session
    from nbcache.torch_bridge.hooks import Patches

__all__ = ["keep_tuned"]

_MENDED = (2, 13)
"""Since when torch does so itself."""


def keep_tuned(heuristics: ModuleType, session: Session, patches: Patches) -> None:
    """Take a best configuration that is found for what it is: the result of all tuning."""
    if torch_release() >= _MENDED:
        return
    tuner, hashed = heuristics.CachingAutotuner, heuristics.triton_config_to_hashable
    check, recheck, scale = (
        heuristics.check_autotune_cache,
        tuner.recheck_autotune_cache,
        tuner._dynamic_scale_rblock,
    )
    found = threading.local()

    def check_autotune_cache(*args: Any, **kwargs: Any) -> Any:
        found.configs, *_ = checked = check(*args, **kwargs)
        return checked

    def recheck_autotune_cache(self: Any, reload_kernel_from_src: Any) -> None:
        recheck(self, reload_kernel_from_src=reload_kernel_from_src)
        if not _was_tuned(self):
            return
        (best,) = found.configs
        for result in self.compile_results:
            if hashed(result.config) == hashed(best):
                result.config.found_by_coordesc = getattr(best, "found_by_coordesc", False)
                self.compile_results = [result]
                return
        if self.fn.fn is None:
            self.fn = reload_kernel_from_src().fn
        self.compile_results = [self._precompile_config(best)]

    def _dynamic_scale_rblock(self: Any) -> None:
        if not _was_tuned(self):
            scale(self)

    patches.set(heuristics, "check_autotune_cache", check_autotune_cache)
    patches.set(tuner, "recheck_autotune_cache", recheck_autotune_cache)
    patches.set(tuner, "_dynamic_scale_rblock", _dynamic_scale_rblock)


def _was_tuned(tuner: Any) -> bool:
    return bool((tuner.autotune_cache_info or {}).get("autotune_cache_state") == "hit")
