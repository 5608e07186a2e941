"""A fresh Jupyter kernel in folders of its own, that runs cells and says how long each took."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbcache
from nbcache.core.errors import NbcacheError
from nbcache.launcher.kernel_spec import LAUNCHER, PYTHON_OPTIONS

if TYPE_CHECKING:
    from jupyter_client.blocking.client import BlockingKernelClient
    from jupyter_client.manager import KernelManager

__all__ = [
    "BenchError",
    "CellFailed",
    "CellRun",
    "Home",
    "Kernel",
    "Sent",
    "environment",
    "kernel",
    "link_package",
]

_NAME = "nbcache-bench"
_START_SECONDS = 120.0
_DISTURBING = (
    *("ATEN_", "CUDA_CACHE_", "NBCACHE_", "PYTORCH_", "TORCH", "TRITON_"),
    *("IPYTHON", "JPY_", "JUPYTER", "VSCODE_", "XDG_"),
    "PYTHONDONTWRITEBYTECODE",
)
"""Beginnings of the caller's environment variables that would leak settings or caches into a kernel.

Where Python keeps no compiled modules, each kernel compiles nbcache, which pip has compiled for others.
"""
_INSTALLED = re.compile(r"TRITON_\w+_PATH")
"""Those that tell where something is installed: a driver's library, an assembler."""


class BenchError(NbcacheError):
    """Something could not be measured."""


class CellFailed(BenchError):
    """A cell raised an error, or its kernel died."""


class KernelDied(CellFailed):
    """A kernel's process has ended."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folders of one kernel, all below `root`."""

    root: Path

    @property
    def temporary(self) -> Path:
        """The temp folder: torch's cache folder and its precompiled headers are in there."""
        return self.root / "tmp"

    @property
    def store(self) -> Path:
        """The local store of nbcache."""
        return self.root / "store"

    def empty(self, *, keep_caches: bool = False, store: Path | None = None) -> None:
        """Make all folders empty ones; `store` is copied to become nbcache's store, where given.

        With `keep_caches` temp folder and home stay: there are torch's, Triton's and CUDA's caches.
        """
        caches = [] if keep_caches else [self.root / "home", self.temporary]
        for folder in (*caches, self.root / "jupyter", self.store):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.root / "home", self.root / "jupyter", self.temporary):
            folder.mkdir(parents=True, exist_ok=True)
        if store is not None:
            shutil.copytree(store, self.store)


def environment(home: Home, caller: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return a process's environment variables: the caller's, but for what would disturb a measurement.

    `path` is what `link_package` returned.
    """
    jupyter = home.root / "jupyter"
    kept = {
        name: value
        for name, value in caller.items()
        if not name.startswith(_DISTURBING) or _INSTALLED.fullmatch(name)
    }
    cache = Path(caller.get("XDG_CACHE_HOME") or Path(caller.get("HOME", "/")) / ".cache")
    return {
        **kept,
        "HOME": str(home.root / "home"),
        "TMPDIR": str(home.temporary),
        "NBCACHE_DIR": str(home.store),
        "IPYTHONDIR": str(jupyter / "ipython"),
        "JUPYTER_CONFIG_DIR": str(jupyter / "config"),
        "JUPYTER_DATA_DIR": str(jupyter / "data"),
        "JUPYTER_RUNTIME_DIR": str(jupyter / "runtime"),
        "JUPYTER_PLATFORM_DIRS": "1",
        # Weights that the user's own model loads are not part of what is measured.
        "HF_HOME": caller.get("HF_HOME", str(cache / "huggingface")),
        "TORCH_HOME": caller.get("TORCH_HOME", str(cache / "torch")),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # or ipykernel's debugger warns about frozen modules
        "PYTHONPATH": os.pathsep.join(filter(None, (str(path), caller.get("PYTHONPATH")))),
    }


def link_package(folder: Path) -> Path:
    """Return a folder below `folder` that has this nbcache and nothing else.

    Put into PYTHONPATH it makes every interpreter measure this one, and takes none of this interpreter's
    other packages into another.
    """
    path = folder / "path"
    path.mkdir()
    (path / "nbcache").symlink_to(Path(nbcache.__file__).parent, target_is_directory=True)
    return path


@dataclass(frozen=True, slots=True)
class CellRun:
    """A cell that has run."""

    seconds: float
    """From sending the cell to its result."""
    ended: float
    """When the result was there, on the clock of `time.perf_counter`."""
    execution_count: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A cell that was sent to a kernel."""

    source: str
    message: str
    """The id of the message that it was sent by."""
    began: float
    """When it was sent, on the clock of `time.perf_counter`."""


class Kernel:
    """A running kernel. `kernel` starts one."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient, log: Path, started: float):
        self._manager = manager
        self._client = client
        self._log = log
        self.started = started
        """When its process was started, on the clock of `time.perf_counter`."""
        self.ready_seconds = 0.0
        """From then until it answered; 0 until it has."""

    def run(self, source: str) -> CellRun:
        """Run a cell; CellFailed with the error that it raises."""
        return self.result(self.send(source))

    def send(self, source: str) -> Sent:
        """Have a cell run after those that were sent before, without waiting; `result` waits for it."""
        began = time.perf_counter()
        return Sent(source, self._client.execute(source, allow_stdin=False), began)

    def result(self, sent: Sent) -> CellRun:
        """Wait for a cell, in the order in which they were sent; CellFailed with the error that it raises."""
        reply = self._reply(sent.message)
        ended = time.perf_counter()
        _raise_error(reply, sent.source)
        return CellRun(ended - sent.began, ended, int(reply["execution_count"]))

    def ask(self, expression: str) -> str | None:
        """Return an expression's value, without running a cell; None where it raises or is no string."""
        reply = self._reply(
            self._client.execute(
                "",
                silent=True,
                store_history=False,
                user_expressions={"asked": expression},
                allow_stdin=False,
            )
        )
        answer = reply.get("user_expressions", {}).get("asked", {})
        if answer.get("status") != "ok":
            return None
        value = ast.literal_eval(answer["data"]["text/plain"])
        return value if isinstance(value, str) else None

    def wait_until_ready(self) -> None:
        """Wait until the kernel answers; CellFailed where it never does."""
        self._reply(self._client.kernel_info(), timeout=_START_SECONDS)
        self.ready_seconds = time.perf_counter() - self.started

    def private_bytes(self) -> int | None:
        """Return how much memory is this process's alone, written or not; None where that is not told."""
        process = self.ask("str(__import__('os').getpid())")
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            return None
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))

    def _reply(self, message: str, timeout: float = float("inf")) -> dict[str, Any]:
        """Return the content of the reply to `message`; CellFailed where the kernel is dead."""
        until = time.monotonic() + timeout
        while True:
            try:
                reply = self._client.get_shell_msg(timeout=1.0)
            except queue.Empty:
                if not self._manager.is_alive():
                    raise KernelDied("the kernel died", where=self._last_words()) from None
                if time.monotonic() > until:
                    raise CellFailed(f"the kernel did not answer in {timeout:.0f} s") from None
                continue
            if reply["parent_header"].get("msg_id") == message:
                return dict(reply["content"])

    def _last_words(self) -> str | None:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else None


def _raise_error(reply: Mapping[str, Any], source: str) -> None:
    if reply["status"] == "ok":
        return
    told = str(reply.get("evalue", "")).strip().splitlines()
    what = ": ".join(filter(None, (str(reply.get("ename", reply["status"])), told[0] if told else "")))
    raise CellFailed(what, where=f"in the cell `{source.strip().splitlines()[0]}`")


@contextlib.contextmanager
def kernel(
    python: str, home: Home, variables: Mapping[str, str], cwd: Path, *, forked: bool = False
) -> Iterator[Kernel]:
    """Start a kernel of the interpreter `python`, and end it, with all that it started, at the end.

    It may be `forked` from a nursery, which is started before and ended after it. Raises BenchError where
    there is none, or it does not fit.
    """
    with contextlib.ExitStack() as ending:
        if forked:
            ending.callback(_nursery, python, ["stop"], variables, cwd)
            _nursery(python, ["start"], variables, cwd)
        start = functools.partial(_started, python, home, variables, cwd, forked=forked)
        try:
            running = ending.enter_context(start())
        except KernelDied:
            # Another process may have been faster to take a port that jupyter_client had found free.
            running = ending.enter_context(start())
        if forked and not running.ask("__import__('sys').modules['nbcache.launcher'].__name__"):
            status = json.loads(_nursery(python, ["status", "--json"], variables, cwd))
            why = status["ordinary"]["why"] if status["ordinary"] else "it does not say why"
            raise BenchError(f"the kernel was not forked from the nursery: {why}", where=python)
        yield running


@contextlib.contextmanager
def _started(
    python: str, home: Home, variables: Mapping[str, str], cwd: Path, *, forked: bool
) -> Iterator[Kernel]:
    """Start a kernel, and end it; CellFailed where it never answers."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import KernelManager

    jupyter, log = home.root / "jupyter", home.root / "jupyter" / "kernel.log"
    module = [*PYTHON_OPTIONS, *LAUNCHER] if forked else ["-m", "ipykernel_launcher"]
    command = [python, *module, "-f", "{connection_file}", "--log-level=ERROR"]
    spec = jupyter / "kernels" / _NAME
    spec.mkdir(parents=True, exist_ok=True)
    (spec / "kernel.json").write_text(
        json.dumps({"argv": command, "display_name": _NAME, "language": "python"})
    )
    manager = KernelManager(
        kernel_name=_NAME,
        kernel_spec_manager=KernelSpecManager(
            kernel_dirs=[str(spec.parent)], ensure_native_kernel=False, allowed_kernelspecs=set()
        ),
        connection_file=str(jupyter / "connection.json"),
    )
    with log.open("wb") as output, contextlib.ExitStack() as ending:
        started = time.perf_counter()
        ending.callback(_end, manager)
        manager.start_kernel(env=dict(variables), cwd=str(cwd), stdout=output, stderr=output)
        client = manager.client()
        # Nobody reads what a cell displays: its result is there when the reply is, which is sent last.
        client.start_channels(iopub=False, stdin=False, hb=False, control=False)
        ending.callback(client.stop_channels)
        running = Kernel(manager, client, log, started)
        running.wait_until_ready()
        yield running


def _nursery(python: str, words: Sequence[str], variables: Mapping[str, str], cwd: Path) -> str:
    """Do `nbcache kernel` for kernels with these environment variables, and return what it prints."""
    command = [python, "-P", "-m", "nbcache", "kernel", *words]
    done = subprocess.run(command, env=dict(variables), cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise BenchError(said[0] if said else f"`{' '.join(command)}` failed", where=python)
    return done.stdout


def _end(manager: KernelManager) -> None:
    group = getattr(manager.provisioner, "pgid", None)  # what the kernel started may outlive it
    manager.shutdown_kernel(now=True)
    if group is not None:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
