"""Locate the notebook that this kernel runs. Callers repeat this, since notebooks can be renamed."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from nbcache.core.threads import start_thread

_Server: TypeAlias = Mapping[str, Any]
"""The values in a running server's own file: url, token, root_dir, pid."""
_Sessions: TypeAlias = list[tuple[dict[str, Any], str]]

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Sends requests to local servers without the user's proxy, which must not see their tokens."""
_TIMEOUT = 1.0
"""The longest wait for the answers of all servers, in seconds; they are asked in parallel."""
_MOST_SERVERS = 8
"""The most servers to ask, the newest first: a killed server leaves its file behind."""


@dataclass(frozen=True, slots=True)
class Location:
    """The notebook's absolute path (empty in a terminal or papermill), and how it was found."""

    path: str
    found_by: str


def locate(
    setting: str,
    namespace: Mapping[str, Any],
    environ: Mapping[str, str],
    connection_file: str | None,
    *,
    timeout: float = _TIMEOUT,
) -> Location:
    """Return the notebook, from the first source that has it: setting, VS Code, Jupyter server, environment.

    `connection_file` is the kernel's, None without a kernel. The server is right even after a rename.
    `JPY_SESSION_NAME` goes stale, and a kernel inherits it if another kernel has started it.
    """
    if setting:
        return Location(os.path.abspath(os.path.expanduser(setting)), "the setting `notebook`")
    vscode = namespace.get("__vsc_ipynb_file__")
    if isinstance(vscode, str) and vscode:
        return Location(os.path.abspath(vscode), "VS Code")
    if connection_file:
        kernel_id = Path(connection_file).stem.removeprefix("kernel-")
        for server, sessions in _ask_servers(environ, timeout):
            for session, path in sessions or ():
                with suppress(LookupError, TypeError, AttributeError):  # an unknown kind of session
                    if session["kernel"]["id"] == kernel_id and session.get("type", "notebook") == "notebook":
                        return Location(path, f"the Jupyter server at {server['url']}")
        name = environ.get("JPY_SESSION_NAME", "")
        if name.endswith(".ipynb") and os.path.isfile(name):
            with suppress(OSError, ValueError, AttributeError):  # the connection file is gone, or no object
                # It must be this kernel's own session, not that of a kernel that started this one.
                if json.loads(Path(connection_file).read_text()).get("jupyter_session") == name:
                    return Location(os.path.abspath(name), "JPY_SESSION_NAME")
    return Location("", "not found: reports and artifacts belong to the environment instead")


def opened_by(notebook: Path) -> str | None:
    """Return the URL of a Jupyter server that has `notebook` open, or that runs but does not answer."""
    wanted = os.path.realpath(notebook)
    for server, sessions in _ask_servers(os.environ, _TIMEOUT):
        if sessions is None:
            if isinstance(pid := server.get("pid"), int) and os.path.exists(f"/proc/{pid}"):
                return f"{server['url']}, which does not answer"
        elif any(os.path.realpath(path) == wanted for _, path in sessions):
            return str(server["url"])
    return None


def _servers() -> Iterator[_Server]:
    """Yield the running Jupyter servers, newest first."""
    try:
        from jupyter_core.paths import jupyter_runtime_dir
    except ImportError:
        return
    files = {}
    for file in Path(jupyter_runtime_dir()).glob("*server-*.json"):
        with suppress(OSError):  # a server that ends removes its file
            files[file] = file.stat().st_mtime
    for file in sorted(files, key=files.__getitem__, reverse=True)[:_MOST_SERVERS]:
        with suppress(OSError, ValueError):
            server = json.loads(file.read_text())
            if isinstance(server, dict) and "url" in server:
                yield server


def _ask_servers(environ: Mapping[str, str], timeout: float) -> Iterator[tuple[_Server, _Sessions | None]]:
    """Yield each server with its sessions, or None if it is silent for `timeout` s, as a killed one is."""
    answers: SimpleQueue[tuple[int, _Sessions | None]] = SimpleQueue()
    deadline = time.monotonic() + timeout
    silent = dict(enumerate(_servers()))

    def ask(number: int) -> None:
        sessions = None
        with suppress(Exception):  # any other program may listen at that port now
            sessions = _sessions(silent[number], environ, timeout)
        answers.put((number, sessions))

    threads = [start_thread(partial(ask, number), "locate") for number in silent]
    with suppress(Empty):
        for _ in filter(None, threads):
            number, sessions = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            yield silent.pop(number), sessions
    yield from ((server, None) for server in silent.values())


def _sessions(server: _Server, environ: Mapping[str, str], timeout: float) -> _Sessions:
    """Return a server's sessions, each with the absolute path of its notebook."""
    token = server.get("token") or environ.get("JUPYTERHUB_API_TOKEN", "")
    headers = {"Authorization": f"token {token}"}
    request = urllib.request.Request(server["url"] + "api/sessions", headers=headers)
    root = server.get("root_dir") or server.get("notebook_dir") or ""
    sessions = []
    with _DIRECT.open(request, timeout=timeout) as answer:
        for session in json.load(answer):
            with suppress(KeyError, TypeError):  # an unknown kind of session
                sessions.append((session, os.path.abspath(os.path.join(root, session["path"]))))
    return sessions
