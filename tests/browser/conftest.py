"""A server with both front ends, and a browser, for all tests of one worker."""

from __future__ import annotations

import importlib.util
import os

import pytest

from support import lab
from support.front_door import environ_below


def _not_run(why):
    """Say that panels are not tested in a browser; where CI is set, that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"{why}, and CI is set", pytrace=False)
    pytest.skip(f"NOT RUN, panels in a browser: {why}")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Return a running server; its notebooks' folder is empty."""
    if lab.chromium() is None:
        _not_run("there is no Chromium (on Debian: apt install chromium)")
    for package in ("jupyterlab", "notebook", "playwright"):
        if importlib.util.find_spec(package) is None:
            _not_run(f"{package} is not installed (pip install 'nbcache[browser]')")
    folder = tmp_path_factory.mktemp("browser")
    (folder / "notebooks").mkdir()
    started = lab.Server(folder / "notebooks", lab.jupyter_environ(environ_below(folder / "environ")))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def chromium(server):
    with lab.browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def open_page(server, chromium):
    """Return a function that opens a notebook in a tab of its own: `open_page("lab", "a.ipynb", *sources)`.

    With sources, it is saved first. No tab asks for anything that is not on the server.
    """
    contexts, foreign = [], []

    def open_page(front_end, name, *sources, width=1400):
        if sources:
            lab.save_notebook(server.folder / name, *sources)
        context = chromium.new_context(viewport={"width": width, "height": 1000})
        context.set_default_timeout(60_000)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda each: print(each.text) if each.type == "error" else None)  # shown on failure
        tab.on("request", lambda each: foreign.append(each.url) if _is_foreign(each.url, server) else None)
        return lab.Page(server, tab, front_end, name)

    yield open_page
    for context in contexts:
        context.close()
    assert not foreign, "nothing is fetched from elsewhere"


def _is_foreign(url, server):
    return not url.startswith((server.url, server.url.replace("http:", "ws:"), "data:", "blob:", "about:"))
