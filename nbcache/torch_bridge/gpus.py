"""Find the NVIDIA GPUs of this machine, and the compiler that Triton needs, without torch or CUDA.

CUDA takes time and GPU memory, fixes CUDA_VISIBLE_DEVICES, and prevents GPU use in forked children. The
driver's library, NVML, has none of these effects, and names GPUs as torch's keys do. Without `nvidia-ml-py`,
the binding of NVML, this module reads /proc/driver/nvidia, which sandboxes (gVisor) and WSL lack.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc/driver/nvidia/gpus")
_SIGNS = ("dev/nvidia[0-9]*", "dev/nvhost-gpu", "dev/nvgpu", "usr/lib/wsl/lib/libcuda.so.1")
"""Files below `_ROOT` that show a GPU: a card, a Jetson, or one on WSL."""
_ROOT = Path("/")
_NO_NAME = "NVIDIA GPU"
_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a slice of one (MIG)."""

    name: str
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class GpuReport:
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that this process may open, despite CUDA_VISIBLE_DEVICES, in the order of the PCI bus."""
    driver: str = ""
    cuda: tuple[int, int] | None = None
    failure: str = ""
    """The reason why NVML failed on a machine with a GPU; else empty."""


@functools.cache
def find() -> GpuReport:
    try:
        import pynvml
    except ImportError:
        failure = "nvidia-ml-py is not installed: pip install 'nbcache[gpu]'"
    else:
        try:
            return _read_gpus(pynvml)
        except pynvml.NVMLError as error:
            failure = str(error)
    signs = (len(list(_ROOT.glob(sign))) for sign in _SIGNS)
    gpus = tuple(_read_proc()) or (Gpu(_NO_NAME),) * next(filter(None, signs), 0)
    return GpuReport(gpus, failure=failure if gpus else "")


_at_cuda_init: Mapping[str, str] | None = None
"""The variables at the first use of CUDA; None before that."""


def variables() -> Mapping[str, str]:
    """Return the environment variables by which CUDA selects GPUs in this process."""
    if _at_cuda_init is not None:
        return _at_cuda_init
    return {name: os.environ[name] for name in (_VISIBLE, _ORDER) if name in os.environ}


def fix_variables() -> None:
    """Fix the variables' values: once CUDA is in use, it ignores their changes."""
    global _at_cuda_init
    _at_cuda_init = variables()


def device(environ: Mapping[str, str] | None = None) -> str:
    """Return the name of the GPU that CUDA shows to this process, a list of several models, or `cpu`.

    torch's keys hold the name of the current GPU, and the index of others (2.11, 2.13). So the list has the
    order of the indices. If only CUDA can determine that order, the result has CUDA's variables instead.
    """
    environ = variables() if environ is None else environ
    gpus, numbers = find().gpus, environ.get(_VISIBLE)
    visible, by_number = _visible(gpus, numbers)
    if not visible:
        return "cpu"
    certain = not by_number or environ.get(_ORDER) == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
    names = [gpu.name for gpu in (visible if certain else gpus)]
    if len(set(names)) == 1:
        return names[0]
    if certain:
        return ", ".join(names)
    which = "" if numbers is None else f", of these {numbers}"
    return f"{', '.join(names)} (fastest first{which})"


def _visible(gpus: Sequence[Gpu], chosen: str | None) -> tuple[list[Gpu], bool]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects, and whether CUDA may give them another order."""
    if chosen is None:
        return list(gpus), True
    numbers: list[int] = []
    by_number = False
    for token in map(str.strip, chosen.split(",")):
        if token.startswith(("GPU-", "MIG-")):
            named = [number for number, gpu in enumerate(gpus) if gpu.uuid.startswith(token)]
            if len(named) != 1:
                return list(gpus), True  # an unknown notation, which may select any GPU
        elif token.isdecimal() and int(token) < len(gpus):
            by_number, named = True, [int(token)]
        else:
            break
        numbers += named
    if len(set(numbers)) < len(numbers):  # after duplicates, CUDA shows no GPU
        numbers = []
    return [gpus[number] for number in numbers], by_number


def _read_gpus(nvml: Any) -> GpuReport:
    nvml.nvmlInit()  # initializes no GPU: forked children may use CUDA
    try:
        gpus: list[Gpu] = []
        for number in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):  # it fell off the bus, or this container may not open it
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                gpus += _slices(nvml, handle) or [_gpu(nvml, handle)]
        version = _answer(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2) or 0
        cuda = divmod(version // 10, 100) if version else None  # 13000 is 13.0
        return GpuReport(tuple(gpus), _answer(nvml, nvml.nvmlSystemGetDriverVersion) or "", cuda)
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    name = _answer(nvml, nvml.nvmlDeviceGetName, handle) or _NO_NAME
    return Gpu(name, _answer(nvml, nvml.nvmlDeviceGetUUID, handle) or "")


def _slices(nvml: Any, handle: Any) -> list[Gpu]:
    current, _ = _answer(nvml, nvml.nvmlDeviceGetMigMode, handle) or (0, 0)  # most GPUs have no MIG
    slices = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0):
        with suppress(nvml.NVMLError):  # there are fewer slices than the maximum
            slices.append(_gpu(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
    return slices


def _answer(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        value = function(*arguments)
    except (nvml.NVMLError, UnicodeDecodeError):
        return None
    return value.strip() if isinstance(value, str) else value


def _read_proc() -> Iterator[Gpu]:
    for information in sorted(_PROC.glob("*/information")):
        with suppress(OSError):
            lines = [line.partition(":") for line in information.read_text().splitlines()]
            values = {label.strip(): value.strip() for label, _, value in lines}
            name = values.get("Model", "Unknown")
            yield Gpu(_NO_NAME if name == "Unknown" else name, values.get("GPU UUID", ""))


def c_compiler() -> tuple[str, str | None]:
    """Return name and path of the compiler that Triton chooses for its launchers (3.6, 3.7)."""
    if (name := os.environ.get("CC")) is not None:
        return name, shutil.which(name)
    path = shutil.which("gcc") or shutil.which("clang")
    return (Path(path).name if path else "gcc"), path
