"""A fork of the nursery: the watcher of a kernel, and the kernel, which becomes like a fresh process."""

from __future__ import annotations

import io
import itertools
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from nbcache.launcher import protocol
from nbcache.launcher.hidden import HiddenModules, Status, first_change

_READ_AT_IMPORT = (
    *("ATEN_", "CUBLAS_", "GOMP_", "KMP_", "MKL_", "NPY_", "NUMEXPR_", "OMP_", "OPENBLAS_", "PYTORCH"),
    "TORCH",
)
"""Beginnings of environment variables that torch, numpy and their libraries read at import."""
_READ_LATER = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR")
_STREAMS = 3
"""The standard streams are the first files of a request. The kernel's lock may follow them."""
_nursery = 0


def parent() -> int:
    """Return the process that this kernel was forked from; 0 in a process that was not forked."""
    return _nursery


@dataclass(frozen=True, slots=True)
class Ahead:
    """Modules and files that a nursery has imported."""

    hidden: Mapping[str, ModuleType]
    """Modules that an ordinary kernel lacks when it starts."""
    variables: Mapping[str, str]
    """Environment variables that the modules which are not hidden have set at import."""
    files: Mapping[str, Status]


def _run(value: Mapping[str, Any], files: list[int], ahead: Ahead) -> None:
    """Run `ipykernel_launcher` with the environment, folder, files and arguments of the request."""
    _adopt_launcher_state(value, files)
    os.environ.update(ahead.variables)
    start = dict(os.environ)
    changed = partial(first_change, ahead.files)
    HiddenModules(ahead.hidden, partial(_warn_of_late, start), changed).hide()
    if os.environ.get("JPY_PARENT_PID", "1") != "1":
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
        _give_parent(os.getppid())
    runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)


def attend(
    connection: socket.socket, value: Mapping[str, Any], files: list[int], ahead: Ahead
) -> Callable[[], None]:
    """Fork a kernel, and return the function that runs it there. This process becomes its watcher."""
    global _nursery
    _nursery = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    ready, writer = os.pipe()
    if kernel := os.fork():
        try:
            # Keep the kernel's lock until the kernel has ended, but not the lock of the nursery.
            protocol.close_all_but(connection.fileno(), ready, *files[_STREAMS:])
            os.read(ready, 1)  # until the kernel has its own session: signals go to its process group
            _watch(connection, kernel)
        finally:
            os._exit(0)
    copies = [os.dup(file) for file in files[:_STREAMS]]
    connection.detach()
    os.setsid()
    os.close(writer)
    return partial(_run, value, copies, ahead)


def _watch(connection: socket.socket, kernel: int) -> None:
    ended = os.pidfd_open(kernel)
    try:
        protocol.send(connection, {"forked": True, "process": kernel})
    except OSError:  # the launcher timed out and is an ordinary kernel, on the same ports
        os.killpg(kernel, signal.SIGKILL)
        os.waitpid(kernel, 0)
        return
    connection.settimeout(None)
    while ended not in select.select([connection.fileno(), ended], [], [])[0]:
        try:
            signals = connection.recv(64)
        except OSError:
            signals = b""
        if not signals:  # the launcher was killed
            os.killpg(kernel, signal.SIGKILL)
            break
        for number in signals:
            if number == signal.SIGINT:  # as Jupyter, interrupt the kernel's child processes, too
                os.killpg(kernel, number)
            else:
                os.kill(kernel, number)
    status = os.waitstatus_to_exitcode(os.waitpid(kernel, 0)[1])
    protocol.send(connection, {"ended": status})


def _adopt_launcher_state(value: Mapping[str, Any], files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    protocol.close_all_but()
    os.environ.clear()
    os.environ.update(value["environ"])
    os.chdir(value["folder"])
    os.umask(value["umask"])
    sys.path[:] = value["path"] if sys.flags.safe_path else [value["folder"], *value["path"]]
    sys.path_importer_cache.clear()
    arguments = value["arguments"]
    sys.orig_argv[:] = [sys.executable, *protocol.python_options(), "-m", "ipykernel_launcher", *arguments]
    sys.argv[:] = ["ipykernel_launcher", *arguments]
    _set_signals({*value["ignored"]}, value["blocked"])
    tempfile.tempdir = None
    if (random := sys.modules.get("numpy.random")) is not None:  # newer numpy imports it at first use
        random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()  # from the system's randomness, as at its creation
    if hasattr(threading, "_counter"):  # it numbers threads without a name
        threading._counter = itertools.count(1).__next__
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes.current_process().authkey = os.urandom(32)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, f"<{name}>", getattr(sys, f"__{name}__"))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _give_parent(process: int) -> None:
    """Make ipykernel end with `process`; at its import it read the number of another parent."""
    kernelapp: Any = sys.modules["ipykernel.kernelapp"]
    launch = kernelapp.launch_new_instance
    arguments = [*sys.argv[1:], f"--IPKernelApp.parent_handle={process}"]  # cells can see sys.argv itself

    def launch_once() -> None:
        kernelapp.launch_new_instance = launch
        launch(argv=arguments)

    kernelapp.launch_new_instance = launch_once


def _set_signals(ignored: Collection[int], blocked: Iterable[int]) -> None:
    """Ignore and block the signals that a fresh process would inherit from its parent."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _stream(number: int, name: str, original: Any) -> Any:
    """Return a standard stream, opened as Python does, for the present file of descriptor `number`."""
    raw: Any = open(number, "rb" if number == 0 else "wb", closefd=False)  # noqa: SIM115, as Python's own
    raw.raw.name = name
    stream = io.TextIOWrapper(
        raw,
        encoding=original.encoding,
        errors=original.errors,
        line_buffering=number == 2 or (number == 1 and raw.isatty()),
        write_through=original.write_through,
    )
    stream.mode = "r" if number == 0 else "w"  # type: ignore[misc]
    return stream


def _warn_of_late(start: Mapping[str, str]) -> None:
    """Warn at the import of torch about variables that a cell has changed too late."""
    changed = {name for name, _ in start.items() ^ os.environ.items() if name.startswith(_READ_AT_IMPORT)}
    if late := changed.difference(_READ_LATER):
        warnings.warn(
            f"{', '.join(sorted(late))} changed after this kernel was started with torch imported, which "
            "reads such variables then: set them before Jupyter starts, or use an ordinary Python kernel",
            stacklevel=2,
        )
