"""The nursery: imports what kernels need, runs nothing, and forks kernels. `nursery_command` starts it.

It forks only while it has one thread of Python's, no CUDA context and no open device, while all that it has
imported is on disk as it was, and where nothing in the notebook's folder would have been imported instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from nbcache.launcher import imported, protocol
from nbcache.launcher.forked import Ahead, Asked, attend
from nbcache.launcher.imported import hidable, modules_in, shadowing
from nbcache.launcher.protocol import name_of, start_state

__all__ = ["main"]

_KERNEL = """
    ipykernel.kernelapp ipykernel.ipkernel ipykernel.zmqshell ipykernel.debugger ipykernel.displayhook
    IPython.core.completerlib sqlite3
"""
"""Modules that an ordinary kernel has imported when its first cell runs."""
_AHEAD = "nbcache.ui.ipython.extension nbcache.torch_bridge.prewarm"
"""Modules that `%load_ext nbcache` imports."""
_IDLE_SECONDS = 4 * 3600.0
"""Unused for so long, it ends."""
_LOOK_SECONDS = 60.0
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
"""Where less of the machine's memory is available, it ends."""
_MOST = 2
"""So many nurseries a user has: those that were used last."""
_BUSY = 0.5
"""It imports while so many processors are idle."""
_COARSE_NS = 100_000_000
"""By so much the clock of files may be behind."""
_MOST_PATIENCE = 120.0
"""After so many seconds of waiting it imports all the same."""


def main(name: str | None = None) -> None:
    """Import, and fork kernels, until nobody needs it.

    `name` is what a launcher looks for. Without it, imports wait for nothing.
    """
    state = name_of(start_state())
    if name not in (None, state):
        return  # something was changed on the way here: no launcher would find it
    with protocol.alone(state) as is_wanted:
        if is_wanted is None:
            return
        child = _run(state, _Patience(_MOST_PATIENCE if name else 0.0, is_wanted))
    if child is not None:
        child.run()  # here, in the kernel, with nothing of the nursery's on the stack


def _run(name: str, patience: _Patience) -> Asked | None:
    """Import, and fork kernels; return what to be in one of them, None in the nursery, in the end."""
    began = time.time_ns() - _COARSE_NS
    for variable in [variable for variable in os.environ if variable.startswith("JPY_")]:
        del os.environ[variable]  # of a kernel in which it was started: ipykernel ends with that one's parent
    os.chdir("/")
    _make_room(name)
    hidden, variables = _import_all(patience)
    files = imported.files(sys.modules["nbcache.torch_bridge.prewarm"].before_fork())
    if threading.active_count() > 1:
        return None
    if any(status.changed > began for status in files.values()):
        return None  # something was edited, or installed, while it was imported
    patience.check()
    listener = protocol.listen(name)
    sys.modules["nbcache.torch_bridge.gc_pause"].keep_frozen()
    return _Nursery(name, listener, Ahead(hidden, variables, files)).serve()


class _Nursery:
    def __init__(
        self,
        name: str,
        listener: socket.socket,
        ahead: Ahead,
    ) -> None:
        self._name = name
        self._listener = listener
        self._ahead = ahead
        self._tops = {each.partition(".")[0] for each in sys.modules}
        self._found = {folder: modules_in(folder) for folder in sys.path}
        """What can be imported: another one might be imported instead, or where there was none."""
        self._since = self._used = time.time()
        self._forks = 0

    def serve(self) -> Asked | None:
        """Answer until nobody needs it; return what to be in a forked kernel, None in the nursery."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch kernels
        self._listener.settimeout(_LOOK_SECONDS)
        while self._is_wanted():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody has asked, or the launcher has ended
                continue
            with connection:
                outcome = self._answer(connection)
            if isinstance(outcome, Asked):
                return outcome
            if outcome is _END:
                break
        protocol.forget(self._name)
        return None

    def _answer(self, connection: socket.socket) -> object:
        """Answer one request, which must arrive in time: others wait meanwhile."""
        files: list[int] = []
        try:
            connection.settimeout(protocol.REQUEST_SECONDS)
            protocol.check_peer(connection)
            value, files = protocol.receive(connection, _MOST_FILES)
            return self._do(connection, value, files)
        except Exception as error:  # whatever it asks, the nursery lives on
            with contextlib.suppress(OSError):  # the launcher has ended
                why = f"the nursery could not answer: {error!r}"
                protocol.send(connection, {"forked": False, "why": why})
            return None
        finally:
            protocol.close(files)

    def _is_wanted(self) -> bool:
        if time.time() - self._used > _IDLE_SECONDS:
            return False
        total, free = (_memory(each) for each in ("MemTotal", "MemAvailable"))
        return not total or free >= _LEAST_FREE * total

    def _do(self, connection: socket.socket, value: dict[str, Any], files: list[int]) -> object:
        if value["ask"] == "status":
            protocol.send(connection, self._status())
        elif value["ask"] == "stop":
            protocol.send(connection, {"stopped": os.getpid()})
            return _END
        elif value["ask"] != "fork" or any(type(value[name]) is not kind for name, kind in _FORK.items()):
            raise ValueError("no such request")
        else:
            return self._fork(connection, value, files)
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

    def _fork(self, connection: socket.socket, value: dict[str, Any], files: list[int]) -> object:
        if changed := self._ahead.first_changed(self._ahead.files):
            protocol.send(connection, {"forked": False, "why": f"{changed} has changed"})
            return _END  # the launcher starts another one
        for folder, found in self._found.items():
            if more := modules_in(folder) ^ found:
                protocol.send(connection, {"forked": False, "why": f"{min(more)} in {folder}"})
                return _END
        why = _why_not() or self._shadowed(value["folder"])
        if why or len(files) < 3:
            protocol.send(connection, {"forked": False, "why": why or "no standard streams"})
            return None
        self._used = time.time()
        self._forks += 1
        protocol.used(self._name)
        if os.fork():
            return None
        try:
            self._listener.close()
            return attend(connection, value, files, self._ahead)
        except BaseException:  # or this process would be a second nursery
            os._exit(1)

    def _shadowed(self, folder: str) -> str | None:
        """Return what in the notebook's folder would have been imported in place of what was."""
        if found := shadowing(folder, self._tops):
            return f"{found} in the notebook's folder has the name of a module that is imported ahead"
        return None


_END = object()


def _import_all(patience: _Patience) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """Import everything; return what is to be hidden, and the environment variables that the rest has set."""
    before = dict(os.environ)
    for name in _KERNEL.split():
        _import(name, patience)
    visible = set(sys.modules)
    variables = {name: value for name, value in os.environ.items() if before.get(name) != value}
    for name in _AHEAD.split():
        _import(name, patience)
    for name in sys.modules["nbcache.torch_bridge.prewarm"].MODULES:
        _import(name, patience)
    sys.modules.pop("__mp_main__", None)  # this process, which nobody is to know of
    hidden = hidable({name: module for name, module in sys.modules.items() if name not in visible})
    return hidden, variables


def _import(name: str, patience: _Patience) -> None:
    patience.wait_until_idle()
    with contextlib.suppress(Exception):  # it is not installed, or broken: the kernel's own import tells
        importlib.import_module(name)


class _Patience:
    """Waits while others use all processors, so many seconds in all; a priority could not be taken back.

    SystemExit where `is_wanted` returns False.
    """

    def __init__(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._is_wanted = is_wanted

    def check(self) -> None:
        """End this process unless the nursery is still wanted."""
        if not self._is_wanted():
            raise SystemExit

    def wait_until_idle(self) -> None:
        """Wait until half a processor is idle."""
        self.check()
        while self._seconds > 0:
            before, began = _idle_ticks(), time.monotonic()
            time.sleep(0.05)
            idle = (_idle_ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
            if idle >= _BUSY:
                return
            time.sleep(1.0)
            self._seconds -= time.monotonic() - began
            self.check()


def _idle_ticks() -> int:
    with open("/proc/stat") as stream:
        return sum(map(int, stream.readline().split()[4:6]))


def _why_not() -> str | None:
    """Return why this process must not be forked."""
    if threading.active_count() > 1:
        return "a thread has been started"
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{each}").startswith(("/dev/nvidia", "/dev/dri", "/dev/kfd")):
                return "a GPU is open"
    with open("/proc/self/maps") as stream:
        if any("/libcuda.so" in line for line in stream):
            count = ctypes.c_int()
            if ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALIZED:
                return "CUDA is initialized"
    return None


_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED"""


def _memory(name: str, path: str = "/proc/meminfo") -> int:
    """Return bytes by the name of a line; 0 where there is none."""
    with open(path) as stream:
        return next((int(line.split()[1]) << 10 for line in stream if line.startswith(f"{name}:")), 0)


def _make_room(name: str) -> None:
    """End those of this user's nurseries that are longest unused, where there are too many."""
    others = [each for each in protocol.names() if each != name]
    for each in others[: max(0, len(others) - _MOST + 1)]:
        protocol.request(each, "stop")
