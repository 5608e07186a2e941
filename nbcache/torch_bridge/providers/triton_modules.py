"""C modules that Triton compiles as artifacts: what Mega-Cache leaves out on a GPU.

Triton talks to the driver through a module, `cuda_utils`, which it compiles on each new machine, and so
does every launcher of a kernel that Inductor's static launcher does not launch. On a fresh machine that takes
the C compiler, Python's headers and tenths of a second each. They are kept by their source, in the session's
environment, which adds Triton's version, the Python ABI and the C library's.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.key import components, digest
from nbcache.core.model import Artifact
from nbcache.torch_bridge.providers.cpp_kernels import compiled_since, place
from nbcache.torch_bridge.recording import count_and_record, restored

if TYPE_CHECKING:
    from nbcache.torch_bridge.context import Context
    from nbcache.torch_bridge.patches import Patches

__all__ = ["MODULE", "module_key", "provide_modules"]

MODULE = "triton_module"
"""The type of these artifacts."""


_KNOWN = ("ccflags", "include_dirs", "libraries", "library_dirs")
"""Options of Triton's that are parts of a key by themselves, or in none."""


def module_key(src: str, name: str, options: dict[str, Any]) -> str:
    """Return the key of a module, 64 hexadecimal digits; folders of headers and libraries are not in it.

    `options` are those of Triton's `compile_module_from_src`, or `compile_module_from_file`.
    """
    parts = {
        "source": src,
        "name": name,
        "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
        "libraries": options.get("libraries") or [],
        "flags": options.get("ccflags") or [],
        **{f"option {each}": repr(value) for each, value in options.items() if each not in _KNOWN},
    }
    return digest(components(parts))


def provide_modules(driver: ModuleType, context: Context, patches: Patches) -> None:
    """Stand in for what Triton's `driver` compiles its modules with: load what is stored, or compile.

    That is `compile_module_from_src`, since Triton 3.8 `compile_module_from_file`. What Triton finds in its
    own cache, below the user's home, is not looked at where it is stored.
    """
    session = context.session

    def module(
        compile: Callable[[], Any], read: Callable[[], str], name: str, args: tuple[Any, ...], options: Any
    ) -> Any:
        key = session.attempt("restoring a module of Triton", partial(key_of, read, name, args, options))
        if key is None:
            return compile()
        module = session.attempt("restoring a module of Triton", partial(stored, key, name))
        if module is None:
            began = time.time()
            module = compile()
            session.attempt("recording a module of Triton", partial(note, key, module, began))
        return module

    def key_of(read: Callable[[], str], name: str, args: tuple[Any, ...], options: Any) -> str | None:
        """Return a module's key; None where nothing is served, or where Triton asks in another way."""
        return None if args or not context.serving() else module_key(read(), name, options)

    def stored(key: str, name: str) -> Any:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        return restored(session, MODULE, key, lambda artifact: _loaded(name, place(cache_dir(), artifact)))

    def note(key: str, module: ModuleType, began: float) -> None:
        """Record a module that was compiled since `began` (Unix time), or by this user before."""
        path = Path(str(module.__file__))
        status = path.stat()
        made = compiled_since(began, status) or (context.owned() and status.st_uid == os.getuid())
        count_and_record(session, Artifact(MODULE, key, path.read_bytes()), made=made)

    def compile_module_from_src(original: Any, src: str, name: str, *args: Any, **options: Any) -> Any:
        compile = partial(original, src, name, *args, **options)
        return module(compile, lambda: src, name, args, options)

    def compile_module_from_file(original: Any, src_path: str, name: str, *args: Any, **options: Any) -> Any:
        compile, path = partial(original, src_path, name, *args, **options), Path(src_path)
        return module(compile, path.read_text, name, args, {**options, "language": path.suffix})

    if hasattr(driver, "compile_module_from_file"):  # since Triton 3.8
        patches.hook(driver, "compile_module_from_file", compile_module_from_file)
    else:
        patches.hook(driver, "compile_module_from_src", compile_module_from_src)


def _loaded(name: str, path: Path) -> ModuleType:
    """Return a module of Triton's, which is in no `sys.modules`, loaded from a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
