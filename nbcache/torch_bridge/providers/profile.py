"""Profile-guided shapes (PGO): what torch learned of a function in earlier runs.

By itself torch keeps no profile between processes; nbcache has it keep one for each notebook. What was edited
between two kernels has not varied: only sizes and numbers count that one kernel has met with several values.
Where a function cannot be traced for any size, it is traced for those that are there.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.key import sha256
from nbcache.torch_bridge.recording import loaded, write_for_torch

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.patches import Patches
    from nbcache.torch_bridge.providers.context import Context

__all__ = ["ProfileName", "Varied", "provide_profile"]


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

    def is_in_force(self) -> bool:
        """Tell whether torch keeps a profile because of us, and not by a job id of the user's."""
        import torch.compiler.config as config

        return self._given is not None and config.job_id == self._given

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


class Varied:
    """Has torch foresee what varied within one kernel, unless a function cannot be traced that way."""

    def __init__(self, name: ProfileName) -> None:
        self._name = name
        self._pgo: Any = None
        self._stored: Mapping[Any, Mapping[str, Any]] = {}
        """By function and variable: what has varied, in the profile that was loaded or stored last."""
        self._foresees = False
        """Whether the profile that was loaded tells of anything that varies."""

    def keep_varied(self, pgo: ModuleType, session: Session, patches: Patches) -> None:
        """Take out of a profile what did not vary when torch loads it; store one when more has varied."""
        self._pgo = pgo

        def load(original: Any, cache_key: str, *args: Any, **kwargs: Any) -> Any:
            state = original(cache_key, *args, **kwargs)
            if state is not None and self._name.is_in_force():
                self._stored = self._varied(state)
                self._foresees = bool(self._stored)
                state.clear()
                for code, entries in self._stored.items():
                    state[code].automatic_dynamic.update(deepcopy(entries))
            return state

        def store(original: Any, cache_key: str, *args: Any, **kwargs: Any) -> Any:
            if self._name.is_in_force():
                varied = self._varied(pgo.get_code_state())
                if varied == self._stored:
                    return None
                self._stored = varied
            return original(cache_key, *args, **kwargs)

        patches.hook(pgo, "get_local_code_state", load, takes="cache_key")
        patches.hook(pgo, "get_remote_code_state", load, takes="cache_key")
        patches.hook(pgo, "put_local_code_state", store, takes="cache_key")

    def retry_without(self, convert_frame: ModuleType, session: Session, patches: Patches) -> None:
        """Trace a function for the sizes that are there where it cannot be traced for those foreseen."""

        def convert(original: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            try:
                return original(*args, **kwargs)
            except Exception:
                if not self._foresees:
                    raise
            state = self._pgo.get_code_state()
            foreseen = dict(state)
            state.clear()
            try:
                result = original(*args, **kwargs)
            except BaseException:  # so it is not what was foreseen
                state.clear()
                state.update(foreseen)
                raise
            self._foresees = False
            return result

        patches.hook(convert_frame.ConvertFrameAssert, "__call__", convert)

    def _varied(self, state: Mapping[Any, Any]) -> dict[Any, dict[str, Any]]:
        """Return what has had several values, by function and variable, without the values of the rest."""
        found = {}
        for code, each in state.items():
            entries = {name: self._only_varied(entry) for name, entry in each.automatic_dynamic.items()}
            if entries := {name: entry for name, entry in entries.items() if entry is not None}:
                found[code] = entries
        return found

    def _only_varied(self, entry: Any) -> Any:
        """Return what of a variable has varied; None where nothing has.

        A number is an entry with a scalar, whose size and stride are dynamic; a tensor is one with tuples.
        """
        dynamic, unset = self._pgo.auto_dynamic, self._pgo.auto_unset

        def reduced(values: Any) -> Any:
            if not isinstance(values, tuple):
                return values
            return tuple(value if value is dynamic else unset for value in values)

        size, stride = reduced(entry.size), reduced(entry.stride)
        if isinstance(size, tuple):
            strides = stride if isinstance(stride, tuple) else (stride,)
            varied = any(value is dynamic for value in (*size, *strides))
        else:
            varied = entry.scalar is dynamic
        return dataclasses.replace(entry, size=size, stride=stride) if varied else None
