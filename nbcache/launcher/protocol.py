"""The protocol of launchers and nurseries, and the state that they were started with. For Linux only.

The launcher imports this first, so it imports next to nothing.

They send JSON over a socket in a folder that is the user's alone. A message is its length, 4 bytes, and JSON.
Nothing is listened to on a network, and both ends check that the other runs as the same user.

A nursery fits where its start state is that of the launcher: then a fork of it is what a fresh process would
be.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import resource
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = [
    "HARMLESS",
    "REQUEST_SECONDS",
    "alone",
    "ask",
    "check_peer",
    "close",
    "close_all_but",
    "end_starting",
    "folder",
    "forget",
    "kept_variables",
    "listen",
    "lock_kernel",
    "name_of",
    "names",
    "note_ordinary",
    "nursery_command",
    "ordinary",
    "python_options",
    "receive",
    "request",
    "send",
    "start_state",
    "starting",
    "used",
]

REQUEST_SECONDS = 5.0
"""Seconds in which a request must arrive, and be answered."""
_MOST_BYTES = 8 << 20
_PIECE_BYTES = 1 << 16
_LENGTH = struct.Struct("!I")
_SUFFIX = ".nursery"
_LOCK = ".lock"
_KERNELS = "kernels"
"""File in which each kernel that starts or was forked locks one byte."""
_ORDINARY = "ordinary"
"""File that says why the last kernel was not forked."""


def folder() -> str:
    """Return the folder of the sockets, made where it was not; OSError where it is not the user's alone."""
    base = os.environ.get("XDG_RUNTIME_DIR") or ""
    if not os.path.isdir(base):
        base = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(base, f"nbcache-kernels-{os.geteuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a folder that only you can use: remove it")
    return path


def names() -> list[str]:
    """Return the names of nurseries, the one that is longest unused first; some of them may have ended."""
    path = folder()
    found = [each for each in os.listdir(path) if each.endswith(_SUFFIX)]
    return sorted((each.removesuffix(_SUFFIX) for each in found), key=lambda name: _age(path, name))


def _age(path: str, name: str) -> float:
    try:
        return os.lstat(os.path.join(path, name + _SUFFIX)).st_mtime
    except OSError:
        return 0.0


@contextmanager
def _address(name: str) -> Iterator[str]:
    """Give the address of a socket, which must be short: by a descriptor of the folder that it is in."""
    descriptor = os.open(folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}{_SUFFIX}"
    finally:
        os.close(descriptor)


def listen(name: str) -> socket.socket:
    """Return a socket on which a nursery is asked; it takes the place of one that was left behind."""
    with _address(name) as address, _address(f".{name}-{os.getpid()}") as temporary:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(temporary)
        listener.listen(128)
        os.replace(temporary, address)
    return listener


def ask(name: str, timeout: float) -> socket.socket:
    """Return a connection to a nursery; OSError where it does not answer."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout)
        with _address(name) as address:
            connection.connect(address)
        check_peer(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def alone(name: str) -> Iterator[Callable[[], bool] | None]:
    """Lock the name of a nursery. Yield a function that returns whether the lock counts; None without it."""
    path = os.path.join(folder(), name + _LOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def counts() -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(path))
        except OSError:  # `end_starting` has removed it
            return False

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_first = True
    except BlockingIOError:
        is_first = False
    try:
        yield counts if is_first else None
    finally:
        os.close(descriptor)


def starting() -> list[str]:
    """Return the locks of processes that are about to be nurseries; such a process answers no request yet."""
    path = folder()
    locks = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(_LOCK)]
    return [
        lock for lock in locks if not os.path.exists(lock.removesuffix(_LOCK) + _SUFFIX) and _is_held(lock)
    ]


def _is_held(lock: str) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def end_starting() -> int:
    """Remove the locks of processes that are about to be nurseries, which then end; return how many."""
    locks = starting()
    for lock in locks:
        try:
            os.unlink(lock)
        except FileNotFoundError:  # another `stop` was first
            pass
    return len(locks)


def lock_kernel(arguments: Sequence[str], seconds: float) -> int | None:
    """Return a file that locks the kernel with these arguments; None where its lock is not free in time.

    All processes that have the file open hold the lock. The process that watches the kernel is the last one:
    a restarted kernel whose predecessor still has a port dies, or never answers.
    """
    descriptor = os.open(os.path.join(folder(), _KERNELS), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    digest = hashlib.sha256("\0".join(arguments).encode(errors="surrogateescape")).digest()
    byte = int.from_bytes(digest[:7], "big")
    lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
            return descriptor
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.01)
                continue
        except OSError:  # this file system has no such locks
            pass
        os.close(descriptor)
        return None


def note_ordinary(why: str) -> None:
    """Note why this process is about to be an ordinary kernel, for who asks."""
    try:
        path = os.path.join(folder(), _ORDINARY)
        temporary = f"{path}-{os.getpid()}"
        with open(temporary, "w") as stream:
            json.dump({"process": os.getpid(), "time": time.time(), "why": why}, stream)
        os.replace(temporary, path)
    except OSError:
        pass


def ordinary() -> dict[str, Any] | None:
    """Return which process was the last that became an ordinary kernel, when and why; None where none is."""
    try:
        with open(os.path.join(folder(), _ORDINARY)) as stream:
            found: dict[str, Any] = json.load(stream)
    except (OSError, ValueError):
        return None
    return found if found.keys() >= {"process", "time", "why"} else None


def used(name: str) -> None:
    """Note that a nursery has just been of use."""
    with _address(name) as address:
        os.utime(address)


def request(name: str, what: str) -> dict[str, Any] | None:
    """Return what a nursery answers; None where it does not. The socket of one that has ended is removed."""
    try:
        with ask(name, REQUEST_SECONDS) as connection:
            send(connection, {"ask": what})
            answer: dict[str, Any] = receive(connection)[0]
            return None if "why" in answer else answer  # it was busy, and has refused
    except ConnectionRefusedError:
        forget(name)
    except (OSError, ValueError):
        pass
    return None


def forget(name: str) -> None:
    """Remove the socket of a nursery that has ended."""
    try:
        with _address(name) as address:
            os.unlink(address)
    except OSError:
        pass


def check_peer(connection: socket.socket) -> None:
    """Raise PermissionError where the other end is another user's process."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if user != os.geteuid():
        raise PermissionError(f"the other end of the socket runs as the user {user}")


def send(connection: socket.socket, value: Any, files: Sequence[int] = ()) -> None:
    """Send a value, and open files with it."""
    content = json.dumps(value).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(content))], files)
    connection.sendall(content)


def receive(connection: socket.socket, most_files: int = 0) -> tuple[Any, list[int]]:
    """Return a value, and as many open files at most; ConnectionError where the other end has gone."""
    files: list[int] = []

    def read(size: int) -> bytes:
        content = b""
        while len(content) < size:
            most = min(size - len(content), _PIECE_BYTES)
            piece, more, _, _ = socket.recv_fds(connection, most, most_files - len(files))
            files.extend(more)
            if not piece:
                raise ConnectionError("the other end has gone")
            content += piece
        return content

    try:
        (length,) = _LENGTH.unpack(read(_LENGTH.size))
        if length > _MOST_BYTES:
            raise ConnectionError(f"a message of {length:,} bytes")
        return json.loads(read(length)), files
    except BaseException:
        close(files)
        raise


def close(files: Iterable[int]) -> None:
    """Close files, as far as they are open."""
    for file in files:
        try:
            os.close(file)
        except OSError:
            pass


def close_all_but(*descriptors: int) -> None:
    """Close all files but the standard streams and these."""
    close({*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *descriptors})


# --- the start state ---------------------------------------------------------------------------------

_NAMES = """
    _ COLORTERM COLUMNS DBUS_SESSION_BUS_ADDRESS DISPLAY LINES LS_COLORS OLDPWD PS1 PWD SHLVL STY TERM
    TERM_PROGRAM TERM_PROGRAM_VERSION TMUX TMUX_PANE WAYLAND_DISPLAY WINDOWID XAUTHORITY XDG_SESSION_ID
"""
HARMLESS = frozenset(_NAMES.split())
"""Environment variables that nothing reads when it is imported; the kernel itself has its own."""
_HARMLESS = ("JPY_", "SSH_", "VSCODE_")
"""Beginnings of such variables."""
_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
_NURSERY = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from nbcache.launcher.nursery import main; main(*sys.argv[1:])"
)
_OF_STATUS = ("Cap", "NoNewPrivs", "Seccomp")
"""Beginnings of the lines of /proc/self/status that children have from their parent.

Signals that are ignored or blocked are not among them: a forked kernel gets those of its launcher.
"""


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that must be the same."""
    return {
        name: value
        for name, value in environ.items()
        if name not in HARMLESS and not name.startswith(_HARMLESS)
    }


def python_options() -> list[str]:
    """Return the options of Python that an ordinary kernel gets from this process: all but `-P`."""
    options = itertools.takewhile(lambda word: word not in ("-m", "-c"), sys.orig_argv[1:])
    return [option for option in options if option != "-P"]


def nursery_command(options: Sequence[str], *names: str) -> list[str]:
    """Return the command of a nursery, which imports nothing from the folder that it is started in.

    `-P` would do the same, but `sys.flags` of all its kernels would show it, and IPython would obey it.
    """
    return [sys.executable, *options, "-c", _NURSERY, *names]


def start_state() -> dict[str, object]:
    """Return what this process was started with; ask before anything changes it."""
    return {
        "python": [sys.executable, sys.prefix, sys.base_prefix, sys.version, *python_options()],
        "path": sys.path,
        "environ": kept_variables(os.environ),
        "limits": [resource.getrlimit(getattr(resource, name)) for name in _LIMITS],
        "cpus": sorted(os.sched_getaffinity(0)),
        "scheduling": [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)],
        "user": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
        "namespaces": _links("/proc/self/ns"),
        "cgroup": _read("/proc/self/cgroup"),
        "memory": _read("/proc/self/oom_score_adj"),
        "security": [_read_if_there(f"/proc/self/{name}") for name in ("attr/current", "personality")],
        "status": [line for line in _read("/proc/self/status").splitlines() if line.startswith(_OF_STATUS)],
    }


def name_of(state: Mapping[str, object]) -> str:
    """Return the name of the nursery for it."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32]


def _read(path: str) -> str:
    with open(path) as stream:
        return stream.read()


def _read_if_there(path: str) -> str | None:
    try:
        return _read(path)
    except OSError:  # it may be nobody's to read, or this system has none
        return None


def _links(folder: str) -> dict[str, str]:
    return {name: os.readlink(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}
