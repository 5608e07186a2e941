"""Which notebook a kernel runs: asked of servers that misbehave, and of a real one."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
import urllib.request
from ast import literal_eval
from contextlib import contextmanager
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

from nbcache.ui import locate as locating
from nbcache.ui.locate import Location, locate, opened_by
from support import lab
from support.front_door import connected, serving

KERNEL_ID = "9b2e6a10-4f0e-4d0b-8d8c-0c4c7a1f3e55"
TOKEN = "a token"
NOWHERE = ""
AMPLE = 10.0
"""Seconds that a server may take where the time is not the point: a busy machine needs more."""


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """Return Jupyter's runtime folder, an empty one; and have the user's proxy be one that is not there."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    return folder


@pytest.fixture
def connection_file(runtime):
    """Return the connection file of a kernel that no session was named to."""
    file = runtime / f"kernel-{KERNEL_ID}.json"
    file.write_text("{}")
    return file


@pytest.fixture
def stop():
    """Return an event that is set at the end of the test: servers that hang wait for it."""
    event = threading.Event()
    yield event
    event.set()


@contextmanager
def server(runtime, respond, *, token=TOKEN, name="jpserver-1.json", **described):
    """Run a server whose GET requests `respond` handles, with the file by which kernels find it."""
    with serving(respond) as http:
        describe(runtime / name, http.server_port, token=token, **described)
        yield http


def describe(file, port, **described):
    """Write what a server writes of itself."""
    known = {"url": f"http://127.0.0.1:{port}/", "root_dir": "/root of the server", "pid": os.getpid()}
    file.write_text(json.dumps(known | described))


def answering(body, status=200):
    """Return a handler that answers with `body`."""

    def respond(request):
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return respond


def sessions_of(kernel_id=KERNEL_ID, path="folder/nb.ipynb", **fields):
    """Return the sessions that a server has: one of another kernel, and this one."""
    other = {"kernel": {"id": "another"}, "path": "other.ipynb", "type": "notebook"}
    this = {"kernel": {"id": kernel_id}, "path": path, "type": "notebook"}
    return json.dumps([other, this | fields]).encode()


def located(connection_file, setting="", namespace=(), environ=(), *, timeout=AMPLE):
    return locate(setting, dict(namespace), dict(environ), str(connection_file), timeout=timeout)


# The order


def test_the_setting_comes_first_then_vscode_then_the_server_then_the_environment(
    runtime, connection_file, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", "/home/of/someone")
    monkeypatch.chdir(tmp_path)
    vscode, stale = {"__vsc_ipynb_file__": "/vscode.ipynb"}, named_session(connection_file, tmp_path)
    with server(runtime, answering(sessions_of())):
        assert located(connection_file, "nb.ipynb", vscode).path == str(tmp_path / "nb.ipynb")
        home = located(connection_file, "~/nb.ipynb", vscode)
        assert home == Location("/home/of/someone/nb.ipynb", "the setting `notebook`")
        assert located(connection_file, namespace=vscode) == Location("/vscode.ipynb", "VS Code")
        found = located(connection_file, environ=stale)
    assert found.path == "/root of the server/folder/nb.ipynb"
    assert found.found_by.startswith("the Jupyter server at http://127.0.0.1:")
    assert located(connection_file, environ=stale).found_by == "JPY_SESSION_NAME"


@pytest.mark.parametrize("value", [None, ["/nb.ipynb"]])
def test_a_variable_of_vscodes_name_that_is_no_path_is_passed_over(connection_file, value):
    assert located(connection_file, namespace={"__vsc_ipynb_file__": value}).path == NOWHERE


def test_there_is_nothing_to_find_without_a_kernel(runtime, tmp_path):
    with server(runtime, answering(sessions_of())):
        assert locate("", {}, {"JPY_SESSION_NAME": str(tmp_path / "nb.ipynb")}, None).path == NOWHERE


# Servers


@pytest.mark.parametrize("described", [{"root_dir": "/r"}, {"root_dir": None, "notebook_dir": "/r"}])
def test_paths_start_at_the_servers_root_as_new_and_old_servers_name_it(runtime, connection_file, described):
    with server(runtime, answering(sessions_of()), name="nbserver-1.json", **described):
        assert located(connection_file).path == "/r/folder/nb.ipynb"


def test_a_server_is_shown_its_own_token_and_the_hubs_where_it_has_none(runtime, connection_file):
    seen = []

    def respond(request):
        seen.append((request.path, request.headers["Authorization"]))
        answering(sessions_of("another"))(request)

    hub = {"JUPYTERHUB_API_TOKEN": "the hub's token"}
    with server(runtime, respond):
        located(connection_file, environ=hub)
    with server(runtime, respond, token=""):
        located(connection_file, environ=hub)
    assert seen == [("/api/sessions", f"token {TOKEN}"), ("/api/sessions", "token the hub's token")]


def test_a_console_on_the_kernel_is_not_its_notebook(runtime, connection_file):
    with server(runtime, answering(sessions_of(type="console"))):
        assert located(connection_file).path == NOWHERE


def hanging(stop):
    """Return handlers of servers that answer never, or byte by byte."""

    def silent(request):
        stop.wait(20)

    def dripping(request):
        request.send_response(200)
        request.end_headers()
        while not stop.wait(0.05):
            request.wfile.write(b" ")

    return [silent, dripping]


@pytest.mark.parametrize("kind", [0, 1], ids=["silent", "dripping"])
def test_servers_that_hang_cost_no_more_than_the_timeout_in_all(runtime, connection_file, stop, kind):
    hang = hanging(stop)[kind]
    with server(runtime, hang), server(runtime, hang, name="jpserver-2.json"):
        began = time.monotonic()
        assert located(connection_file, timeout=0.5).path == NOWHERE
        assert 0.3 < time.monotonic() - began < 60.0


def test_servers_that_hang_keep_nobody_from_being_asked(runtime, connection_file, stop):
    silent, dripping = hanging(stop)
    with (
        server(runtime, answering(sessions_of())),
        server(runtime, silent, name="jpserver-2.json"),
        server(runtime, dripping, name="jpserver-3.json"),
    ):
        os.utime(runtime / "jpserver-1.json", (0, 0))
        began = time.monotonic()
        assert located(connection_file).path.endswith("nb.ipynb")
        assert time.monotonic() - began < AMPLE / 2


@pytest.mark.parametrize("kind", [0, 1], ids=["silent", "dripping"])
def test_a_server_that_has_the_notebook_open_is_named_before_one_that_hangs(
    runtime, stop, tmp_path, monkeypatch, kind
):
    opening = answering(sessions_of(path="nb.ipynb"))
    monkeypatch.setattr(locating, "_TIMEOUT", AMPLE)
    with (
        server(runtime, hanging(stop)[kind]) as hung,
        server(runtime, opening, name="jpserver-2.json", root_dir=str(tmp_path)) as answers,
    ):
        assert opened_by(tmp_path / "nb.ipynb") == f"http://127.0.0.1:{answers.server_port}/"
        monkeypatch.setattr(locating, "_TIMEOUT", 0.3)
        silent = f"http://127.0.0.1:{hung.server_port}/, which does not answer"
        (runtime / "jpserver-2.json").unlink()
        assert opened_by(tmp_path / "nb.ipynb") == silent


GARBAGE = {
    "no JSON": answering(b"<html>not Jupyter</html>"),
    "no list": answering(b'{"message": "no"}'),
    "a list of something else": answering(b'[1, "two", null, []]'),
    "no kernel": answering(b'[{"path": "nb.ipynb"}]'),
    "a path that is none": answering(sessions_of(path=7)),
    "nested too deeply": answering(b"[" * 100_000),
    "no HTTP": lambda request: request.wfile.write(b"\0\1\2 hello\r\n\r\n"),
    "cut short": lambda request: request.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n[{"),
    "an error": answering(b"{}", 500),
}


@pytest.mark.parametrize("respond", GARBAGE.values(), ids=GARBAGE)
def test_an_answer_that_makes_no_sense_is_passed_over(runtime, connection_file, respond):
    with server(runtime, respond):
        assert located(connection_file).path == NOWHERE
        with server(runtime, answering(sessions_of()), name="jpserver-2.json"):
            assert located(connection_file).path.endswith("nb.ipynb")


FILES = {
    "no JSON": "{",
    "no object": "[]",
    "a url that is none": '{"url": 7}',
    "a Unix socket": '{"url": "http+unix://%2Ftmp%2Fjupyter.sock/"}',
    "a token that is none": '{"url": "http://127.0.0.1:9/", "token": "two\\nlines"}',
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_what_a_server_wrote_is_passed_over_where_it_makes_no_sense(runtime, connection_file, content):
    with server(runtime, answering(sessions_of())):
        (runtime / "jpserver-2.json").write_text(content)
        (runtime / "jpserver-3.json").symlink_to(runtime / "gone.json")
        assert located(connection_file).path.endswith("nb.ipynb")


def test_nothing_is_found_where_there_is_no_runtime_folder(connection_file, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "none"))
    assert located(connection_file).path == NOWHERE


# JPY_SESSION_NAME


def named_session(connection_file, folder, name="nb.ipynb"):
    """Return the environment of a kernel that a server without an API to ask started for a notebook."""
    notebook = folder / name
    notebook.touch()
    connection_file.write_text(json.dumps({"jupyter_session": str(notebook)}))
    return {"JPY_SESSION_NAME": str(notebook)}


def test_a_session_name_without_a_notebook_behind_it_is_not_believed(connection_file, tmp_path):
    assert located(connection_file, environ=named_session(connection_file, tmp_path, "a.py")).path == NOWHERE
    environ = named_session(connection_file, tmp_path)
    (tmp_path / "nb.ipynb").rename(tmp_path / "renamed.ipynb")
    assert located(connection_file, environ=environ).path == NOWHERE


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"jupyter_session": "other.ipynb"}'])
def test_a_session_name_that_was_inherited_is_not_believed(connection_file, tmp_path, content):
    environ = named_session(connection_file, tmp_path)
    connection_file.write_text(content)
    assert located(connection_file, environ=environ).path == NOWHERE
    connection_file.unlink()
    assert located(connection_file, environ=environ).path == NOWHERE


# The real thing


class Jupyter(lab.Server):
    def ask(self, method, path, body=None):
        request = urllib.request.Request(
            f"{self.url}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {lab.TOKEN}"},
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return json.loads(answer.read() or b"null")


@pytest.fixture
def jupyter(isolated, tmp_path):
    """Return a Jupyter server that runs in `tmp_path / "notebooks"`."""
    if importlib.util.find_spec("jupyter_server") is None:
        pytest.skip("jupyter_server is not installed: it comes with the extra `test`")
    (tmp_path / "notebooks" / "folder").mkdir(parents=True)
    server = Jupyter(tmp_path / "notebooks", isolated, shows=False)
    yield server
    server.stop()


DOCTOR = """
import json
from IPython.utils.capture import capture_output
with capture_output():  # one line says that it is loaded
    get_ipython().run_line_magic("load_ext", "nbcache")
with capture_output() as captured:
    get_ipython().run_line_magic("nbcache", "doctor --json")
found, = [check["found"] for check in json.loads(captured.stdout)["checks"] if check["name"] == "notebook"]
"""


def found_in(client):
    """Return what `%nbcache doctor` says of the notebook in a kernel."""
    reply = client.execute_interactive(DOCTOR, user_expressions={"found": "found"}, timeout=60)
    assert reply["content"]["status"] == "ok", reply["content"]
    return literal_eval(reply["content"]["user_expressions"]["found"]["data"]["text/plain"])


@pytest.mark.compile
def test_a_kernel_finds_its_notebook_on_a_real_server_and_again_when_it_is_renamed(jupyter, isolated):
    (jupyter.folder / "folder" / "first.ipynb").touch()
    described = {"name": "first.ipynb", "path": "folder/first.ipynb", "type": "notebook"}
    session = jupyter.ask("POST", "sessions", described | {"kernel": {"name": "python3"}})
    kernel_id = session["kernel"]["id"]
    with connected(Path(isolated["JUPYTER_RUNTIME_DIR"]) / f"kernel-{kernel_id}.json") as client:
        first = jupyter.folder / "folder" / "first.ipynb"
        assert found_in(client) == f"{first}, found by the Jupyter server at {jupyter.url}/"
        jupyter.ask("PATCH", "contents/folder/first.ipynb", {"path": "renamed.ipynb"})
        jupyter.ask("PATCH", f"sessions/{session['id']}", {"path": "renamed.ipynb", "name": "renamed.ipynb"})
        assert found_in(client).startswith(f"{jupyter.folder / 'renamed.ipynb'}, found by")
    jupyter.ask("DELETE", f"sessions/{session['id']}")


def test_a_kernel_finds_no_notebook_when_another_kernel_started_it(isolated, tmp_path, monkeypatch):
    notebook = tmp_path / "outer.ipynb"
    notebook.touch()
    for name, value in isolated.items():  # the manager below stands for code in the outer kernel
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook))
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(extra_arguments=["--log-level=ERROR"])
    try:
        with connected(manager.connection_file) as client:
            assert found_in(client).startswith("not found")
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
