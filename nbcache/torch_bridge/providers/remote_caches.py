"""torch's remote caches: empty while a shared level is connected, so that they ask no Redis of their own.

What torch's own backend reads from Redis is signed by nobody, and most of it is pickled code. The session
shares what these caches hold.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.recording import note_unverified

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["replace_backends"]

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
    not be stored as if they had been made here. AOTAutograd's cache keeps its first remote one; while the
    session shares, it makes one for each use.
    """
    session = context.session
    if (entries := getattr(module, "AOTAutogradCache", None)) is not None:
        make = entries.get_remote_cache.__wrapped__

        def get_remote_cache(original: Any) -> Any:
            return make() if session.shares else original()

        patches.hook(entries, "get_remote_cache", get_remote_cache)
        return

    class Backend(module.RemoteCacheBackend):  # type: ignore[name-defined]
        """Has nothing, and keeps nothing."""

        def _get(self, *args: Any, **kwargs: Any) -> None:
            return None

        def _put(self, *args: Any, **kwargs: Any) -> None:
            return None

    cache = module.RedisRemoteCache
    override = _WhileSharing(session, Backend, cache.backend_override_cls)
    patches.set(cache, "backend_override_cls", override)

    def _get(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        note_unverified(None if isinstance(self.backend, Backend) else value)
        return value

    for name in _UNVERIFIED:
        patches.hook(vars(module)[name], "_get", _get)
