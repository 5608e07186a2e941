"""Record each artifact that torch makes or hits; serve profiles, and empty torch's remote caches."""

from __future__ import annotations

import base64
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from nbcache.core.errors import FormatError
from nbcache.core.model import Artifact
from nbcache.core.patches import Patches
from nbcache.kernel.events import ArtifactSeen
from nbcache.kernel.session import Session
from nbcache.torch_bridge.events import stamp
from nbcache.torch_bridge.hooks import Context

T = TypeVar("T")

_DISTINGUISHED_BY = {
    "inductor": ("provide_graphs",),
    "aot_autograd": ("provide_graphs",),
    "autotune": ("provide_autotune", "empty_remote_caches"),
    "pgo": ("provide_profile", "empty_remote_caches"),
}
"""Type of artifact → the parts that distinguish hits from artifacts that torch compiled here."""

loaded = threading.local()
"""The last artifacts that torch loaded from a cache on this thread. If torch records one of them, it was hit.

`content`: a graph's bytes; `local`: whether torch's folder had them; `profile`: True while torch reads one;
`tuning`: the key of a best configuration; `unverified`: the last value from torch's own Redis.
"""


def record(cache: ModuleType, context: Context, patches: Patches) -> None:
    """Record every artifact: torch passes all to `CacheArtifactManager.record_artifact`.

    A bundle that torch loads (`populate_caches`) does not name its CPU. While a part of `_DISTINGUISHED_BY`
    is off, all artifacts of that type are treated as hits.
    """
    session = context.session
    manager, factory = cache.CacheArtifactManager, cache.CacheArtifactFactory

    def was_hit(artifact_type: str, key: str, content: Any) -> bool:
        if artifact_type == "autotune":
            tuning, loaded.tuning = getattr(loaded, "tuning", None), None
            return bool(tuning == key)
        return content is getattr(loaded, "content", None) or getattr(loaded, "profile", False)

    def is_own(artifact_type: str, key: str, content: Any) -> bool:
        if any(map(context.is_lost, _DISTINGUISHED_BY.get(artifact_type, ()))):
            return False
        if artifact_type == "inductor" and triton_replaces_kernels():
            return False
        if was_hit(artifact_type, key, content):
            return getattr(loaded, "local", True) and context.owned()
        return not _is_from_redis(artifact_type, content)

    def encode_and_record(artifact_type: str, key: str, content: Any) -> None:
        own = is_own(artifact_type, key, content)
        encoded = factory.encode_create(artifact_type, key, content).content
        count_and_record(session, Artifact(artifact_type, key, encoded), made=own)

    def record_artifact(
        original: Any, cls: Any, artifact_type: str, key: str, content: Any, *args: Any, **kwargs: Any
    ) -> Any:
        done = original(cls, artifact_type, key, content, *args, **kwargs)
        session.attempt("recording an artifact", partial(encode_and_record, artifact_type, key, content))
        return done

    def populate_caches(original: Any, *args: Any, **kwargs: Any) -> Any:
        context.disown()
        return original(*args, **kwargs)

    patches.hook(manager, "record_artifact", record_artifact)
    patches.hook(manager, "populate_caches", populate_caches)


def count_and_record(session: Session, artifact: Artifact, *, made: bool) -> None:
    """Report an artifact for the graph that made or used it, and record it; `made`: this user compiled it."""
    session.emit(ArtifactSeen(**stamp(), type=artifact.type, size=len(artifact.content)))
    session.cache.record(artifact.type, artifact.key, artifact.content, made=made)


def use_newest(session: Session, type: str, key: str, use: Callable[[Artifact], T]) -> T | None:
    """Call `use` with the newest stored artifact; return its result, or None after a miss or a failure."""
    for artifact in session.find(type, key)[:1]:
        try:
            result = use(artifact)
        except (OSError, ImportError, FormatError) as error:
            session.reject(type, key, error)
        else:
            session.cache.mark_restored(type, key)
            count_and_record(session, artifact, made=False)
            return result
    return None


def triton_replaces_kernels() -> bool:
    """Return whether the user makes Triton run other code than it compiles; its keys leave that out."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is None:
        return False
    hook = getattr(knobs.runtime, "add_stages_inspection_hook", None)
    return bool(knobs.compilation.override) or hook is not None


def _is_from_redis(artifact_type: str, content: Any) -> bool:
    value = getattr(loaded, "unverified", None)
    if artifact_type == "pgo" and isinstance(value, dict):
        return value.get("data") == base64.b64encode(content).decode()
    return value is not None and content is value


def write_for_torch(session: Session, type: str, key: str, write: Callable[[], Any]) -> None:
    """Write an artifact into torch's folder. If that fails, torch compiles."""
    try:
        write()
    except OSError as error:
        session.reject(type, key, error)


def provide_profile(pgo: ModuleType, context: Context, patches: Patches) -> None:
    """Write the stored profile of dynamic shapes into torch's folder before torch reads it by the job id."""
    session = context.session

    def restore_profile(key: str) -> None:
        path = pgo.code_state_path(key) if context.serving() else None
        if path is not None and not os.path.exists(path):
            for artifact in session.find("pgo", key)[:1]:
                write_for_torch(session, "pgo", key, partial(pgo.write_local_impl, key, artifact.content))

    def get_local_code_state(original: Any, cache_key: str, *args: Any, **kwargs: Any) -> Any:
        session.attempt("making a stored profile present", partial(restore_profile, cache_key))
        loaded.profile = True
        try:
            return original(cache_key, *args, **kwargs)
        finally:
            loaded.profile = False

    patches.hook(pgo, "get_local_code_state", get_local_code_state)


def empty_remote_caches(module: ModuleType, context: Context, patches: Patches) -> None:
    """Make torch's remote caches, all of class `RedisRemoteCache`, empty while the session shares.

    While it does not share, torch's own Redis serves them. torch records the hits of two of them as new
    artifacts. `loaded.unverified` marks these, so that nbcache does not store them as this user's.
    """
    session = context.session
    unverified = module.RemoteAutotuneCache, module.RemoteDynamoPGOCache

    def _get(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        value = None if session.shares else original(self, *args, **kwargs)
        if isinstance(self, unverified):
            loaded.unverified = value
        return value

    def _put(original: Any, *args: Any, **kwargs: Any) -> Any:
        return None if session.shares else original(*args, **kwargs)

    patches.hook(module.RedisRemoteCache, "_get", _get)
    patches.hook(module.RedisRemoteCache, "_put", _put)
