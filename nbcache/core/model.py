"""Frozen values that all layers share."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from nbcache.core.key import Component, digest, sha256

MAX_CONTENT_BYTES = 2 << 30
"""The longest content of an artifact, unless a reader sets another bound."""


class Outcome(enum.StrEnum):
    HIT = "hit"
    MISS = "miss"
    BYPASS = "bypass"
    DISABLED = "disabled"


class Direction(enum.StrEnum):
    """A graph's part of its function's computation."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INFERENCE = "inference"


class Level(enum.StrEnum):
    """The place of an artifact, nearest first."""

    L0 = "L0"
    """torch's own cache folder."""
    L1 = "L1"
    L2 = "L2"
    """Attached to the notebook."""
    L3 = "L3"
    """Shared: Redis or a filesystem URL."""


Source: TypeAlias = tuple[Level, str]
"""A level, and the name of the snapshot or shared store in words."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One piece of compiled output, as torch or the C++ kernel hook made it."""

    type: str
    """`inductor`, `aot_autograd`, `autotune`, `pgo`, `cpp_kernel`, `gemm_autotune`, `probe`, …"""
    key: str
    """torch's key for it; unique within (environment, type), up to variants with other guards."""
    content: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        return sha256(self.content)


@dataclass(frozen=True, slots=True, order=True)
class Provenance:
    """The maker's statement of an artifact that came from elsewhere, and their signature over it."""

    statement: bytes
    signature: bytes


UNSIGNED = Provenance(b"", b"")
"""For an artifact from elsewhere whose compiler is unknown."""


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """An artifact without its content, as a manifest lists it."""

    type: str
    key: str
    digest: str
    size: int
    """Bytes of content, uncompressed."""
    created: float = 0.0
    """Unix seconds at which it was first stored."""
    used: float = 0.0
    """Unix seconds at which a kernel last made or hit it."""
    cell: str = ""
    """Digest of the source of the cell that made or hit it last; empty outside a notebook."""
    function: str = ""
    provenance: Provenance | None = field(default=None, repr=False)
    """Its maker; None for what this user compiled here."""

    def not_after(self, limit: float) -> ArtifactRef:
        """Return the reference with no time later than `limit`: its writer's clock may be fast."""
        return replace(self, created=min(self.created, limit), used=min(self.used, limit))

    @property
    def identity(self) -> tuple[str, str, str]:
        return (self.type, self.key, self.digest)


@dataclass(frozen=True, slots=True)
class Environment:
    """The labelled components that compiled code depends on: torch build, Python, CPU features, …"""

    components: tuple[Component, ...]

    @property
    def digest(self) -> str:
        """64 hexadecimal digits; two environments share artifacts when theirs are equal."""
        return digest(self.components)

    @property
    def values(self) -> dict[str, str]:
        return {part.label: part.value for part in self.components}


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """A graph as manifests describe it."""

    cell: str
    """Digest of the source of the cell that compiled it; empty outside a notebook."""
    function: str
    direction: Direction
    outcome: Outcome
    key: str
    """torch's FX graph key; empty where it was bypassed."""
    seconds: float
    """Seconds that a hit saves: those of compiling, without tracing."""
    artifacts: tuple[str, ...] = ()
    """Digests of the artifacts of its function in that cell: it needs no others."""
    threads: int = 0
    maker: str = ""
    """Fingerprint of its compiler if that is not the publisher; else empty."""
    components: str = ""
    """The parts of its key, as `nbcache.kernel.explain` writes them, or empty."""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        return (self.cell, self.function, self.direction, self.key)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, without empty optional ones, as manifests and `nbcache inspect` have them."""
        values = asdict(self) | {"seconds": float(self.seconds), "artifacts": list(self.artifacts)}
        optional = ("threads", "maker", "components")
        return {name: value for name, value in values.items() if value or name not in optional}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The artifacts and graphs of a notebook in one environment, restored or new."""

    environment: Environment
    notebook: str
    """Identity of the notebook, or empty for the environment's own manifest."""
    artifacts: tuple[ArtifactRef, ...]
    """In the order in which the notebook's cells need them."""
    graphs: tuple[GraphSummary, ...] = ()

    @property
    def digests(self) -> frozenset[str]:
        """The digests of its artifacts; several keys may have the same content."""
        return frozenset(ref.digest for ref in self.artifacts)


@dataclass(frozen=True, slots=True)
class Packed:
    size: int
    packed_size: int
    packed_digest: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot's manifest; it holds no code."""

    notebook: str
    """File name of the notebook, without folders; empty where there was none."""
    created: float
    made_by: str
    manifests: tuple[Manifest, ...]
    """One for each environment, none of them with the notebook's path."""
    contents: Mapping[str, Packed]
    user: str = ""
    """The user who took it, as they call themselves, or empty."""
    host: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "contents", MappingProxyType(dict(self.contents)))


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    where: str
    """The file, or `URL#NAME` in a store, without secrets."""
    graphs: int
    artifacts: int
    packed_bytes: int
    changed: bool
    """False if the destination had all of it already."""
    missing: int = 0
    """The number of its artifacts that the store no longer holds."""
    left: int = 0
    """The number of strangers' or damaged versions under its name that stay in the store."""


@dataclass(frozen=True, slots=True)
class SnapshotRestored:
    """The restored part of a snapshot."""

    where: str
    graphs: int
    artifacts: int
    pending: bool = False
    """True before torch is imported: the part that fits is restored right after the import."""
