"""C++ kernels and instruction-set probes as artifacts: Mega-Cache leaves both out on the CPU.

torch names a kernel's shared object by the whole compiler command line, with the absolute paths of torch and
Python. So it compiles everything again in another virtual environment. To test vector instructions, it
compiles and loads a program. nbcache's keys hold only inputs that affect the result. The session's
environment adds torch's build, the ABIs of Python and the compiler, and the CPU's instruction sets.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from nbcache.core.files import write_whole
from nbcache.core.key import components, digest, sha256
from nbcache.core.model import Artifact
from nbcache.core.patches import Intended, Patches
from nbcache.core.threads import renew_in_children
from nbcache.kernel.events import KernelUsed, SpanEnded, SpanStarted
from nbcache.storage.types import BUNDLED
from nbcache.torch_bridge import frames
from nbcache.torch_bridge.environment import compiler_identity
from nbcache.torch_bridge.events import check_may_compile, stamp
from nbcache.torch_bridge.hooks import Context
from nbcache.torch_bridge.providers.graphs import is_foreign
from nbcache.torch_bridge.recording import loaded
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR

KERNELS = "nbcache_kernels"
"""Folder in torch's cache folder for restored shared objects: kernels, and Triton's modules."""
CLEARED = "cleared"
"""File in `KERNELS`. Its modification time is the last time that the user cleared everything."""
_CLOCK_TICK = 0.01
"""Seconds by which the clock of file times may lag behind `time.time()`."""
_BUILD_VARIABLES = """
    ATEN_CPU_CAPABILITY CFLAGS CPPFLAGS CXX CXXFLAGS LDFLAGS OMP_PREFIX TORCHINDUCTOR_DEBUG_COMPILE
    TORCHINDUCTOR_DEBUG_SYMBOL
"""
_WORKS = b"1"


class IncompleteGraph(Intended, OSError):
    """A stored graph lacks a kernel. torch treats this error as a miss, and compiles the whole graph."""


def kernel_key(cls: type, arguments: tuple[Any, ...], options: dict[str, Any], build_settings: str) -> str:
    """Return a C++ kernel's key, from the arguments of `CppCodeCache.load_async` except `submit_fn`."""
    parts = {
        "class": cls.__name__,
        "build settings": build_settings,
        **{f"argument {index}": value for index, value in enumerate(arguments)},
        **{f"option {name}": value for name, value in options.items() if name != "submit_fn"},
    }
    return digest(components(parts))


def provide_kernels(codecache: ModuleType, context: Context, patches: Patches) -> None:
    """Hook `CppCodeCache.load_async`, which its subclasses share: load stored kernels, record others."""
    if not frames.has(codecache.FxGraphCache, frames.LOOKED_UP_KEY):
        raise TypeError(f"{frames.LOOKED_UP_KEY.function} has no key")
    kernels = _Kernels(codecache, context)
    patches.hook(codecache.CppCodeCache, "load_async", kernels.load_async)


class _Kernels:
    def __init__(self, codecache: ModuleType, context: Context) -> None:
        self._codecache = codecache
        self._context = context
        self._session = context.session
        self._names = build_names(codecache)
        self._classes: set[Any] = set()
        self._files: dict[str, tuple[Path, bool]] = {}
        """Slot → the file of a kernel that may be stored, and whether this kernel process compiled it."""
        renew_in_children(self)

    def renew(self) -> None:
        """Drop torch's pool in a forked child, which lacks its threads: torch (2.13) would wait for them."""
        self._clear_caches()
        self._session.attempt("compiling in a forked process", _renew_pool)

    def _clear_caches(self) -> None:
        """Empty torch's in-process caches: they also keep failures (2.13), such as those of an interrupt."""
        for cls in tuple(self._classes):
            cls.cache.clear()

    def load_async(self, original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a loader of a kernel that is restored, or else compiled and recorded.

        Raise IncompleteGraph if a stored graph lacks its kernel, and this CPU cannot compile it as stored.
        """
        attempt = self._session.attempt
        self._classes.add(cls)
        answer = attempt("restoring a kernel", partial(self._restore, cls, args, kwargs))
        key, load = answer or (None, None)
        if load is not None:
            return load
        # `answer` is None after an error: the graph may be a stored one then, too.
        graph = self._stored_graph() if answer is None or key is not None else None
        if graph is not None:
            if key is not None:
                load = attempt("restoring a kernel", partial(self._in_folder, cls, key))
            if load is not None:
                return load
            if not attempt("finding out what this CPU can compile", partial(self._can_compile, graph)):
                raise self._give_up(graph, "is missing")
        check_may_compile(key or "a C++ kernel")
        began = time.time()
        with self._compiling(graph):
            load = original(cls, *args, **kwargs)
        if key is None:
            return load
        loader = self._recording_loader(load, key, began, graph)
        return loader if graph is not None else cls.cache.setdefault(self._slot(key), loader)

    def _slot(self, key: str) -> str:
        """Return the kernel's name in this process, which may compile for several baselines in turn."""
        baseline = self._context.baseline()
        return key if baseline is None else f"{key} for {baseline.name}"

    def _restore(
        self, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str | None, Callable[[], Any] | None]:
        """Return the kernel's key, unless nbcache is off, and its loader, unless it is a miss."""
        if not self._context.serving():
            return None, None
        key = kernel_key(cls, args, kwargs, build_settings(self._codecache, self._names))
        slot, cache = self._slot(key), self._session.cache
        if (load := cls.cache.get(slot)) is not None:
            self._session.emit(KernelUsed(**stamp(), compiled=False))
            if slot in self._files:  # the store may have been cleared since
                path, is_compiled = self._files[slot]
                cache.record("cpp_kernel", key, path.read_bytes, made=is_compiled or self._context.owned())
            return key, load
        for artifact in self._session.find("cpp_kernel", key)[:1]:
            if (load := self._load(cls, artifact)) is not None:
                cache.mark_restored("cpp_kernel", key)
                return key, load
        return key, None

    def _in_folder(self, cls: Any, key: str) -> Callable[[], Any] | None:
        """Return a loader for a kernel that was restored since the folder was last cleared.

        The store may have lost that kernel meanwhile.
        """
        cache_folder = self._codecache.cache_dir()
        cleared = Path(cache_folder, KERNELS, CLEARED)
        oldest = cleared.stat().st_mtime if cleared.exists() else 0.0
        paths = Path(cache_folder, KERNELS, key[:2]).glob(f"{key}-*.so")
        for path in paths if self._context.owned() else ():
            artifact = Artifact("cpp_kernel", key, path.read_bytes())
            if path != _path(cache_folder, artifact) or path.stat().st_mtime <= oldest:
                continue
            if (load := self._load(cls, artifact)) is not None:
                self._session.cache.record("cpp_kernel", key, artifact.content, made=True)
                return load
        return None

    def _load(self, cls: Any, artifact: Artifact) -> Callable[[], Any] | None:
        """Write a stored kernel into torch's folder, load it and return its loader; None if that fails."""
        session, slot = self._session, self._slot(artifact.key)
        session.emit(SpanStarted(**stamp(), name="nbcache.restore"))
        try:
            path = place(self._codecache.cache_dir(), artifact)
            library = cls._load_library(str(path), artifact.key)
        except (OSError, ImportError) as error:
            session.reject("cpp_kernel", artifact.key, error)
            return None
        finally:
            session.emit(SpanEnded(**stamp(), name="nbcache.restore"))
        session.emit(KernelUsed(**stamp(), compiled=False, size=len(artifact.content)))
        session.cache.record("cpp_kernel", artifact.key, artifact.content, made=False)
        self._files[slot] = path, False
        load: Callable[[], Any] = cls.cache.setdefault(slot, lambda: library)
        return load

    @contextlib.contextmanager
    def _compiling(self, graph: str | None) -> Iterator[None]:
        """Give the stored `graph` up if its kernel cannot be compiled; None for another graph's kernel."""
        try:
            yield
        except Exception as error:
            if graph is None:
                raise
            raise self._give_up(graph, "cannot be compiled") from error

    def _recording_loader(
        self, load: Callable[[], Any], key: str, began: float, graph: str | None
    ) -> Callable[[], Any]:
        """Return a loader that calls `load` at first, records the kernel's library, and keeps it."""
        library: Any = None
        slot = self._slot(key)

        def load_and_record() -> Any:
            nonlocal library
            if library is None:
                try:
                    with self._compiling(graph):
                        library = load()
                except BaseException:
                    self._clear_caches()
                    raise
                record = partial(self._record, key, slot, began, library)
                self._session.attempt("recording a kernel", record)
            return library

        return load_and_record

    def _record(self, key: str, slot: str, began: float, library: Any) -> None:
        """Record a kernel that this user compiled: since `began` (Unix time), or in nbcache's folder."""
        path = Path(getattr(library, "__file__", None) or library._name)
        status = path.stat()
        compiled = compiled_since(began, status)
        self._session.emit(KernelUsed(**stamp(), compiled=compiled, size=status.st_size))
        if compiled or (self._context.owned() and Path(self._codecache.cache_dir()) in path.parents):
            self._files[slot] = path, True
            self._session.cache.record("cpp_kernel", key, path.read_bytes, made=True)

    def _stored_graph(self) -> str | None:
        """Return the key of the graph that torch loads now, if nbcache has ever restored that graph.

        Its source may be vectorized for other instructions than a compiler here would use, and torch's key
        leaves these out. So its kernels must be the stored ones. An OSError while torch loads a graph makes
        torch treat it as a miss, and compile the whole graph.
        """
        key: str | None = frames.read(frames.LOOKED_UP_KEY)
        return key if key is not None and is_foreign(self._codecache, self._session, key) else None

    def _can_compile(self, graph: str) -> bool:
        """Return whether a graph is from a torch bundle, and torch uses this CPU's best instructions."""
        loading = sha256(getattr(loaded, "content", b"")).encode()
        bundled = [artifact.content for artifact in self._session.find(BUNDLED, graph)]
        return loading in bundled and _is_best_choice()

    def _give_up(self, graph: str, why: str) -> OSError:
        """Drop a stored graph; return an error that makes torch treat it as a miss."""

        def drop() -> None:
            self._session.cache.give_up("inductor", graph, "a kernel of it is missing")
            shutil.rmtree(self._codecache.FxGraphCache._get_tmp_dir_for_key(graph), ignore_errors=True)

        self._session.attempt("dropping an incomplete graph", drop)
        return IncompleteGraph(f"a C++ kernel of the stored graph {graph} {why}")


def _is_best_choice() -> bool:
    """Return whether torch uses this CPU's best instructions; code for other ones computes something else."""
    from torch._inductor import cpu_vec_isa

    supported = cpu_vec_isa.x86_isa_checker()
    best = [isa for isa in cpu_vec_isa.supported_vec_isa_list if set(str(isa).split()) <= set(supported)]
    return bool(best) and str(cpu_vec_isa.pick_vec_isa()) == str(best[0])


def build_names(codecache: ModuleType) -> list[str]:
    return sorted(
        name for name in codecache.config.get_config_copy() if name.startswith(("cpp", "aot_inductor."))
    )


def build_settings(codecache: ModuleType, names: Iterable[str]) -> str:
    """Return the settings `names`, and the environment variables that affect the compiler's command.

    Inductor switches other settings while it compiles, so they differ at a later hit of the same kernel. The
    number of threads is included if torch's keys leave it out: some code is limited to that many threads.
    """
    config = {name: getattr(codecache.config, name) for name in names}
    variables = {name: os.environ[name] for name in _BUILD_VARIABLES.split() if name in os.environ}
    threads = None if TORCHBEHAVIOR.threads_in_keys else codecache.torch.get_num_threads()
    return repr((config, variables, threads))


def compiled_since(began: float, status: os.stat_result) -> bool:
    return status.st_mtime >= began - _CLOCK_TICK


def place(cache_folder: str, artifact: Artifact) -> Path:
    """Write a shared object into torch's cache folder, unless it is there already; return its path."""
    path = _path(cache_folder, artifact)
    if path.exists() and sha256(path.read_bytes()) == artifact.digest:
        os.utime(path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, artifact.content, mode=0o600)
    return path


def _path(cache_folder: str, artifact: Artifact) -> Path:
    return Path(cache_folder, KERNELS, artifact.key[:2], f"{artifact.key}-{artifact.digest}.so")


def _renew_pool() -> None:
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.pool.cache_clear()


def provide_probes(cpu_vec_isa: ModuleType, context: Context, patches: Patches) -> None:
    """Hook `VecISA.check_build`: store that an instruction set works. A failure may be temporary."""
    session = context.session

    def look_up(isa: Any, code: str) -> tuple[str | None, bool]:
        """Return the probe's key, or None if it cannot be stored, and whether a success is stored."""
        compiler = compiler_identity()
        if compiler is None or not context.serving():
            return None, False
        flags = isa.build_arch_flags() if TORCHBEHAVIOR.flags_by_method else isa._arch_flags
        program = {"isa": str(isa), "flags": str(flags), "program": sha256(code.encode())}
        key = digest(components({**program, "compiler": compiler}))
        for artifact in session.find("probe", key)[:1]:
            session.cache.record("probe", key, artifact.content, made=False)
            return key, artifact.content == _WORKS
        return key, False

    def check_build(original: Any, self: Any, code: str) -> Any:
        key, works = session.attempt("looking up a probe", partial(look_up, self, code)) or (None, False)
        if works:
            return True
        check_may_compile(str(self))
        works = original(self, code)
        if works and key is not None:
            record = partial(session.cache.record, "probe", key, _WORKS, made=True)
            session.attempt("recording a probe", record)
        return works

    patches.hook(cpu_vec_isa.VecISA, "check_build", check_build)
