"""Return the environment of this process, on which compiled code depends."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from nbcache.core.cpu_levels import Baseline
from nbcache.core.key import components
from nbcache.core.model import Environment
from nbcache.torch_bridge import gpus
from nbcache.torch_bridge.torch_behavior import TORCHBEHAVIOR, torch_version

_CPU_INFO = Path("/proc/cpuinfo")
_FEATURE_LINES = ("flags", "Features", "features", "isa")
"""Labels of instruction sets in /proc/cpuinfo: x86, arm64, s390x, RISC-V."""
_INSTRUCTIONS = re.compile(
    r"""(?x) 3dnow\w*|abm|adx|aes|amx\w*|apx\w*|avx\w*|bmi\d|cldemote|clflush|clflushopt|clwb|clzero|cmov|
    cmpccxadd|cx16|cx8|enqcmd|f16c|fma|fma4|fpu|fsgsbase|fxsr\w*|gfni|hle|hreset|kl|lahf_lm|lwp|mmx\w*|monitor|
    monitorx|mov\w+|mwaitx|pclmulqdq|pku|pni|popcnt|prefetch\w*|ptwrite|rao_?int|rdpid|rdrand|rdseed|rdtscp|rtm|
    serialize|sha\w*|sm3|sm4|sse\w*|ssse3|syscall|tbm|uintr|user_?msr|vaes|vpclmulqdq|waitpkg|wbnoinvd|
    wide_?kl|xop|xsave|xsavec|xsaveopt|xsaves"""
)
"""Names in x86's /proc/cpuinfo of instructions that `-march=native` lets a compiler use.

Prefixes such as `avx` include future instructions. Other words in that list are abilities of the operating
system or the virtual machine: they change with a reboot or on another host, and no code needs them.
"""
_NEVER = frozenset({"cpuid", "evtstrm"})
"""Words in the lists of other CPUs that are no instructions."""


def current(baseline: Baseline | None = None) -> Environment:
    """Return the environment of this process, which compiles for `baseline`; torch must be imported.

    torch's keys leave the CPU out. So environments with different `cpu.*` must not share artifacts
    (measured: FX graphs made for AVX-512 *hit* under AVX2, with wrong results).
    """
    import torch

    return _environment(
        {
            "torch.version": torch.__version__,
            "torch.git": torch.version.git_version,
            "torch.cuda": torch.version.cuda or "none",
            "torch.hip": torch.version.hip or "none",
            "compiler.abi": _compiler_abi(),
            "cpu.capability": torch.backends.cpu.get_cpu_capability(),
        },
        baseline,
    )


def foreseen(baseline: Baseline | None = None) -> Environment | None:
    """Return the components of `current` that need no import of torch; None if torch is not installed."""
    version = torch_version()
    if version is None:
        return None
    return _environment({"torch.version": version}, baseline)


def variables() -> tuple[str | None, ...]:
    """Return the values of the environment variables that can change this process's environment."""
    of_gpus = gpus.variables()
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    return (os.environ.get("ATEN_CPU_CAPABILITY"), *map(of_gpus.get, names))


def lacking(baseline: Baseline) -> list[str]:
    return baseline.lacking(platform.machine(), frozenset(_cpu_features().split()))


def _environment(of_torch: dict[str, str], baseline: Baseline | None) -> Environment:
    of_baseline = {} if baseline is None else baseline.components()
    return Environment(components({**without_torch(), **of_torch, **of_baseline}))


def without_torch() -> dict[str, str]:
    return {
        "triton.version": _triton_version(),
        "python.abi": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
        "device": gpus.device(),
        "cpu.machine": platform.machine(),
        "cpu.requested": os.environ.get("ATEN_CPU_CAPABILITY", "default"),
        "cpu.features": _cpu_features(),
    }


def _triton_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    for package in ("triton", "pytorch-triton"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "none"


def _compiler_abi() -> str:
    """Return the ABI of the C++ compiler's shared objects, without running the compiler."""
    import torch

    libc, version = platform.libc_ver()
    cxx11 = "cxx11" if torch.compiled_with_cxx11_abi() else "pre-cxx11"
    return f"{libc or sys.platform} {version} {cxx11}"


def _cpu_features() -> str:
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or "unknown"
    for line in lines:
        label, _, value = line.partition(":")
        if label.strip() == "flags":
            return " ".join(sorted({*filter(_INSTRUCTIONS.fullmatch, value.split())}))
        if label.strip() in _FEATURE_LINES:
            return " ".join(sorted({*value.split()} - _NEVER))
    return platform.processor() or "unknown"


def compiler() -> tuple[str, list[str] | None]:
    """Return the C++ compiler's name (`CXX`), and its command, or None if it is missing."""
    name = os.environ.get("CXX", "g++")
    words = [name]
    if TORCHBEHAVIOR.arguments_in_cxx:
        try:
            words = shlex.split(name) or [name]
        except ValueError:  # an open quotation mark
            return name, None
    path = shutil.which(words[0])
    return name, None if path is None else [path, *words[1:]]


def compiler_identity() -> str | None:
    """Return the C++ compiler's command with the identity of each program in it; None without a compiler."""
    _, command = compiler()
    return None if command is None else " ".join(map(_file_identity, command))


def _file_identity(word: str) -> str:
    path = shutil.which(word)
    if path is None:
        return word
    path = os.path.realpath(path)
    status = os.stat(path)
    return f"{path} {status.st_size} {status.st_mtime_ns}"
