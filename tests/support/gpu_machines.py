"""Machines with an NVIDIA GPU, for the tests that need one: what compilers are run on them is listed."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

from support.front_door import environ_below, execute, give_to_client

_ASK = """\
import json, torch
found = None
if torch.version.cuda and torch.cuda.is_available():
    found = {
        "name": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "computes": torch.arange(8, device="cuda").sum().item() == 28,
    }
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Card:
    """The GPU that the tests run on."""

    name: str
    capability: tuple[int, int]
    computes: bool
    """False for the stand-in only (tests/gpu/stand_in), whose results mean nothing."""


def find_card() -> Card | str:
    """Return the card that torch would use here, or why it has none."""
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False)
    known = json.loads(asked.stdout) if asked.returncode == 0 else None
    if known is None:
        needed = "torch's build for CUDA and a driver are needed"
        return f"torch sees no NVIDIA GPU here: {needed}\n{asked.stderr}".strip()
    found = Card(known["name"], tuple(known["capability"]), known["computes"])
    assert found.computes or "stand-in" in found.name, f"{found.name} computes wrong results"
    return found


class Machine:
    """A machine with a card: a home, a store, torch's, Triton's and temp folders, all empty at first.

    All machines of a test are one person's. What a compiler is run for there, in whatever process, is
    listed in the file that COMPILERS_LOG names, but for the question which version it is.
    """

    def __init__(self, folder: Path, keys: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.log = folder / "compilers.log"
        tools = folder / "tools"
        tools.mkdir()
        ptxas = self._wrapper(tools / "ptxas", _ptxas())
        for name in ("cc", "gcc", "g++", "c++", "clang", "nvcc"):
            if real := shutil.which(name):
                self._wrapper(tools / name, real)
        self.environ = environ_below(folder) | {
            "NBCACHE_TRUST_DIR": str(keys),
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "TRITON_PTXAS_PATH": str(ptxas),
            "COMPILERS_LOG": str(self.log),
        }

    def run(self, *cells: str, allow_errors: bool = False) -> nbformat.NotebookNode:
        return execute(cells, self.environ, self.folder, allow_errors=allow_errors)

    def _wrapper(self, path: Path, real: str) -> Path:
        log, program = shlex.quote(str(self.log)), shlex.quote(real)
        path.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *--version*) ;; *) echo "{path.name} $*" >>{log} ;; esac\n'
            f'exec {program} "$@"\n'
        )
        path.chmod(0o755)
        return path


class Machines:
    """Makes one person's machines below a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, monkeypatch

    def make(self, name: str, **environ: str) -> Machine:
        machine = Machine(self._folder / name, self._folder / "keys")
        machine.environ |= environ
        give_to_client(machine.environ, self._patch)
        return machine


def _ptxas() -> str:
    """Return the ptxas that torch would have Triton use (`torch/__init__.py`), or else Triton's own."""
    torch, triton = (_package(name) for name in ("torch", "triton"))
    own = torch / "bin" / "ptxas"
    return str(own if own.exists() else triton / "backends" / "nvidia" / "bin" / "ptxas")


def _package(name: str) -> Path:
    spec: Any = importlib.util.find_spec(name)
    return Path(spec.origin).parent
