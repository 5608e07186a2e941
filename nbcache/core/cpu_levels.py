"""Baselines: CPUs that code is compiled for by name, so that it runs on all that have their features.

They are the x86-64 microarchitecture levels of the psABI, which GCC (11 and newer) and Clang (12 and
newer) take as `-march`. Features are named as Linux names them in /proc/cpuinfo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OFF = "off"
"""Says that code is for the CPU that is here."""
LABEL = "cpu.baseline"
"""The component of an environment that names its baseline; absent where code is for the CPU itself."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A CPU by name, and what it has."""

    name: str
    capability: str
    """torch's name of its vector instructions (`torch.backends.cpu.get_cpu_capability`)."""
    features: frozenset[str]
    """Features beyond those of the first x86-64 CPUs."""

    def lacking(self, machine: str, features: frozenset[str]) -> list[str]:
        """Return what a CPU lacks, sorted: all, where `machine`, as `uname -m` has it, is no x86-64."""
        return sorted(self.features - (features if machine == "x86_64" else frozenset()))

    def components(self) -> dict[str, str]:
        """Return those components of an environment that differ from the CPU's own."""
        return {
            LABEL: self.name,
            "cpu.capability": self.capability,
            "cpu.features": " ".join(sorted(self.features)),
        }


_V2 = frozenset({"cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}

BASELINES: Mapping[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        Baseline("x86-64-v2", "DEFAULT", _V2),
        Baseline("x86-64-v3", "AVX2", _V3),
        Baseline("x86-64-v4", "AVX512", _V4),
    )
}
