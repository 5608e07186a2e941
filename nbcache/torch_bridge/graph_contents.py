"""Look up a graph's guards and its generated code on demand, without references to torch's objects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from nbcache.core.errors import NbcacheError
from nbcache.core.files import read
from nbcache.core.log import logger
from nbcache.core.patches import Patches
from nbcache.core.reports import GraphContents, GraphRecord
from nbcache.kernel.events import CodeLoaded
from nbcache.kernel.explain.guards import readable
from nbcache.kernel.session import Session
from nbcache.torch_bridge.events import stamp, with_cells
from nbcache.torch_bridge.hooks import Context

_FOLLOWING = "following a compile"
_MAX_CODE_BYTES = 16 << 20
_FORGOTTEN = "torch no longer holds this version: its code was freed, or torch._dynamo.reset() was called"
_ELSEWHERE = "torch has reported none: another backend made it, or it was compiled before nbcache was loaded"
_LOST = "its file is no longer in torch's folder, which is temporary"


def follow_code(codecache: ModuleType, context: Context, patches: Patches) -> None:
    """Note the path of each graph's code: `PyCodeCache.load_by_key_path`."""
    session = context.session

    def report(path: str) -> None:
        session.emit(CodeLoaded(**stamp(), path=path))

    def load(original: Any, cls: Any, key: str, path: str, *args: Any, **kwargs: Any) -> Any:
        module = original(cls, key, path, *args, **kwargs)
        session.attempt(_FOLLOWING, partial(report, str(path)))
        return module

    patches.hook(codecache.PyCodeCache, "load_by_key_path", load)


def contents_of(graph: GraphRecord, session: Session) -> GraphContents:
    guards, no_guards = _guards_of(graph.compile_id, session)
    code, no_code = _code_at(graph.code_path)
    return GraphContents(guards, no_guards, code, no_code)


def _guards_of(compile_id: str, session: Session) -> tuple[tuple[str, ...], str]:
    try:
        for entry in _dynamo_cache_entries():
            if str(entry.compile_id) == compile_id:
                texts = (with_cells(session, str(part)) or "" for part in entry.guard_manager.code_parts)
                return tuple(sorted(map(readable, texts), key=_rank)), ""
    except Exception as error:  # e.g. AttributeError: this torch has another API
        logger.info("guards could not be read", exc_info=error)
        return (), f"this version of torch does not show them ({type(error).__name__})"
    return (), _FORGOTTEN


def _dynamo_cache_entries() -> Iterator[Any]:
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    if convert_frame is None or eval_frame is None:
        return
    for reference in list(convert_frame.input_codes.seen):
        if (code := reference()) is not None:
            yield from eval_frame._debug_get_cache_entry_list(code)


def _rank(guard: str) -> int:
    """Return a sort key: guards on arguments are first, and guards that almost always hold are last."""
    return 2 if guard.startswith("hasattr(") else 0 if "L[" in guard else 1


def _code_at(path: str) -> tuple[str, str]:
    if not path:
        return "", _ELSEWHERE
    try:
        return read(Path(path), max_bytes=_MAX_CODE_BYTES).decode(errors="replace"), ""
    except NbcacheError:
        return "", _LOST
