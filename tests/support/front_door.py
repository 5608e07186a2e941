"""The front door: real kernels and fresh interpreters in folders of their own, and what cells show."""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient

import nbcache
from support import forked_interpreters
from support.environ import passed

if TYPE_CHECKING:
    pass


Environ = Mapping[str, str]


RunCells = Callable[..., nbformat.NotebookNode]


RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


TIMEOUT = 600
"""Seconds that one cell or one fresh interpreter may take."""


KERNEL = "nbcache-test"


SESSION = "__import__('nbcache').session()"


LOG = """\
import logging
class Lines(logging.Handler):
    said = []
    def emit(self, record):
        self.said.append(self.format(record))
logging.getLogger("nbcache").addHandler(Lines())
logging.getLogger("nbcache").setLevel("INFO")
"""
"""Has `Lines.said` hold what nbcache logs from then on."""


def environ_below(folder: Path) -> dict[str, str]:
    """Return an environment for kernels and interpreters whose every folder is below `folder`; make them."""
    jupyter = {
        "IPYTHONDIR": folder / "ipython",
        "JUPYTER_CONFIG_DIR": folder / "jupyter" / "config",
        "JUPYTER_DATA_DIR": folder / "jupyter" / "data",
        "JUPYTER_RUNTIME_DIR": folder / "jupyter" / "runtime",
    }
    folders = {"HOME": folder / "home", "NBCACHE_DIR": folder / "store", "TMPDIR": folder / "tmp"}
    for each in (*jupyter.values(), folders["HOME"], folders["TMPDIR"]):
        each.mkdir(parents=True)
    return {
        **passed(os.environ),
        **{name: str(each) for name, each in (jupyter | folders).items()},
        "JUPYTER_PLATFORM_DIRS": "1",
        "NBCACHE_AUDIT": "0",  # or one kernel in 20, drawn by chance, would trace again what another adopts
        "NBCACHE_PREWARM": "off",  # or what a test finds would depend on how long cells let it wait
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # or ipykernel's debugger warns about frozen modules
        "PYTHONPATH": str(Path(nbcache.__file__).parents[1]),  # what is tested, installed or not
    }


def give_to_client(environ: Environ, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the client that starts kernels, which runs in this process, use Jupyter's folders in `environ`."""
    for name, value in environ.items():
        if name.startswith("JUPYTER_"):
            monkeypatch.setenv(name, value)


def kernel_specs(folder: Path, python: str, *, forked: bool = False) -> KernelSpecManager:
    """Return what finds KERNEL, a kernel of the interpreter `python`; its specification is below `folder`.

    It may be `forked` from a process that has torch imported.
    """
    spec_folder = folder / "kernels" / KERNEL
    spec_folder.mkdir(parents=True, exist_ok=True)
    arguments = ["-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
    command = [*_interpreter(python, "torch" if forked else ""), *arguments]
    spec = {"argv": command, "display_name": KERNEL, "language": "python"}
    (spec_folder / "kernel.json").write_text(json.dumps(spec))
    return KernelSpecManager(kernel_dirs=[str(folder / "kernels")])


def client_for(
    cells: Iterable[str], environ: Environ, folder: Path, *, allow_errors: bool = False, forked: bool = False
) -> NotebookClient:
    """Return a client that runs cells in a fresh kernel of this interpreter, with files below `folder`."""
    cwd = folder / "notebooks"
    cwd.mkdir(exist_ok=True)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    return NotebookClient(
        notebook,
        km=AsyncKernelManager(
            kernel_name=KERNEL,
            kernel_spec_manager=kernel_specs(
                folder, environ.get("TEST_PYTHON", sys.executable), forked=forked
            ),
        ),
        timeout=TIMEOUT,
        allow_errors=allow_errors,
        resources={"metadata": {"path": str(cwd)}},
    )


def execute(
    cells: Iterable[str], environ: Environ, folder: Path, *, allow_errors: bool = False, forked: bool = True
) -> nbformat.NotebookNode:
    """Run cells in a fresh kernel, shut it down, and return the notebook."""
    client = client_for(cells, environ, folder, allow_errors=allow_errors, forked=forked)
    # The kernel is not the client's own, so it must be told to clean it up.
    return client.execute(cleanup_kc=True, env=dict(environ))


def _interpreter(python: str, having: str) -> list[str]:
    """Return what starts an interpreter: forked, `having` imported a library, where it is like this one."""
    return forked_interpreters.command(having) if having and python == sys.executable else [python]


def run_interpreter(
    arguments: Iterable[str],
    environ: Environ,
    folder: Path,
    *,
    user: int | None = None,
    having: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with these arguments in `folder`, without input, and return what it printed.

    `user` is the id of another user to run it as, who has a group of that id and no other. The TEST_PYTHON
    of `environ` is another interpreter. It may be forked, `having` imported "torch" or "IPython".
    """
    other: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    return subprocess.run(
        [*_interpreter(environ.get("TEST_PYTHON", sys.executable), having), *arguments],
        **other,
        env=dict(environ),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@contextmanager
def serving(respond: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[ThreadingHTTPServer]:
    """Run a server on this machine whose GET requests `respond` handles."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(ConnectionError):
                respond(self)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        http.block_on_close = False
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield http
        finally:
            http.shutdown()
            thread.join()


def in_child(action: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Return what `action` returns in a forked child; TimeoutError where it does not end in `seconds`."""
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(0 if action() else 1))
    child.start()
    child.join(seconds)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise TimeoutError("the child hangs")
    with closing(child):
        return child.exitcode == 0


def files(path: Path) -> list[str]:
    """Return the files below a folder, as paths relative to it, sorted."""
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


@contextmanager
def connected(connection_file: str | Path) -> Iterator[BlockingKernelClient]:
    """Yield a client of the kernel that a connection file describes, once all its channels are connected.

    Each channel connects at its own time, and what the kernel publishes before that is lost. `wait_for_ready`
    does not fit: without a manager, it gives up a kernel whose heart does not beat within a second.
    """
    client = BlockingKernelClient(connection_file=str(connection_file))
    client.load_connection_file()
    client.start_channels()
    try:
        for _ in range(60):
            client.kernel_info(reply=True, timeout=60)
            with suppress(Empty):
                client.get_iopub_msg(timeout=1)
                break
        else:
            raise TimeoutError("the kernel's outputs do not arrive")
        yield client
    finally:
        client.stop_channels()


def reply_to(client: BlockingKernelClient, message: str) -> Any:
    """Return a kernel's reply to a message on the shell channel, by the message's id."""
    while (reply := client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != message:
        pass
    return reply


class Kernel:
    """A kernel that is left idle between cells, as people leave theirs."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def end(self) -> None:
        """Shut the kernel down, and wait until it has ended."""
        self.manager.shutdown_kernel()

    def run(self, cell: str) -> str:
        """Run a cell; return what it printed, or fail with its traceback."""
        printed: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])
            assert message["msg_type"] != "error", "\n".join(message["content"]["traceback"])

        self.client.execute_interactive(cell, output_hook=hook, timeout=TIMEOUT)
        return "".join(printed)

    def begin(self, cell: str) -> None:
        """Have a cell run after those that were sent before it; what `run` is given comes after it, too."""
        self.client.execute(cell)

    def ask(self, expression: str) -> Any:
        """Return the value of an expression, without running a cell for it."""
        reply = self.client.execute("", silent=True, user_expressions={"asked": expression}, reply=True)
        answer = reply["content"]["user_expressions"]["asked"]
        assert answer["status"] == "ok", answer
        return ast.literal_eval(answer["data"]["text/plain"])

    def wait_until(self, expression: str, seconds: float = 120) -> None:
        """Leave the kernel idle until an expression is true."""
        end = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < end, f"never came true: {expression}"
            time.sleep(0.2)

    def idle(self) -> None:
        """Leave the kernel idle until prewarming is done."""
        self.wait_until(f"{SESSION}.prewarm.state not in ('off', 'running')")


def with_old_compiler(environ: Environ, folder: Path) -> dict[str, str]:
    """Return `environ` with a compiler that does not know the best vector instructions of this CPU."""
    best = "-mavx512*|*-mamx*" if "avx512f" in Path("/proc/cpuinfo").read_text() else "-mavx*"
    old = folder / "old-compiler"
    old.mkdir()
    wrapper = old / "g++"
    wrapper.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{best}) echo "unrecognized option" >&2; exit 1;; esac\n'
        f'exec {shutil.which("g++")} "$@"\n'
    )
    wrapper.chmod(0o755)
    return {**environ, "PATH": f"{old}{os.pathsep}{environ['PATH']}"}


LOAD = "%load_ext nbcache"


SET_UP = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
x = torch.linspace(-1, 1, 48).reshape(3, 16)
"""


DEFINE = """\
%%compile_cached loss_of
def loss_of(x):
    y = model(x)
    print("between two graphs")
    return y.softmax(-1).square().mean()
"""


CALL = """\
loss = loss_of(x)
loss.backward()
print(f"{loss.item():.7f} {model[0].weight.grad.abs().sum().item():.5f}")
"""


EAGER = CALL.replace("loss_of(x)", "model(x).softmax(-1).square().mean()").replace("x)\n", "x)\n", 1)


REPORTS = "import json, nbcache; print(json.dumps([r.to_json() for r in nbcache.session().reports]))"


def printed(notebook: nbformat.NotebookNode, index: int) -> str:
    """Return what cell `index` wrote to its standard output."""
    outputs = notebook.cells[index].outputs
    return "".join(each.text for each in outputs if each.output_type == "stream" and each.name == "stdout")


def tell(expression: str) -> str:
    """Return code that prints an expression for `told`."""
    return f"print(json.dumps({expression}))"


def told(notebook: Any, index: int = -1) -> Any:
    return json.loads(printed(notebook, index).splitlines()[-1])


def shown(notebook: nbformat.NotebookNode, index: int) -> str:
    """Return the text of the displays of cell `index`, the report among them."""
    outputs = notebook.cells[index].outputs
    return "\n".join(each.data.get("text/plain", "") for each in outputs if "data" in each)


def errors(notebook: nbformat.NotebookNode, index: int) -> list[Any]:
    return [each for each in notebook.cells[index].outputs if each.output_type == "error"]


def reports(notebook: nbformat.NotebookNode) -> list[dict[str, Any]]:
    """Return the reports that the last cell, REPORTS, printed."""
    return json.loads(printed(notebook, -1))  # type: ignore[no-any-return]


def graphs(notebook: nbformat.NotebookNode) -> list[dict[str, Any]]:
    return [graph for report in reports(notebook) for graph in report["graphs"]]


def outcomes(notebook: nbformat.NotebookNode) -> list[str]:
    return [graph["outcome"] for graph in graphs(notebook)]
