"""The nursery: imports what kernels need, runs nothing, and forks kernels. `nursery_command` starts it.

It forks only while it has one Python thread, and neither a CUDA context nor an open device. The files of all
imported modules must be unchanged. If a notebook's folder has a module of such a name, it gets no fork.
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
from nbcache.launcher.hidden import first_change, hidable, imported_files, modules_in, shadowing

_KERNEL = """
    ipykernel.kernelapp ipykernel.ipkernel ipykernel.zmqshell ipykernel.debugger ipykernel.displayhook
    IPython.core.completerlib sqlite3
"""
"""Modules that an ordinary kernel has imported before its first cell."""
_AHEAD = "nbcache.ui.ipython.extension nbcache.torch_bridge.prewarm"
_IDLE_SECONDS = 4 * 3600.0
"""A nursery ends after being unused for this time."""
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
"""A nursery ends if a smaller share of the machine's memory is available."""
_MOST_NURSERIES = 2
"""The most nurseries of a user; a new one ends the longest unused."""
_LEAST_IDLE = 0.5
"""Idle processors for which a nursery waits before each import."""
_MOST_PATIENCE = 120.0
"""The longest wait for an idle processor, after which a nursery imports anyway."""
_COARSE_NS = 100_000_000
"""The most that time stamps of files may lag behind the clock."""
_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED"""
_ARRIVING, _END = object(), object()


def main(name: str | None = None) -> None:
    """Import modules, and fork kernels until no longer needed. With a launcher's `name`, imports may wait."""
    own_name = protocol.own_name()
    if name not in (None, own_name):
        return  # the state has changed since the launcher: none would find this nursery
    with protocol.alone(own_name) as is_first:
        child = _run(own_name, patience=_MOST_PATIENCE if name else 0.0) if is_first else None
    if child is not None:
        child()  # in a forked kernel, with no frame of the nursery on the stack


def _run(name: str, patience: float) -> Callable[[], None] | None:
    """Import modules and fork kernels. In a fork, return the function that runs it; in the nursery, None."""
    began = time.time_ns() - _COARSE_NS
    for variable in [variable for variable in os.environ if variable.startswith("JPY_")]:
        del os.environ[variable]  # the starter's: with them, ipykernel would end with the starter's parent
    os.chdir("/")
    oldest_first = [other for other in protocol.names() if other != name]
    for other in oldest_first[: max(0, len(oldest_first) - _MOST_NURSERIES + 1)]:
        protocol.request(other, "stop")
    hidden, variables = _import_all(time.monotonic() + patience)
    files = imported_files(sys.modules["nbcache.torch_bridge.prewarm"].prepare_forks())
    if threading.active_count() > 1:
        return None
    if any(changed > began for changed, _ in files.values()):
        return None  # a file was edited or installed during the imports
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
        """Folder → importable modules. Python might import a new one instead of another, or of none."""
        self._since = self._used = time.time()
        self._forks = 0

    def serve(self) -> Callable[[], None] | None:
        """Answer requests. In a forked kernel, return the function that runs it; in the nursery, None."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the nursery does not wait for kernels' watchers
        while self._should_run():
            waiting: list[socket.socket | protocol.Message] = [self._listener, *self._requests]
            seconds = self._requests[0].deadline - time.monotonic() if self._requests else _LOOK_SECONDS
            ready = select.select(waiting, [], [], max(0.0, seconds))[0]
            if self._listener in ready:
                ready += self._accept()
            for request in [*self._requests]:
                outcome = self._continue(request, request in ready)
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
        """Return the request of another launcher; if there are too many, refuse the oldest."""
        if len(self._requests) == _MOST_REQUESTS:
            _refuse(self._requests[0], "too many others have asked since")
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

    def _continue(self, request: protocol.Message, is_ready: bool) -> object:
        try:
            if is_ready and request.read():
                return self._answer(request)
        except BlockingIOError:
            pass
        except Exception as error:  # no request may end the nursery
            _refuse(request, f"the nursery could not answer: {error!r}")
            return None
        if time.monotonic() < request.deadline:
            return _ARRIVING
        _refuse(request, "the request did not arrive in time")
        return None

    def _should_run(self) -> bool:
        if time.time() - self._used > _IDLE_SECONDS:
            return False
        total = _memory("MemTotal")
        return not total or _memory("MemAvailable") >= _LEAST_FREE * total

    def _answer(self, request: protocol.Message) -> object:
        connection, value = request.connection, request.value()
        protocol.check_peer(connection)
        if value["ask"] != "stop" and (why := self._change_on_disk()):
            _refuse(request, why)
            return _END  # a launcher, or `nbcache kernel start`, starts a new nursery
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
        why = _obstacle()
        if file := shadowing(value["folder"], self._tops):
            why = f"{file} in the notebook's folder has the name of a module that is imported ahead"
        if len(request.files) < 3:
            why = "no standard streams"
        if why:
            _refuse(request, why)
            return None
        self._used = time.time()
        self._forks += 1
        protocol.record_use(self._name)
        if os.fork():
            return None
        try:
            self._listener.close()
            for other in self._requests:
                if other is not request:
                    other.connection.close()
            return attend(request.connection, value, request.files, self._ahead)
        except BaseException:  # else this process would continue as a second nursery
            os._exit(1)

    def _change_on_disk(self) -> str | None:
        """Return the change of an imported file or of a folder of modules; None without one."""
        if changed := first_change(self._ahead.files, self._ahead.files):
            return f"{changed} has changed"
        for folder, modules in self._modules.items():
            if changed_modules := modules_in(folder) ^ modules:
                return f"{min(changed_modules)} in {folder}"
        return None


def _refuse(request: protocol.Message, why: str) -> None:
    with contextlib.suppress(OSError):  # the launcher has ended
        protocol.send(request.connection, {"forked": False, "why": why})


def _import_all(deadline: float) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """Import all modules; return those to hide, and the environment variables that the others have set."""
    environ = dict(os.environ)
    for name in _KERNEL.split():
        _import(name, deadline)
    visible = set(sys.modules)
    variables = {name: value for name, value in os.environ.items() if environ.get(name) != value}
    for name in _AHEAD.split():
        _import(name, deadline)
    for name in sys.modules["nbcache.torch_bridge.prewarm"].MODULES:
        _import(name, deadline)
    sys.modules.pop("__mp_main__", None)  # it is this process, which no kernel may find
    hidden = hidable({name: module for name, module in sys.modules.items() if name not in visible})
    return hidden, variables


def _import(name: str, deadline: float) -> None:
    _wait_until_idle(deadline)
    with contextlib.suppress(Exception):  # missing or broken: the kernel's own import raises
        importlib.import_module(name)


def _wait_until_idle(deadline: float) -> None:
    """Wait until half a processor is idle. Kernels could not undo a lower priority, so none is set."""
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


def _obstacle() -> str | None:
    """Return why this process must not be forked, or None."""
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
