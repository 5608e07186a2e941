"""What nbcache knows of a real card: its name, how it is found, and what another card's name does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nbcache.sharing.trust import Keyring
from support.doctored import made_on
from support.front_door import (
    LOAD,
    REPORTS,
    RunCells,
    RunPython,
    errors,
    graphs,
    outcomes,
    printed,
    run_interpreter,
)
from support.gpu_machines import Card

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("card")]

SAMPLE = """\
import torch
def sample(x):
    return (x * 2 + 1).sin().sum(-1)
x = torch.linspace(-1, 1, 4096, device="cuda").reshape(64, 64)
difference = (torch.compile(sample)(x) - sample(x)).abs().max().item()
"""
CLOSE = "print(difference < 1e-4)"
NAMES = """\
import json, sys, time
from nbcache.torch_bridge import gpus
begun = time.perf_counter()
found = gpus.find()
seconds = time.perf_counter() - begun
listed = [gpu.name for gpu in gpus._read_proc()]
import torch
untouched = not torch.cuda.is_initialized()
cuda = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
print(json.dumps([[gpu.name for gpu in found.gpus], cuda, listed, found.failure, untouched, seconds]))
"""
FORK = """\
import os
from nbcache.torch_bridge import gpus
assert gpus.find().gpus
import torch
child = os.fork()
if child == 0:
    os._exit(0 if torch.zeros(8, device="cuda").shape == (8,) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
os.environ["CUDA_VISIBLE_DEVICES"] = ""
assert gpus.device() == "cpu"
assert not torch.cuda.is_available()
"""


def test_the_driver_names_cards_as_cuda_does(
    run_python: RunPython, isolated: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    done = run_python(NAMES, isolated | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    driver, cuda, listed, failure, untouched, seconds = json.loads(done.stdout)
    record_property("seconds to ask the driver", seconds)
    record_property("names in /proc", listed)

    assert (driver, failure) == (cuda, "")
    assert not listed or listed == cuda
    assert untouched


def test_asking_the_driver_fixes_nothing_and_forked_children_may_use_cuda(run_python: RunPython) -> None:
    run_python(FORK)


def test_another_cards_snapshot_is_refused_and_this_cards_hits(
    card: Card,
    isolated: dict[str, str],
    run_cells: RunCells,
    run_python: RunPython,
    wipe: Callable[[dict[str, str]], None],
    tmp_path: Path,
) -> None:
    here = run_python("from nbcache.torch_bridge import gpus; print(gpus.device())").stdout.strip()
    there = "NVIDIA H100 80GB HBM3" if here == "NVIDIA H200" else "NVIDIA H200"
    keys, mine, others = tmp_path / "keys", tmp_path / "mine.nbcache", tmp_path / "others.nbcache"
    environ = isolated | {"NBCACHE_TRUST_DIR": str(keys)}
    made = run_cells([LOAD, SAMPLE, f"%nbcache snapshot {mine}", REPORTS], environ)
    others.write_bytes(made_on(there, mine.read_bytes(), Keyring(keys)))
    fresh = environ | {"NBCACHE_DIR": str(tmp_path / "fresh")}
    wipe(environ)

    cells = [LOAD, "import torch", f"%nbcache restore {others}", SAMPLE, CLOSE, REPORTS]
    refused = run_cells(cells, fresh, allow_errors=True)
    inspected = run_interpreter(["-m", "nbcache", "inspect", str(others)], fresh, tmp_path)
    wipe(environ)
    cells[2] = f"%nbcache restore {mine}"
    restored = run_cells(cells, fresh | {"NBCACHE_DIR": str(tmp_path / "another")})

    row = re.compile(rf"device +{re.escape(there)} +{re.escape(here)} +it was made for another GPU")
    (error,) = errors(refused, 2)
    assert error.ename == "EnvironmentMismatch"
    assert row.search("\n".join(error.traceback)) and row.search(inspected.stdout)
    assert outcomes(made) == outcomes(refused) == ["miss"]
    assert outcomes(restored) == ["hit"], graphs(restored)
    assert not card.computes or printed(refused, 4) == printed(restored, 4) == "True\n"


def test_the_doctor_finds_the_card_in_order(isolated: dict[str, str], tmp_path: Path) -> None:
    done = run_interpreter(["-m", "nbcache", "doctor", "--json"], isolated, tmp_path)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    assert checks["GPU"]["state"] == checks["C compiler"]["state"] == "ok", checks
    assert "driver" in checks["GPU"]["found"] and "torch for CUDA" in checks["GPU"]["found"]
