"""C modules that Triton compiles as artifacts: what Mega-Cache leaves out on a GPU.

Triton talks to the driver through a module, `cuda_utils`, which it compiles on each new machine, and so
does every launcher of a kernel that Inductor's static launcher does not launch. On a fresh machine that takes
the C compiler, Python's headers and tenths of a second each. They are kept by their source, in the session's
environment, which adds Triton's version, the Python ABI and the C library's.

Tested on Triton 3.6.0 (torch 2.11.0) and 3.7.1 (torch 2.13.0).
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

from nbcache.key import components, digest
from nbcache.model import Artifact
from nbcache.torch_bridge.artifacts import hand_on, restored
from nbcache.torch_bridge.cpp_kernels import compiled_since, place

if TYPE_CHECKING:
    from nbcache.kernel_session import Session
    from nbcache.torch_bridge.hooks import Patches

__all__ = ["MODULE", "module_key", "provide_modules"]

MODULE = "triton_module"
"""The type of these artifacts."""


def module_key(src: str, name: str, options: dict[str, Any]) -> str:
    """Return the key of a module, 64 hexadecimal digits; folders of headers and libraries are not in it.

    `options` are those of Triton's `compile_module_from_src`.
    """
    parts = {
        "source": src,
        "name": name,
        "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
        "libraries": options.get("libraries") or [],
        "flags": options.get("ccflags") or [],
    }
    return digest(components(parts))


def provide_modules(
    driver: ModuleType,
    session: Session,
    patches: Patches,
    serving: Callable[[], bool],
    owned: Callable[[], bool],
) -> None:
    """Stand in for `compile_module_from_src`, as Triton's `driver` calls it: load what is stored, or compile.

    What Triton finds in its own cache, below the user's home, is not looked at where it is stored.
    """
    original = driver.compile_module_from_src

    def compile_module_from_src(src: str, name: str, *args: Any, **options: Any) -> Any:
        if args:  # not as Triton calls it, as far as we know
            return original(src, name, *args, **options)
        key = session.attempt("restoring a module of Triton", partial(key_if_served, src, name, options))
        if key is None:
            return original(src, name, **options)
        module = session.attempt("restoring a module of Triton", partial(stored, key, name))
        if module is None:
            began = time.time()
            module = original(src, name, **options)
            session.attempt("recording a module of Triton", partial(note, key, module, began))
        return module

    def key_if_served(src: str, name: str, options: dict[str, Any]) -> str | None:
        return module_key(src, name, options) if serving() else None

    def stored(key: str, name: str) -> Any:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        return restored(session, MODULE, key, lambda artifact: _loaded(name, place(cache_dir(), artifact)))

    def note(key: str, module: ModuleType, began: float) -> None:
        """Record a module that was compiled since `began` (Unix time), or by this user before."""
        path = Path(str(module.__file__))
        status = path.stat()
        made = compiled_since(began, status) or (owned() and status.st_uid == os.getuid())
        hand_on(session, Artifact(MODULE, key, path.read_bytes()), made=made)

    patches.set(driver, "compile_module_from_src", compile_module_from_src)


def _loaded(name: str, path: Path) -> ModuleType:
    """Return a module of Triton's, which is in no `sys.modules`, loaded from a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
