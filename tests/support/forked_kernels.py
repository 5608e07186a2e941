"""Kernels that are forked from a process with torch imported: as fresh as others, without seconds of imports.

The process imports and computes nothing else; nbcache is not imported in it. As a script with two arguments
this is what Jupyter starts in a kernel's place: it asks the process to fork, passes signals on, and ends as
the kernel ends. Where environment variables differ that count when torch is imported, it becomes an
ordinary kernel.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
_READ = (
    *("ATEN_", "CC", "CUDA", "CXX", "GOMP_", "KMP_", "LD_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON"),
    *("TORCH", "TRITON_"),
)
"""Beginnings of environment variables that libraries read when they are imported."""
_IMPORTED = ("ipykernel.kernelapp", "ipykernel.zmqshell", "torch._inductor.compile_fx")
_MOST_BYTES = 1 << 20


@functools.cache
def command() -> list[str]:
    """Return what starts a kernel, but for the connection file; the process ends with this one."""
    folder = tempfile.TemporaryDirectory(prefix="kernels-")
    path = f"{folder.name}/socket"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_READ)}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, path],
        env={**environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    atexit.register(folder.cleanup)
    atexit.register(process.wait)
    atexit.register(process.kill)
    assert process.stdout.readline() == b"ready\n"
    return [sys.executable, "-IS", __file__, path]


# --- the process ----------------------------------------------------------------------------------


def _serve(path: str) -> None:
    """Fork a kernel for each connection until the standard input ends: with the test run, if it is killed."""
    environ = _at_import(os.environ)
    del sys.path[0]  # the folder of this file
    for name in _IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for kernels
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _attend(connection, environ)
            connection.close()


def _attend(connection: socket.socket, environ: dict[str, str]) -> NoReturn:
    """Fork a kernel, pass on the signals that come over the connection, and say how it ended."""
    try:
        said, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        asked = json.loads(said)
        if _at_import(asked["environ"]) != environ:
            connection.sendall(b"no\n")
            os._exit(0)
        kernel = os.fork()
        if kernel == 0:
            connection.close()
            _become_kernel(asked, files)
        ended = os.pidfd_open(kernel)
        while ended not in select.select([connection, ended], [], [])[0]:
            for number in connection.recv(64) or (signal.SIGKILL,):  # it was killed itself
                os.kill(kernel, number)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(kernel, 0)[1]))
    finally:
        os._exit(0)


def _become_kernel(asked: Mapping[str, Any], files: list[int]) -> NoReturn:
    """Be what `python -m ipykernel_launcher` is: with its environment, folder, files and arguments."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.flush()
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.environ["JPY_PARENT_PID"] = str(os.getppid())
    os.chdir(asked["cwd"])
    tempfile.tempdir = None
    random.seed()
    sys.argv = ["ipykernel_launcher", "-f", asked["file"], "--log-level=ERROR"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from ipykernel import kernelapp

    status = 1
    try:
        kernelapp.launch_new_instance()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        atexit._run_exitfuncs()
        os._exit(status)


def _at_import(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_READ)}


# --- in a kernel's place --------------------------------------------------------------------------


def _stand_in(path: str, file: str) -> None:
    """Have a kernel forked, and end as it ends; or be one."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)

        def pass_on(number: int, frame: FrameType | None) -> None:
            connection.sendall(bytes([number]))

        asked = {"environ": dict(os.environ), "cwd": os.getcwd(), "file": file}
        socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        for number in _PASSED_ON:
            signal.signal(number, pass_on)
        with connection.makefile() as answer:
            said = answer.readline()
    if said == "no\n":
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", file, "--log-level=ERROR"]
        os.execv(sys.executable, command)
    status = int(said or "1")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _serve(sys.argv[1])
    else:
        _stand_in(*sys.argv[1:])
