"""JupyterLab and Notebook in a real browser: a server whose folders are all below one, and pages of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import nbformat

TOKEN = "nbcache-tests"
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
_SECONDS = 120.0
"""Seconds that a busy machine may take to start a server."""
_PANEL = "[...(window.jupyterapp?.shell.widgets('main') ?? [])].find((each) => each.context && each.content)"
_THERE = f"() => ({_PANEL})?.context.isReady"
_READY = f"async () => {{ await ({_PANEL}).context.sessionContext.ready; }}"
_RUN = f"""async (index) => {{
    const panel = {_PANEL};
    window.jupyterapp.shell.activateById(panel.id);
    panel.content.deselectAll();
    panel.content.activeCellIndex = index;
    await window.jupyterapp.commands.execute('notebook:run-cell');
}}"""
_OUTPUTS = f"(index) => ({_PANEL}).content.widgets[index].model.toJSON().outputs"


def chromium() -> str | None:
    """Return the browser to test with; None where there is none."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Server:
    """A running server of both front ends, or of none."""

    def __init__(self, folder: Path, environ: Mapping[str, str], *, shows: bool = True) -> None:
        """Start it with `environ`; notebooks are in `folder`."""
        self.folder = folder
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = folder.with_suffix(".log").open("w")
        options: dict[str, Any] = {
            "ServerApp.root_dir": str(folder),
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port": self.port,
            "ServerApp.port_retries": 0,
            "IdentityProvider.token": TOKEN,
        }
        if shows:
            settings = Path(environ["JUPYTER_CONFIG_DIR"]) / "lab" / "user-settings" / "@jupyterlab"
            news = settings / "apputils-extension" / "notification.jupyterlab-settings"
            news.parent.mkdir(parents=True)
            news.write_text('{"fetchNews": "false"}')  # or it asks
            options |= {
                "ServerApp.jpserver_extensions": "{'jupyterlab': True, 'notebook': True}",
                "LabApp.expose_app_in_browser": True,
                "JupyterNotebookApp.expose_app_in_browser": True,
                "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
            }
        module = "jupyterlab" if shows else "jupyter_server"
        command = [sys.executable, "-m", module, "--no-browser", "--allow-root"]
        command += [f"--{name}={value}" for name, value in options.items()]
        self._process = subprocess.Popen(
            command, env=dict(environ), stdout=self._log, stderr=subprocess.STDOUT, cwd=folder
        )
        deadline = time.monotonic() + _SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.url}/api/status?token={TOKEN}", timeout=5).close()
                return
            except (urllib.error.URLError, TimeoutError):
                time.sleep(0.1)
        self.stop()
        raise RuntimeError(Path(self._log.name).read_text())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End it and its kernels."""
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._log.close()


class Page:
    """A notebook that is open in a tab."""

    def __init__(self, server: Server, tab: Any, front_end: str, name: str) -> None:
        self.server, self.tab, self.name = server, tab, name
        self.path = server.folder / name
        place = "lab/tree" if front_end == "lab" else "notebooks"
        reset = "&reset" if front_end == "lab" else ""
        tab.goto(f"{server.url}/{place}/{name}?token={TOKEN}{reset}")
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        self.tab.wait_for_function(_THERE)
        self.tab.evaluate(_READY)
        self.tab.wait_for_selector(".jp-Notebook .jp-Cell")

    def command(self, name: str, arguments: Any = None) -> None:
        """Have the front end do something."""
        self.tab.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args ?? {})", [name, arguments]
        )

    def run(self, index: int, *, wait: bool = True) -> None:
        """Run a cell, and wait for its end."""
        if wait:
            self.tab.evaluate(_RUN, index)
        else:
            self.tab.evaluate(f"(index) => {{ void ({_RUN})(index); }}", index)

    def cell(self, index: int) -> Any:
        """Return what finds parts of a cell."""
        return self.tab.locator(".jp-Notebook .jp-Cell").nth(index)

    def labels(self, index: int) -> list[str]:
        """Return the labels in a cell's output: of titles and buttons, without those with digits."""
        texts = self.cell(index).locator("b, .jupyter-button").all_inner_texts()
        return [*dict.fromkeys(text for text in texts if text.strip() and not any(map(str.isdigit, text)))]

    def outputs(self, index: int) -> list[dict[str, Any]]:
        """Return the outputs of a cell as they would be saved."""
        return list(self.tab.evaluate(_OUTPUTS, index))

    def save(self) -> Any:
        """Save the notebook, and return what the file holds."""
        self.tab.evaluate(f"async () => {{ await ({_PANEL}).context.save(); }}")
        return json.loads(self.path.read_text())

    def restart(self) -> None:
        """Restart the kernel, and let the page be."""
        self.tab.evaluate(f"async () => {{ await ({_PANEL}).context.sessionContext.restartKernel(); }}")

    def shut_down(self) -> None:
        """End the kernel, and let the page be."""
        self.tab.evaluate(f"async () => {{ await ({_PANEL}).context.sessionContext.shutdown(); }}")

    def theme(self, name: str) -> None:
        """Choose a theme: `JupyterLab Dark`."""
        self.command("apputils:change-theme", {"theme": name})
        dark = "Dark" in name
        self.tab.wait_for_function(f"document.body.dataset.jpThemeLight === '{str(not dark).lower()}'")


def save_notebook(path: Path, *sources: str) -> None:
    """Save a notebook with these code cells."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), path)


def jupyter_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with what Jupyter has installed beside this interpreter, wherever packages are."""
    import ipywidgets

    beside = Path(ipywidgets.__file__).parents[4] / "share" / "jupyter"
    return {**environ, "JUPYTER_PATH": str(beside), "HOME": environ.get("HOME", os.environ["HOME"])}


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield made
        finally:
            made.close()
