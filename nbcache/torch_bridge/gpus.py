"""The NVIDIA GPUs that are here, and the compiler that Triton needs; nbcache asks neither torch nor CUDA.

Asking CUDA takes tenths of a second and memory on the GPU, fixes what CUDA_VISIBLE_DEVICES says, and keeps
children that are forked later from using it. So the driver's own library, NVML, is asked, which does none of
that (torch counts devices so, too), and lets go of the GPUs again. It names them as CUDA does, so as torch's
keys do: both ask the driver for the same string. /proc/driver/nvidia has another table, and is missing in
sandboxes (gVisor) and on WSL. It is read where `nvidia-ml-py`, which calls NVML, is not installed.
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
"""Files that are there beside a GPU, below `_ROOT`: a desktop card or server's, a Jetson's, one on WSL."""
_ROOT = Path("/")
_NO_NAME = "NVIDIA GPU"
"""The name of a GPU that no driver names."""
_VISIBLE, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a slice of one (MIG)."""

    name: str
    uuid: str = ""
    """Empty where it is not known."""


@dataclass(frozen=True, slots=True)
class Found:
    """The driver's answers."""

    gpus: tuple[Gpu, ...] = ()
    """Those that this process may open, whatever CUDA_VISIBLE_DEVICES says, in the order of the PCI bus."""
    driver: str = ""
    """The driver's version; empty where it is not known."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver runs programs of; None where it is not known."""
    failure: str = ""
    """Why the driver's library did not answer, though there is a GPU."""


@functools.cache
def found() -> Found:
    """Return the GPUs that are here, asked once in a process and its children."""
    try:
        import pynvml
    except ImportError:
        failure = "nvidia-ml-py is not installed: pip install 'nbcache[gpu]'"
    else:
        try:
            return _ask(pynvml)
        except pynvml.NVMLError as error:
            failure = str(error)
    signs = (len(list(_ROOT.glob(sign))) for sign in _SIGNS)
    gpus = tuple(_listed()) or (Gpu(_NO_NAME),) * next(filter(None, signs), 0)
    return Found(gpus, failure=failure if gpus else "")


_settled: Mapping[str, str] | None = None
"""The answer of `chosen` when CUDA was first used; None before that."""


def chosen() -> Mapping[str, str]:
    """Return those environment variables that choose the GPUs which this process uses."""
    if _settled is not None:
        return _settled
    return {name: os.environ[name] for name in (_VISIBLE, _ORDER) if name in os.environ}


def settle() -> None:
    """Note that CUDA is used now in this process: from here on these variables have no effect."""
    global _settled
    _settled = chosen()


def device(environ: Mapping[str, str] | None = None) -> str:
    """Return the name of the GPU that CUDA shows to this process, of several kinds a list; else `cpu`.

    torch's keys hold the name of one GPU, the current one, and of others the index only (2.11, 2.13). So the
    list tells which GPU has which index; where only CUDA knows that, it tells what CUDA goes by.
    """
    environ = chosen() if environ is None else environ
    gpus, numbers = found().gpus, environ.get(_VISIBLE)
    seen, by_number = _visible(gpus, numbers)
    if not seen:
        return "cpu"
    certain = not by_number or environ.get(_ORDER) == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
    names = [gpu.name for gpu in (seen if certain else gpus)]
    if len(set(names)) == 1:
        return names[0]
    if certain:
        return ", ".join(names)
    which = "" if numbers is None else f", of these {numbers}"
    return f"{', '.join(names)} (fastest first{which})"


def _visible(gpus: Sequence[Gpu], chosen: str | None) -> tuple[list[Gpu], bool]:
    """Return which GPUs CUDA shows, and whether they are counted in its order, which need not be this one.

    `chosen` is the value of CUDA_VISIBLE_DEVICES; as CUDA does, what comes after a wrong number is left out.
    """
    if chosen is None:
        return list(gpus), True
    numbers: list[int] = []
    by_number = False
    for token in map(str.strip, chosen.split(",")):
        if token.startswith(("GPU-", "MIG-")):
            named = [number for number, gpu in enumerate(gpus) if gpu.uuid.startswith(token)]
            if len(named) != 1:
                return list(gpus), True  # written in a way that is not known here: it may be any of them
        elif token.isdecimal() and int(token) < len(gpus):
            by_number, named = True, [int(token)]
        else:
            break
        numbers += named
    if len(set(numbers)) < len(numbers):  # CUDA shows none then
        numbers = []
    return [gpus[number] for number in numbers], by_number


# --- the driver's library -----------------------------------------------------------------------


def _ask(nvml: Any) -> Found:
    """Ask NVML. Forked children may use it and CUDA afterwards."""
    nvml.nvmlInit()  # initializes no GPU yet
    try:
        gpus: list[Gpu] = []
        for number in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):  # one that fell off the bus, or that this container may not open
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                gpus += _slices(nvml, handle) or [_gpu(nvml, handle)]
        version = _answer(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2) or 0
        cuda = divmod(version // 10, 100) if version else None  # 13000 is 13.0
        return Found(tuple(gpus), _answer(nvml, nvml.nvmlSystemGetDriverVersion) or "", cuda)
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    name = _answer(nvml, nvml.nvmlDeviceGetName, handle) or _NO_NAME
    return Gpu(name, _answer(nvml, nvml.nvmlDeviceGetUUID, handle) or "")


def _slices(nvml: Any, handle: Any) -> list[Gpu]:
    """Return the slices that a GPU is cut into; CUDA shows those in its place, and they have other names."""
    current, _ = _answer(nvml, nvml.nvmlDeviceGetMigMode, handle) or (0, 0)  # most GPUs cannot be cut
    slices = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0):
        with suppress(nvml.NVMLError):  # there are fewer than there could be
            slices.append(_gpu(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
    return slices


def _answer(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of NVML returns; None where it fails."""
    try:
        value = function(*arguments)
    except (nvml.NVMLError, UnicodeDecodeError):
        return None
    return value.strip() if isinstance(value, str) else value


# --- without it ---------------------------------------------------------------------------------


def _listed() -> Iterator[Gpu]:
    """Yield the GPUs that the kernel's driver lists, in the order of the PCI bus."""
    for information in sorted(_PROC.glob("*/information")):
        with suppress(OSError):
            lines = [line.partition(":") for line in information.read_text().splitlines()]
            values = {label.strip(): value.strip() for label, _, value in lines}
            name = values.get("Model", "Unknown")
            yield Gpu(_NO_NAME if name == "Unknown" else name, values.get("GPU UUID", ""))


# --- what Triton needs --------------------------------------------------------------------------


def c_compiler() -> tuple[str, str | None]:
    """Return the name of the compiler that Triton builds its launchers with, and its path if it is there.

    It is what Triton chooses (3.6, 3.7): CC, as it stands there, else gcc, else clang.
    """
    if (chosen := os.environ.get("CC")) is not None:
        return chosen, shutil.which(chosen)
    path = shutil.which("gcc") or shutil.which("clang")
    return (Path(path).name if path else "gcc"), path
