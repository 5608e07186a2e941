"""torch's default folder, in which it keeps some things whatever TORCHINDUCTOR_CACHE_DIR says.

Precompiled headers are among them, and compiled into every kernel. Its name can be foreseen, and it lies in
the temp folder: where somebody else made it first, or can write to it, a folder of ours stands for it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.folders import is_safe, is_safe_below

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["DefaultFolder"]

_CODECACHE = "torch._inductor.codecache"
_HEADERS = "precompiled_headers"
_USED = (_HEADERS, "cache")
"""Folders in it that torch reads from, whatever TORCHINDUCTOR_CACHE_DIR says; the second has pickles."""
_HEADER_FOLDERS = {"_HEADER_DIR": (_HEADERS,), "_HEADER_LOCK_DIR": (_HEADERS, "locks")}


class DefaultFolder:
    """Has torch use its default folder only where nobody else can have put anything there.

    `other` returns the folder that stands for it elsewhere.
    """

    def __init__(self, other: Callable[[], Path]) -> None:
        self._other = other
        self._patches: Patches | None = None
        self._originals: dict[Any, Any] = {}
        """What our functions stand for: what torch has imported from another module may be ours already."""

    def replace_name(self, module: Any, context: Context, patches: Patches) -> None:
        """Hook a module that defines `default_cache_dir`, or has imported it."""

        def default_cache_dir(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
            return self._safe(original(*args, **kwargs))

        original = module.default_cache_dir = self._original(module)
        patches.hook(module, "default_cache_dir", default_cache_dir)
        self._originals[module.default_cache_dir] = original

    def _original(self, module: Any) -> Any:
        return self._originals.get(module.default_cache_dir, module.default_cache_dir)

    def replace_headers(self, codecache: Any, context: Context, patches: Patches) -> None:
        """Hook the module that compiles headers once more: it has remembered where they go."""
        self._replace_headers(codecache, patches)

    def _replace_headers(self, codecache: Any, patches: Patches) -> None:
        self._patches = patches
        usual = next(iter(self._originals.values()))()
        safe = self._safe(usual)
        if safe != usual and not hasattr(codecache, "_HEADER_DIR"):
            raise AttributeError("_HEADER_DIR")
        for name, parts in _HEADER_FOLDERS.items():
            if hasattr(codecache, name):
                setattr(codecache, name, os.path.join(usual, *parts))  # it may be ours already
                patches.set(codecache, name, os.path.join(safe, *parts))

    def check(self) -> None:
        """Look again where headers are: where others have cleaned the temp folder, anybody can make them."""
        codecache: Any = sys.modules.get(_CODECACHE)
        if self._patches is None or not hasattr(codecache, "_HEADER_DIR"):
            return
        if os.path.dirname(codecache._HEADER_DIR) != codecache.default_cache_dir():
            self._replace_headers(codecache, self._patches)

    def _safe(self, usual: str) -> str:
        with contextlib.suppress(OSError):  # it belongs to who makes it first
            os.mkdir(usual, mode=0o700)
        if is_safe(Path(usual)) and all(is_safe_below(Path(usual), name) for name in _USED):
            return usual
        return str(self._other())
