"""The nursery: imports what kernels need, runs nothing, and forks kernels. `nursery_command` starts it.

It forks only while it has one Python thread, and neither a CUDA context nor an open device. The files of all
that it has imported must be as they were. A notebook's folder that has one of these modules gets no fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from nbcache.launcher import protocol
from nbcache.launcher.forked import Ahead, attend
from nbcache.launcher.hidden import files_imported, first_changed, hidable, modules_in, shadowing

_KERNEL = """
    ipykernel.kernelapp ipykernel.ipkernel ipykernel.zmqshell ipykernel.debugger ipykernel.displayhook
    IPython.core.completerlib sqlite3
"""
"""Modules that an ordinary kernel has imported when its first cell runs."""
_AHEAD = "nbcache.ui.ipython.extension nbcache.torch_bridge.prewarm"
_IDLE_SECONDS = 4 * 3600.0
"""A nursery that is unused for so long ends."""
_LOOK_SECONDS = 60.0
_MOST_REQUESTS = 16
_MOST_FILES = 4
"""The standard streams of a kernel, and its lock."""
_FORK = {
    "arguments": list,
    "path": list,
    "environ": dict,
    "folder": str,
    "umask": int,
    "ignored": list,
    "blocked": list,
}
"""Types of the values in a request for a fork."""
_LEAST_FREE = 0.05
"""A nursery ends where less of the machine's memory is available."""
_MOST_NURSERIES = 2
"""Nurseries of a user: those that were used last."""
_LEAST_IDLE = 0.5
"""A nursery imports while so many processors are idle."""
_MOST_PATIENCE = 120.0
"""Seconds of waiting for an idle processor, after which a nursery imports all the same."""
_COARSE_NS = 100_000_000
"""By so much the clock of files may be behind."""
_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED"""
_ARRIVING, _END = object(), object()


def main(name: str | None = None) -> None:
    """Import, and fork kernels, until nobody needs it. `name` is a launcher's, which lets imports wait."""
    own_name = protocol.own_name()
    if name not in (None, own_name):
        return  # something was changed on the way here: no launcher would find it
    with protocol.alone(own_name) as is_first:
        child = _run(own_name, patience=_MOST_PATIENCE if name else 0.0) if is_first else None
    if child is not None:
        child()  # here, in the kernel, with nothing of the nursery's on the stack


def _run(name: str, patience: float) -> Callable[[], None] | None:
    """Import, and fork kernels; return in one of them what runs it, None in the nursery at its end."""
    began = time.time_ns() - _COARSE_NS
    for variable in [variable for variable in os.environ if variable.startswith("JPY_")]:
        del os.environ[variable]  # of the kernel that started it: ipykernel ends with that kernel's parent
    os.chdir("/")
    oldest_first = [other for other in protocol.names() if other != name]
    for other in oldest_first[: max(0, len(oldest_first) - _MOST_NURSERIES + 1)]:
        protocol.request(other, "stop")
    hidden, variables = _imported(time.monotonic() + patience)
    files = files_imported(sys.modules["nbcache.torch_bridge.prewarm"].before_fork())
    if threading.active_count() > 1:
        return None
    if any(changed > began for changed, _ in files.values()):
        return None  # something was edited, or installed, while it was imported
    listener = protocol.listen(name)
    sys.modules["nbcache.torch_bridge.gc_pause"].keep_frozen()
    return _Nursery(name, listener, Ahead(hidden, variables, files)).serve()


class _Nursery:
    def __init__(self, name: str, listener: socket.socket, ahead: Ahead) -> None:
        self._name = name
        self._listener = listener
        self._ahead = ahead
        self._requests: list[protocol.Message] = []
        self._tops = {name.partition(".")[0] for name in sys.modules}
        self._modules = {folder: modules_in(folder) for folder in sys.path}
        """Modules that can be imported: Python might import a new one in place of another, or of none."""
        self._since = self._used = time.time()
        self._forks = 0

    def serve(self) -> Callable[[], None] | None:
        """Answer until nobody needs it; return what runs it in a forked kernel, None in the nursery."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch kernels
        while self._is_wanted():
            waiting: list[socket.socket | protocol.Message] = [self._listener, *self._requests]
            seconds = self._requests[0].deadline - time.monotonic() if self._requests else _LOOK_SECONDS
            ready = select.select(waiting, [], [], max(0.0, seconds))[0]
            if self._listener in ready:
                ready += self._accept()
            for request in [*self._requests]:
                outcome = self._go_on(request, request in ready)
                if outcome is _ARRIVING:
                    continue
                self._close(request)
                if callable(outcome):
                    return outcome
                if outcome is _END:
                    protocol.forget(self._name)
                    return None
        protocol.forget(self._name)
        return None

    def _accept(self) -> list[protocol.Message]:
        """Return the request of another launcher; where there are too many, the oldest makes room for it."""
        if len(self._requests) == _MOST_REQUESTS:
            _refuse(self._requests[0], "others have asked since")
            self._close(self._requests[0])
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the launcher has ended
            return []
        connection.setblocking(False)
        self._requests.append(protocol.Message(connection, _MOST_FILES))
        return self._requests[-1:]

    def _close(self, request: protocol.Message) -> None:
        self._requests.remove(request)
        request.close_files()
        request.connection.close()

    def _go_on(self, request: protocol.Message, is_ready: bool) -> object:
        try:
            if is_ready and request.read():
                return self._answer(request)
        except BlockingIOError:
            pass
        except Exception as error:  # whatever it asks, the nursery lives on
            _refuse(request, f"the nursery could not answer: {error!r}")
            return None
        if time.monotonic() < request.deadline:
            return _ARRIVING
        _refuse(request, "the request did not arrive in time")
        return None

    def _is_wanted(self) -> bool:
        if time.time() - self._used > _IDLE_SECONDS:
            return False
        total = _memory("MemTotal")
        return not total or _memory("MemAvailable") >= _LEAST_FREE * total

    def _answer(self, request: protocol.Message) -> object:
        connection, value = request.connection, request.value()
        protocol.check_peer(connection)
        if value["ask"] == "status":
            protocol.send(connection, self._status())
        elif value["ask"] == "stop":
            protocol.send(connection, {"stopped": os.getpid()})
            return _END
        elif value["ask"] != "fork" or any(type(value[name]) is not kind for name, kind in _FORK.items()):
            raise ValueError("no such request")
        else:
            return self._fork(request, value)
        return None

    def _status(self) -> dict[str, Any]:
        return {
            "process": os.getpid(),
            "python": sys.executable,
            "since": self._since,
            "used": self._used,
            "kernels": self._forks,
            "modules": len(self._ahead.hidden),
            "bytes": _memory("VmRSS", "/proc/self/status"),
        }

    def _fork(self, request: protocol.Message, value: dict[str, Any]) -> object:
        if why := self._outdated():
            _refuse(request, why)
            return _END  # the launcher starts another one
        why = _why_not()
        if file := shadowing(value["folder"], self._tops):
            why = f"{file} in the notebook's folder has the name of a module that is imported ahead"
        if len(request.files) < 3:
            why = "no standard streams"
        if why:
            _refuse(request, why)
            return None
        self._used = time.time()
        self._forks += 1
        protocol.used(self._name)
        if os.fork():
            return None
        try:
            self._listener.close()
            for other in self._requests:
                if other is not request:
                    other.connection.close()
            return attend(request.connection, value, request.files, self._ahead)
        except BaseException:  # or this process would be a second nursery
            os._exit(1)

    def _outdated(self) -> str | None:
        """Return what is not on disk as it was when it was imported."""
        if changed := first_changed(self._ahead.files, self._ahead.files):
            return f"{changed} has changed"
        for folder, modules in self._modules.items():
            if changed_modules := modules_in(folder) ^ modules:
                return f"{min(changed_modules)} in {folder}"
        return None


def _refuse(request: protocol.Message, why: str) -> None:
    with contextlib.suppress(OSError):  # the launcher has ended
        protocol.send(request.connection, {"forked": False, "why": why})


def _imported(deadline: float) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """Import everything; return the modules to hide, and the environment variables that the rest has set."""
    environ = dict(os.environ)
    for name in _KERNEL.split():
        _import(name, deadline)
    visible = set(sys.modules)
    variables = {name: value for name, value in os.environ.items() if environ.get(name) != value}
    for name in _AHEAD.split():
        _import(name, deadline)
    for name in sys.modules["nbcache.torch_bridge.prewarm"].MODULES:
        _import(name, deadline)
    sys.modules.pop("__mp_main__", None)  # this process, which no kernel may find
    hidden = hidable({name: module for name, module in sys.modules.items() if name not in visible})
    return hidden, variables


def _import(name: str, deadline: float) -> None:
    _wait_until_idle(deadline)
    with contextlib.suppress(Exception):  # it is not installed, or broken: the kernel's own import says so
        importlib.import_module(name)


def _wait_until_idle(deadline: float) -> None:
    """Wait until half a processor is idle. A lower priority could not be taken back in the kernels."""
    while time.monotonic() < deadline:
        ticks, began = _idle_ticks(), time.monotonic()
        time.sleep(0.05)
        idle = (_idle_ticks() - ticks) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
        if idle >= _LEAST_IDLE:
            return
        time.sleep(1.0)


def _idle_ticks() -> int:
    with open("/proc/stat") as stream:
        return sum(map(int, stream.readline().split()[4:6]))


def _why_not() -> str | None:
    """Return why this process must not be forked."""
    if threading.active_count() > 1:
        return "a thread has been started"
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith(("/dev/nvidia", "/dev/dri", "/dev/kfd")):
                return "a GPU is open"
    with open("/proc/self/maps") as stream:
        if any("/libcuda.so" in line for line in stream):
            count = ctypes.c_int()
            if ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALIZED:
                return "CUDA is initialized"
    return None


def _memory(name: str, path: str = "/proc/meminfo") -> int:
    with open(path) as stream:
        return next((int(line.split()[1]) << 10 for line in stream if line.startswith(f"{name}:")), 0)
