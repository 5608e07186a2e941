"""Keeps compiles out while something changes that a graph is compiled for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from nbcache.core.errors import ConfigError

__all__ = ["nothing_compiles"]


@contextlib.contextmanager
def nothing_compiles() -> Iterator[None]:
    """Keep compiles in other threads out; ConfigError where there is one: it would be half of either kind."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    if module is None:
        yield
        return
    if not module.compile_lock.acquire(blocking=False):
        raise ConfigError(
            "another thread is compiling a graph just now",
            where="the setting `portable`",
            next_step="set it again when that is done",
        )
    try:
        yield
    finally:
        module.compile_lock.release()
