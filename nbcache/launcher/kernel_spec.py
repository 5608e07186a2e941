"""Installs the Jupyter kernel *Python 3 (nbcache)*, and controls the user's nurseries."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nbcache.core.errors import NbcacheError
from nbcache.launcher import protocol

NAME = "nbcache"
_TITLE = f"Python {sys.version_info.major} (nbcache)"
PYTHON_OPTIONS = ["-Xfrozen_modules=off"]
"""Python's options in ipykernel's own kernel spec, for its debugger."""
LAUNCHER = ["-P", "-m", "nbcache.launcher"]
"""`-P` keeps files in the notebook's folder from replacing modules that the launcher imports."""
_START_SECONDS = 300.0
"""The longest start of a nursery: its imports take some ten seconds, and much more on a busy machine."""
_TRIES = 3
"""Starts of a nursery: it ends if a package's file changes during its imports, and the next may succeed."""


def install(*, user: bool = False) -> Path:
    """Add the kernel, for this interpreter, and return its folder.

    `user` chooses the user's own folder, which is also used outside of virtual environments. NbcacheError if
    the kernel cannot be written, or the system is not Linux.
    """
    _only_on_linux()
    specs = _manager()
    from ipykernel.kernelspec import get_kernel_dict, write_kernel_spec

    ordinary = get_kernel_dict(python_arguments=PYTHON_OPTIONS)["argv"]
    command = [*ordinary[: ordinary.index("-m")], *LAUNCHER, "-f", "{connection_file}"]
    with tempfile.TemporaryDirectory() as folder:
        changes = {"argv": command, "display_name": _TITLE}
        source = write_kernel_spec(Path(folder, NAME), changes)
        in_prefix = sys.prefix != sys.base_prefix and not user
        where: dict[str, Any] = {"prefix": sys.prefix} if in_prefix else {"user": True}
        try:
            return Path(specs.install_kernel_spec(source, NAME, **where))
        except OSError as error:
            raise NbcacheError(
                f"the kernel cannot be installed: {error.strerror or error}",
                where=str(error.filename or sys.prefix),
                next_step="check that you may write to the folder",
            ) from error


def uninstall() -> Path:
    """Remove the kernel, and return its former folder; NbcacheError if it is not installed."""
    if spec_folder() is None:
        raise NbcacheError(
            f"there is no kernel named {NAME}",
            where="nbcache kernel uninstall",
            next_step="see `jupyter kernelspec list`",
        )
    return Path(_manager().remove_kernel_spec(NAME))


def spec_folder() -> Path | None:
    folder = _manager().find_kernel_specs().get(NAME)
    return None if folder is None else Path(folder)


def nurseries() -> list[dict[str, Any]]:
    """Return the status of each running nursery; one whose files have changed ends instead."""
    return _answers("status")


def start() -> dict[str, Any]:
    """Start a nursery for kernels of this interpreter and environment, and return its status.

    A running one is kept if its files are unchanged. NbcacheError if no nursery answers within some minutes.
    """
    nurseries()  # those with changed files end
    null = subprocess.DEVNULL
    named = subprocess.run(protocol.name_command(PYTHON_OPTIONS), capture_output=True, text=True, check=False)
    name, command = named.stdout.strip(), protocol.nursery_command(PYTHON_OPTIONS)
    for _ in range(_TRIES):
        process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
        if (status := _first_status(name, process)) is not None:
            return status
        if process.returncode != 0:
            raise NbcacheError(
                "the nursery did not start",
                where=shlex.join(command),
                next_step="run this command, and read its error",
            )
    raise NbcacheError(
        f"the process that imports torch ahead, a nursery, ended {_TRIES} times: a package's file has "
        "changed meanwhile, or a package has started a thread",
        where=shlex.join(command),
        next_step="try again when no package is being installed",
    )


def _first_status(name: str, process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """Return the first status of the nursery of this name, which may run already; None if it failed."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None
        is_starting = protocol.is_starting(name)  # read first: a nursery that starts later answers below
        if (status := protocol.request(name, "status")) is not None:
            return status
        if process.returncode or (has_ended and not is_starting):
            return None
        time.sleep(0.1)
    return None


def stop() -> tuple[list[int], list[str]]:
    """End the user's nurseries; their forked kernels continue.

    Return the ended processes, and the locks that unknown processes hold.
    """
    ended = [answer["stopped"] for answer in _answers("stop")]
    unknown = []
    for lock, process in protocol.starting().items():
        if _end(process, lock):
            ended.append(process)
        else:
            unknown.append(lock)
    return ended, unknown


def _end(process: int, lock: str) -> bool:
    """End a process if it runs a nursery and has the lock open; return whether it does.

    Meanwhile the number may belong to another process, or it may come from another container.
    """
    if process <= 1:
        return False
    try:
        descriptor = os.pidfd_open(process)  # before the check: a signal to it reaches no later process
    except (OSError, OverflowError):
        return False
    try:
        if is_nursery := _is_nursery(f"/proc/{process}", lock):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        return is_nursery
    except OSError:  # the process has just ended, or is another user's
        return False
    finally:
        os.close(descriptor)


def _is_nursery(folder: str, lock: str) -> bool:
    """Return whether the process with this folder in `/proc` runs a nursery, and has its lock open."""
    if protocol.nursery_command([])[-1].encode() not in Path(folder, "cmdline").read_bytes().split(b"\0"):
        return False
    return any(os.path.samefile(file, lock) for file in Path(folder, "fd").iterdir() if file.exists())


def _answers(question: str) -> list[dict[str, Any]]:
    _only_on_linux()
    try:
        names = protocol.names()
    except OSError as error:
        raise NbcacheError(
            f"the folder of the nurseries cannot be used: {error}",
            where="nbcache kernel",
            next_step="make sure that it belongs to you, and that nobody else can use it",
        ) from error
    answers = (protocol.request(name, question) for name in names)
    return [answer for answer in answers if answer is not None]


def _manager() -> Any:
    try:
        import ipykernel  # noqa: F401, needed by install()
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError as error:
        raise NbcacheError(
            "ipykernel is not installed", where=sys.executable, next_step="pip install ipykernel"
        ) from error
    return KernelSpecManager()


def _only_on_linux() -> None:
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        raise NbcacheError(
            "kernels that start with torch imported need Linux",
            where="nbcache kernel",
            next_step="use the ordinary Python kernel, and `%load_ext nbcache` in it",
        )
