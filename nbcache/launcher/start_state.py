"""What a process is started with, as far as what it imports may depend on it. Imports next to nothing.

A nursery fits where all of it is what it was when the nursery was started: then a fork of it is what a fresh
process would be.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence

HARMLESS = frozenset(
    {
        "_",
        "COLORTERM",
        "COLUMNS",
        "DBUS_SESSION_BUS_ADDRESS",
        "DISPLAY",
        "LINES",
        "LS_COLORS",
        "OLDPWD",
        "PS1",
        "PWD",
        "SHLVL",
        "STY",
        "TERM",
        "TERM_PROGRAM",
        "TERM_PROGRAM_VERSION",
        "TMUX",
        "TMUX_PANE",
        "WAYLAND_DISPLAY",
        "WINDOWID",
        "XAUTHORITY",
        "XDG_SESSION_ID",
    }
)
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
