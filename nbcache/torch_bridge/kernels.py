"""Counts the Triton kernels that graphs load, and the candidates that are timed to choose the fastest."""

from __future__ import annotations

import re
import threading
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.kernel.events import CandidateTimed, KernelUsed
from nbcache.torch_bridge.events import stamp

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["CANDIDATE", "follow_candidates", "follow_kernels"]

_FOLLOWING = "following a compile"
_KERNEL_NAME = re.compile(r"'kernel_name': '([^']*)'")
"""Where the source of a Triton kernel says what torch calls it."""
CANDIDATE = "Placeholder.DESCRIPTIVE_NAME"
"""What torch calls each kernel that `max-autotune` compiles only to see how fast it is (2.11, 2.13)."""


def follow_kernels(async_compile: ModuleType, context: Context, patches: Patches) -> None:
    """Count Triton kernels as graphs load them: `AsyncCompile.triton`. (Never run on a GPU yet.)"""
    from torch._guards import CompileContext

    session = context.session

    def loaded(kernel_name: str, source_code: str) -> None:
        match = _KERNEL_NAME.search(source_code)
        name = kernel_name if match is None else match[1]  # of a user's kernel the function's name is another
        if name == CANDIDATE:
            return
        session.emit(KernelUsed(**stamp(), compiled=None, type="triton", name=name))
        # A kernel that came with its graph has kept the id of the compile that made it, in another process.
        tuner = getattr(async_compile.CompiledTritonKernels.get(source_code), "static_autotuner", None)
        if tuner is not None:
            tuner.compile_id = CompileContext.current_compile_id()

    def counted(
        original: Any, self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any
    ) -> Any:
        session.attempt(_FOLLOWING, partial(loaded, kernel_name, source_code))
        return original(self, kernel_name, source_code, *args, **kwargs)

    patches.hook(async_compile.AsyncCompile, "triton", counted)


def follow_candidates(select_algorithm: ModuleType, context: Context, patches: Patches) -> None:
    """Count the candidates that this process times: `AlgorithmSelectorCache.benchmark_choice`."""
    selector, session = select_algorithm.AlgorithmSelectorCache, context.session

    def tell(done: int, choices: int) -> None:
        session.emit(CandidateTimed(**stamp(), done=done, all=choices))

    timed: dict[int, list[int]] = {}
    """By thread, how many were timed, and how many there are."""

    def choices_timed(original: Any, cls: Any, choices: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        around = timed.get(thread)  # where a choice is a graph that is tuned itself
        timed[thread] = [0, len(choices)]
        session.attempt(_FOLLOWING, partial(tell, *timed[thread]))
        try:
            return original(cls, choices, *args, **kwargs)
        finally:
            timed.pop(thread, None)
            if around is not None:
                timed[thread] = around
            session.attempt(_FOLLOWING, partial(tell, *(around or (0, 0))))

    def choice_timed(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(cls, *args, **kwargs)
        finally:
            if (counted := timed.get(threading.get_ident())) is not None:
                counted[0] += 1
                session.attempt(_FOLLOWING, partial(tell, *counted))

    patches.hook(selector, "benchmark_choices", choices_timed)
    patches.hook(selector, "benchmark_choice", choice_timed)
