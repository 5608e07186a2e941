"""The command of the kernel spec, `python -P -m nbcache.launcher -f FILE`. It imports very little.

For Jupyter, this process represents the kernel that a nursery forks. It forwards signals, exits with the
kernel's status, and the kernel ends with it. Without a nursery, it starts one, and is an ordinary kernel.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from nbcache.launcher import protocol

_END_SECONDS = 5.0
"""The longest wait of a restarted kernel for the end of its predecessor: usually some 0.01 s."""
_ANSWER_SECONDS = 15.0
"""The longest wait for a nursery's answer: usually some 0.01 s, much longer on a busy machine."""
_FORWARDED_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")


def main() -> NoReturn:
    arguments = sys.argv[1:]
    connection = name = None
    try:
        if sys.flags.safe_path:
            name = protocol.own_name()
            connection, why = _request_fork(name, arguments, protocol.lock_kernel(arguments, _END_SECONDS))
        else:  # files in the notebook's folder may have replaced modules
            why = "an earlier version of nbcache has installed it: run `nbcache kernel install`"
    except (FileNotFoundError, ConnectionRefusedError):
        why = "there was no nursery for its environment"
    except Exception as error:  # after any fault, it becomes an ordinary kernel
        why = f"no nursery has answered: {error!r}"
    if connection is not None:
        _act_as_kernel(connection)
    protocol.note_ordinary(why)
    if name is not None:
        _start_nursery(name)
    command = [sys.executable, *protocol.python_options(), "-m", "ipykernel_launcher", *arguments]
    os.execv(sys.executable, command)


def _request_fork(name: str, arguments: list[str], lock: int | None) -> tuple[socket.socket | None, str]:
    """Return a connection to the fork's watcher; or None, and why the nursery did not fork."""
    if any(number > 2 and _inherits(number) for number in map(int, os.listdir("/proc/self/fd"))):
        return None, "a file besides the standard streams was open when it was started"
    connection = protocol.ask(name, _ANSWER_SECONDS)
    umask = os.umask(0o077)
    os.umask(umask)
    request = {
        "ask": "fork",
        "arguments": arguments,
        "path": sys.path,
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "ignored": [one for one in signal.valid_signals() if signal.getsignal(one) == signal.SIG_IGN],
        "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }
    protocol.send(connection, request, [0, 1, 2] if lock is None else [0, 1, 2, lock])
    answer, _ = protocol.receive(connection)
    if answer.get("forked"):
        return connection, ""
    connection.close()
    return None, str(answer.get("why"))


def _inherits(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # the descriptor of the listing itself
        return False


def _act_as_kernel(connection: socket.socket) -> NoReturn:
    """Forward signals to the forked kernel, and end as it ends: by the same status or signal."""

    def forward(number: int, frame: object) -> None:
        with suppress(OSError):  # the kernel has just ended
            connection.sendall(bytes([number]))

    connection.settimeout(None)
    for name in _FORWARDED_SIGNALS:
        signal.signal(getattr(signal, name), forward)
    try:
        status = int(protocol.receive(connection)[0]["ended"])
    except (OSError, ValueError):  # the watcher was killed, and the kernel with it
        status = -signal.SIGKILL
    if status < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # only the kernel leaves a core dump
        if -status != signal.SIGKILL:  # its handler cannot be set
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def _start_nursery(name: str) -> None:
    """Start a nursery that outlives this process, and is no child of it."""
    with suppress(OSError):
        if os.fork():
            os.wait()
            return
        try:
            os.setsid()
            if os.fork():
                os._exit(0)
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            protocol.close_all_but()
            environ = {key: value for key, value in os.environ.items() if not key.startswith("JPY_")}
            os.execve(sys.executable, protocol.nursery_command(protocol.python_options(), name), environ)
        finally:
            os._exit(1)


if __name__ == "__main__":
    main()
