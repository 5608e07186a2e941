"""The best configurations of Triton kernels, alone and in torch's bundles."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.artifacts.mega_cache import AUTOTUNE_KEY
from nbcache.torch_bridge.recording import loaded, write_for_torch

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["provide_autotune", "provide_tuning_to_workers"]


def provide_autotune(module: ModuleType, context: Context, patches: Patches) -> None:
    """Make a kernel's best configuration present before this process reads it.

    The class that reads it stands in `torch._inductor.remote_cache` on 2.13, and in
    `torch._inductor.runtime.autotune_cache` on 2.11. torch joins the key of such an artifact to its
    cache folder unchecked, so only keys of the form that torch itself makes are let through.
    """
    session = context.session
    backend = vars(module).get("LocalCacheBackend") or vars(module).get("_LocalAutotuneCacheBackend")
    if backend is None and module.__name__.endswith("autotune_cache"):
        raise AttributeError(f"{module.__name__} has no backend for this machine")
    if backend is None or backend.__module__ != module.__name__:
        return

    def make_present(self: Any, path: str, key: str) -> None:
        if context.serving():
            _provide_tuning(session, key, path, partial(self._put, path))

    def _get(original: Any, self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        key = "/".join(path.split(os.sep)[-2:])
        session.attempt("making a stored tuning result present", partial(make_present, self, path, key))
        found = original(self, path, *args, **kwargs)
        loaded.tuning = None if found is None else key
        return found

    patches.hook(backend, "_get", _get)


def provide_tuning_to_workers(async_compile: ModuleType, context: Context, patches: Patches) -> None:
    """Make a kernel's best configuration present before a worker compiles it: `AsyncCompile.triton`.

    The manifest does not name what other notebooks have tuned. (Never run on a GPU yet.)
    """
    session = context.session

    def make_present(source: str) -> None:
        from torch._inductor.codecache import get_hash, get_path
        from torch._inductor.runtime.autotune_cache import AutotuneCache

        elsewhere = async_compile.AsyncCompile.use_process_pool()
        if not elsewhere or async_compile.CompiledTritonKernels.get(source) is not None:
            return  # no worker compiles it: `provide_autotune` serves this process
        if not context.serving():
            return
        file = get_path(get_hash(source.strip()), "py")[2]  # where `PyCodeCache.write` will put it
        cache = AutotuneCache.create({}, file, "")
        if cache is not None and cache.local_cache is not None:
            path = cache.local_cache[1]
            key = "/".join(path.split(os.sep)[-2:])
            _provide_tuning(session, key, path, partial(_write_tuning, key))

    def provided(
        original: Any, self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any
    ) -> Any:
        session.attempt("making a stored tuning result present", partial(make_present, source_code))
        return original(self, kernel_name, source_code, *args, **kwargs)

    patches.hook(async_compile.AsyncCompile, "triton", provided)


def _write_tuning(key: str, content: bytes) -> None:
    from torch.compiler._cache import CacheArtifactFactory

    CacheArtifactFactory.create("autotune", key, content).populate_cache()


def _provide_tuning(session: Session, key: str, path: str, write: Callable[[bytes], Any]) -> None:
    """Write the best configuration that is stored under `key`, unless there is a file at `path` already."""
    if not AUTOTUNE_KEY.fullmatch(key) or os.path.exists(path):
        return
    content = next((artifact.content for artifact in session.find("autotune", key)), None)
    if content is not None:
        write_for_torch(session, "autotune", key, partial(write, content))
