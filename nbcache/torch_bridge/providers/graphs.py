"""Provides graphs: the entries of the FX graph cache and of AOTAutograd's cache."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from nbcache.core.model import Artifact, Level
from nbcache.core.patches import Patches
from nbcache.kernel.events import SpanEnded, SpanStarted
from nbcache.kernel.session import Session
from nbcache.torch_bridge.events import is_restoring_only, stamp
from nbcache.torch_bridge.hooks import Context
from nbcache.torch_bridge.recording import loaded, write_for_torch

_FOREIGN = "nbcache_graphs"
"""Folder in torch's cache folder with a file for each key under which nbcache wrote graphs."""
_GRAPH_TYPES = {"FxGraphCache": "inductor", "AOTAutogradCache": "aot_autograd"}
_CALLS = re.compile(r"async_compile\.(\w+)")
_OF_TRITON = frozenset({"triton", "wait"})
"""Functions of `async_compile` that compile no C++."""


def provide_graphs(codecache: ModuleType, context: Context, patches: Patches) -> None:
    """Write stored graphs into torch's folder before torch looks there.

    torch's remote-cache interface serves one entry for each key, while its folder keeps a variant for each
    set of guards. If no local graph's guards hold, the shared level is looked up. Then this kernel waits for
    another one that compiles the graph. If `provide_kernels` is off, torch gets no graph with C++ kernels:
    their source may need other vector instructions than torch chooses here, and keys leave these out.
    """
    session = context.session

    def write(cls: Any, type: str, key: str, contents: Sequence[bytes], *, is_restored: bool = True) -> None:
        if contents and type == "inductor":
            write_for_torch(session, type, key, partial(_mark_foreign, codecache, key))
        for content in contents:
            write_for_torch(session, type, key, partial(cls._write_to_local_cache, key, content))
        if contents and is_restored:
            session.cache.mark_restored(type, key)

    def restore_stored(cls: Any, type: str, key: str) -> bool:
        """Write a graph's stored variants that torch's folder lacks; return whether nbcache serves."""
        if not context.serving():
            return False
        try:
            names = os.listdir(cls._get_tmp_dir_for_key(key))
        except OSError:
            names = []
        present = {name for name in names if not name.startswith(".")}
        contents = [artifact.content for artifact in session.cache.find(type, key)]
        if present:
            contents = [content for content in contents if codecache.sha256_hash(content) not in present]
        # torch may hit a variant that was present before.
        write(cls, type, key, contents, is_restored=not present)
        return True

    def wait(key: str, tried: set[bytes]) -> Sequence[Artifact]:
        session.emit(SpanStarted(**stamp(), name="nbcache.wait"))
        try:
            return session.wait_for_other_kernel(key, tried)
        finally:
            session.emit(SpanEnded(**stamp(), name="nbcache.wait"))

    def write_new(
        cls: Any, type: str, key: str, tried: set[bytes], ask: Callable[[], Sequence[Artifact]]
    ) -> list[bytes]:
        contents = [artifact.content for artifact in ask() if artifact.content not in tried]
        write(cls, type, key, contents)
        return contents

    def loads_here(type: str | None, key: str, candidate: Any, tried: set[bytes]) -> bool:
        try:
            tried.add(candidate[1])
            is_own = candidate[2] and type == "inductor" and not is_foreign(codecache, session, key)
            return is_own or _loads_no_cpp(type, candidate[0])
        except Exception:
            return False

    def iterate_over_candidates(
        original: Any, cls: Any, local: bool, remote_cache: Any, key: str, *args: Any, **kwargs: Any
    ) -> Iterator[Any]:
        type = _GRAPH_TYPES.get(cls.__name__)
        may_ask_others = False
        tried: set[bytes] = set()
        if local and type:
            restoring = partial(restore_stored, cls, type, key)
            may_ask_others = bool(session.attempt("restoring a stored graph", restoring))
        has_kernel_hook = not context.is_lost("provide_kernels")
        for candidate in original(cls, local, remote_cache, key, *args, **kwargs):
            if not (has_kernel_hook or loads_here(type, key, candidate, tried)):
                continue
            tried.add(candidate[1])
            loaded.content, loaded.local = candidate[1], candidate[2]
            yield candidate
        if not (may_ask_others and type):
            return
        levels: list[Callable[[], Sequence[Artifact]]] = [partial(session.find_shared, type, key)]
        if type == "inductor" and not is_restoring_only():
            levels.append(partial(wait, key, tried))
        for level in levels:  # a fault of one level does not prevent the next
            ask = partial(write_new, cls, type, key, tried, level)
            for content in session.attempt("asking others", ask) or ():
                tried.add(content)
                try:
                    candidate = (pickle.loads(content), content, True)
                except Exception as error:  # torch also skips unreadable entries
                    session.reject(type, key, error)
                    continue
                if has_kernel_hook or _loads_no_cpp(type, candidate[0]):
                    loaded.content, loaded.local = content, True
                    yield candidate

    patches.hook(codecache.GuardedCache, "iterate_over_candidates", iterate_over_candidates)


def is_foreign(codecache: ModuleType, session: Session, key: str) -> bool:
    """Return whether nbcache, in this kernel or an earlier one, wrote the graph into torch's folder."""
    level, _ = session.cache.origin_of("inductor", key)
    return level is not Level.L0 or _foreign_mark(codecache, key).exists()


def _loads_no_cpp(type: str | None, entry: Any) -> bool:
    """Return whether a graph loads no C++ kernel, or an AOTAutograd entry refers to graphs only by key."""
    if type == "inductor":
        source = str(getattr(entry, "source_code", "CodeCache"))
        return "CodeCache" not in source and {*_CALLS.findall(source)} <= _OF_TRITON
    parts = [getattr(entry, name, None) for name in ("compiled_fw", "compiled_bw")]
    return parts[0] is not None and not any(hasattr(part, "result") for part in parts)


def _mark_foreign(codecache: ModuleType, key: str) -> None:
    path = _foreign_mark(codecache, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def _foreign_mark(codecache: ModuleType, key: str) -> Path:
    return Path(codecache.cache_dir(), _FOREIGN, key)
