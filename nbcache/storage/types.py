"""Every type of artifact: the parts of an environment that it depends on, and its use elsewhere.

A new type is a row here, and a file of `nbcache.torch_bridge.providers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUNDLED = "bundled"
"""A graph, by key and digest, that came in a bundle, without C++ kernels."""
DIFFERS = "differs"
"""A trace, by the digest of its content, from which torch's own trace differs."""
FAILED = "failed"
"""Something, by key, that could not be compiled on this machine."""
NO_TRACE = "no_trace"
"""Why a function has no trace, by its place in a program."""
RERUN = "rerun"
"""A list of a function's traces, each with what had run before."""


@dataclass(frozen=True, slots=True)
class ArtifactType:
    bound_to: frozenset[str] | None = None
    """The first parts of the environment's labels that it depends on; None for all of them."""
    is_graph: bool = False
    """torch's graphs: beside a GPU they may be for the CPU, and their keys do not tell."""
    is_timed: bool = False
    """Timed: without a GPU, on the CPU."""
    grows: bool = False
    """Only the newest under one key is used: its content grows or is replaced.

    That holds for torch's profile of dynamic shapes, and for autotune's best configurations, which coordinate
    descent (`max-autotune`) replaces.
    """
    is_useful_alone: bool = True
    in_mega_cache: bool = False
    is_shared: bool = True


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
_OTHER = ArtifactType()


def type_of(name: str) -> ArtifactType:
    return TYPES.get(name, _OTHER)
