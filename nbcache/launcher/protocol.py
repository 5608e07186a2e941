"""The protocol of launchers and nurseries: JSON over a socket in the user's own folder. Linux only.

A message is its length, 4 bytes, and JSON. No network is used, and each end checks that the other runs as the
same user. A nursery fits a launcher if both were started with the same state, as far as imports may depend
on it. A fork of the nursery then equals a fresh process. The launcher imports little besides this module.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

REQUEST_SECONDS = 5.0
"""The longest time for a request to arrive, and for its answer."""
_MOST_BYTES = 8 << 20
_PIECE_BYTES = 1 << 16
_LENGTH = struct.Struct("!I")
_SUFFIX = ".nursery"
_LOCK = ".lock"
_KERNELS = "kernels"
"""The file in which each starting or forked kernel locks one byte."""
_ORDINARY = "ordinary"
"""The file with the reason why the last ordinary kernel was not forked."""
_HARMLESS = """
    _ COLORTERM COLUMNS DBUS_SESSION_BUS_ADDRESS DISPLAY LINES LS_COLORS OLDPWD PS1 PWD SHLVL STY TERM
    TERM_PROGRAM TERM_PROGRAM_VERSION TMUX TMUX_PANE WAYLAND_DISPLAY WINDOWID XAUTHORITY XDG_SESSION_ID
"""
"""Environment variables that no library reads at import; a forked kernel gets its launcher's."""
_HARMLESS_BEGINNINGS = ("JPY_", "SSH_", "VSCODE_")
_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
_SAFE_PATH = "import sys; sys.flags.safe_path or sys.path.pop(0); "
_NURSERY = f"{_SAFE_PATH}from nbcache.launcher.nursery import main; main(*sys.argv[1:])"
_NAME = f"{_SAFE_PATH}from nbcache.launcher.protocol import own_name; print(own_name())"
_INHERITED = ("Cap", "NoNewPrivs", "Seccomp")
"""Beginnings of the lines of /proc/self/status that children inherit.

Lines on ignored and blocked signals are left out: a forked kernel gets those of its launcher.
"""


def folder() -> str:
    """Return the folder of the sockets, and create it if needed; OSError if others can use it."""
    base = os.environ.get("XDG_RUNTIME_DIR") or ""
    if not os.path.isdir(base):
        base = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(base, f"nbcache-kernels-{os.geteuid()}")
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a folder that only you can use: remove it")
    return path


def names() -> list[str]:
    """Return the names of nurseries, the longest unused first; some of them may have ended."""
    times = {}
    for entry in os.scandir(folder()):
        if entry.name.endswith(_SUFFIX):
            with suppress(OSError):  # it has just ended
                times[entry.name.removesuffix(_SUFFIX)] = entry.stat(follow_symlinks=False).st_mtime
    return sorted(times, key=times.__getitem__)


@contextmanager
def _address(name: str) -> Iterator[str]:
    """Yield a socket's address. Addresses must be short, so it names the folder by a descriptor."""
    descriptor = os.open(folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}{_SUFFIX}"
    finally:
        os.close(descriptor)


def listen(name: str) -> socket.socket:
    """Return a socket on which a nursery listens; it replaces an abandoned one of this name."""
    with _address(name) as address, _address(f".{name}-{os.getpid()}") as temporary:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(temporary)
        listener.listen(128)
        os.replace(temporary, address)
    return listener


def ask(name: str, timeout: float) -> socket.socket:
    """Return a connection to a nursery; OSError if it does not answer."""
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
def alone(name: str) -> Iterator[bool]:
    """Hold the lock of the nursery of this name; yield False if another process has it."""
    path = os.path.join(folder(), name + _LOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, b"%d\n" % os.getpid())
            yield True
    finally:
        os.close(descriptor)


def starting() -> dict[str, int]:
    """Return lock → process for the nurseries that are still starting.

    Such a process answers no request yet. The process is 0 if the lock has no number.
    """
    path = folder()
    locks = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(_LOCK)]
    processes = {
        lock: _holder(lock) for lock in locks if not os.path.exists(lock.removesuffix(_LOCK) + _SUFFIX)
    }
    return {lock: process for lock, process in processes.items() if process is not None}


def is_starting(name: str) -> bool:
    return os.path.join(folder(), name + _LOCK) in starting()


def _holder(lock: str) -> int | None:
    """Return the process number in a held lock, 0 if it has none; None for a free lock."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return int(os.read(descriptor, 32).partition(b"\n")[0])
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return 0


def lock_kernel(arguments: Sequence[str], seconds: float) -> int | None:
    """Return a file that locks the kernel with these arguments; None if its lock is not free in time.

    All processes that have the file open hold the lock; the last one is the kernel's watcher. A restarted
    kernel must wait: it would die, or never answer, while its predecessor still has a port.
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
        except OSError:  # the file system does not support these locks
            pass
        os.close(descriptor)
        return None


def note_ordinary(why: str) -> None:
    with suppress(OSError):
        path = os.path.join(folder(), _ORDINARY)
        temporary = f"{path}-{os.getpid()}"
        with open(temporary, "w") as stream:
            json.dump({"process": os.getpid(), "time": time.time(), "why": why}, stream)
        os.replace(temporary, path)


def ordinary() -> dict[str, Any] | None:
    """Return the process, time and reason of the last kernel that was not forked; None without one."""
    try:
        with open(os.path.join(folder(), _ORDINARY)) as stream:
            note: dict[str, Any] = json.load(stream)
    except (OSError, ValueError):
        return None
    return note if note.keys() >= {"process", "time", "why"} else None


def record_use(name: str) -> None:
    with _address(name) as address:
        os.utime(address)


def request(name: str, question: str) -> dict[str, Any] | None:
    """Return a nursery's answer; None without one. The socket of a nursery that has ended is removed."""
    try:
        with ask(name, REQUEST_SECONDS) as connection:
            send(connection, {"ask": question})
            answer: dict[str, Any] = receive(connection)[0]
            return None if "why" in answer else answer  # a refusal: it was busy
    except ConnectionRefusedError:
        forget(name)
        return None
    except (OSError, ValueError):
        return None


def forget(name: str) -> None:
    with suppress(OSError), _address(name) as address:
        os.unlink(address)


def check_peer(connection: socket.socket) -> None:
    """Raise PermissionError if the other end is another user's process."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if user != os.geteuid():
        raise PermissionError(f"the other end of the socket runs as the user {user}")


def send(connection: socket.socket, value: Any, files: Sequence[int] = ()) -> None:
    """Send a value, and open files with it."""
    content = json.dumps(value).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(content))], files)
    connection.sendall(content)


def receive(connection: socket.socket, files: int = 0) -> tuple[Any, list[int]]:
    """Return a value, and at most `files` open files; ConnectionError if the other end has closed."""
    message = Message(connection, files)
    try:
        while not message.read():
            pass
        return message.value(), message.files
    except BaseException:
        message.close_files()
        raise


class Message:
    """A value with open files, which arrives in pieces."""

    def __init__(self, connection: socket.socket, most_files: int) -> None:
        self.connection = connection
        self.files: list[int] = []
        self.deadline = time.monotonic() + REQUEST_SECONDS
        """Time (monotonic) by which the whole request must have arrived."""
        self._most_files = most_files
        self._content = bytearray()

    def fileno(self) -> int:
        return self.connection.fileno()

    def read(self) -> bool:
        """Read one piece; return whether the message is complete. ConnectionError if it cannot be."""
        size = min(self._missing(), _PIECE_BYTES)
        piece, files, _, _ = socket.recv_fds(self.connection, size, self._most_files - len(self.files))
        self.files += files
        if not piece:
            raise ConnectionError("the other end has gone")
        self._content += piece
        return self._missing() == 0

    def value(self) -> Any:
        return json.loads(self._content[_LENGTH.size :])

    def close_files(self) -> None:
        while self.files:
            os.close(self.files.pop())

    def _missing(self) -> int:
        if len(self._content) < _LENGTH.size:
            return _LENGTH.size - len(self._content)
        (length,) = _LENGTH.unpack_from(self._content)
        if length > _MOST_BYTES:
            raise ConnectionError(f"a message of {length:,} bytes")
        return _LENGTH.size + int(length) - len(self._content)


def close_all_but(*descriptors: int) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in descriptors:
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(number)


def python_options() -> list[str]:
    """Return the Python options that an ordinary kernel gets from this process: all but `-P`."""
    options = itertools.takewhile(lambda word: word not in ("-m", "-c"), sys.orig_argv[1:])
    return [option for option in options if option != "-P"]


def nursery_command(options: Sequence[str], *names: str) -> list[str]:
    """Return the command of a nursery, which imports nothing from its working folder.

    `-P` would do the same, but its kernels would have it in `sys.flags`, and IPython would obey it.
    """
    return [sys.executable, *options, "-c", _NURSERY, *names]


def name_command(options: Sequence[str]) -> list[str]:
    """Return the command that prints the name of a nursery with these options and this environment."""
    return [sys.executable, *options, "-c", _NAME]


def own_name() -> str:
    """Return the digest of the state in which this process was started; call it before the state changes."""
    harmless = {name for name in os.environ if name.startswith(_HARMLESS_BEGINNINGS)} | {*_HARMLESS.split()}
    namespaces = sorted(os.listdir("/proc/self/ns"))
    state = {
        "python": [sys.executable, sys.prefix, sys.base_prefix, sys.version, *python_options()],
        "path": sys.path,
        "environ": {name: value for name, value in os.environ.items() if name not in harmless},
        "limits": [resource.getrlimit(getattr(resource, name)) for name in _LIMITS],
        "cpus": sorted(os.sched_getaffinity(0)),
        "scheduling": [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)],
        "user": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in namespaces},
        "cgroup": _read("cgroup"),
        "memory": _read("oom_score_adj"),
        "security": [_read_if_there("attr/current"), _read_if_there("personality")],
        "status": [line for line in _read("status").splitlines() if line.startswith(_INHERITED)],
    }
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32]


def _read(name: str) -> str:
    with open(f"/proc/self/{name}") as stream:
        return stream.read()


def _read_if_there(name: str) -> str | None:
    try:
        return _read(name)
    except OSError:  # some systems lack the file, or let nobody read it
        return None
