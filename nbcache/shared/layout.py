"""Keys and values of a store that kernels share live.

The keys; each value but the lists is as below::

    live/<digest of scope, type, key>                             up to 32 variants of an artifact
    notebook/<digest of the file's name>/<digest of publisher>    one publisher's manifest of a notebook
                                                                  (`nbcache.artifacts.encoding`)
    publishers/<digest of the file's name>                        digests of publishers, one a line: so that
                                                                  nobody lists all keys of the store

The scope is what an artifact of that type depends on (`nbcache.artifacts.compatibility.scope`).

Grammar of values (version 1, frozen; integers big-endian; `n OCTET` is n bytes)::

    shared    = magic version count *variant
    magic     = "NBCS"
    version   = %x01
    count     = 1 OCTET            ; variants: what torch has under one key, for other guards; newest first
    variant   = 4 OCTET statement 4 OCTET signature 8 OCTET packed     ; each after its length
    statement = `nbcache.statement` of `nbcache.artifacts.provenance`, by who compiled the artifact
    signature = `nbcache.signature` of `nbcache.core.signature`, over the statement
    packed    = one zstd frame, which states its content size

A statement binds the artifact to its environment, type and key: one that lies under another key is refused.
Who compiled an artifact signs for `Purpose.ARTIFACT`, and whoever passes it on leaves that as it is; who has
published something of a notebook signs for `Purpose.PUBLICATION`. Reading judges nothing but the framing:
`nbcache.shared.level` asks whose the signature is, and compares.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from nbcache.artifacts.compatibility import scope
from nbcache.artifacts.manifests import notebook_digest
from nbcache.core import key as keys
from nbcache.core.canonical_json import corrupt, unsupported
from nbcache.core.errors import FormatError
from nbcache.core.model import MAX_CONTENT_BYTES, Environment

LIVE, NOTEBOOK, PUBLISHERS = "live/", "notebook/", "publishers/"

MAX_VARIANTS = 32
"""The most variants of one key: as many signers who do not trust each other find their own."""
_MAGIC, _VERSION = b"NBCS", 1
_HEADER = struct.Struct(">4sBB")
_PARTS = (
    ("statement", struct.Struct(">I"), 1 << 16),
    ("signature", struct.Struct(">I"), 1 << 12),
    ("packed", struct.Struct(">Q"), MAX_CONTENT_BYTES),
)
"""The parts of a variant: their names, how their lengths are written, and the longest that is read."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One artifact as it is stored: three parts, none of them judged."""

    statement: bytes
    signature: bytes
    packed: bytes = field(repr=False)


def encode_shared(variants: Sequence[Variant]) -> bytes:
    """Return the value of these variants; FormatError where a part is longer than is read."""
    parts = [_HEADER.pack(_MAGIC, _VERSION, len(variants))]
    for variant in variants:
        for name, length, longest in _PARTS:
            part = getattr(variant, name)
            if len(part) > longest:
                raise FormatError(
                    f"the {name} of an artifact has {len(part):,} bytes; the most is {longest:,}"
                )
            parts += [length.pack(len(part)), part]
    return b"".join(parts)


def decode_shared(value: bytes) -> list[Variant]:
    """Return the variants in a value; CorruptEntry or UnsupportedVersion for other bytes."""
    if not value.startswith(_MAGIC):
        raise corrupt("a shared entry does not begin as nbcache's do")
    if len(value) > len(_MAGIC) and value[len(_MAGIC)] > _VERSION:
        raise unsupported("shared entry", value[len(_MAGIC)])
    if len(value) < _HEADER.size:
        raise corrupt("a shared entry ends within its header")
    _, version, count = _HEADER.unpack_from(value)
    if version != _VERSION or count > MAX_VARIANTS:
        raise corrupt("a shared entry has a version or a number of variants that never was")
    variants, at = [], _HEADER.size
    for _ in range(count):
        parts = []
        for name, length, longest in _PARTS:
            size = int.from_bytes(value[at : at + length.size])
            at += length.size
            if size > longest or at + size > len(value):
                raise corrupt(f"a shared entry's {name} is longer than may be, or than what is there")
            parts.append(value[at : at + size])
            at += size
        variants.append(Variant(*parts))
    if at != len(value):
        raise corrupt("a shared entry has bytes after its end")
    return variants


def slot_of(environment: Environment, type: str, key: str) -> str:
    """Return the key of the store for the artifacts under torch's `key`."""
    parts = keys.components({"scope": scope(environment, type), "type": type, "key": key})
    return LIVE + keys.digest(parts)


def publications(notebook: str) -> str:
    """Return the prefix of the publications of a notebook."""
    return f"{NOTEBOOK}{notebook_digest(notebook)}/"


def publishers(notebook: str) -> str:
    """Return the key of the list of a notebook's publishers."""
    return PUBLISHERS + notebook_digest(notebook)
