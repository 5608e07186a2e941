"""torch, its caches, the CPU and GPU, and compilers."""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from nbcache.core.cpu_levels import LABEL
from nbcache.core.model import Environment
from nbcache.core.settings import Settings
from nbcache.core.text import DOT
from nbcache.torch_bridge import environment, gpus, toolchain
from nbcache.torch_bridge.cache_settings import switched_off
from nbcache.torch_bridge.folders import refusal, usual_root
from nbcache.torch_bridge.hooks import Part
from nbcache.torch_bridge.portable import chosen
from nbcache.torch_bridge.torch_behavior import MINIMUM, NEWEST, TORCHBEHAVIOR, answers, spelled
from nbcache.ui.display.rows import Check, CheckState
from nbcache.ui.doctor.checks import REPORT, Checks, note, ok, problem
from nbcache.ui.doctor.places import usable

__all__ = ["caches", "compiler", "hooks", "portable", "processors", "temp_folder", "torch", "torch_folder"]

_MINIMUM, _NEWEST = spelled(MINIMUM), spelled(NEWEST)
_INSTALL = f"pip install 'torch>={_MINIMUM}', and restart the kernel"
_HEADERS = "install them (on Debian: apt install python3-dev)"
_TELLING = ("sse4_2", "avx", "avx2", "fma", "avx512f", "amx_tile", "asimd", "sve", "sve2")
"""Instruction sets that tell one CPU from another, of the hundred that it has."""


def torch(here: Environment | None, failure: Exception | None = None, plain_because: str = "") -> Checks:
    """Check torch; `failure` is what importing it has just raised.

    `plain_because` is why nbcache leaves it alone in this kernel.
    """
    version = environment.torch_version()
    if version is None:
        yield problem("torch", "not installed: there is nothing that compiles", _INSTALL)
    elif not TORCHBEHAVIOR.is_supported:
        yield problem("torch", f"{version} is older than {_MINIMUM}: nbcache does nothing with it", _INSTALL)
    elif failure is not None:
        yield problem(
            "torch", f"{version} is installed and fails: {failure!r}", "python -c 'import torch' says more"
        )
    elif here is not None:
        yield ok("torch", f"{version}, imported")
    elif plain_because:
        off = f"{version}, and nbcache stores and restores nothing in this kernel: {plain_because}"
        yield problem("torch", off, "restart the kernel; if that does not help, please report this line")
    elif "torch" in sys.modules:
        found = f"{version}, imported, and what its code depends on could not be found out"
        yield problem("torch", found, "a notice says why; please report it")
    else:
        yield ok("torch", f"{version}, installed and not imported yet")


def hooks(parts: Sequence[Part], lost: Mapping[str, str]) -> Checks:
    """Check what hooks torch; `lost` says why parts are off."""
    for part in parts:
        if why := lost.get(part.name):
            found = f"{part.name} is off ({why}): {part.without}"
            yield note("hook", found, f"install a torch from {_MINIMUM} to {_NEWEST}, or report this line")
    needed = [part.name for part in parts if part.applies()]
    fitting = sum(name not in lost for name in needed)
    yield ok("hooks", f"{fitting} of {len(needed)} parts fit torch {environment.torch_version()}")
    differ = [f"{name} {'yes' if answer else 'no'}" for name, _, _, answer in answers()]
    yield ok("torch behavior", DOT.join(differ))


def processors(here: Environment | None) -> Checks:
    known = environment.without_torch() if here is None else here.values
    yield from _gpu(known["device"], known["triton.version"], known.get("torch.cuda"))
    instructions = set(known["cpu.features"].split())
    parts = [known["cpu.machine"], " ".join(each for each in _TELLING if each in instructions)]
    if "cpu.capability" in known:
        parts.append(f"torch uses {known['cpu.capability']}")
    if LABEL in known:
        parts.append(f"compiles for any {known[LABEL]} CPU")
    if known["cpu.requested"] != "default":
        parts.append(f"ATEN_CPU_CAPABILITY={known['cpu.requested']}")
    yield ok("CPU", DOT.join(filter(None, parts)))
    yield ok("environment", "known once torch is imported" if here is None else here.digest[:16])


def _gpu(device: str, triton: str, cuda: str | None) -> Checks:
    """Check GPU and Triton; `device` is what compiled code is kept for.

    `cuda` is what torch is built for, None before it is imported.
    """
    found = gpus.found()
    with_triton = "no Triton" if triton == "none" else f"Triton {triton}"
    on_cpu = "what compiles is kept for the CPU"
    said = ", ".join(_cards(found.gpus))
    if not found.gpus:
        yield ok("GPU", f"no NVIDIA GPU found, {with_triton}: {on_cpu}")
    elif cuda == "none":
        yield note("GPU", f"{said}, and torch is built without CUDA", "install torch's build for CUDA")
    elif found.failure:
        remedy = "install what is missing; nvidia-smi says more; after an update of the driver, restart"
        yield note("GPU", f"{said}, and its driver cannot be asked: {found.failure}", remedy)
    elif device == "cpu":
        hidden = f"CUDA_VISIBLE_DEVICES={gpus.chosen().get('CUDA_VISIBLE_DEVICES', '')}"
        yield ok("GPU", f"{said}, hidden by {hidden}: {on_cpu}")
    elif triton == "none":
        without = f"{said}, without Triton: nothing can be compiled for it"
        yield note("GPU", without, "install torch's build for CUDA, which brings the Triton that fits")
    elif cuda is not None and found.cuda is not None and found.cuda[0] < environment.release(cuda)[0]:
        newest = f"{found.cuda[0]}.{found.cuda[1]}"
        old = f"{said}, whose driver {found.driver} runs CUDA up to {newest}, and torch is built for {cuda}"
        yield note("GPU", old, f"update the driver, or install torch's build for CUDA {found.cuda[0]}")
    else:
        driver, built = found.driver and f"driver {found.driver}", cuda and f"torch for CUDA {cuda}"
        yield ok("GPU", DOT.join(filter(None, (said, driver, built, with_triton))))
        yield from _compiler_for_triton()


def _cards(found: Sequence[gpus.Gpu]) -> list[str]:
    counts = Counter(gpu.name for gpu in found)
    return [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]


def _compiler_for_triton() -> Checks:
    """Check what Triton builds its launchers with at the first use of a GPU, once in a folder of its own."""
    name, path = gpus.c_compiler()
    consequence = "no new graph compiles for the GPU"
    if path is None:
        remedy = "install one (on Debian: apt install gcc), or set CC to one that is there"
        yield note("C compiler", f"{name} is not there: {consequence}", remedy)
    elif not _has_headers():
        yield note("C compiler", f"{path}, without Python's headers: {consequence}", _HEADERS)
    elif not gpus.driver_is_found_by_triton():
        found = f"{path}, and Triton does not find the driver's libcuda.so.1: {consequence}"
        yield note("C compiler", found, "set TRITON_LIBCUDA_PATH to its folder, and restart the kernel")
    else:
        yield ok("C compiler", f"{path}, for Triton")


def caches(switched: Collection[str] = ()) -> Checks:
    """Check torch's caches; `switched` are the settings that were switched by `%nbcache config`."""
    found = switched_off(switched)
    for each in found:
        state = CheckState.NOTE if each.hits else CheckState.PROBLEM
        yield Check("torch's caches", state, f"{each.setting}: {each.means}", each.remedy)
    if not found:
        yield ok("torch's caches", "on")


def torch_folder(folder: str, chosen_by: str, serves: bool) -> Checks:
    """Check torch's cache folder; `serves` tells whether nbcache puts there what it restores."""
    name = "torch's folder"
    if not serves:
        found = f"{folder or 'its usual one'}: nbcache only watches there, and restores nothing"
        remedy = "%nbcache config TORCHINDUCTOR_CACHE_DIR=FOLDER, with a folder of yours"
        yield problem(name, found, remedy)
    elif not folder:
        yield ok(name, chosen_by)
    else:
        remedy = "set TMPDIR, or TORCHINDUCTOR_CACHE_DIR, to another folder, and restart the kernel"
        yield usable(name, folder, f"{folder} ({chosen_by})", remedy)


def temp_folder() -> Checks:
    folder = tempfile.gettempdir()
    yield usable("temp folder", folder, folder, "set TMPDIR to another folder, and restart the kernel")
    if (error := refusal(usual_root())) is not None:
        found = f"{error}: nbcache keeps torch's cache elsewhere"
        yield note("temp folder", found, error.next_step or REPORT)


def compiler() -> Checks:
    name, command = toolchain.compiler()
    consequence = "no new graph compiles for the CPU; restored ones need none"
    if command is None:
        yield note(
            "C++ compiler",
            f"{name} is not there: {consequence}",
            "install one (on Debian: apt install g++), or set CXX to one that is there",
        )
    elif not _has_headers():
        yield note("C++ compiler", f"{' '.join(command)}, without Python's headers: {consequence}", _HEADERS)
    else:
        yield ok("C++ compiler", " ".join(command))


def _has_headers() -> bool:
    return Path(sysconfig.get_path("include"), "Python.h").exists()


def portable(settings: Settings) -> Checks:
    baseline = chosen(settings.portable)
    found = "off: for this CPU" if baseline is None else f"for any {baseline.name} CPU"
    yield ok("portable", f"{found} ({settings.origin('portable')})")
