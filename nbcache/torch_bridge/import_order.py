"""Make torch's keys the same whatever was imported before torch.

A key is a hash of pickled bytes, and pickle names `torch.contiguous_format`, which every tensor's metadata
holds, after the first module in `sys.modules` that knows it as `torch.contiguous_format`. That is
`torch._utils` where torch was imported first. It is another one where a module that knows torch by now
stands before: `multiprocessing`, imported before torch, adds `__mp_main__`, which is the notebook's own
namespace; so does a module of the user's that compiles while it is still being imported. The same graph
then has another key, and misses.

Found on torch 2.13.0; nothing of torch is touched.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["settle"]

_FIRST_OF_TORCH = "torch._utils"


def settle(torch: Any) -> list[str]:
    """Move modules that know torch, and stand before its own, to the end; return their names."""
    before = []
    for name, module in list(sys.modules.items()):
        if name == _FIRST_OF_TORCH:
            break
        # Not by getattr: a lazy module would begin to import.
        if name not in ("__main__", "torch") and getattr(module, "__dict__", {}).get("torch") is torch:
            before.append(name)
    for name in before:
        # The lock of this module, which whoever imports it in between waits for, and then looks again.
        with importlib._bootstrap._ModuleLockManager(name):  # type: ignore[attr-defined]
            if name in sys.modules:
                module = sys.modules[name]
                try:
                    del sys.modules[name]
                finally:  # also where an interrupt comes in between
                    sys.modules[name] = module
    return before
