"""Graphs: the entries of the FX graph cache and of AOTAutograd's."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.model import Artifact, Level
from nbcache.kernel.events import SpanEnded, SpanStarted
from nbcache.torch_bridge.events import is_restoring_only, stamp
from nbcache.torch_bridge.recording import loaded, write_for_torch

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches


_PROVIDED = "nbcache_graphs"
"""Folder in torch's cache folder for the keys of graphs that nbcache has put there."""


_GRAPH_TYPES = {"FxGraphCache": "inductor", "AOTAutogradCache": "aot_autograd"}
_CALLS = re.compile(r"async_compile\.(\w+)")
_OF_TRITON = frozenset({"triton", "wait"})
"""Functions of `async_compile` that a graph's code calls for other kernels than C++."""


def provide_graphs(codecache: ModuleType, context: Context, patches: Patches) -> None:
    """Write what the levels beyond hold for a key into torch's folder before torch looks there.

    Both the FX graph cache and the AOTAutograd cache ask `GuardedCache.iterate_over_candidates`. torch's
    remote-cache interface serves one entry a key only, while torch keeps a variant for each set of guards,
    and what it finds remotely it does not write to its folder. The shared level is asked where no nearer one
    has a graph whose guards hold; then, where that has none either, whether another kernel is compiling it
    just now.

    Where `provide_kernels` is off, torch itself would compile the C++ kernels of a foreign graph. Their
    source may need other vector instructions than torch chooses here, and keys leave these out. torch gets no
    such graph.
    """
    session = context.session

    def make_present(cls: Any, type: str, key: str) -> bool:
        if not context.serving():
            return False
        populate_graph(codecache, session, cls, type, key)
        return True

    def awaited(key: str, tried: set[bytes]) -> Sequence[Artifact]:
        """Wait while another kernel compiles the graph, and return its artifacts."""
        session.emit(SpanStarted(**stamp(), name="nbcache.wait"))
        try:
            return session.wait_for_other_kernel(key, tried)
        finally:
            session.emit(SpanEnded(**stamp(), name="nbcache.wait"))

    def untried(
        cls: Any, type: str, key: str, tried: set[bytes], ask: Callable[[], Sequence[Artifact]]
    ) -> list[bytes]:
        """Write what others have beyond what was tried into torch's folder, and return it."""
        contents = [artifact.content for artifact in ask() if artifact.content not in tried]
        populate(codecache, session, cls, type, key, contents)
        return contents

    def loads_here(type: str | None, key: str, candidate: Any, tried: set[bytes]) -> bool:
        """Return whether torch may load the candidate while `provide_kernels` is off; a fault means no."""
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
        serves = False
        tried: set[bytes] = set()
        if local and type:
            present = partial(make_present, cls, type, key)
            serves = bool(session.attempt("making a stored graph present", present))
        loads_any = not context.is_lost("provide_kernels")
        for candidate in original(cls, local, remote_cache, key, *args, **kwargs):
            if not (loads_any or loads_here(type, key, candidate, tried)):
                continue
            tried.add(candidate[1])
            loaded.content, loaded.local = candidate[1], candidate[2]
            yield candidate
        if not (serves and type):
            return
        levels: list[Callable[[], Sequence[Artifact]]] = [partial(session.find_shared, type, key)]
        if type == "inductor" and not is_restoring_only():
            levels.append(partial(awaited, key, tried))
        for level in levels:  # after a fault of the one, the other is asked
            ask = partial(untried, cls, type, key, tried, level)
            for content in session.attempt("asking others", ask) or ():
                tried.add(content)
                try:
                    candidate = (pickle.loads(content), content, True)
                except Exception as error:  # torch does the same with what it cannot read
                    session.rejected(type, key, error)
                    continue
                if loads_any or _loads_no_cpp(type, candidate[0]):
                    loaded.content, loaded.local = content, True
                    yield candidate

    patches.hook(codecache.GuardedCache, "iterate_over_candidates", iterate_over_candidates)


def populate_graph(codecache: ModuleType, session: Session, cache: Any, type: str, key: str) -> None:
    """Write those variants of a graph into the folder of `cache`, a torch class, that it lacks."""
    try:
        names = os.listdir(cache._get_tmp_dir_for_key(key))
    except OSError:
        names = []
    present = {name for name in names if not name.startswith(".")}
    contents = [artifact.content for artifact in session.cache.find(type, key)]
    absent = [content for content in contents if not present or codecache.sha256_hash(content) not in present]
    # What torch has of it already may be what it hits.
    populate(codecache, session, cache, type, key, absent, is_restored=not present)


def populate(
    codecache: ModuleType,
    session: Session,
    cache: Any,
    type: str,
    key: str,
    contents: Sequence[bytes],
    *,
    is_restored: bool = True,
) -> None:
    """Write graphs that torch does not have into the folder of `cache`, a torch class."""
    if contents and type == "inductor":
        write_for_torch(session, type, key, partial(_note_provided, codecache, key))
    for content in contents:
        write_for_torch(session, type, key, partial(cache._write_to_local_cache, key, content))
    if contents and is_restored:
        session.cache.mark_restored(type, key)


def is_foreign(codecache: ModuleType, session: Session, key: str) -> bool:
    """Return whether nbcache has put a graph into torch's folder: this kernel, or an earlier one."""
    level, _ = session.cache.origin_of("inductor", key)
    return level is not Level.L0 or _provided(codecache, key).exists()


def _loads_no_cpp(type: str | None, entry: Any) -> bool:
    """Return whether a graph loads no C++ kernel, or an entry of AOTAutograd's cache holds only keys."""
    if type == "inductor":
        source = str(getattr(entry, "source_code", "CodeCache"))
        return "CodeCache" not in source and {*_CALLS.findall(source)} <= _OF_TRITON
    parts = [getattr(entry, name, None) for name in ("compiled_fw", "compiled_bw")]
    return parts[0] is not None and not any(hasattr(part, "result") for part in parts)


def being_loaded() -> bytes:
    """Return the content of the graph that torch loads on this thread."""
    content: bytes = getattr(loaded, "content", b"")
    return content


def _note_provided(codecache: ModuleType, key: str) -> None:
    path = _provided(codecache, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def _provided(codecache: ModuleType, key: str) -> Path:
    return Path(codecache.cache_dir(), _PROVIDED, key)
