"""Which GPUs there are: what the driver says, and what that makes of the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch

import nbcache
from nbcache.torch_bridge import environment, gpus, prewarm
from nbcache.torch_bridge.gpus import Gpu, GpuReport
from support import nvidia_driver
from support.environ import passed
from support.people import Person

H100, H200, T4 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "Tesla T4"
SLICE = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
ASK = """\
import json, sys
from dataclasses import asdict
from nbcache.torch_bridge import gpus
print(json.dumps([asdict(gpus.find()), gpus.device(), "torch" in sys.modules]))
"""


@pytest.fixture
def ask(library: Path) -> Callable[..., list[Any]]:
    """Return a function that asks in a fresh interpreter: `ask(*gpus, **variables)`."""

    def ask(*named: str, **variables: str) -> list[Any]:
        plain = {name: value for name, value in passed(os.environ).items() if not name.startswith("CUDA_")}
        path = {"PYTHONPATH": str(Path(nbcache.__file__).parents[1])}
        environ = plain | path | nvidia_driver.shown_by(library, *named, **variables)
        done = subprocess.run([sys.executable, "-c", ASK], env=environ, capture_output=True, check=True)
        found: list[Any] = json.loads(done.stdout)
        return found

    return ask


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that says which GPUs are here; their UUIDs are GPU-0, GPU-1, ..."""

    def present(*names: str) -> None:
        found = tuple(Gpu(name, f"GPU-{number}") for number, name in enumerate(names))
        monkeypatch.setattr(gpus, "find", lambda: GpuReport(found))

    return present


# --- what the driver says -----------------------------------------------------------------------


def test_the_drivers_library_names_the_gpus_and_torch_is_not_imported(ask: Callable[..., list[Any]]) -> None:
    found, device, imported = ask(H200, H200)

    assert found["gpus"] == [{"name": H200, "uuid": "GPU-0000"}, {"name": H200, "uuid": "GPU-0001"}]
    assert (found["driver"], found["cuda"], found["failure"]) == ("580.95.05", [13, 0], "")
    assert (device, imported) == (H200, False)


def test_a_gpu_in_slices_is_its_slices(ask: Callable[..., list[Any]]) -> None:
    found, device, _ = ask(f"NVIDIA A100-SXM4-40GB/{SLICE}/{SLICE}")

    assert found["gpus"] == [{"name": SLICE, "uuid": "MIG-0100"}, {"name": SLICE, "uuid": "MIG-0200"}]
    assert device == SLICE


def test_a_gpu_that_cannot_be_opened_is_none(ask: Callable[..., list[Any]]) -> None:
    assert ask("lost", H200)[1] == H200
    assert ask("lost")[1] == "cpu"
    assert ask()[1] == "cpu"


def test_a_driver_that_fails_where_there_is_no_gpu_is_no_matter(ask: Callable[..., list[Any]]) -> None:
    if any(any(gpus._ROOT.glob(sign)) for sign in gpus._SIGNS) or list(gpus._read_proc()):
        pytest.skip("there is a GPU")
    found, device, _ = ask(H200, TEST_NVML_FAILS="18")

    assert (found["gpus"], found["failure"], device) == ([], "", "cpu")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder that is `/` to what looks for a GPU, and in which there is none."""
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    monkeypatch.setattr(gpus, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(gpus, "_ROOT", tmp_path)
    gpus.find.cache_clear()
    yield tmp_path
    gpus.find.cache_clear()


@pytest.mark.parametrize(
    ("model", "name"), [("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"), ("Unknown", "NVIDIA GPU")]
)
def test_without_the_library_the_kernels_driver_is_believed(nowhere: Path, model: str, name: str) -> None:
    for bus in ("0000:1b:00.0", "0000:43:00.0"):
        (nowhere / "proc" / bus).mkdir(parents=True)
        (nowhere / "proc" / bus / "information").write_text(
            f"Model: \t\t {model}\nIRQ:   \t\t 18\nGPU UUID: \t GPU-{bus[5:7]}\nBus Location: \t {bus}\n"
        )

    assert gpus.find().gpus == (Gpu(name, "GPU-1b"), Gpu(name, "GPU-43"))
    assert "pip install 'nbcache[gpu]'" in gpus.find().failure
    assert gpus.device({}) == name


@pytest.mark.parametrize(
    ("signs", "count"),
    [
        ("", 0),
        ("dev/nvidia0 dev/nvidia1 dev/nvidiactl", 2),
        ("dev/nvhost-gpu", 1),
        ("usr/lib/wsl/lib/libcuda.so.1", 1),
    ],
)
def test_a_gpu_that_nobody_names_is_one_all_the_same(nowhere: Path, signs: str, count: int) -> None:
    for path in signs.split():
        (nowhere / path).parent.mkdir(parents=True, exist_ok=True)
        (nowhere / path).touch()

    assert gpus.find().gpus == (Gpu("NVIDIA GPU"),) * count
    assert bool(gpus.find().failure) == bool(count)
    assert gpus.device({}) == ("NVIDIA GPU" if count else "cpu")


def test_a_driver_that_fails_where_there_is_a_gpu_says_why(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    (nowhere / "dev").mkdir()
    (nowhere / "dev" / "nvidia0").touch()

    assert "version mismatch" in gpus.find().failure


# --- what that makes of the environment ---------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "variables", "device"),
    [
        ((H200,), {}, H200),
        ((H200,) * 8, {}, H200),
        ((H200,) * 8, {"CUDA_VISIBLE_DEVICES": "3,1"}, H200),
        ((H200,) * 8, {"CUDA_VISIBLE_DEVICES": "GPU-3"}, H200),
        ((H200,), {"CUDA_VISIBLE_DEVICES": ""}, "cpu"),
        ((H200,), {"CUDA_VISIBLE_DEVICES": "-1"}, "cpu"),
        ((H200,), {"CUDA_VISIBLE_DEVICES": "1,0"}, "cpu"),
        ((H200,) * 2, {"CUDA_VISIBLE_DEVICES": "1,1"}, "cpu"),
        ((H200,), {"CUDA_VISIBLE_DEVICES": "MIG-GPU-9/1/0"}, H200),
        ((), {"CUDA_VISIBLE_DEVICES": "0"}, "cpu"),
        ((H100, T4), {"CUDA_VISIBLE_DEVICES": "GPU-1"}, T4),
        ((H100, T4), {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, T4),
        ((H100, T4), {"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, f"{T4}, {H100}"),
        ((H100, T4, T4), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, f"{H100}, {T4}, {T4}"),
        ((H100, T4), {"CUDA_VISIBLE_DEVICES": ""}, "cpu"),
    ],
)
def test_the_device_is_what_cuda_shows(
    present: Callable[..., None], names: tuple[str, ...], variables: dict[str, str], device: str
) -> None:
    present(*names)

    assert gpus.device(variables) == device


def test_no_two_ways_to_count_different_gpus_are_one_device(present: Callable[..., None]) -> None:
    """Of a GPU that is not the current one torch's keys hold its index, and the current one's name."""
    ways: list[tuple[tuple[str, ...], dict[str, str]]] = [
        ((H100, T4, H200), {}),
        ((H100, T4, H200), {"CUDA_VISIBLE_DEVICES": "0,1"}),
        ((H100, T4, H200), {"CUDA_VISIBLE_DEVICES": "0,2"}),
        ((H100, T4, H200), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ((H100, T4, H200), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,1"}),
        ((H100, H200, T4), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ((H100, H100, T4, H200), {}),
    ]
    found = set()
    for names, variables in ways:
        present(*names)
        found.add(gpus.device(variables))

    assert len(found) == len(ways)


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ATEN_CPU_CAPABILITY"])
def test_a_variable_that_is_set_while_torch_is_there_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment.variables()
    monkeypatch.setenv(name, "another")

    assert environment.variables() != before


def test_once_cuda_is_used_its_variables_change_nothing(
    present: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    present(H100, T4)
    monkeypatch.setattr(gpus, "_at_cuda_init", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    before = environment.variables()
    gpus.fix_variables()

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as for children that are to run on the CPU
    gpus.fix_variables()

    assert (gpus.device(), environment.variables()) == (T4, before)


# --- what is prewarmed for ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "variables", "built_for", "imported", "used_before", "device"),
    [
        ((), {}, "13.0", False, False, "cpu"),
        ((H200,), {}, None, False, False, "cpu"),
        ((H200,), {}, "13.0", False, True, None),
        ((H200,), {}, "13.0", True, False, None),
        ((H200,), {}, "13.0", True, True, "cuda"),
        ((H200,), {"CUDA_VISIBLE_DEVICES": ""}, "13.0", False, False, None),
        ((H200,), {"CUDA_VISIBLE_DEVICES": ""}, "13.0", True, True, "cpu"),
    ],
)
def test_nothing_is_prewarmed_for_a_gpu_on_a_guess(
    present: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    names: tuple[str, ...],
    variables: dict[str, str],
    built_for: str | None,
    imported: bool,
    used_before: bool,
    device: str | None,
) -> None:
    present(*names)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    person = Person(tmp_path / "person")
    if used_before:
        earlier, _, _ = person.session()
        earlier.cache.record("probe", prewarm.sample_key("cuda"), b"1", made=True)
        earlier.end_cell()
        earlier.close()
    session, _, _ = person.session()
    session.cache.keys_of("probe", 10)

    assert prewarm._device(session, lambda: imported) == device
    session.close()
