"""Has the templates of torch's Triton kernels compiled when one is rendered, and not as torch is imported.

Jinja takes 0.3 of the 1.4 s that Inductor's modules take to import (2 cores, torch 2.13.0), and most graphs,
and all on a CPU, render none of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["compile_when_rendered"]

_MODULES = ("torch._inductor.kernel.", "torch._inductor.fx_passes.")
"""Beginnings of the names of the modules whose templates wait."""


class _Template:
    """A template that is compiled when anything of it is asked for."""

    def __init__(self, compile: Callable[[], Any]) -> None:
        self._compile = compile
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if "_compiled" not in vars(self):
                self._compiled = self._compile()
        return getattr(self._compiled, name)


def compile_when_rendered(common: ModuleType, context: Context, patches: Patches) -> None:
    """Hook `KernelTemplate._template_from_string`, for the modules of torch that make templates on import."""

    def template_from_string(original: Any, source: str) -> Any:
        if common.jinja2_env() is None or not _is_importing():
            return original(source)
        return _Template(partial(common.KernelTemplate._template_from_string, source))

    patches.hook(common.KernelTemplate, "_template_from_string", template_from_string)


def _is_importing() -> bool:
    """Return whether what runs is, innermost, the import of such a module."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(_MODULES)
