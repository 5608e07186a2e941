"""Every type of artifact: what it is bound to, and how it travels.

A new type is a row here, and a file of `nbcache.torch_bridge.providers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUNDLED = "bundled"
"""Type of an artifact that says of a graph, by key and digest: it came in a bundle, without C++ kernels."""
DIFFERS = "differs"
"""Type of an artifact that says of a trace, by the digest of its content: torch traces something else."""
FAILED = "failed"
"""Type of an artifact that says of something, by key: it could not be compiled on this machine."""
NO_TRACE = "no_trace"
"""Type of an artifact that says why a function has no trace, by its place in a program."""
RERUN = "rerun"
"""Type of an artifact that lists traces of a function, under their key, each with what had run before."""


@dataclass(frozen=True, slots=True)
class ArtifactType:
    """The properties of all artifacts of one type."""

    bound_to: frozenset[str] | None = None
    """The first parts of the environment's labels that it depends on; None for all of them."""
    is_graph: bool = False
    """True for torch's graphs: beside a GPU they may be for the CPU, and their keys do not tell."""
    is_timed: bool = False
    """True if it was timed: without a GPU, on the CPU."""
    grows: bool = False
    """True if its content grows or is replaced under one key: only the newest is used.

    torch's profile of dynamic shapes does, and the best configurations that its autotune caches hold:
    coordinate descent, which `max-autotune` turns on, replaces what the benchmark of a kernel's own found.
    """
    is_useful_alone: bool = True
    """True if it is worth something without a usable graph."""
    in_mega_cache: bool = False
    """True if torch's portable bundles hold it."""
    is_shared: bool = True
    """True if it is of use on other machines."""


_ON_GPU = frozenset({"torch", "triton", "device"})
_GRAPH = ArtifactType(_ON_GPU | {"python"}, is_graph=True, in_mega_cache=True)

TYPES: Mapping[str, ArtifactType] = {
    "inductor": _GRAPH,
    "aot_autograd": _GRAPH,
    "autotune": ArtifactType(_ON_GPU, grows=True, in_mega_cache=True),
    "gemm_autotune": ArtifactType(_ON_GPU, is_timed=True),
    "pgo": ArtifactType(
        frozenset({"torch", "python"}), grows=True, is_useful_alone=False, in_mega_cache=True
    ),
    "cpp_kernel": ArtifactType(frozenset({"torch", "python", "compiler", "cpu"})),
    "triton_kernel": ArtifactType(_ON_GPU),
    "triton_module": ArtifactType(
        frozenset({"torch", "triton", "python", "compiler"}), is_useful_alone=False
    ),
    BUNDLED: ArtifactType(is_shared=False),
    DIFFERS: ArtifactType(is_shared=False),
    FAILED: ArtifactType(is_shared=False),
    NO_TRACE: ArtifactType(is_shared=False),
    RERUN: ArtifactType(grows=True, is_useful_alone=False),
}
"""The types that are bound to less than all of an environment, or kept apart, by name."""
_OTHER = ArtifactType()


def type_of(name: str) -> ArtifactType:
    """Return what is known of a type; what has no row is bound to all of an environment, and shared."""
    return TYPES.get(name, _OTHER)
