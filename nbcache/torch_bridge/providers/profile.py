"""Profile-guided shapes (PGO): what torch learned of a function in earlier runs."""

from __future__ import annotations

import os
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.key import sha256
from nbcache.torch_bridge.recording import loaded, write_for_torch

if TYPE_CHECKING:
    from nbcache.torch_bridge.patches import Patches
    from nbcache.torch_bridge.providers.context import Context

__all__ = ["ProfileName", "provide_profile"]


def provide_profile(pgo: ModuleType, context: Context, patches: Patches) -> None:
    """Make the dynamic-shape profile present before `torch._dynamo.pgo` reads it, once a process."""
    session = context.session

    def look_for(key: str) -> None:
        loaded.asked = None
        if not context.serving():
            return
        path = pgo.code_state_path(key)
        if path is not None and not os.path.exists(path):
            loaded.asked = ("pgo", key)
            for artifact in session.find("pgo", key)[:1]:
                write_for_torch(session, "pgo", key, partial(pgo.write_local_impl, key, artifact.content))

    def get_local_code_state(original: Any, cache_key: str, *args: Any, **kwargs: Any) -> Any:
        session.attempt("making a stored profile present", partial(look_for, cache_key))
        loaded.profile = True
        try:
            return original(cache_key, *args, **kwargs)
        finally:
            loaded.profile = False

    patches.hook(pgo, "get_local_code_state", get_local_code_state, takes="cache_key")


class ProfileName:
    """The job id under which torch keeps the profile of a notebook: without one, it keeps none."""

    def __init__(self) -> None:
        self._given: str | None = None
        """The one that we gave; None where the user has set one."""

    def set(self, notebook: str) -> None:
        """Name the profile after a notebook's file, the same on a colleague's machine."""
        import torch.compiler.config as config

        if config.job_id is not None:
            return
        name = os.path.basename(notebook)
        config.job_id = self._given = f"nbcache-{sha256(name.encode())[:16]}" if name else "nbcache"

    def settle(self) -> None:
        """Set it in the context that runs now, as `portable.KeyTag` does."""
        import torch.compiler.config as config

        if self._given is not None and config.job_id is None:
            config.job_id = self._given

    def take_back(self) -> None:
        """Put back what was there before."""
        import torch.compiler.config as config

        ours, self._given = self._given, None
        if ours is not None and config.job_id == ours:
            config.job_id = None
