"""The values of the live shared level: artifacts, each with a signed statement of what it is.

Grammar (version 1, frozen; integers big-endian; `n OCTET` is n bytes)::

    shared    = magic version count *variant
    magic     = "NBCS"
    version   = %x01
    count     = 1 OCTET            ; variants: what torch has under one key, for other guards; newest first
    variant   = 4 OCTET statement 4 OCTET signature 8 OCTET packed     ; each after its length
    statement = {*fields, "environment": hex64, "format": "nbcache.shared", "host": text, "packed": bytes,
                 "packed_digest": hex64, "user": text, "version": 1}   ; `fields` as in `nbcache.format`
    signature = `nbcache.signature` of `nbcache.trust`, over the statement
    packed    = one zstd frame, which states its content size

A statement binds the artifact to its environment, type and key: one that lies under another key is refused.
`digest` and `size` are of the content, `packed` and `packed_digest` of the frame. Reading judges nothing but
the framing: `nbcache.shared` asks whose the signature is, and compares.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from nbcache.canonical import corrupt, from_json, hex64, to_json, unsupported
from nbcache.errors import FormatError
from nbcache.format import MAX_CONTENT_BYTES, ref_fields, ref_of
from nbcache.model import ArtifactRef, Packed

__all__ = ["MAX_VARIANTS", "Statement", "Variant", "decode_shared", "encode_shared"]

MAX_VARIANTS = 8
_MAGIC, _VERSION, _FORMAT = b"NBCS", 1, "nbcache.shared"
_HEADER = struct.Struct(">4sBB")
_PARTS = (
    ("statement", struct.Struct(">I"), 1 << 16),
    ("signature", struct.Struct(">I"), 1 << 12),
    ("packed", struct.Struct(">Q"), MAX_CONTENT_BYTES),
)
"""The parts of a variant: their names, how their lengths are written, and the longest that is read."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a signer says of one artifact."""

    environment: str
    """Digest of the environment that it was compiled in."""
    ref: ArtifactRef
    packed: Packed
    user: str = ""
    """Who made it, by their own account; empty where that is not told."""
    host: str = ""

    def encode(self) -> bytes:
        """Return it as canonical JSON, which is what is signed; FormatError where a field is out of range."""
        return to_json(
            _FORMAT,
            {
                **ref_fields(self.ref),
                "environment": self.environment,
                "host": self.host,
                "packed": self.packed.packed_size,
                "packed_digest": self.packed.packed_digest,
                "user": self.user,
            },
        )

    @classmethod
    def decode(cls, content: bytes) -> Statement:
        """Return the statement that `content` holds; raises CorruptEntry or UnsupportedVersion."""
        fields = from_json(content, _FORMAT)
        ref = ref_of(fields)
        return cls(
            environment=hex64(fields.text("environment")),
            ref=ref,
            packed=Packed(ref.size, fields.integer("packed"), hex64(fields.text("packed_digest"))),
            user=fields.text("user"),
            host=fields.text("host"),
        )


@dataclass(frozen=True, slots=True)
class Variant:
    """One artifact as it is stored: three parts, none of them judged."""

    statement: bytes
    signature: bytes
    packed: bytes = field(repr=False)


def encode_shared(variants: Sequence[Variant]) -> bytes:
    """Return the value that holds these variants, of which there are at most `MAX_VARIANTS`.

    FormatError where a part is longer than is read.
    """
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
    """Return the variants in a value; CorruptEntry or UnsupportedVersion where it is none."""
    if value[: len(_MAGIC)] != _MAGIC:
        raise corrupt("a shared entry does not begin as nbcache's do")
    if len(value) > len(_MAGIC) and value[len(_MAGIC)] > _VERSION:
        raise unsupported("shared entry", value[len(_MAGIC)])
    if len(value) < _HEADER.size:
        raise corrupt("a shared entry ends within its header")
    _, version, count = _HEADER.unpack_from(value)
    if version != _VERSION or count > MAX_VARIANTS:
        raise corrupt(f"a shared entry has version {version} and {count} variants, which never were")
    variants, at = [], _HEADER.size
    for _ in range(count):
        parts = {}
        for name, length, longest in _PARTS:
            if len(value) - at < length.size:
                raise corrupt("a shared entry ends too early")
            (size,) = length.unpack_from(value, at)
            at += length.size
            if size > min(longest, len(value) - at):
                raise corrupt(f"a shared entry's {name} is longer than may be, or than what is there")
            parts[name] = value[at : at + size]
            at += size
        variants.append(Variant(**parts))
    if at != len(value):
        raise corrupt("a shared entry has bytes after its end")
    return variants
