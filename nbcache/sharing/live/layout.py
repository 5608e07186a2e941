"""Keys and values of a store that kernels share live. docs/formats.md has both (version 1, frozen).

A statement binds the artifact to its environment, type and key, so a copy under another key is refused. An
artifact's maker signs for `Purpose.ARTIFACT`, and kernels that pass it on keep this signature. The publisher
of a notebook's manifest signs for `Purpose.PUBLICATION`. This module checks only the framing;
`nbcache.sharing.live.level` checks signatures and signers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from nbcache.core import key as keys
from nbcache.core.canonical_json import corrupt, newer_version
from nbcache.core.errors import FormatError
from nbcache.core.model import MAX_CONTENT_BYTES, Environment
from nbcache.storage.compatibility import scope
from nbcache.storage.manifests import notebook_digest

LIVE, NOTEBOOK, PUBLISHERS = "live/", "notebook/", "publishers/"

MAX_VARIANTS = 32
"""So many signers who do not trust each other can publish their own artifacts under one key."""
_MAGIC, _VERSION = b"NBCS", 1
_HEADER = struct.Struct(">4sBB")
_PARTS = (
    ("statement", struct.Struct(">I"), 1 << 16),
    ("signature", struct.Struct(">I"), 1 << 12),
    ("packed", struct.Struct(">Q"), MAX_CONTENT_BYTES),
)
"""Name, length field and greatest length of each part of a variant."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One stored artifact, before any check of its signature."""

    statement: bytes
    signature: bytes
    packed: bytes = field(repr=False)


def encode_shared(variants: Sequence[Variant]) -> bytes:
    """Return the value of these variants; FormatError if a part is longer than readers accept."""
    parts = [_HEADER.pack(_MAGIC, _VERSION, len(variants))]
    for variant in variants:
        for name, length, longest in _PARTS:
            part = getattr(variant, name)
            if len(part) > longest:
                raise FormatError(
                    f"the {name} of an artifact has {len(part):,} bytes; the limit is {longest:,}"
                )
            parts += [length.pack(len(part)), part]
    return b"".join(parts)


def decode_shared(value: bytes) -> list[Variant]:
    """Return the variants in a value; CorruptEntry or UnsupportedVersion for other bytes."""
    if not value.startswith(_MAGIC):
        raise corrupt("a shared entry does not begin as nbcache's do")
    if len(value) > len(_MAGIC) and value[len(_MAGIC)] > _VERSION:
        raise newer_version("shared entry", value[len(_MAGIC)])
    if len(value) < _HEADER.size:
        raise corrupt("a shared entry ends within its header")
    _, version, count = _HEADER.unpack_from(value)
    if version != _VERSION or count > MAX_VARIANTS:
        raise corrupt("a shared entry has a version or a number of variants that never was")
    variants, offset = [], _HEADER.size
    for _ in range(count):
        parts = []
        for name, length, longest in _PARTS:
            size = int.from_bytes(value[offset : offset + length.size])
            offset += length.size
            if size > longest or offset + size > len(value):
                raise corrupt(f"a shared entry's {name} is too long, or longer than the rest of the entry")
            parts.append(value[offset : offset + size])
            offset += size
        variants.append(Variant(*parts))
    if offset != len(value):
        raise corrupt("a shared entry has bytes after its end")
    return variants


def slot_of(environment: Environment, type: str, key: str) -> str:
    parts = keys.components({"scope": scope(environment, type), "type": type, "key": key})
    return LIVE + keys.digest(parts)


def publications(notebook: str) -> str:
    return f"{NOTEBOOK}{notebook_digest(notebook)}/"


def publishers(notebook: str) -> str:
    return PUBLISHERS + notebook_digest(notebook)
