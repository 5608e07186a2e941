"""C++ kernels and instruction-set probes as artifacts: what Mega-Cache leaves out on the CPU.

torch names a kernel's shared object by the whole compiler command line, with the absolute paths of
torch and Python, so in another virtual environment it compiles everything again; and it finds out
which vector instructions work by compiling and loading a test program. Here both are kept under
keys that hold what the result depends on and nothing else, in the session's environment, which
adds torch's build, the Python ABI, the compiler's ABI and every instruction set of the CPU.

Tested on torch 2.13.0. The names used here are the same on 2.11.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.key import components, digest, sha256
from nbcache.torch_bridge.events import stamp
from nbcache.tracking import KernelUsed, SpanEnded, SpanStarted

if TYPE_CHECKING:
    from nbcache.kernel_session import Session
    from nbcache.model import Artifact
    from nbcache.torch_bridge.hooks import Patches

__all__ = ["kernel_key", "provide_kernels", "provide_probes"]


_BUILD_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CFLAGS",
    "CPPFLAGS",
    "CXX",
    "CXXFLAGS",
    "LDFLAGS",
    "OMP_PREFIX",
    "TORCHINDUCTOR_DEBUG_COMPILE",
    "TORCHINDUCTOR_DEBUG_SYMBOL",
)


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


def provide_kernels(
    codecache: ModuleType, session: Session, patches: Patches, serving: Callable[[], bool]
) -> None:
    """Stand in for `CppCodeCache.load_async`, which its subclasses share: load what is stored, or compile."""
    original = codecache.CppCodeCache.__dict__["load_async"].__func__

    def load_async(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not serving():
            return original(cls, *args, **kwargs)
        key = kernel_key(cls, args, kwargs, _build_settings(codecache))
        if (loaded := cls.cache.get(key)) is not None:
            session.emit(KernelUsed(**stamp(), compiled=False))
            return loaded
        for artifact in session.provide("cpp_kernel", key)[:1]:
            if (library := _load(codecache, cls, session, artifact)) is not None:
                session.populated("cpp_kernel", key)
                return cls.cache.setdefault(key, partial(_same, library))
        began = time.time()
        return _recording(original(cls, *args, **kwargs), session, key, began)

    patches.set(codecache.CppCodeCache, "load_async", classmethod(load_async))


def _build_settings(codecache: ModuleType) -> str:
    """Return the settings and environment variables that a kernel's compiler command depends on.

    Not inductor's whole configuration: parts of it are switched for the time of a compile, so it is
    another one when the same kernel is loaded by a hit.
    """
    values = codecache.config.get_config_copy()
    config = {name: values[name] for name in sorted(values) if name.startswith(("cpp", "aot_inductor."))}
    return repr((config, {name: os.environ[name] for name in _BUILD_VARIABLES if name in os.environ}))


def _load(codecache: ModuleType, cls: Any, session: Session, artifact: Artifact) -> Any:
    """Write a stored kernel into torch's folder and load it; None where the loader will not have it."""
    session.emit(SpanStarted(**stamp(), name="nbcache.restore"))
    try:
        path = Path(codecache.cache_dir(), "nbcache_kernels", artifact.key[:2], f"{artifact.digest}.so")
        if not path.exists():
            _write(path, artifact.content)
        library = cls._load_library(str(path), artifact.key)
        session.emit(KernelUsed(**stamp(), compiled=False, size=len(artifact.content)))
        session.record("cpp_kernel", artifact.key, artifact.content)
        return library
    except (OSError, ImportError) as error:
        session.rejected("cpp_kernel", artifact.key, error)
        return None
    finally:
        session.emit(SpanEnded(**stamp(), name="nbcache.restore"))


def _same(library: Any) -> Any:
    return library


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _recording(load: Callable[[], Any], session: Session, key: str, began: float) -> Callable[[], Any]:
    """Have the kernel recorded when `load` first returns it, which is when it is compiled."""
    library: Any = None

    def load_and_record() -> Any:
        nonlocal library
        if library is None:
            library = load()
            path = Path(getattr(library, "__file__", None) or library._name)
            status = path.stat()
            session.emit(KernelUsed(**stamp(), compiled=status.st_mtime >= began - 1, size=status.st_size))
            session.record("cpp_kernel", key, path.read_bytes)
        return library

    return load_and_record


def _arch_flags(isa: Any) -> str:
    """Return the compiler flags of an instruction set: a method on 2.13, an attribute on 2.11."""
    return str(isa.build_arch_flags() if hasattr(isa, "build_arch_flags") else isa._arch_flags)


def provide_probes(
    cpu_vec_isa: ModuleType, session: Session, patches: Patches, serving: Callable[[], bool]
) -> None:
    """Remember what `VecISA.check_build` found out: whether a vector instruction set works here.

    It costs a compiler run and a process each. An instruction set that does not work is remembered
    only where there is a compiler to have tried it.
    """
    original = cpu_vec_isa.VecISA.check_build

    def check_build(self: Any, code: str) -> bool:
        if not serving():
            return bool(original(self, code))
        key = digest(
            components({"isa": str(self), "flags": _arch_flags(self), "program": sha256(code.encode())})
        )
        for artifact in session.provide("probe", key)[:1]:
            session.populated("probe", key)
            session.record("probe", key, artifact.content)
            return artifact.content == b"1"
        works = bool(original(self, code))
        if works or shutil.which(os.environ.get("CXX", "g++")):
            session.record("probe", key, b"1" if works else b"0")
        return works

    patches.set(cpu_vec_isa.VecISA, "check_build", check_build)
