"""Run programs in kernels that are forked from one process: as fresh as after a restart, without its imports.

As a script it reads a task a line, JSON, and answers each with a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import IO, Any

from soundness.program_files import CELL

from support.forked_interpreters import command

FOLDERS = ("NBCACHE_DIR", "TMPDIR", "HOME", "IPYTHONDIR", "NBCACHE_TRUST_DIR")
_COMPILED = """
def compile(f, **options):
    return torch.compile(f, mode=globals().get("MODE", "lite"), **options)
found = results(compile)
"""
_ANY = """
import torch
def helper(x):
    return x + 1
def results(compile):
    found = compile(lambda x: helper(x))(torch.ones(2, requires_grad=True))
    found.sum().backward()
    return [found]
"""
_EAGER = "found = results(lambda f, **options: f)"


class Restarts:
    """The process that kernels are forked from; it has torch imported."""

    def __init__(self, environ: Mapping[str, str], *, hash_seed: int | None = None) -> None:
        """Start the process; without a hash seed it is forked itself, and starts at once."""
        python, more = command("torch"), {}
        if hash_seed is not None:
            python, more = [sys.executable, "-W", "ignore"], {"PYTHONHASHSEED": str(hash_seed)}
        self._process = subprocess.Popen(
            [*python, "-m", "soundness.restarts"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environ, **more},
            cwd=Path(__file__).parents[1],
        )
        self._settings: dict[str, str] = {}

    def having(self, **settings: str) -> Restarts:
        """Return the same, whose kernels have these environment variables."""
        process = copy(self)
        process._settings = settings
        return process

    def run(
        self, source: str, folder: Path, *, eager: bool = False, case: int = 0, patch: str = ""
    ) -> dict[str, Any]:
        """Run a program in a kernel whose folders are below `folder`; return its tensors and its graphs.

        The program can read the number of the case in the file `case.txt`, in the variable CASE and as its
        argument. The code `patch` runs before the first cell, and belongs to none.
        """
        task = {"source": source, "folder": str(folder), "eager": eager, "settings": self._settings}
        self._input.write(json.dumps(task | {"case": str(case), "patch": patch}) + "\n")
        self._input.flush()
        answer: dict[str, Any] = json.loads(self._output.readline())
        return answer

    @property
    def _input(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def close(self) -> None:
        """End the process."""
        self._input.close()
        self._process.wait(timeout=30)
        self._output.close()


Pair = tuple[Restarts, Restarts]


def _serve() -> None:
    import torch
    import torch._inductor.config
    from IPython.core.interactiveshell import InteractiveShell

    from support.imports import import_what

    del sys.path[0]  # the tests
    # Python takes old bytecode if a module changes within a second and keeps its length.
    sys.dont_write_bytecode = True
    torch._inductor.config.compile_threads = 1
    with tempfile.TemporaryDirectory() as scratch:
        task = {"source": _ANY, "folder": scratch, "eager": False, "settings": {}, "case": "0", "patch": ""}
        import_what(lambda: _run(InteractiveShell, task))
    for line in sys.stdin:
        print(json.dumps(_forked(InteractiveShell, json.loads(line))), flush=True)


def _forked(shell_class: Any, task: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.dup2(os.open(Path(scratch) / "log", os.O_CREAT | os.O_WRONLY), 1)
                os.dup2(1, 2)
                answer.write_text(json.dumps(_run(shell_class, task)))
                code = 0
            except BaseException:
                answer.write_text(json.dumps({"error": traceback.format_exc()}))
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        text = answer.read_text() if answer.exists() else ""
        result: dict[str, Any] = json.loads(text) if text else {"error": f"it died with status {status}"}
        return result


def _run(shell_class: Any, task: dict[str, Any]) -> dict[str, Any]:
    folder = Path(task["folder"])
    for name in FOLDERS:
        os.environ[name] = str(folder / name.lower())
        (folder / name.lower()).mkdir(parents=True, exist_ok=True)
    os.environ |= {"NBCACHE_PREWARM": "off", "NBCACHE_REPORT": "never", "NBCACHE_LIVE": "off"}
    os.environ |= {**task["settings"], "CASE": task["case"]}
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch has set it when it was imported
    tempfile.tempdir = None
    os.chdir(folder)
    Path("case.txt").write_text(task["case"])
    sys.argv = ["kernel", task["case"]]
    shell = shell_class.instance()
    if not task["eager"]:
        shell.run_line_magic("load_ext", "nbcache")
    exec(task["patch"], {})
    for cell in (*task["source"].split(CELL), _EAGER if task["eager"] else _COMPILED):
        shell.run_cell(cell, store_history=True).raise_error()
    tensors = [
        (str(tensor.dtype), list(tensor.shape), tensor.double().flatten().tolist())
        for tensor in shell.user_ns["found"]
    ]
    if task["eager"]:
        return {"tensors": tensors}
    import nbcache

    session = nbcache.session()
    session.flush(60)
    return {
        "tensors": tensors,
        "graphs": [(str(graph.outcome), graph.direction, graph.reason or "") for graph in session.graphs],
        "breaks": [graph.graph_break_reason for graph in session.graphs],
        "notices": session.notices,
    }


if __name__ == "__main__":
    _serve()
