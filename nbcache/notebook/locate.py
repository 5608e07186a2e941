"""Find out which notebook this kernel runs: asked anew whenever it matters, since notebooks are renamed."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Location", "locate"]

_TIMEOUT = 0.5
"""Seconds that a server may take to answer."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where the notebook is, and how that was found out."""

    path: str
    """Absolute path; empty where there is no notebook to be found (a terminal, nbclient, papermill)."""
    found_by: str


def locate(
    setting: str, namespace: Mapping[str, Any], environ: Mapping[str, str], connection_file: str | None
) -> Location:
    """Return the notebook, by the first of these that knows: setting, VS Code, Jupyter server, environment.

    `namespace` is the user's; `connection_file` is the kernel's, None where there is no kernel.
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
        for server in _servers():
            with suppress(OSError, ValueError, KeyError, TypeError):
                if path := _ask(server, kernel_id, environ):
                    return Location(path, f"the Jupyter server at {server['url']}")
        name = environ.get("JPY_SESSION_NAME", "")
        if name.endswith(".ipynb") and os.path.isfile(name) and _knows_session(connection_file):
            return Location(os.path.abspath(name), "JPY_SESSION_NAME")
    return Location("", "not found: reports and artifacts are kept for the environment instead")


def _servers() -> Iterator[dict[str, Any]]:
    """Yield what running Jupyter servers wrote of themselves: url, token, root_dir; newest first."""
    try:
        from jupyter_core.paths import jupyter_runtime_dir
    except ImportError:
        return
    files = Path(jupyter_runtime_dir()).glob("*server-*.json")
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[:8]:
        with suppress(OSError, ValueError):
            server = json.loads(file.read_text())
            if isinstance(server, dict) and "url" in server:
                yield server


def _ask(server: Mapping[str, Any], kernel_id: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of the notebook that `server` runs on this kernel, or None."""
    token = server.get("token") or environ.get("JUPYTERHUB_API_TOKEN", "")
    request = urllib.request.Request(
        server["url"] + "api/sessions", headers={"Authorization": f"token {token}"}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        sessions = json.load(answer)
    for session in sessions:
        if session["kernel"]["id"] == kernel_id and session.get("type", "notebook") == "notebook":
            root = server.get("root_dir") or server.get("notebook_dir") or ""
            return os.path.abspath(os.path.join(root, session["path"]))
    return None


def _knows_session(connection_file: str) -> bool:
    try:
        return "jupyter_session" in json.loads(Path(connection_file).read_text())
    except (OSError, ValueError):
        return False
