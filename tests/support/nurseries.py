"""An environment with the kernel of nbcache in it, and what is asked of its kernels."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

import nbcache
from support.front_door import Kernel, environ_below

Start = Callable[..., Kernel]
ROOT = Path(nbcache.__file__).parents[1]
FORKED = "__import__('nbcache.launcher.forked').launcher.forked.parent()"
NURSERY = f"{FORKED} if 'nbcache.launcher' in __import__('sys').modules else 0"


class Place:
    """An environment with the kernel installed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "package").mkdir()  # the root of the project gets other folders while tests run
        (folder / "package" / "nbcache").symlink_to(ROOT / "nbcache")
        self.environ = {
            **environ_below(folder / "e"),
            "PYTHONPATH": str(folder / "package"),
            "XDG_RUNTIME_DIR": str(folder),
        }
        self.environ["JPY_PARENT_PID"] = "99999"  # as in a terminal of Jupyter's; a kernel gets its own
        self.cwd = folder / "notebooks"
        self.cwd.mkdir()
        self.kernels: list[Kernel] = []
        """The kernels that run."""
        assert "installed:" in self.nbcache("install", "--user")

    def nbcache(self, *arguments: str) -> str:
        """Return what `nbcache kernel` prints."""
        code = "from nbcache.ui.terminal.parser import main; raise SystemExit(main())"
        command = [sys.executable, "-c", code, "kernel", *arguments]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def nurseries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.nbcache("status", "--json"))["nurseries"]
        return found

    def start(self, **environ: str) -> Kernel:
        return self.start_with(environ)

    def start_with(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        name: str = "nbcache",
        folder: Path | None = None,
        **options: Any,
    ) -> Kernel:
        """Start a kernel with more environment variables; `options` are those of its process."""
        specs = KernelSpecManager(kernel_dirs=[str(Path(self.environ["JUPYTER_DATA_DIR"]) / "kernels")])
        manager = KernelManager(kernel_name=name, kernel_spec_manager=specs)
        cwd = str(folder or self.cwd)
        manager.start_kernel(env={**self.environ, **(environ or {})}, cwd=cwd, **options)
        client = manager.blocking_client()
        self.kernels.append(Kernel(manager, client))
        client.start_channels()
        client.wait_for_ready(timeout=60)
        return self.kernels[-1]

    def end(self, kernel: Kernel) -> None:
        self.kernels.remove(kernel)
        kernel.client.stop_channels()
        if kernel.manager.has_kernel:
            kernel.manager.shutdown_kernel(now=True)
        kernel.manager.cleanup_resources()

    def end_kernels(self) -> None:
        for kernel in [*self.kernels]:
            self.end(kernel)


def nursery_of(kernel: Kernel) -> int:
    """Return the process that a kernel was forked from; 0 of an ordinary one."""
    number: int = kernel.ask(NURSERY)
    return number


def process_of(kernel: Kernel) -> psutil.Process:
    return psutil.Process(kernel.ask("__import__('os').getpid()"))


def launcher_of(kernel: Kernel) -> psutil.Process:
    return psutil.Process(kernel.manager.provisioner.process.pid)  # type: ignore[union-attr]


def ends(process: psutil.Process, seconds: float = 20.0) -> bool:
    """Tell whether a process ends soon; one that nobody has waited for has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False
