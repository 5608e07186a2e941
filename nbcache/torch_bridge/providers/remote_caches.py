"""torch's remote caches while a shared level is connected: they ask nbcache, and no Redis of their own.

What torch's own backend reads from Redis is signed by nobody, and most of it is pickled code. Here all of it
comes from, and goes to, the levels of the session. What these caches hold, torch has handed to
`CacheArtifactManager` already, but for tuning results under torch's remote keys, and extra profiles.
"""

from __future__ import annotations

import base64
import importlib
import json
import operator
import pickle
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.providers.autotune import note_bundle
from nbcache.torch_bridge.recording import note_unverified, was_asked

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["TUNING", "keep_workers_apart", "renew_autograd_cache", "replace_backends"]

TUNING = "remote_autotune"
"""Type of what torch's remote autotune caches hold, by their full key.

The key has digests of torch, backend and configurations, or of a generated file: what changes one of them is
another key.
"""
_TYPES = {"fx-graph-v1": "inductor", "autograd-experimental": "aot_autograd", "dynamo-pgo": "pgo"}
"""Types of artifact by torch's name of the remote cache; the others are for tuning results."""
_BUNDLE = "pt2:bundled-autotune-"
"""Keys of what was tuned for a whole generated file begin so."""
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
    """Have torch's remote caches ask the session while it shares: `RedisRemoteCache.backend_override_cls`.

    torch makes most of them anew for each use (`create_cache`); which of them are in use, its own settings
    say. While the session does not share, torch's own Redis serves them, and what it found there is noted:
    it must not be stored as if it had been made here.
    """
    session = context.session

    class Backend(module.RemoteCacheBackend):  # type: ignore[name-defined]
        """Answers from the session's levels. It raises nothing: torch would pass that on to the user."""

        def _get(self, *args: Any, **kwargs: Any) -> bytes | None:
            asked = partial(_get, context, *args, **kwargs)
            return session.attempt("asking for what torch shares", asked)

        def _put(self, *args: Any, **kwargs: Any) -> None:
            session.attempt("storing what torch shares", partial(_put, session, *args, **kwargs))

    cache = module.RedisRemoteCache
    override = _WhileSharing(session, Backend, cache.backend_override_cls)
    patches.set(cache, "backend_override_cls", override)

    def watched(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        note_unverified(None if isinstance(self.backend, Backend) else found)
        return found

    for name in _UNVERIFIED:
        patches.hook(vars(module)[name], "_get", watched)


def _get(context: Context, key: str, *_: Any, **__: Any) -> bytes | None:
    """Return what torch's serializer reads under its full `key`: JSON; None where there is nothing.

    The interface has one value for a key. Of graphs with other guards it is the newest.
    """
    type, name = _artifact_of(key)
    if was_asked(type, name) or not context.serving():
        return None
    for artifact in context.session.find(type, name):
        if type == TUNING:
            return _tuning(key, artifact.content)
        context.session.cache.mark_restored(type, name)
        return json.dumps({"data": base64.b64encode(artifact.content).decode()}).encode()
    return None


def _put(session: Session, key: str, data: bytes, *_: Any, **__: Any) -> None:
    """Store what torch has not recorded already: tuning results, and a profile under an extra key.

    FX graphs, AOTAutograd entries and this notebook's profile have passed `record_artifact` just before, with
    the same content (`FxGraphCache._save_graph`, `AOTAutogradCache.save`, `pgo.put_local_code_state`).
    """
    type, name = _artifact_of(key)
    if type == TUNING:
        session.cache.record(type, name, data, made=True)
    elif type == "pgo":
        from torch._dynamo.pgo import get_cache_key

        if name != get_cache_key():  # `torch.compiler.config.pgo_extra_write_key`
            session.cache.record(type, name, base64.b64decode(json.loads(data)["data"]), made=True)


def _artifact_of(key: str) -> tuple[str, str]:
    """Return type and key of the artifact that torch means by `pt2:<cache>::<key>:c1`."""
    cache, _, rest = key.removeprefix("pt2:").partition("::")
    type = _TYPES.get(cache)
    return (TUNING, key) if type is None else (type, rest.rpartition(":")[0])


def _tuning(key: str, content: bytes) -> bytes | None:
    """Return `content` if torch can read it: what is no JSON would fail in the midst of a compile."""
    try:
        found = json.loads(content)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    if key.startswith(_BUNDLE):
        note_bundle(found)
    return content


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
