"""The types of artifacts: the parts of an environment that each depends on, and the ways it is used.

A new type needs a row here, and a module in `nbcache.torch_bridge.providers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUNDLED = "bundled"
"""Graph key → digest of a graph that arrived in a torch bundle, without its C++ kernels."""
DIFFERS = "differs"
"""Digest of a trace → a note that torch's own trace differs from it."""
FAILED = "failed"
"""Key of a sample → a note that this machine could not compile it."""
NO_TRACE = "no_trace"
"""A function's place in the program → the reason why it has no trace."""
RERUN = "rerun"
"""A list of a function's traces, each with the code that had run before."""


@dataclass(frozen=True, slots=True)
class ArtifactType:
    bound_to: frozenset[str] | None = None
    """Prefixes of the environment's labels on which it depends, such as `cpu`; None for all."""
    is_graph: bool = False
    """True for torch's graphs. On a machine with a GPU they may be for the CPU, and keys leave that out."""
    is_timed: bool = False
    """True for benchmark results: without a GPU, they depend on the CPU."""
    grows: bool = False
    """True if only the newest artifact under a key is used, since its content grows or is replaced.

    Examples: torch's profile of dynamic shapes; autotune's best configuration, which `max-autotune` replaces.
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
