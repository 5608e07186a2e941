"""The profile of dynamic shapes (PGO) that torch keeps between processes under a job id of the user's."""

from __future__ import annotations

import os
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.recording import loaded, write_for_torch

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["provide_profile"]


def provide_profile(pgo: ModuleType, context: Context, patches: Patches) -> None:
    """Make the dynamic-shape profile present before `torch._dynamo.pgo` reads it, once a process."""
    session = context.session

    def look_for(key: str) -> None:
        if not context.serving():
            return
        path = pgo.code_state_path(key)
        if path is not None and not os.path.exists(path):
            for artifact in session.find("pgo", key)[:1]:
                write_for_torch(session, "pgo", key, partial(pgo.write_local_impl, key, artifact.content))

    def get_local_code_state(original: Any, cache_key: str, *args: Any, **kwargs: Any) -> Any:
        session.attempt("making a stored profile present", partial(look_for, cache_key))
        loaded.profile = True
        try:
            return original(cache_key, *args, **kwargs)
        finally:
            loaded.profile = False

    patches.hook(pgo, "get_local_code_state", get_local_code_state)
