"""Record each artifact as torch makes or hits it, and make present what torch is about to look up."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from nbcache.artifacts.mega_cache import AUTOTUNE_KEY
from nbcache.core.errors import FormatError
from nbcache.core.model import Artifact
from nbcache.kernel.tracker import ArtifactSeen, SpanEnded, SpanStarted
from nbcache.torch_bridge.events import is_restoring_only, stamp

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.patches import Patches

__all__ = [
    "being_loaded",
    "hand_on",
    "kernels_are_replaced",
    "note_bundle",
    "note_unverified",
    "populate_graph",
    "provide_autotune",
    "provide_graphs",
    "provide_profile",
    "provide_tuning_to_workers",
    "record",
    "restored",
    "was_asked",
    "was_provided",
]

T = TypeVar("T")

_PROVIDED = "nbcache_graphs"
"""Folder in torch's cache folder for the keys of graphs that nbcache has put there."""
_GRAPH_TYPES = {"FxGraphCache": "inductor", "AOTAutogradCache": "aot_autograd"}

_loaded = threading.local()
"""What torch loaded last from a cache on this thread; recording that is a hit.

`content`: the very bytes of a graph, `local`: whether they came from its folder; `profile`: it is reading
one; `tuning`: the key of a best configuration. `unverified`: what it read last from a Redis of its own.
`asked`: type and key of what was made present just now, as far as it is there at all.
"""


_bundled: dict[str, bytes] = {}
"""Best configurations that torch's remote bundles have brought, by the name of their file."""


def record(
    cache: ModuleType,
    session: Session,
    patches: Patches,
    owned: Callable[[], bool],
    disown: Callable[[], None],
    tells: Callable[[str], bool],
) -> None:
    """Hand on every artifact: all pass through `CacheArtifactManager.record_artifact`.

    `owned` tells whether torch's folder holds only what was made in this environment. It does not once
    a bundle has been loaded (`populate_caches`), which does not say for which CPU it was made. `tells`
    says of a type whether other hooks tell what torch has found of it: else none of it counts as made here.
    """
    manager, factory = cache.CacheArtifactManager, cache.CacheArtifactFactory

    def was_hit(artifact_type: str, key: str, content: Any) -> bool:
        if artifact_type == "autotune":
            tuning, _loaded.tuning = getattr(_loaded, "tuning", None), None
            return bool(tuning == key)
        return content is getattr(_loaded, "content", None) or getattr(_loaded, "profile", False)

    def was_made(artifact_type: str, key: str, content: Any) -> bool:
        if not tells(artifact_type) or (artifact_type == "inductor" and kernels_are_replaced()):
            return False
        if was_hit(artifact_type, key, content):
            return getattr(_loaded, "local", True) and owned()
        return not _is_unverified(artifact_type, content)

    def note(artifact_type: str, key: str, content: Any) -> None:
        made = was_made(artifact_type, key, content)
        encoded = factory.encode_create(artifact_type, key, content).content
        hand_on(session, Artifact(artifact_type, key, encoded), made=made)

    def record_artifact(
        original: Any, cls: Any, artifact_type: str, key: str, content: Any, *args: Any, **kwargs: Any
    ) -> Any:
        done = original(cls, artifact_type, key, content, *args, **kwargs)
        session.attempt("recording an artifact", partial(note, artifact_type, key, content))
        return done

    def populate_caches(original: Any, *args: Any, **kwargs: Any) -> Any:
        disown()
        return original(*args, **kwargs)

    patches.hook(manager, "record_artifact", record_artifact, takes="cls artifact_type key content")
    patches.hook(manager, "populate_caches", populate_caches)


def hand_on(session: Session, artifact: Artifact, *, made: bool) -> None:
    """Have an artifact that was just made or used counted for its graph, and stored, or its use noted."""
    session.emit(ArtifactSeen(**stamp(), type=artifact.type, size=len(artifact.content)))
    session.record(artifact.type, artifact.key, artifact.content, made=made)


def restored(session: Session, type: str, key: str, use: Callable[[Artifact], T]) -> T | None:
    """Return what `use` makes of the newest artifact that is stored; None without one that it can use."""
    for artifact in session.provide(type, key)[:1]:
        try:
            found = use(artifact)
        except (OSError, ImportError, FormatError) as error:
            session.rejected(type, key, error)
            continue
        session.populated(type, key)
        hand_on(session, artifact, made=False)
        return found
    return None


def kernels_are_replaced() -> bool:
    """Tell whether somebody has Triton run other code than it compiles, which no key of its tells."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is None:
        return False
    hook = getattr(knobs.runtime, "add_stages_inspection_hook", None)
    return bool(knobs.compilation.override) or hook is not None


def note_unverified(found: Any) -> None:
    """Note what a remote cache of torch's own has found on this thread: nobody has signed it."""
    _loaded.unverified = found


def note_bundle(configurations: Mapping[str, Any]) -> None:
    """Keep what a remote bundle has brought until torch looks for it, by the names of the files.

    torch writes them as well, but into a folder named after the file, and looks in one named after the
    kernel's source, where they never are (`_AutotuneCacheBundlerImpl._load_cache`; 2.11, 2.13).
    """
    _bundled.update((name, json.dumps(best).encode()) for name, best in configurations.items())


def _is_unverified(artifact_type: str, content: Any) -> bool:
    found = getattr(_loaded, "unverified", None)
    if artifact_type == "pgo" and isinstance(found, dict):
        return found.get("data") == base64.b64encode(content).decode()
    return found is not None and content is found


def was_asked(type: str, key: str) -> bool:
    """Tell whether the session has just been asked for this on this thread, before torch looked locally."""
    return bool(getattr(_loaded, "asked", None) == (type, key))


def provide_graphs(
    codecache: ModuleType, session: Session, patches: Patches, serving: Callable[[], bool]
) -> None:
    """Write what the levels beyond hold for a key into torch's folder before torch looks there.

    `GuardedCache.iterate_over_candidates` is what both the FX graph cache and the AOTAutograd cache
    ask. torch's remote-cache interface would do for one entry a key only, while torch keeps a
    variant for each set of guards, and what it finds remotely it does not write to its folder.
    The shared level is asked where no nearer one has a graph whose guards hold; then, where that has none
    either, whether another kernel is compiling it just now.
    """
    tuned: set[str] = set()

    def make_present(cls: Any, type: str, key: str) -> bool:
        if not serving():
            return False
        if (folder := codecache.cache_dir()) not in tuned:
            tuned.add(folder)
            session.attempt("restoring tuning results", partial(_populate_tuning, session, folder))
        _loaded.asked = (type, key)
        populate_graph(codecache, session, cls, type, key)
        return True

    def shared(cls: Any, type: str, key: str, tried: set[bytes]) -> list[bytes]:
        """Write what the shared level has beyond what was tried into torch's folder, and return it."""
        return written(cls, type, key, tried, session.provide_shared(type, key))

    def awaited(cls: Any, type: str, key: str, tried: set[bytes]) -> list[bytes]:
        """Wait while another kernel compiles the graph, and do the same with what it made."""
        if type != "inductor" or is_restoring_only():
            return []
        session.emit(SpanStarted(**stamp(), name="nbcache.wait"))
        try:
            found = session.await_other(key, tried)
        finally:
            session.emit(SpanEnded(**stamp(), name="nbcache.wait"))
        return written(cls, type, key, tried, found)

    def written(cls: Any, type: str, key: str, tried: set[bytes], found: Sequence[Artifact]) -> list[bytes]:
        contents = [each.content for each in found if each.content not in tried]
        populate(codecache, session, cls, type, key, contents)
        return contents

    def iterate_over_candidates(
        original: Any, cls: Any, local: bool, remote_cache: Any, key: str, *args: Any, **kwargs: Any
    ) -> Iterator[Any]:
        type = _GRAPH_TYPES.get(cls.__name__)
        serves, tried = False, set()
        _loaded.asked = None
        if local and type:
            present = partial(make_present, cls, type, key)
            serves = bool(session.attempt("making a stored graph present", present))
        for candidate in original(cls, local, remote_cache, key, *args, **kwargs):
            tried.add(candidate[1])
            _loaded.content, _loaded.local = candidate[1], candidate[2]
            yield candidate
        if not (serves and type):
            return
        for ask in (shared, awaited):
            for content in session.attempt("asking others", partial(ask, cls, type, key, tried)) or ():
                tried.add(content)
                try:
                    candidate = (pickle.loads(content), content, True)
                except Exception as error:  # torch does the same with what it cannot read
                    session.rejected(type, key, error)
                    continue
                _loaded.content, _loaded.local = content, True
                yield candidate

    takes = "cls local remote_cache key"
    patches.hook(codecache.GuardedCache, "iterate_over_candidates", iterate_over_candidates, takes=takes)


def populate_graph(codecache: ModuleType, session: Session, cache: Any, type: str, key: str) -> None:
    """Write those variants of a graph into the folder of `cache`, a class of torch's, that it lacks."""
    present = _names(cache._get_tmp_dir_for_key(key))
    absent = [
        artifact.content
        for artifact in session.provide_near(type, key)
        if not present or codecache.sha256_hash(artifact.content) not in present
    ]
    if absent and present:  # what torch has of it already may be what it hits
        _write(codecache, session, cache, type, key, absent)
    else:
        populate(codecache, session, cache, type, key, absent)


def populate(
    codecache: ModuleType, session: Session, cache: Any, type: str, key: str, contents: Sequence[bytes]
) -> None:
    """Write graphs that torch does not have into the folder of `cache`, a class of torch's."""
    _write(codecache, session, cache, type, key, contents)
    if contents:
        session.populated(type, key)


def _write(
    codecache: ModuleType, session: Session, cache: Any, type: str, key: str, contents: Sequence[bytes]
) -> None:
    if contents and type == "inductor":
        _populate(session, type, key, partial(_note_provided, codecache, key))
    for content in contents:
        _populate(session, type, key, partial(cache._write_to_local_cache, key, content))


def was_provided(codecache: ModuleType, key: str) -> bool:
    """Tell whether nbcache has put a graph into torch's folder: this kernel, or an earlier one."""
    return os.path.exists(_provided(codecache, key))


def being_loaded() -> bytes:
    """Return the content of the graph that torch loads on this thread."""
    content: bytes = getattr(_loaded, "content", b"")
    return content


def _note_provided(codecache: ModuleType, key: str) -> None:
    path = _provided(codecache, key)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb"):
        pass


def _provided(codecache: ModuleType, key: str) -> str:
    return os.path.join(codecache.cache_dir(), _PROVIDED, key)


def provide_profile(pgo: ModuleType, session: Session, patches: Patches, serving: Callable[[], bool]) -> None:
    """Make the dynamic-shape profile present before `torch._dynamo.pgo` reads it, once a process."""

    def make_present(key: str) -> None:
        _loaded.asked = None
        if not serving():
            return
        path = pgo.code_state_path(key)
        if path is not None and not os.path.exists(path):
            _loaded.asked = ("pgo", key)
            for artifact in session.provide("pgo", key)[:1]:
                _populate(session, "pgo", key, partial(pgo.write_local_impl, key, artifact.content))

    def get_local_code_state(original: Any, cache_key: str, *args: Any, **kwargs: Any) -> Any:
        session.attempt("making a stored profile present", partial(make_present, cache_key))
        _loaded.profile = True
        try:
            return original(cache_key, *args, **kwargs)
        finally:
            _loaded.profile = False

    patches.hook(pgo, "get_local_code_state", get_local_code_state, takes="cache_key")


def provide_autotune(
    module: ModuleType, session: Session, patches: Patches, serving: Callable[[], bool]
) -> None:
    """Make a kernel's best configuration present before this process reads it.

    The class that reads it stands in `torch._inductor.remote_cache` on 2.13, and in
    `torch._inductor.runtime.autotune_cache` on 2.11. torch joins the key of such an artifact to its
    cache folder unchecked, so only keys of the form that torch itself makes are let through.
    """
    backend = vars(module).get("LocalCacheBackend") or vars(module).get("_LocalAutotuneCacheBackend")
    if backend is None and module.__name__.endswith("autotune_cache"):
        raise AttributeError(f"{module.__name__} has no backend for this machine")
    if backend is None or backend.__module__ != module.__name__:
        return

    def make_present(self: Any, path: str, key: str) -> None:
        if serving():
            _provide_tuning(session, key, path, partial(self._put, path))

    def _get(original: Any, self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        key = "/".join(path.split(os.sep)[-2:])
        session.attempt("making a stored tuning result present", partial(make_present, self, path, key))
        found = original(self, path, *args, **kwargs)
        _loaded.tuning = None if found is None else key
        return found

    patches.hook(backend, "_get", _get, takes="self key")


def provide_tuning_to_workers(
    async_compile: ModuleType, session: Session, patches: Patches, serving: Callable[[], bool]
) -> None:
    """Make a kernel's best configuration present before a worker compiles it: `AsyncCompile.triton`.

    The manifest does not name what other notebooks have tuned. (Never run on a GPU yet.)
    """

    def make_present(source: str) -> None:
        from torch._inductor.codecache import get_hash, get_path
        from torch._inductor.runtime.autotune_cache import AutotuneCache

        elsewhere = async_compile.AsyncCompile.use_process_pool()
        if not elsewhere or async_compile.CompiledTritonKernels.get(source) is not None or not serving():
            return  # no worker compiles it: `provide_autotune` serves this process
        file = get_path(get_hash(source.strip()), "py")[2]  # where `PyCodeCache.write` will put it
        cache = AutotuneCache.create({}, file, "")
        if cache is not None and cache.local_cache is not None:
            path = cache.local_cache[1]
            key = "/".join(path.split(os.sep)[-2:])
            _provide_tuning(session, key, path, partial(_write_tuning, key))

    def provided(
        original: Any, self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any
    ) -> Any:
        session.attempt("making a stored tuning result present", partial(make_present, source_code))
        return original(self, kernel_name, source_code, *args, **kwargs)

    patches.hook(async_compile.AsyncCompile, "triton", provided, takes="self kernel_name source_code")


def _populate_tuning(session: Session, folder: str) -> None:
    """Write the best configurations that the manifest names into torch's folder before the first compile.

    Processes of torch's own read them, where no hook of ours is.
    """
    for key in session.named("autotune", timeout=1.0):
        _provide_tuning(session, key, os.path.join(folder, key), partial(_write_tuning, key))


def _write_tuning(key: str, content: bytes) -> None:
    from torch.compiler._cache import CacheArtifactFactory

    CacheArtifactFactory.create("autotune", key, content).populate_cache()


def _provide_tuning(session: Session, key: str, path: str, write: Callable[[bytes], Any]) -> None:
    """Write the best configuration that is stored under `key`, unless there is a file at `path` already."""
    if not AUTOTUNE_KEY.fullmatch(key) or os.path.exists(path):
        return
    content = _bundled.get(os.path.basename(path))
    if content is None:
        content = next((artifact.content for artifact in session.provide("autotune", key)), None)
    if content is not None:
        _populate(session, "autotune", key, partial(write, content))


def _populate(session: Session, type: str, key: str, write: Callable[[], Any]) -> None:
    """Write an artifact into torch's folder; where that fails, torch finds nothing there and compiles."""
    try:
        write()
    except OSError as error:
        session.rejected(type, key, error)


def _names(folder: str) -> set[str]:
    try:
        return {name for name in os.listdir(folder) if not name.startswith(".")}
    except OSError:
        return set()
