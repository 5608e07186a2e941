"""Interpreters that are forked from one with torch or IPython imported: as fresh as others, but start sooner.

That one imports modules, and computes nothing; nbcache is not imported in it. As a script this is also what
is started in an interpreter's place, with its arguments: it asks for a fork, passes signals on, and ends as
the fork ends. Where environment variables differ that count when torch is imported, it becomes an ordinary
interpreter.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
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
_READ_LATER = ("TORCHINDUCTOR_CACHE_DIR",)
"""Those of them that torch reads whenever it needs them."""
_FIRST = {
    "IPython": ("IPython.core.interactiveshell", "IPython.utils.capture", "nbclient", "nbformat"),
    "torch": ("ipykernel.kernelapp", "ipykernel.zmqshell", "nbformat", "torch._inductor.compile_fx"),
}
"""What is imported first. What nbcache and a first compile import comes after it."""
_ANY = """
import torch
torch.compile(lambda x: x.sin() + 1)(torch.ones(8, requires_grad=True)).sum().backward()
"""
_MOST_BYTES = 1 << 20


@functools.cache
def command(having: str) -> list[str]:
    """Return what starts an interpreter that has imported "torch" or "IPython", but for its arguments.

    These are `-c code`, or `-m module` and what that takes. The one that is forked ends with this process.
    """
    from support.environ import passed  # as a script, this module has no package beside it

    folder = tempfile.TemporaryDirectory(prefix="interpreters-")
    path = f"{folder.name}/socket"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, having, path],
        env={**passed(os.environ), "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    atexit.register(folder.cleanup)
    atexit.register(process.wait)
    atexit.register(process.kill)
    assert process.stdout.readline() == b"ready\n"
    return [sys.executable, "-IS", __file__, path]


# --- the one that is forked -----------------------------------------------------------------------


def _serve(having: str, path: str) -> None:
    """Fork for each connection until the standard input ends: with the test run, if it is killed."""
    environ = _at_import(os.environ)
    sys.path[0] = str(Path(__file__).parents[1])
    from support.imports import import_what

    del sys.path[0]
    for name in _FIRST[having]:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # torch's workers may still end
        import_what(lambda: _use(_ANY if having == "torch" else "", folder), but="nbcache")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for forks
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
    """Fork, pass on the signals that come over the connection, and say how the fork ended."""
    try:
        said, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        asked = json.loads(said)
        if _at_import(asked["environ"]) != environ:
            connection.sendall(b"no\n")
            os._exit(0)
        fork = os.fork()
        if fork == 0:
            connection.close()
            _run(asked, files)
        ended = os.pidfd_open(fork)
        while ended not in select.select([connection, ended], [], [])[0]:
            for number in connection.recv(64) or (signal.SIGKILL,):  # it was killed itself
                os.kill(fork, number)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))
    finally:
        os._exit(0)


def _run(asked: Mapping[str, Any], files: list[int]) -> NoReturn:
    """Be what `python` is: with the environment, folder, files and arguments that are asked for."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["environ"])
    if "JPY_PARENT_PID" in os.environ:
        os.environ["JPY_PARENT_PID"] = str(os.getppid())
    os.chdir(asked["cwd"])
    tempfile.tempdir = None
    random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kind, what, *others = asked["arguments"]
    if what == "ipykernel_launcher":  # which has read JPY_PARENT_PID when it was imported
        others.append(f"--IPKernelApp.parent_handle={os.getppid()}")
    sys.argv = [kind, *others]
    sys.path.insert(0, "" if kind == "-c" else asked["cwd"])
    status = 1
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(what, "<string>", "exec"), vars(main))
        status = 0
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            status = ended.code or 0
        else:
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _use(cell: str, folder: str) -> None:
    """Load nbcache in a shell, with all files below a folder, and run a cell."""
    from IPython.core.interactiveshell import InteractiveShell

    os.environ |= dict.fromkeys(("HOME", "IPYTHONDIR", "NBCACHE_DIR", "TMPDIR"), folder)
    os.environ |= {"NBCACHE_LIVE": "off", "NBCACHE_PREWARM": "off", "NBCACHE_REPORT": "never"}
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch has set it when it was imported
    tempfile.tempdir = None
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "nbcache")
    shell.run_cell(cell).raise_error()


def _at_import(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environ.items() if name.startswith(_READ) and name not in _READ_LATER
    }


# --- in an interpreter's place --------------------------------------------------------------------


def _stand_in(path: str, *arguments: str) -> None:
    """Have an interpreter forked, and end as it ends; or be one."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)

        def pass_on(number: int, frame: FrameType | None) -> None:
            connection.sendall(bytes([number]))

        asked = {"environ": dict(os.environ), "cwd": os.getcwd(), "arguments": arguments}
        socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        for number in _PASSED_ON:
            signal.signal(number, pass_on)
        with connection.makefile() as answer:
            said = answer.readline()
    if said == "no\n":
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, *arguments])
    status = int(said or "1")
    if status < 0:
        if -status in _PASSED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    if sys.argv[1] in _FIRST:
        _serve(*sys.argv[1:])
    else:
        _stand_in(*sys.argv[1:])
