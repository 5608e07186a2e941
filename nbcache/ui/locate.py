"""Find out which notebook this kernel runs: asked anew whenever it matters, since notebooks are renamed."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["Location", "locate", "opened_by"]

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks servers of this machine without the user's proxy, which must not see their tokens."""
_TIMEOUT = 0.5
"""Seconds that servers may take to answer, all of them together where they are asked at once."""
_MOST_SERVERS = 8
"""A server that was killed leaves its file behind: of many, the newest are asked."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where the notebook is, and how that was found out."""

    path: str
    """Absolute path; empty where there is no notebook to be found (a terminal, nbclient, papermill)."""
    found_by: str


def locate(
    setting: str,
    namespace: Mapping[str, Any],
    environ: Mapping[str, str],
    connection_file: str | None,
    *,
    timeout: float = _TIMEOUT,
) -> Location:
    """Return the notebook, by the first of these that knows: setting, VS Code, Jupyter server, environment.

    `namespace` is the user's; `connection_file` is the kernel's, None where there is no kernel; all
    servers together may take `timeout` seconds.
    The server is right even after a rename; `JPY_SESSION_NAME` goes stale, and a kernel that was
    started inside another kernel inherits it.
    """
    if setting:
        return Location(os.path.abspath(os.path.expanduser(setting)), "the setting `notebook`")
    vscode = namespace.get("__vsc_ipynb_file__")
    if isinstance(vscode, str) and vscode:
        return Location(os.path.abspath(vscode), "VS Code")
    if connection_file:
        kernel_id = Path(connection_file).stem.removeprefix("kernel-")
        if location := _ask_all(_servers(), kernel_id, environ, timeout):
            return location
        name = environ.get("JPY_SESSION_NAME", "")
        if name.endswith(".ipynb") and os.path.isfile(name) and _session_of(connection_file) == name:
            return Location(os.path.abspath(name), "JPY_SESSION_NAME")
    return Location("", "not found: reports and artifacts are kept for the environment instead")


def opened_by(notebook: Path) -> str | None:
    """Return the URL of a Jupyter server of this user that runs a kernel for `notebook`; None without one.

    A server that is alive and does not answer may: it counts.
    """
    wanted = os.path.realpath(notebook)
    for server in _servers():
        try:
            sessions = _sessions(server, os.environ)
        except Exception:  # whatever listens at that port now
            if _is_alive(server.get("pid")):
                return f"{server['url']}, which does not answer"
            continue
        for session in sessions:
            with suppress(Exception):  # of a kind that we do not know
                if os.path.realpath(_path(server, session)) == wanted:
                    return str(server["url"])
    return None


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's now
    return True


def _servers() -> Iterator[dict[str, Any]]:
    """Yield what running Jupyter servers wrote of themselves: url, token, root_dir; newest first."""
    try:
        from jupyter_core.paths import jupyter_runtime_dir
    except ImportError:
        return
    files = {}
    for file in Path(jupyter_runtime_dir()).glob("*server-*.json"):
        with suppress(OSError):  # a server that has just ended takes its file along
            files[file] = file.stat().st_mtime
    for file in sorted(files, key=files.__getitem__, reverse=True)[:_MOST_SERVERS]:
        with suppress(OSError, ValueError):
            server = json.loads(file.read_text())
            if isinstance(server, dict) and "url" in server:
                yield server


def _ask_all(
    servers: Iterable[Mapping[str, Any]], kernel_id: str, environ: Mapping[str, str], timeout: float
) -> Location | None:
    """Return what the first server that runs this kernel says, or None when none does, or not in time."""
    answers: SimpleQueue[Location | None] = SimpleQueue()
    deadline = time.monotonic() + timeout

    def ask(server: Mapping[str, Any]) -> None:
        location = None
        with suppress(Exception):  # whatever listens at that port now, it must not stop the others
            if path := _ask(server, kernel_id, environ, timeout):
                location = Location(path, f"the Jupyter server at {server['url']}")
        answers.put(location)

    threads = [threading.Thread(target=ask, args=(server,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    for _ in threads:
        try:
            if location := answers.get(timeout=max(0.0, deadline - time.monotonic())):
                return location
        except Empty:
            break
    return None


def _ask(server: Mapping[str, Any], kernel_id: str, environ: Mapping[str, str], timeout: float) -> str | None:
    """Return the path of the notebook that `server` runs on this kernel, or None."""
    for session in _sessions(server, environ, timeout):
        if session["kernel"]["id"] == kernel_id and session.get("type", "notebook") == "notebook":
            return _path(server, session)
    return None


def _sessions(
    server: Mapping[str, Any], environ: Mapping[str, str], timeout: float = _TIMEOUT
) -> list[dict[str, Any]]:
    token = server.get("token") or environ.get("JUPYTERHUB_API_TOKEN", "")
    request = urllib.request.Request(
        server["url"] + "api/sessions", headers={"Authorization": f"token {token}"}
    )
    with _DIRECT.open(request, timeout=timeout) as answer:
        return json.load(answer)  # type: ignore[no-any-return]


def _path(server: Mapping[str, Any], session: Mapping[str, Any]) -> str:
    root = server.get("root_dir") or server.get("notebook_dir") or ""
    return os.path.abspath(os.path.join(root, session["path"]))


def _session_of(connection_file: str) -> str | None:
    """Return the session that the kernel was started for, as its connection file has it."""
    try:
        connection = json.loads(Path(connection_file).read_text())
    except (OSError, ValueError):
        return None
    return connection.get("jupyter_session") if isinstance(connection, dict) else None
