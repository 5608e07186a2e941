"""Forked kernels through what people use: a server, a debugger, papermill, nbclient, an editor, a prompt."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.connect import write_connection_file

from support.front_door import Kernel, connected, reply_to
from support.lab import TOKEN, Server
from support.nurseries import NURSERY, Place, Start, nursery_of
from support.redis_servers import wait_until

pytestmark = [pytest.mark.compile, pytest.mark.xdist_group("files of packages")]  # for its fixtures


def control(kernel: Kernel, command: str, arguments: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the answer to a request of a debugger."""
    client = kernel.client
    content = {"type": "request", "seq": number, "command": command, "arguments": arguments}
    message = client.session.msg("debug_request", content)
    client.control_channel.send(message)
    while (reply := client.get_control_msg(timeout=60))["parent_header"].get("msg_id") != message["msg_id"]:
        pass
    answer: dict[str, Any] = reply["content"]
    assert answer.get("success", True), answer
    return answer


def event(kernel: Kernel, name: str) -> dict[str, Any]:
    """Return the next event of a debugger that has this name."""
    while True:
        message = kernel.client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "debug_event" and message["content"]["event"] == name:
            found: dict[str, Any] = message["content"]
            return found


def test_a_debugger_stops_at_a_breakpoint_in_a_cell_that_uses_torch(start: Start) -> None:
    kernel = start()
    assert nursery_of(kernel)
    cell = "import torch\nvalue = torch.ones(2)\ntotal = float(value.sum())\n"
    control(kernel, "initialize", {"clientID": "test", "adapterID": "", "pathFormat": "path"}, 1)
    control(kernel, "attach", {}, 2)
    path = control(kernel, "dumpCell", {"code": cell}, 3)["body"]["sourcePath"]
    found = control(kernel, "setBreakpoints", {"breakpoints": [{"line": 3}], "source": {"path": path}}, 4)
    assert found["body"]["breakpoints"][0]["verified"]
    control(kernel, "configurationDone", {}, 5)

    message = kernel.client.execute(cell)
    thread = event(kernel, "stopped")["body"]["threadId"]
    frame = control(kernel, "stackTrace", {"threadId": thread}, 6)["body"]["stackFrames"][0]
    assert frame["line"] == 3
    control(kernel, "continue", {"threadId": thread}, 7)
    assert reply_to(kernel.client, message)["content"]["status"] == "ok" and kernel.ask("total") == 2.0
    control(kernel, "disconnect", {}, 8)


def notebook(place: Place, name: str, *cells: str) -> Path:
    """Return a notebook of this kernel, written beside the others."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata.kernelspec = {"name": "nbcache", "display_name": "Python 3 (nbcache)", "language": "python"}
    path = place.cwd / name
    nbformat.write(made, path)
    return path


def texts(path: Path) -> list[str]:
    """Return what the cells of a notebook have printed."""
    cells = nbformat.read(path, as_version=4).cells
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


CELLS = (
    f"print(bool({NURSERY}))",
    "import os, subprocess, sys, torch\nprint(torch.ones(2).sum().item())",
    "os.write(1, b'by number\\n'); subprocess.run([sys.executable, '-c', 'print(\"a child\")']);",
)
PRINTED = ["True\n", "2.0\n", "by number\na child\n"]


@pytest.mark.parametrize(
    "code",
    [
        "from papermill.__main__ import papermill; papermill(['in.ipynb', 'out.ipynb', '--log-level=ERROR'])",
        "from nbclient.cli import main; main(['in.ipynb', '--output=out'])",
    ],
    ids=["papermill", "nbclient"],
)
def test_notebooks_are_run_with_it(place: Place, start: Start, code: str) -> None:
    notebook(place, "in.ipynb", *CELLS)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=place.cwd,
        env=place.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert texts(place.cwd / "out.ipynb") == PRINTED


def test_an_editor_starts_the_command_itself_and_interrupts_it_by_a_signal(
    place: Place, start: Start
) -> None:
    folder = Path(place.environ["JUPYTER_DATA_DIR"]) / "kernels" / "nbcache"
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec.get("interrupt_mode", "signal") == "signal"
    file, _ = write_connection_file(str(place.folder / "editor.json"))
    command = [each.replace("{connection_file}", file) for each in spec["argv"]]
    process = subprocess.Popen(
        command,
        cwd=place.cwd,
        env={name: value for name, value in place.environ.items() if name != "JPY_PARENT_PID"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with connected(file) as client:
            asked = client.execute("", silent=True, user_expressions={"asked": NURSERY}, reply=True)
            assert asked["content"]["user_expressions"]["asked"]["data"]["text/plain"] != "0"
            message = client.execute("import time\nprint('begun', flush=True)\ntime.sleep(99)")
            while client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
                pass
            time.sleep(1.5)  # ipykernel looks after its parent each second
            process.send_signal(2)  # to the launcher alone
            assert reply_to(client, message)["content"]["ename"] == "KeyboardInterrupt"
            client.shutdown()
            assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_prompt_is_answered(start: Start) -> None:
    kernel = start()
    message = kernel.client.execute("name = input('who? ')", allow_stdin=True)
    assert kernel.client.get_stdin_msg(timeout=60)["content"]["prompt"] == "who? "
    kernel.client.input("Ada")
    reply_to(kernel.client, message)
    assert kernel.ask("name") == "Ada"


def test_a_server_starts_interrupts_restarts_and_ends_it(place: Place, start: Start) -> None:
    server = Server(place.cwd, place.environ)

    def rest(path: str, data: dict[str, Any] | None = None, method: str | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/api/{path}",
            data=None if data is None else json.dumps(data).encode(),
            headers={"Authorization": f"token {TOKEN}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    try:
        kernel = rest("kernels", {"name": "nbcache"}, "POST")["id"]
        file = Path(place.environ["JUPYTER_RUNTIME_DIR"]) / f"kernel-{kernel}.json"
        with connected(file) as client:
            message = client.execute("import time\nprint('begun', flush=True)\ntime.sleep(99)")
            while client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
                pass
            rest(f"kernels/{kernel}/interrupt", {}, "POST")
            assert reply_to(client, message)["content"]["ename"] == "KeyboardInterrupt"
        rest(f"kernels/{kernel}/restart", {}, "POST")
        with connected(file) as client:
            asked = {"nursery": NURSERY, "process": "__import__('os').getpid()"}
            said = client.execute("", silent=True, user_expressions=asked, reply=True)["content"]
        nursery, process = (
            int(said["user_expressions"][name]["data"]["text/plain"]) for name in ("nursery", "process")
        )
        assert nursery
        rest(f"kernels/{kernel}", None, "DELETE")
        wait_until(lambda: not Path(f"/proc/{process}").exists(), "the kernel has ended")
    finally:
        server.stop()
