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
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["provide_autotune"]

_RESTORING = "making a stored tuning result present"


def provide_autotune(module: ModuleType, context: Context, patches: Patches) -> None:
    """Make a kernel's best configuration present before this process reads it, or a worker compiles it.

    The class that reads it stands in `torch._inductor.remote_cache` on 2.13, and in
    `torch._inductor.runtime.autotune_cache` on 2.11. Workers get kernels from `AsyncCompile.triton`. torch
    joins the key of such an artifact to its cache folder unchecked, so only keys in torch's form pass.
    """
    session = context.session

    def provide(key: str, path: str, write: Callable[[bytes], Any]) -> None:
        """Write the configuration that is stored under `key`, unless there is a file at `path` already."""
        if AUTOTUNE_KEY.fullmatch(key) and context.serving() and not os.path.exists(path):
            for artifact in session.find("autotune", key)[:1]:
                write_for_torch(session, "autotune", key, partial(write, artifact.content))

    def _get(original: Any, self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        key = _key(path)
        session.attempt(_RESTORING, partial(provide, key, path, partial(self._put, path)))
        content = original(self, path, *args, **kwargs)
        loaded.tuning = None if content is None else key
        return content

    def provide_to_worker(source: str) -> None:
        from torch._inductor.codecache import get_hash, get_path
        from torch._inductor.runtime.autotune_cache import AutotuneCache

        elsewhere = module.AsyncCompile.use_process_pool()
        if not elsewhere or module.CompiledTritonKernels.get(source) is not None:
            return  # no worker compiles it: `_get` serves this process
        file = get_path(get_hash(source.strip()), "py")[2]  # where `PyCodeCache.write` will put it
        cache = AutotuneCache.create({}, file, "")
        if cache is not None and cache.local_cache is not None:
            path = cache.local_cache[1]
            provide(_key(path), path, partial(_write, _key(path)))

    def triton(
        original: Any, self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any
    ) -> Any:
        session.attempt(_RESTORING, partial(provide_to_worker, source_code))
        return original(self, kernel_name, source_code, *args, **kwargs)

    if module.__name__.endswith("async_compile"):
        patches.hook(module.AsyncCompile, "triton", triton)
        return
    backend = vars(module).get("LocalCacheBackend") or vars(module).get("_LocalAutotuneCacheBackend")
    if backend is None and module.__name__.endswith("autotune_cache"):
        raise AttributeError(f"{module.__name__} has no backend for this machine")
    if backend is not None and backend.__module__ == module.__name__:
        patches.hook(backend, "_get", _get)


def _key(path: str) -> str:
    return "/".join(path.split(os.sep)[-2:])


def _write(key: str, content: bytes) -> None:
    from torch.compiler._cache import CacheArtifactFactory

    CacheArtifactFactory.create("autotune", key, content).populate_cache()
