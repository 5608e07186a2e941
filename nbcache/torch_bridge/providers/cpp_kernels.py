"""C++ kernels and instruction-set probes as artifacts: what Mega-Cache leaves out on the CPU.

torch names a kernel's shared object by the whole compiler command line, with the absolute paths of
torch and Python, so in another virtual environment it compiles everything again; and it finds out
which vector instructions work by compiling and loading a test program. Here both are kept under
keys that hold what the result depends on and nothing else, in the session's environment, which
adds torch's build, the Python ABI, the compiler's ABI and every instruction set of the CPU.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.artifacts.types import BUNDLED
from nbcache.core.files import write_whole
from nbcache.core.key import components, digest, sha256
from nbcache.core.model import Artifact
from nbcache.core.threads import renew_in_children
from nbcache.kernel.events import KernelUsed, SpanEnded, SpanStarted
from nbcache.torch_bridge import frames
from nbcache.torch_bridge.events import must_be_stored, stamp
from nbcache.torch_bridge.patches import Intended
from nbcache.torch_bridge.providers.graphs import being_loaded, is_foreign
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

if TYPE_CHECKING:
    from nbcache.kernel.session import Session
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

_CLOCK_TICK = 0.01
"""Seconds by which the clock of file times may be behind."""

KERNELS = "nbcache_kernels"
"""Folder in torch's cache folder for restored shared objects: kernels, and modules of Triton."""

CLEARED = "cleared"
"""File in there whose time says when the user last cleared all."""

__all__ = ["CLEARED", "KERNELS", "compiled_since", "kernel_key", "place", "provide_kernels"]


_BUILD_VARIABLES = """
    ATEN_CPU_CAPABILITY CFLAGS CPPFLAGS CXX CXXFLAGS LDFLAGS OMP_PREFIX TORCHINDUCTOR_DEBUG_COMPILE
    TORCHINDUCTOR_DEBUG_SYMBOL
"""


class IncompleteGraph(Intended, OSError):
    """Makes torch take a stored graph for a miss and compile it whole: a kernel of it cannot be had."""


def kernel_key(cls: type, arguments: tuple[Any, ...], options: dict[str, Any], build_settings: str) -> str:
    """Return the key of a C++ kernel, 64 hexadecimal digits.

    `arguments` and `options` are those of `CppCodeCache.load_async` (source code, device type,
    extra flags, optimized code, …) but for `submit_fn`.
    """
    parts = {
        "class": cls.__name__,
        "build settings": build_settings,
        **{f"argument {index}": value for index, value in enumerate(arguments)},
        **{f"option {name}": value for name, value in options.items() if name != "submit_fn"},
    }
    return digest(components(parts))


def provide_kernels(codecache: ModuleType, context: Context, patches: Patches) -> None:
    """Stand in for `CppCodeCache.load_async`, which its subclasses share: load what is stored, or compile."""
    if not frames.has(codecache.FxGraphCache, frames.LOOKED_UP_KEY):
        raise TypeError(f"{frames.LOOKED_UP_KEY.function} has no key")
    kernels = _Kernels(codecache, context)
    patches.hook(codecache.CppCodeCache, "load_async", kernels.load_async)


class _Kernels:
    """Loads C++ kernels that are stored, and has the others compiled and recorded."""

    def __init__(self, codecache: ModuleType, context: Context) -> None:
        self._codecache = codecache
        self._context = context
        self._session = context.session
        self._names = build_names(codecache)
        self._pending: set[tuple[Any, str]] = set()
        """Entries of torch's in-process caches for kernels that are not loaded yet."""
        self._trusted: dict[str, Path] = {}
        """By slot, files of kernels that may be stored: compiled here, restored, or in a folder of ours."""
        self._restored: set[str] = set()
        """Those slots of them whose kernels were restored, from whomever."""
        renew_in_children(self)

    def renew(self) -> None:
        """In a forked child, forget torch's pool of compiling threads and what its threads have not done.

        None of these threads is there. torch (2.13) waits for them forever.
        """
        _forget(self._pending)
        self._session.attempt("compiling in a forked process", _renew_pool)

    def load_async(self, original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what loads a kernel; IncompleteGraph where a stored graph cannot have it."""
        attempt = self._session.attempt
        found = attempt("restoring a kernel", partial(self._find, cls, args, kwargs))
        key, load = found or (None, None)
        if load is not None:
            return load
        graph = None if key is None else _stored_graph(self._codecache, self._session)
        if key is not None and graph is not None:
            load = attempt("restoring a kernel", partial(self._find_left, cls, key))
            if load is not None:
                return load
            if not attempt("asking the CPU", partial(self._may_be_compiled, graph)):
                raise self._given_up(graph, "is missing")
        must_be_stored(key or "a C++ kernel")
        began, before = time.time(), set(cls.cache)
        try:
            load = original(cls, *args, **kwargs)
        except Exception as error:
            if graph is None:
                raise
            raise self._given_up(graph, "cannot be compiled") from error
        if key is None:
            return load
        slot = self._slot(key)
        entries = {(cls, name) for name in {slot, *(set(cls.cache) - before)}}
        self._pending.update(entries)
        recording = _recording(load, partial(self._loaded, key, slot, began), entries, self._pending)
        if graph is not None:
            return partial(self._compiled_for, graph, recording)
        return cls.cache.setdefault(slot, recording)

    def _slot(self, key: str) -> str:
        """Return under what a kernel is kept in this process, which may compile for one CPU, then another."""
        baseline = self._context.baseline()
        return key if baseline is None else f"{key} for {baseline.name}"

    # --- what is stored -------------------------------------------------------------------------

    def _find(
        self, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str | None, Callable[[], Any] | None]:
        """Return the kernel's key, None where nothing is to be served, and what loads it if it is there."""
        if not self._context.serving():
            return None, None
        key = kernel_key(cls, args, kwargs, build_settings(self._codecache, self._names))
        slot = self._slot(key)
        if (loaded := cls.cache.get(slot)) is not None:
            self._session.emit(KernelUsed(**stamp(), compiled=False))
            if slot in self._trusted:  # the store may have been cleared since
                made = slot not in self._restored or self._context.owned()  # else it may be another's
                self._session.cache.record("cpp_kernel", key, self._trusted[slot].read_bytes, made=made)
            return key, loaded
        for artifact in self._session.find("cpp_kernel", key)[:1]:
            if (load := self._load(cls, artifact)) is not None:
                self._session.cache.mark_restored("cpp_kernel", key)
                return key, load
        return key, None

    def _find_left(self, cls: Any, key: str) -> Callable[[], Any] | None:
        """Return what loads a kernel that was restored earlier and is stored no more; None without it."""
        for artifact in _left(self._codecache, key) if self._context.owned() else ():
            if (load := self._load(cls, artifact)) is not None:
                self._session.cache.record("cpp_kernel", key, artifact.content, made=True)
                return load
        return None

    def _load(self, cls: Any, artifact: Artifact) -> Callable[[], Any] | None:
        library = _load(self._codecache, cls, self._session, artifact)
        if library is None:
            return None
        slot = self._slot(artifact.key)
        self._trusted[slot] = _path(self._codecache.cache_dir(), artifact)
        self._restored.add(slot)
        load: Callable[[], Any] = cls.cache.setdefault(slot, partial(_same, library))
        return load

    # --- what is compiled -----------------------------------------------------------------------

    def _loaded(self, key: str, slot: str, began: float, library: Any) -> None:
        self._session.attempt("recording a kernel", partial(self._record, key, slot, began, library))

    def _record(self, key: str, slot: str, began: float, library: Any) -> None:
        """Record a kernel that has just been loaded, if compiled since `began` (Unix time) or of ours."""
        path = Path(getattr(library, "__file__", None) or library._name)
        status = path.stat()
        compiled = compiled_since(began, status)
        self._session.emit(KernelUsed(**stamp(), compiled=compiled, size=status.st_size))
        if compiled or (self._context.owned() and Path(self._codecache.cache_dir()) in path.parents):
            self._trusted[slot] = path
            self._restored.discard(slot)
            self._session.cache.record("cpp_kernel", key, path.read_bytes, made=True)

    # --- kernels of a stored graph --------------------------------------------------------------

    def _may_be_compiled(self, graph: str) -> bool:
        """Return whether a graph came in a bundle, and would be compiled here as where it is from."""
        loading = sha256(being_loaded()).encode()
        bundled = [each.content for each in self._session.find(BUNDLED, graph)]
        return loading in bundled and _is_best_choice()

    def _compiled_for(self, graph: str, load: Callable[[], Any]) -> Any:
        """Return a kernel of a graph that came without it, compiled from the source that came."""
        try:
            return load()
        except Exception as error:  # the compiler's own, or the loader's: the graph is compiled whole
            raise self._given_up(graph, "cannot be compiled") from error

    def _given_up(self, graph: str, why: str) -> OSError:
        """Drop a stored graph; return what makes torch take it for a miss and compile it whole."""
        self._session.attempt("dropping an incomplete graph", partial(self._give_up, graph))
        return IncompleteGraph(f"a C++ kernel of the stored graph {graph} {why}")

    def _give_up(self, graph: str) -> None:
        self._session.cache.give_up("inductor", graph, "a kernel of it is not there")
        shutil.rmtree(self._codecache.FxGraphCache._get_tmp_dir_for_key(graph), ignore_errors=True)


def _stored_graph(codecache: ModuleType, session: Session) -> str | None:
    """Return the key of the graph that loads a kernel now, if nbcache provided that graph, now or earlier.

    Its source may be vectorized for another instruction set than a compiler here would be told, and
    torch's key does not tell them apart: its kernels are loaded as they were stored or not at all.
    An OSError while a graph is loaded makes torch take it for a miss and compile it whole.
    """
    key: str | None = frames.read(frames.LOOKED_UP_KEY)
    return key if key is not None and is_foreign(codecache, session, key) else None


def _is_best_choice() -> bool:
    """Return whether torch uses the best vector instructions that this CPU has, as where a bundle is from.

    Code that counts on others is built without an error, and computes something else.
    """
    from torch._inductor import cpu_vec_isa

    supported = cpu_vec_isa.x86_isa_checker()
    best = [isa for isa in cpu_vec_isa.supported_vec_isa_list if set(str(isa).split()) <= set(supported)]
    return bool(best) and str(cpu_vec_isa.pick_vec_isa()) == str(best[0])


def build_names(codecache: ModuleType) -> list[str]:
    """Return the names of the settings that a kernel's compiler command depends on, in order."""
    return sorted(
        name for name in codecache.config.get_config_copy() if name.startswith(("cpp", "aot_inductor."))
    )


def build_settings(codecache: ModuleType, names: Iterable[str]) -> str:
    """Return the settings of these `names`, and the environment variables that the command depends on.

    Not inductor's whole configuration: parts of it are switched for the time of a compile, so it is
    another one when the same kernel is loaded by a hit. The number of threads is one of them where torch's
    keys leave it out: some code has room for so many, and is run by as many as torch uses.
    """
    config = {name: getattr(codecache.config, name) for name in names}
    variables = {name: os.environ[name] for name in _BUILD_VARIABLES.split() if name in os.environ}
    threads = None if TORCHBEHAVIOR.threads_in_keys else codecache.torch.get_num_threads()
    return repr((config, variables, threads))


def _load(codecache: ModuleType, cls: Any, session: Session, artifact: Artifact) -> Any:
    """Write a stored kernel into torch's folder and load it; None where the loader will not have it."""
    session.emit(SpanStarted(**stamp(), name="nbcache.restore"))
    try:
        path = place(codecache.cache_dir(), artifact)
        library = cls._load_library(str(path), artifact.key)
        session.emit(KernelUsed(**stamp(), compiled=False, size=len(artifact.content)))
        session.cache.record("cpp_kernel", artifact.key, artifact.content, made=False)
        return library
    except (OSError, ImportError) as error:
        session.rejected("cpp_kernel", artifact.key, error)
        return None
    finally:
        session.emit(SpanEnded(**stamp(), name="nbcache.restore"))


def compiled_since(began: float, status: os.stat_result) -> bool:
    """Return whether the file with this `status` was written at `began` (Unix time) or later."""
    return status.st_mtime >= began - _CLOCK_TICK


def place(cache_folder: str, artifact: Artifact) -> Path:
    """Write a shared object into torch's cache folder, if it is not there, and return its path."""
    path = _path(cache_folder, artifact)
    if path.exists() and sha256(path.read_bytes()) == artifact.digest:
        os.utime(path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, artifact.content, mode=0o600)
    return path


def _path(cache_folder: str, artifact: Artifact) -> Path:
    return _folder(cache_folder, artifact.key) / f"{artifact.key}-{artifact.digest}.so"


def _folder(cache_folder: str, key: str) -> Path:
    return Path(cache_folder, KERNELS, key[:2])


def _left(codecache: ModuleType, key: str) -> Iterator[Artifact]:
    """Yield a key's kernels that are in torch's folder, as they were restored since it was last cleared."""
    cleared = Path(codecache.cache_dir(), KERNELS, CLEARED)
    oldest = cleared.stat().st_mtime if cleared.exists() else 0.0
    for path in _folder(codecache.cache_dir(), key).glob(f"{key}-*.so"):
        artifact = Artifact("cpp_kernel", key, path.read_bytes())
        if path == _path(codecache.cache_dir(), artifact) and path.stat().st_mtime > oldest:
            yield artifact


def _forget(pending: set[tuple[Any, str]]) -> None:
    """Remove these kernels from torch's in-process caches."""
    for cls, name in tuple(pending):
        cls.cache.pop(name, None)
    pending.clear()


def _renew_pool() -> None:
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.pool.cache_clear()


def _same(library: Any) -> Any:
    return library


def _recording(
    load: Callable[[], Any],
    note: Callable[[Any], None],
    entries: set[tuple[Any, str]],
    pending: set[tuple[Any, str]],
) -> Callable[[], Any]:
    """Have `note` called with the kernel when `load` first returns it.

    `entries` are those of the in-process caches that stand for this kernel, `pending` those of all
    kernels that are not loaded yet. Where loading fails, the latter go: an interrupt in a notebook ends
    the running compilers too, and torch would find their failure there at each new try (2.13).
    """
    library: Any = None

    def load_and_record() -> Any:
        nonlocal library
        if library is None:
            try:
                library = load()
            except BaseException:
                _forget(pending)
                raise
            pending.difference_update(entries)
            note(library)
        return library

    return load_and_record
