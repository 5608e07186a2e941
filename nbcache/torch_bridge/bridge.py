"""The bridge: installs every hook when torch is there, and takes every one back."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.errors import StoreUnavailable, UnsupportedTorch
from nbcache.key import sha256
from nbcache.model import Environment
from nbcache.torch_bridge import artifacts, cpp_kernels, environment, events
from nbcache.torch_bridge.hooks import ImportHook, Patches

if TYPE_CHECKING:
    from nbcache.kernel_session import Session

__all__ = ["TorchBridge"]

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_TRITON_FOLDER = "TRITON_CACHE_DIR"


class TorchBridge:
    """Implements `CompilerBridge` for torch. Importing it imports no torch."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._imports: ImportHook | None = None
        self._session: Session | None = None
        self._folder: Path | None = None
        """The cache folder that we gave torch; None where the user has set one, or torch is not there."""
        self._expected: str | None = None
        self._capability: str | None = None
        self._before: dict[str, str | None] = {}

    def install(self, session: Session) -> None:
        """Hook what is imported already, and the rest when it is."""
        self._session = session

        def when(follow: Callable[..., None], *more: Any) -> Callable[[ModuleType], None]:
            return lambda module: self._hook(follow, module, *more)

        serving = self._serving
        self._imports = ImportHook(
            {
                "torch": self._torch_imported,
                "torch._dynamo.utils": when(events.follow_spans),
                "torch.compiler._cache": when(artifacts.record),
                "torch._dynamo.pgo": self._profiles_imported,
                "torch._inductor.codecache": self._codecache_imported,
                "torch._inductor.cpu_vec_isa": when(cpp_kernels.provide_probes, serving),
                "torch._inductor.remote_cache": when(artifacts.provide_autotune, serving),
                "torch._inductor.runtime.autotune_cache": when(artifacts.provide_autotune, serving),
                "torch._inductor.async_compile": when(events.follow_kernels),
            }
        )
        self._imports.install()

    def uninstall(self) -> None:
        """Take every hook back, and put torch's settings and folders back as they were."""
        if self._imports is not None:
            self._imports.uninstall()
        self._patches.restore()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before.clear()
        self._folder = self._session = None

    def clear(self) -> None:
        """Empty the cache folder that we gave torch; one that the user has set is not ours to clean."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def folder(self) -> Path | None:
        """The cache folder that we gave torch, if we gave it one."""
        return self._folder

    def _hook(self, follow: Callable[..., None], module: ModuleType, *more: Any) -> None:
        """Install one hook; where this torch is built otherwise, go without it and say so."""
        if self._session is None:
            return
        try:
            follow(module, self._session, self._patches, *more)
        except (AttributeError, KeyError, TypeError) as error:
            version = getattr(sys.modules.get("torch"), "__version__", "?")
            problem = UnsupportedTorch(
                f"part of nbcache is off, because {module.__name__} of torch {version} is not as it knows it",
                where=repr(error),
            )
            self._session.notice(str(problem))

    def _codecache_imported(self, module: ModuleType) -> None:
        self._hook(events.follow_lookups, module)
        self._hook(artifacts.provide_graphs, module, self._serving)
        self._hook(cpp_kernels.provide_kernels, module, self._serving)

    def _torch_imported(self, torch: ModuleType) -> None:
        session = self._session
        if session is None:
            return
        if environment.torch_release() < environment.MINIMUM_TORCH:
            needed = ".".join(map(str, environment.MINIMUM_TORCH))
            session.notice(f"torch {torch.__version__} is older than {needed}: nbcache does nothing with it")
            self.uninstall()
            return
        self._environment_changed(session)

    def _environment_changed(self, session: Session) -> None:
        self._capability = os.environ.get("ATEN_CPU_CAPABILITY")
        current = environment.current()
        self._give_folder(session, current)
        session.environment_ready(current)

    def _give_folder(self, session: Session, current: Environment) -> None:
        """Give torch a cache folder of its own for this environment, unless the user has set one.

        torch's CPU keys leave the CPU out, and its default folder is shared by all: a folder for each
        environment keeps that sound and leaves torch's keys as they are.
        """
        set_by_user = os.environ.get(_FOLDER)
        if set_by_user and self._folder is None and not _is_torch_default(Path(set_by_user)):
            self._expected = os.path.abspath(set_by_user)
            return
        try:
            folder = _own_folder(Path(tempfile.gettempdir()) / f"nbcache_{_user()}") / current.digest[:16]
            folder.mkdir(mode=0o700, exist_ok=True)
        except (OSError, StoreUnavailable) as error:
            session.notice(f"{error}. torch keeps its usual cache folder, and nbcache only watches")
            return
        self._folder, self._expected = folder, str(folder)
        for name in (_FOLDER, _TRITON_FOLDER):
            self._before.setdefault(name, os.environ.get(name))
        os.environ[_FOLDER] = str(folder)

    def _serving(self) -> bool:
        """Tell whether torch uses its caches as we found them: not within `fresh_cache()`, not disabled."""
        import torch

        if os.environ.get("ATEN_CPU_CAPABILITY") != self._capability and self._session is not None:
            self._environment_changed(self._session)
        if torch.compiler.config.force_disable_caches:
            return False
        return self._expected is not None and os.path.abspath(os.environ.get(_FOLDER, "")) == self._expected

    def _profiles_imported(self, pgo: ModuleType) -> None:
        """Have torch keep a dynamic-shape profile for this notebook: it needs a job id for that."""
        import torch.compiler.config as config

        if self._session is None:
            return
        if config.job_id is None:
            notebook = self._session.notebook(timeout=1.0)
            config.job_id = f"nbcache-{sha256(notebook.encode())[:16]}" if notebook else "nbcache"
            self._patches.undo(lambda: setattr(config, "job_id", None))
        self._hook(artifacts.provide_profile, pgo, self._serving)


def _is_torch_default(folder: Path) -> bool:
    """Tell torch's own choice, which it writes into the environment at first use, from the user's."""
    return folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith("torchinductor_")


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "user"


def _own_folder(folder: Path) -> Path:
    """Make `folder` for its owner only, or raise StoreUnavailable where somebody else made it first."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
        raise StoreUnavailable(
            "the folder for torch's cache is not ours",
            where=str(folder),
            next_step="remove it, or set TMPDIR or TORCHINDUCTOR_CACHE_DIR to a folder of your own",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder
