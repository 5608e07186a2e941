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


_RESTORING = "making a stored tuning result present"


def provide_autotune(module: ModuleType, context: Context, patches: Patches) -> None:
    """Make a kernel's best configuration present before this process reads it.

    The class that reads it stands in `torch._inductor.remote_cache` on 2.13, and in
    `torch._inductor.runtime.autotune_cache` on 2.11.
    """
    backend = vars(module).get("LocalCacheBackend") or vars(module).get("_LocalAutotuneCacheBackend")
    if backend is None and module.__name__.endswith("autotune_cache"):
        raise AttributeError(f"{module.__name__} has no backend for this machine")
    if backend is None or backend.__module__ != module.__name__:
        return

    def _get(original: Any, self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        key = _key(path)
        provide = partial(_provide, context, key, path, partial(self._put, path))
        context.session.attempt(_RESTORING, provide)
        content = original(self, path, *args, **kwargs)
        loaded.tuning = None if content is None else key
        return content

    patches.hook(backend, "_get", _get)


def provide_tuning_to_workers(async_compile: ModuleType, context: Context, patches: Patches) -> None:
    """Make a kernel's best configuration present before a worker compiles it: `AsyncCompile.triton`."""

    def make_present(source: str) -> None:
        from torch._inductor.codecache import get_hash, get_path
        from torch._inductor.runtime.autotune_cache import AutotuneCache

        elsewhere = async_compile.AsyncCompile.use_process_pool()
        if not elsewhere or async_compile.CompiledTritonKernels.get(source) is not None:
            return  # no worker compiles it: `provide_autotune` serves this process
        file = get_path(get_hash(source.strip()), "py")[2]  # where `PyCodeCache.write` will put it
        cache = AutotuneCache.create({}, file, "")
        if cache is not None and cache.local_cache is not None:
            path = cache.local_cache[1]
            _provide(context, _key(path), path, partial(_write, _key(path)))

    def triton(
        original: Any, self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any
    ) -> Any:
        context.session.attempt(_RESTORING, partial(make_present, source_code))
        return original(self, kernel_name, source_code, *args, **kwargs)

    patches.hook(async_compile.AsyncCompile, "triton", triton)


def _key(path: str) -> str:
    return "/".join(path.split(os.sep)[-2:])


def _provide(context: Context, key: str, path: str, write: Callable[[bytes], Any]) -> None:
    """Write the configuration that is stored under `key`, unless there is a file at `path` already.

    torch joins the key to its cache folder unchecked, so only keys in torch's form pass.
    """
    if AUTOTUNE_KEY.fullmatch(key) and context.serving() and not os.path.exists(path):
        for artifact in context.session.find("autotune", key)[:1]:
            write_for_torch(context.session, "autotune", key, partial(write, artifact.content))


def _write(key: str, content: bytes) -> None:
    from torch.compiler._cache import CacheArtifactFactory

    CacheArtifactFactory.create("autotune", key, content).populate_cache()
