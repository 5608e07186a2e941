"""A fresh Jupyter kernel, in empty folders, that runs cells and times them."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from nbcache.core.errors import NbcacheError
from nbcache.core.text import one_line

__all__ = ["CellFailed", "CellRun", "Home", "Kernel", "environment", "kernel"]

_SETTINGS = (
    *("ATEN_", "CUDA_CACHE_", "NBCACHE_", "PYTORCH_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_"),
    *("IPYTHON", "JPY_", "PYTHONDONTWRITEBYTECODE"),
)
"""Beginnings of the caller's environment variables that would bring settings or caches into a kernel."""
_PLACES = re.compile(r"TRITON_\w+_PATH|TORCH_HOME")
"""Variables that name where something is installed: an assembler, weights."""


class CellFailed(NbcacheError):
    """A cell raised an error, or its kernel died or did not start."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folders of one kernel, all below `root`."""

    root: Path

    @property
    def temporary(self) -> Path:
        """The temp folder: torch puts its cache folder and its precompiled headers there."""
        return self.root / "tmp"

    @property
    def store(self) -> Path:
        """The local store of nbcache."""
        return self.root / "store"

    def empty(self, *, keep_caches: bool = False, store: Path | None = None) -> None:
        """Empty all folders; copy `store` to nbcache's store, where given.

        With `keep_caches` the caches of torch, Triton and CUDA stay.
        """
        for name in ("store", "ipython", *(() if keep_caches else ("tmp", "triton", "cuda"))):
            shutil.rmtree(self.root / name, ignore_errors=True)
        self.temporary.mkdir(parents=True, exist_ok=True)
        if store is not None:
            shutil.copytree(store, self.store)


def environment(home: Home, caller: Mapping[str, str]) -> dict[str, str]:
    """Return a kernel's environment variables: the caller's, without settings of torch and nbcache."""
    return {
        **{
            name: value
            for name, value in caller.items()
            if not name.startswith(_SETTINGS) or _PLACES.fullmatch(name)
        },
        "TMPDIR": str(home.temporary),
        "TRITON_HOME": str(home.root / "triton"),
        "CUDA_CACHE_PATH": str(home.root / "cuda"),
        "NBCACHE_DIR": str(home.store),
        "NBCACHE_TRUST_DIR": str(home.root / "keys"),
        "NBCACHE_AUDIT": "0",  # one of 20 kernels would trace again what it restores
        "IPYTHONDIR": str(home.root / "ipython"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # or ipykernel's debugger warns about frozen modules
    }


@dataclass(frozen=True, slots=True)
class CellRun:
    """A cell that has run."""

    seconds: float
    """From sending the cell to its result."""
    ended: float
    """Time of the result, on the clock of `time.perf_counter`."""
    printed: str
    """The text that the cell printed or has as its value, without displayed reports."""


class Kernel:
    """A running kernel, which `kernel` starts."""

    def __init__(self, client: NotebookClient, log: Path) -> None:
        self._client = client
        self._log = log
        self.started = time.perf_counter()
        self.ready_seconds = 0.0
        """From the start of the process to its first answer."""

    def run(self, cell: NotebookNode | str) -> CellRun:
        """Run a cell; CellFailed with the error that it raises."""
        node: Any = new_code_cell(cell) if isinstance(cell, str) else cell  # type: ignore[no-untyped-call]
        cells = self._client.nb.cells
        cells.append(node)
        where = f"in the cell `{node.source.strip().splitlines()[0]}`"
        began = time.perf_counter()
        try:
            self._client.execute_cell(node, len(cells) - 1)
        except CellExecutionError as error:
            raise CellFailed(one_line(f"{error.ename}: {error.evalue}", 300), where=where) from error
        except DeadKernelError as error:
            raise CellFailed(f"the kernel died{self.last_words()}", where=where) from error
        ended = time.perf_counter()
        return CellRun(ended - began, ended, _output_of(node))

    def ask(self, expression: str) -> str | None:
        """Return the value of an expression without running a cell; None where it is no string."""
        assert self._client.kc is not None
        message = self._client.kc.execute(
            "", silent=True, store_history=False, user_expressions={"asked": expression}, allow_stdin=False
        )
        reply = self._client.wait_for_reply(message) or {}
        answer = reply.get("content", {}).get("user_expressions", {}).get("asked", {})
        value = ast.literal_eval(answer["data"]["text/plain"]) if answer.get("status") == "ok" else None
        return value if isinstance(value, str) else None

    def last_words(self) -> str:
        """Return the last line that the process wrote, after a colon."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f": {one_line(lines[-1], 300)}" if lines else ""


class _OneCommand(KernelSpecManager):
    """Finds one kernel, whatever its name: the one that `command` starts."""

    command: list[str]

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(argv=self.command, display_name=kernel_name, language="python")


@contextlib.contextmanager
def kernel(start: str | list[str], home: Home, cwd: Path, variables: Mapping[str, str]) -> Iterator[Kernel]:
    """Start a kernel, a Jupyter kernel's name or the command of one, and kill it at the end.

    CellFailed where it does not start.
    """
    manager = AsyncKernelManager(kernel_name=start if isinstance(start, str) else "nbcache-bench")
    if not isinstance(start, str):
        manager.kernel_spec_manager = _OneCommand()
        manager.kernel_spec_manager.command = [*start, "-f", "{connection_file}", "--log-level=ERROR"]
    notebook = new_notebook()  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=None,
        shutdown_kernel="immediate",
        resources={"metadata": {"path": str(cwd)}},
    )
    client.log.disabled = True  # its errors are raised, too
    log, group = home.root / "kernel.log", None
    with log.open("wb") as output, contextlib.ExitStack() as running:
        fresh = Kernel(client, log)
        started = client.setup_kernel(env=dict(variables), stdout=output, stderr=output, cleanup_kc=True)
        try:
            running.enter_context(started)
        except (NoSuchKernel, OSError, RuntimeError) as error:
            name = one_line(manager.kernel_name)
            raise CellFailed(f"the kernel {name!r} does not start: {error}{fresh.last_words()}") from error
        fresh.ready_seconds = time.perf_counter() - fresh.started
        group = getattr(manager.provisioner, "pgid", None)
        try:
            yield fresh
        finally:
            running.close()
            if group is not None:  # processes that the kernel started may outlive it
                with contextlib.suppress(OSError):
                    os.killpg(group, signal.SIGKILL)


def _output_of(cell: Any) -> str:
    if cell.source.startswith("%") and not cell.source.startswith("%%"):
        return ""  # nbcache prints seconds
    values = [output for output in cell.outputs if output.output_type == "execute_result"]
    streams = [output for output in cell.outputs if output.get("name") == "stdout"]
    return "".join(
        [*(output.text for output in streams), *(value.data.get("text/plain", "") for value in values)]
    )
