"""torch's remote caches: empty while a shared level is connected, so that they ask no Redis of their own.

What torch's own backend reads from Redis is signed by nobody, and most of it is pickled code. The session
shares what these caches hold.
"""

from __future__ import annotations

import importlib
import operator
import pickle
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.recording import note_unverified

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["keep_workers_apart", "renew_autograd_cache", "replace_backends"]

_CACHE, _OVERRIDE = "RedisRemoteCache", "backend_override_cls"
"""torch's class of remote caches, and what it asks for another backend."""
_UNVERIFIED = ("RemoteAutotuneCache", "RemoteDynamoPGOCache")
"""Caches of torch's own whose hits it records as if it had made them."""


class _WhileSharing:
    """Value of `backend_override_cls`, of which torch asks the class, whenever it makes a cache."""

    def __init__(self, session: Session, ours: Any, theirs: Any) -> None:
        self._session = session
        self._ours = ours
        self._theirs = theirs

    def __get__(self, instance: object, owner: type) -> Any:
        return self._ours if self._session.shares else self._theirs


def replace_backends(module: ModuleType, context: Context, patches: Patches) -> None:
    """Empty torch's remote caches while the session shares: `RedisRemoteCache.backend_override_cls`.

    torch makes most of them anew for each use (`create_cache`); its own settings say which are in use. While
    the session does not share, torch's own Redis serves them. Artifacts from there are noted, since they must
    not be stored as if they had been made here.
    """

    class Backend(module.RemoteCacheBackend):  # type: ignore[name-defined]
        """Has nothing, and keeps nothing."""

        def _get(self, *args: Any, **kwargs: Any) -> None:
            return None

        def _put(self, *args: Any, **kwargs: Any) -> None:
            return None

    cache = module.RedisRemoteCache
    override = _WhileSharing(context.session, Backend, cache.backend_override_cls)
    patches.set(cache, "backend_override_cls", override)

    def watched(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        note_unverified(None if isinstance(self.backend, Backend) else found)
        return found

    for name in _UNVERIFIED:
        patches.hook(vars(module)[name], "_get", watched)


def renew_autograd_cache(module: ModuleType, context: Context, patches: Patches) -> None:
    """Have the AOTAutograd cache make its remote cache anew while sharing: torch keeps the first for good."""
    session, make = context.session, module.AOTAutogradCache.get_remote_cache.__wrapped__

    def get_remote_cache(original: Any) -> Any:
        return make() if session.shares else original()

    patches.hook(module.AOTAutogradCache, "get_remote_cache", get_remote_cache)


def keep_workers_apart(async_compile: ModuleType, context: Context, patches: Patches) -> None:
    """Have workers that compile Triton kernels ask no Redis while the session shares.

    They read best configurations before they compile, and whether remotely as well stands in the kernel's
    source. What they need is put into torch's folder before (`provide_tuning_to_workers`). The results come
    back pickled, with remote caches that are made again here, and so ask the session.
    """
    from torch._inductor import remote_cache

    operator.attrgetter(f"{_CACHE}.{_OVERRIDE}")(remote_cache)  # which the workers have as well
    job = _Job(async_compile._worker_compile_triton, context.session)
    patches.set(async_compile, "_worker_compile_triton", job)
    pickle.dumps(job)  # or the first kernel would fail at that


class _Job:
    """torch's function for its workers, sent there with a switch that is turned where it is unpickled.

    Nothing in it names nbcache: a worker may have been started where nbcache could not be imported.
    """

    def __init__(self, function: Callable[..., Any], session: Session) -> None:
        self._function = function
        self._session = session

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            sent: tuple[Any, ...] = (_Switch(self._session.shares), self._function)
        except Exception:  # a kernel that is compiled is worth more than a worker that asks no Redis
            sent = (self._function,)
        return operator.itemgetter(-1), (sent,)


class _Switch:
    """Says in the process where it is unpickled whether torch's remote caches there are empty.

    They are with a dictionary as a backend: its `get` finds nothing. A worker puts nothing.
    """

    def __init__(self, empty: bool) -> None:
        self._empty = empty

    def __reduce__(self) -> tuple[Any, ...]:
        module = _Call(importlib.import_module, "torch._inductor.remote_cache")
        cache = _Call(getattr, module, _CACHE, SimpleNamespace())
        return setattr, (cache, _OVERRIDE, dict if self._empty else None)


class _Call:
    """Is what a function returns where it is unpickled: names are looked up there, and need not be here."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._sent = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._sent
