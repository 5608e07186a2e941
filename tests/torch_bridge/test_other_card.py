"""A snapshot that was made on another device, through the front door: what it says, and what to do next."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from nbcache.core.key import components
from nbcache.core.model import Environment
from nbcache.sharing.trust import Keyring
from support import nvidia_driver
from support.doctored import made_on
from support.front_door import LOAD, RunCells, RunPython, printed, run_interpreter
from support.people import Person

pytestmark = pytest.mark.compile

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
HERE = (
    "import json; from nbcache.torch_bridge.environment import current; print(json.dumps(current().values))"
)
IMPORT = "import torch"


class Machine:
    """A machine with one GPU, or none, and a notebook with somebody's snapshot beside it."""

    def __init__(self, folder: Path, environ: dict[str, str], values: dict[str, str]) -> None:
        """`values` are those of the environment of its kernels."""
        self.person = Person(folder / "person", Environment(components(values)))
        self.notebook, self.snapshot = self.person.notebook, self.person.snapshot
        self.environ = {
            **environ,
            "NBCACHE_NOTEBOOK": str(self.notebook),
            "NBCACHE_TRUST_DIR": str(self.person.keys),
        }
        self.folder = folder

    def bring(self, device: str) -> None:
        """Put a snapshot of the same torch on `device` beside the notebook; a signer of ours made it."""
        data = self.person.make("one", "two")
        self.snapshot.write_bytes(made_on(device, data, Keyring(self.person.keys)))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_interpreter(["-m", "nbcache", *arguments], self.environ, self.folder, having="IPython")


@pytest.fixture(scope="module")
def values_with() -> dict[str, dict[str, str]]:
    """Return what each machine that was made has for its environment, by its GPU."""
    return {}


@pytest.fixture
def machine(
    tmp_path: Path,
    isolated: dict[str, str],
    run_python: RunPython,
    library: Path,
    values_with: dict[str, dict[str, str]],
) -> Callable[..., Machine]:
    """Return a function that makes a machine: `machine(gpu)`, or `machine("")` for one without."""

    def machine(gpu: str) -> Machine:
        environ = isolated | nvidia_driver.shown_by(library, gpu)
        if gpu not in values_with:
            values_with[gpu] = json.loads(run_python(HERE, environ, having="IPython").stdout)
        return Machine(tmp_path, environ, values_with[gpu])

    return machine


@pytest.mark.parametrize(
    ("there", "here", "what_to_do"),
    [
        (H100, H200, "it was made for another GPU: take a snapshot here"),
        (H100, "", "it was made for a GPU, and none is seen here (`nbcache doctor`)"),
        ("cpu", H200, "it was made without a GPU: take a snapshot here"),
    ],
)
def test_a_snapshot_of_another_device_is_refused_and_says_both_and_what_to_do(
    machine: Callable[..., Machine], run_cells: RunCells, there: str, here: str, what_to_do: str
) -> None:
    bob = machine(here)
    bob.bring(there)
    named = here or "cpu"
    row = re.compile(rf"device +{re.escape(there)} +{re.escape(named)} +{re.escape(what_to_do)}")

    inspected = bob.command("inspect", str(bob.snapshot))
    ran = run_cells([LOAD, IMPORT, f"%nbcache restore {bob.snapshot}"], bob.environ, allow_errors=True)

    assert inspected.returncode == 0 and row.search(inspected.stdout), inspected.stdout
    (error,) = ran.cells[2].outputs
    assert error.ename == "EnvironmentMismatch"
    said = "\n".join(error.traceback)
    assert row.search(said), said
    assert "next: take a snapshot on a machine like this one, or here" in said
    assert f"not all fits here: device ({there} there, {named} here) differ" in printed(ran, 0)


def test_a_notebook_that_is_run_without_a_person_says_so_as_well(machine: Callable[..., Machine]) -> None:
    bob = machine(H200)
    bob.bring(H100)
    for cells in ([IMPORT], [LOAD, IMPORT]):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        nbformat.write(notebook, bob.notebook)

        ran = bob.command("run", str(bob.notebook), "--require-hit")

        assert f"device ({H100} there, {H200} here) differ" in ran.stderr, ran.stderr
        assert "nbcache inspect" in ran.stderr


def test_a_snapshot_of_the_same_card_fits_whatever_shows_it(
    machine: Callable[..., Machine], run_cells: RunCells
) -> None:
    bob = machine(H200)
    bob.bring(H200)

    for changes in ({}, {"TEST_GPUS": f"{H200};{H200}"}, {"CUDA_VISIBLE_DEVICES": "0"}):
        ran = run_cells([LOAD, IMPORT, f"%nbcache restore {bob.snapshot}"], bob.environ | changes)
        assert "2 artifacts" in printed(ran, 2), printed(ran, 2)


def test_a_gpu_that_is_hidden_in_a_cell_counts_as_none(
    machine: Callable[..., Machine], run_cells: RunCells
) -> None:
    device = "print(__import__('nbcache').session().environment.values['device'])"
    hide = "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''"
    use = "print(torch.compile(lambda x: x + 1)(torch.ones(2)))"

    ran = run_cells([LOAD, IMPORT, device, hide, use, device], machine(H200).environ)

    assert [printed(ran, cell).strip() for cell in (2, 5)] == [H200, "cpu"]
