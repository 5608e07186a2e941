"""The command of the kernel spec: `python -P -m nbcache.launcher -f FILE`. Imports next to nothing.

It stands in for the kernel that a nursery forks: signals go through, it ends as the kernel ends, and the
kernel ends with it. Where no nursery fits it becomes an ordinary kernel, and starts a nursery for the next
time.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import NoReturn

from nbcache.launcher import protocol
from nbcache.launcher.start_state import name_of, nursery_command, python_options, start_state

_END_SECONDS = 5.0
"""How long a restarted kernel waits until the one before it has ended, which takes hundredths of a second."""
_ANSWER_SECONDS = 15.0
"""How long a nursery may take to answer: hundredths of a second, and much longer on a busy machine."""
_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)


def main() -> NoReturn:
    """Be a kernel, forked or not."""
    arguments = sys.argv[1:]
    connection = name = None
    try:
        if sys.flags.safe_path:
            name = name_of(start_state())
            connection, why = _forked(name, arguments, protocol.lock_kernel(arguments, _END_SECONDS))
        else:  # files of the notebook's folder may have run already, in place of modules
            why = "an earlier version of nbcache has installed it: run `nbcache kernel install`"
    except (FileNotFoundError, ConnectionRefusedError):
        why = "there was no nursery for its environment"
    except Exception as error:  # whatever it is: never worse than an ordinary kernel
        why = f"no nursery has answered: {error!r}"
    if connection is not None:
        _stand_in(connection)
    protocol.note_ordinary(why)
    if name is not None:
        _start_nursery(name)
    os.execv(sys.executable, [sys.executable, *python_options(), "-m", "ipykernel_launcher", *arguments])


def _forked(name: str, arguments: list[str], lock: int | None) -> tuple[socket.socket | None, str]:
    """Return a connection to what watches the fork; None, and why, where the nursery does not fit."""
    if any(each > 2 and _is_inherited(each) for each in map(int, os.listdir("/proc/self/fd"))):
        return None, "a file besides the standard streams was open when it was started"
    connection = protocol.ask(name, _ANSWER_SECONDS)
    umask = os.umask(0o077)
    os.umask(umask)
    asked = {
        "ask": "fork",
        "arguments": arguments,
        "path": sys.path,
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "ignored": [each for each in signal.valid_signals() if signal.getsignal(each) == signal.SIG_IGN],
        "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }
    protocol.send(connection, asked, [0, 1, 2] if lock is None else [0, 1, 2, lock])
    answer, _ = protocol.receive(connection)
    if answer.get("forked"):
        return connection, ""
    connection.close()
    return None, str(answer.get("why"))


def _is_inherited(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # the one by which they were listed
        return False


def _stand_in(connection: socket.socket) -> NoReturn:
    """Pass signals on, and end as the kernel ends."""

    def pass_on(number: int, frame: object) -> None:
        try:
            connection.sendall(bytes([number]))
        except OSError:  # it has just ended
            pass

    connection.settimeout(None)
    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    try:
        status = int(protocol.receive(connection)[0]["ended"])
    except (OSError, ValueError):  # what watches it was killed, and the kernel with it
        status = -signal.SIGKILL
    if status < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the kernel has left one, if any
        if -status != signal.SIGKILL:  # which cannot be set
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def _start_nursery(name: str) -> None:
    """Start a nursery that outlives this process, and is nobody's child."""
    try:
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
            os.execve(sys.executable, nursery_command(python_options(), name), environ)
        finally:
            os._exit(1)
    except OSError:
        pass


if __name__ == "__main__":
    main()
