"""Record each artifact as torch makes or hits it, and serve profiles and torch's remote caches."""

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
"""Type of artifact → the parts that distinguish hits from what torch has made here."""

loaded = threading.local()
"""The artifacts that torch loaded last from a cache on this thread; recording those is a hit.

`content`: the bytes of a graph, `local`: whether they came from its folder; `profile`: True while it reads
one; `tuning`: the key of a best configuration; `unverified`: what it read last from a Redis of its own.
"""


def record(cache: ModuleType, context: Context, patches: Patches) -> None:
    """Record every artifact: all pass through `CacheArtifactManager.record_artifact`.

    A bundle that is loaded (`populate_caches`) does not say for which CPU it was made. While a part of
    `_DISTINGUISHED_BY` is off, all artifacts of that type are treated as hits.
    """
    session = context.session
    manager, factory = cache.CacheArtifactManager, cache.CacheArtifactFactory

    def was_hit(artifact_type: str, key: str, content: Any) -> bool:
        if artifact_type == "autotune":
            tuning, loaded.tuning = getattr(loaded, "tuning", None), None
            return bool(tuning == key)
        return content is getattr(loaded, "content", None) or getattr(loaded, "profile", False)

    def was_made(artifact_type: str, key: str, content: Any) -> bool:
        if any(map(context.is_lost, _DISTINGUISHED_BY.get(artifact_type, ()))):
            return False
        if artifact_type == "inductor" and kernels_are_replaced():
            return False
        if was_hit(artifact_type, key, content):
            return getattr(loaded, "local", True) and context.owned()
        return not _is_unverified(artifact_type, content)

    def note(artifact_type: str, key: str, content: Any) -> None:
        made = was_made(artifact_type, key, content)
        encoded = factory.encode_create(artifact_type, key, content).content
        count_and_record(session, Artifact(artifact_type, key, encoded), made=made)

    def record_artifact(
        original: Any, cls: Any, artifact_type: str, key: str, content: Any, *args: Any, **kwargs: Any
    ) -> Any:
        done = original(cls, artifact_type, key, content, *args, **kwargs)
        session.attempt("recording an artifact", partial(note, artifact_type, key, content))
        return done

    def populate_caches(original: Any, *args: Any, **kwargs: Any) -> Any:
        context.disown()
        return original(*args, **kwargs)

    patches.hook(manager, "record_artifact", record_artifact)
    patches.hook(manager, "populate_caches", populate_caches)


def count_and_record(session: Session, artifact: Artifact, *, made: bool) -> None:
    """Count an artifact, which was just made or used, for its graph, and record it."""
    session.emit(ArtifactSeen(**stamp(), type=artifact.type, size=len(artifact.content)))
    session.cache.record(artifact.type, artifact.key, artifact.content, made=made)


def restored(session: Session, type: str, key: str, use: Callable[[Artifact], T]) -> T | None:
    """Return the result of `use` for the newest artifact that is stored; None where it cannot be used."""
    for artifact in session.find(type, key)[:1]:
        try:
            used = use(artifact)
        except (OSError, ImportError, FormatError) as error:
            session.rejected(type, key, error)
        else:
            session.cache.mark_restored(type, key)
            count_and_record(session, artifact, made=False)
            return used
    return None


def kernels_are_replaced() -> bool:
    """Return whether Triton runs other code than it compiles, which none of its keys includes."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is None:
        return False
    hook = getattr(knobs.runtime, "add_stages_inspection_hook", None)
    return bool(knobs.compilation.override) or hook is not None


def _is_unverified(artifact_type: str, content: Any) -> bool:
    found = getattr(loaded, "unverified", None)
    if artifact_type == "pgo" and isinstance(found, dict):
        return found.get("data") == base64.b64encode(content).decode()
    return found is not None and content is found


def write_for_torch(session: Session, type: str, key: str, write: Callable[[], Any]) -> None:
    """Write an artifact into torch's folder; where that fails, torch compiles."""
    try:
        write()
    except OSError as error:
        session.rejected(type, key, error)


def provide_profile(pgo: ModuleType, context: Context, patches: Patches) -> None:
    """Make the profile of dynamic shapes present before torch reads it, under a job id of the user."""
    session = context.session

    def make_present(key: str) -> None:
        path = pgo.code_state_path(key) if context.serving() else None
        if path is not None and not os.path.exists(path):
            for artifact in session.find("pgo", key)[:1]:
                write_for_torch(session, "pgo", key, partial(pgo.write_local_impl, key, artifact.content))

    def get_local_code_state(original: Any, cache_key: str, *args: Any, **kwargs: Any) -> Any:
        session.attempt("making a stored profile present", partial(make_present, cache_key))
        loaded.profile = True
        try:
            return original(cache_key, *args, **kwargs)
        finally:
            loaded.profile = False

    patches.hook(pgo, "get_local_code_state", get_local_code_state)


def empty_remote_caches(module: ModuleType, context: Context, patches: Patches) -> None:
    """Empty torch's remote caches while the session shares: all are a `RedisRemoteCache`.

    While it does not share, torch's own Redis serves them. torch records the hits of two of them as if it had
    made them. These artifacts are noted: they must not be stored as if they had been made here.
    """
    session = context.session
    unverified = module.RemoteAutotuneCache, module.RemoteDynamoPGOCache

    def _get(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        value = None if session.shares else original(self, *args, **kwargs)
        if isinstance(self, unverified):
            loaded.unverified = value
        return value

    def _put(original: Any, *args: Any, **kwargs: Any) -> None:
        if not session.shares:
            original(*args, **kwargs)

    patches.hook(module.RedisRemoteCache, "_get", _get)
    patches.hook(module.RedisRemoteCache, "_put", _put)
