"""The state that a process is started with, as far as imports may depend on it. Imports next to nothing.

A nursery fits a launcher with the same state: then a fork of the nursery is what a fresh process would be.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence

_HARMLESS = """
    _ COLORTERM COLUMNS DBUS_SESSION_BUS_ADDRESS DISPLAY LINES LS_COLORS OLDPWD PS1 PWD SHLVL STY TERM
    TERM_PROGRAM TERM_PROGRAM_VERSION TMUX TMUX_PANE WAYLAND_DISPLAY WINDOWID XAUTHORITY XDG_SESSION_ID
"""
"""Environment variables that no library reads at import; the kernel itself has its own."""
_HARMLESS_BEGINNINGS = ("JPY_", "SSH_", "VSCODE_")
_LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
_NURSERY = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from nbcache.launcher.nursery import main; main(*sys.argv[1:])"
)
_INHERITED = ("Cap", "NoNewPrivs", "Seccomp")
"""Beginnings of the lines of /proc/self/status that children inherit.

Ignored and blocked signals are not among them: a forked kernel gets those of its launcher.
"""


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    harmless = {name for name in environ if name.startswith(_HARMLESS_BEGINNINGS)}
    return {name: environ[name] for name in environ.keys() - harmless - {*_HARMLESS.split()}}


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
    """Return the state that this process was started with; call it before anything changes it."""
    namespaces = sorted(os.listdir("/proc/self/ns"))
    return {
        "python": [sys.executable, sys.prefix, sys.base_prefix, sys.version, *python_options()],
        "path": sys.path,
        "environ": kept_variables(os.environ),
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


def name_of(state: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32]


def _read(name: str) -> str:
    with open(f"/proc/self/{name}") as stream:
        return stream.read()


def _read_if_there(name: str) -> str | None:
    try:
        return _read(name)
    except OSError:  # the file may be unreadable for everybody, or missing on this system
        return None
