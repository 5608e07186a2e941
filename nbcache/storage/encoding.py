"""Encode and decode entries, artifact references and manifests, including a snapshot's manifest.

docs/formats.md has the grammar (version 1, frozen). Readers ignore unknown fields. So a field may be added
in the same version, if readers that ignore it stay correct. A new codec needs a new version.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Any

from nbcache.core.canonical_json import Fields, corrupt, from_json, hex64, is_text, newer_version, to_json
from nbcache.core.key import Component
from nbcache.core.model import (
    MAX_CONTENT_BYTES,
    UNSIGNED,
    ArtifactRef,
    Direction,
    Environment,
    GraphSummary,
    Manifest,
    Outcome,
    Packed,
    Provenance,
    Snapshot,
)

MAX_RATIO = 2000
"""Highest ratio of content to compressed bytes. torch's artifacts reach 100; zeros in a library, more."""

_FREE_BYTES = 64 << 20
_MAGIC = b"NBCE"
_VERSION = 1
_RAW, _ZSTD = 0, 1
_HEADER = struct.Struct(">4sBBQQ32s")
_LEVEL = 9
"""zstd's level, for a background thread: a tenth smaller than at 3, a few per cent larger than at 19."""

_REF_FORMAT = "nbcache.ref"
_MANIFEST_FORMAT = "nbcache.manifest"
_SNAPSHOT_FORMAT = "nbcache.snapshot"


def encode_entry(content: bytes, packed: bytes | None = None) -> bytes:
    packed = pack(content) if packed is None else packed
    if len(packed) < len(content):
        return entry_of(packed, size=len(content))
    return _frame(_RAW, len(content), content)


def decode_entry(data: bytes, *, digest: str | None = None, max_bytes: int = MAX_CONTENT_BYTES) -> bytes:
    """Verify and decompress an entry; return its content, at most `max_bytes` long.

    Raises only CorruptEntry and UnsupportedVersion. `digest`: the content's expected SHA-256.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise corrupt("an entry does not begin as nbcache's entries do")
    # A later version may have another header. So read only its version byte.
    version = data[len(_MAGIC)] if len(data) > len(_MAGIC) else _VERSION
    if version > _VERSION:
        raise newer_version("entry", version)
    if len(data) < _HEADER.size:
        raise corrupt(f"an entry ends within its header, after {len(data)} bytes")
    _, version, codec, content_length, payload_length, payload_digest = _HEADER.unpack_from(data)
    if version != _VERSION or codec not in (_RAW, _ZSTD):
        raise corrupt(f"an entry's header has version {version} and codec {codec}, which never were")
    payload = memoryview(data)[_HEADER.size :]
    if len(payload) != payload_length:
        raise corrupt(f"an entry has {len(payload)} bytes of payload, not the {payload_length} it states")
    if content_length > max_bytes:
        raise corrupt(f"an entry states {content_length} bytes of content; at most {max_bytes} are taken")
    if sha256(payload).digest() != payload_digest:
        raise corrupt("an entry's payload does not have the digest that its header states")
    content = bytes(payload) if codec == _RAW else _decompress(payload, content_length)
    if len(content) != content_length:
        raise corrupt(f"an entry holds {len(content)} bytes, not the {content_length} it states")
    if digest is not None and sha256(content).hexdigest() != digest:
        raise corrupt("an entry's content does not match the digest in its name")
    return content


def pack(content: bytes) -> bytes:
    """Return `content` as one zstd frame, as in a snapshot. One release of zstd returns equal bytes."""
    import zstandard  # imported late: it takes longer to import than the rest of nbcache

    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(content)


def is_bomb(size: int, packed_size: int) -> bool:
    """Return whether `packed_size` bytes claim more content than torch's artifacts can have."""
    return size > max(_FREE_BYTES, MAX_RATIO * packed_size)


def unpack(packed: bytes, *, size: int, digest: str) -> bytes:
    content = _decompress(memoryview(packed), size)
    if sha256(content).hexdigest() != digest:
        raise corrupt(
            "a stored artifact is damaged or was changed: its content does not match the digest in its name"
        )
    return content


def packed_of(entry: bytes, *, digest: str) -> bytes:
    """Verify an entry; return its content as one zstd frame (`pack`)."""
    content = decode_entry(entry, digest=digest)
    return entry[_HEADER.size :] if entry[len(_MAGIC) + 1] == _ZSTD else pack(content)


def entry_of(packed: bytes, *, size: int) -> bytes:
    """Return an entry for `packed`, whose content has `size` bytes, without unpacking it."""
    return _frame(_ZSTD, size, packed)


def encode_ref(ref: ArtifactRef) -> bytes:
    return to_json(_REF_FORMAT, ref_fields(ref))


def decode_ref(content: bytes) -> ArtifactRef:
    return ref_of(from_json(content, _REF_FORMAT))


def encode_manifest(manifest: Manifest) -> bytes:
    return to_json(_MANIFEST_FORMAT, {"notebook": manifest.notebook, **_manifest_fields(manifest)})


def decode_manifest(content: bytes) -> Manifest:
    fields = from_json(content, _MANIFEST_FORMAT)
    return _decode_manifest(fields, fields.text("notebook"))


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return a snapshot's manifest as canonical JSON; FormatError if `decode_snapshot` would reject it."""
    content = to_json(
        _SNAPSHOT_FORMAT,
        {
            "contents": {
                digest: {"packed": item.packed_size, "packed_digest": item.packed_digest, "size": item.size}
                for digest, item in snapshot.contents.items()
            },
            "created": float(snapshot.created),
            "host": snapshot.host,
            "made_by": snapshot.made_by,
            "manifests": [_manifest_fields(manifest) for manifest in snapshot.manifests],
            "notebook": snapshot.notebook,
            "user": snapshot.user,
        },
    )
    decode_snapshot(content)
    return content


def decode_snapshot(content: bytes) -> Snapshot:
    fields = from_json(content, _SNAPSHOT_FORMAT)
    contents = {
        hex64(digest): _content(Fields(value, "snapshot's content"))
        for digest, value in fields.object("contents").items()
    }
    manifests = tuple(
        _decode_manifest(Fields(value, "snapshot's manifest"), "", UNSIGNED)
        for value in fields.array("manifests")
    )
    named = {(ref.digest, ref.size) for manifest in manifests for ref in manifest.artifacts}
    if named != {(digest, packed.size) for digest, packed in contents.items()}:
        raise corrupt("a snapshot holds other artifacts than it names")
    for manifest in manifests:
        digests = {ref.digest for ref in manifest.artifacts}
        if any(digest not in digests for graph in manifest.graphs for digest in graph.artifacts):
            raise corrupt("a graph of a snapshot needs an artifact that its manifest does not name")
    return Snapshot(
        notebook=fields.text("notebook"),
        created=fields.seconds("created"),
        made_by=fields.text("made_by"),
        manifests=manifests,
        contents=contents,
        user=fields.text("user"),
        host=fields.text("host"),
    )


def _frame(codec: int, content_length: int, payload: bytes) -> bytes:
    header = _HEADER.pack(_MAGIC, _VERSION, codec, content_length, len(payload), sha256(payload).digest())
    return header + payload


def _decompress(payload: memoryview, content_length: int) -> bytes:
    import zstandard

    try:
        # zstandard ignores `max_output_size` and allocates the frame's stated length. So that length must
        # equal the header's, which is bounded.
        if zstandard.frame_content_size(payload) != content_length:
            raise corrupt("an entry's zstd frame and header state different lengths")
        return zstandard.ZstdDecompressor().decompress(
            payload, max_output_size=content_length, allow_extra_data=False
        )
    except (zstandard.ZstdError, ValueError) as error:
        raise corrupt(
            "a stored entry is damaged: its compressed data are not what its header says"
        ) from error
    except MemoryError as error:
        raise corrupt(f"an entry needs {content_length} bytes of memory, more than there is") from error


def ref_fields(ref: ArtifactRef, *, provenance: bool = True) -> dict[str, Any]:
    """Return `ref` as JSON values, with its provenance if it has one; CorruptEntry for a wrong value."""
    fields: dict[str, Any] = {
        name: getattr(ref, name) for name in ("type", "key", "digest", "size", "cell", "function")
    }
    fields |= {"created": float(ref.created), "used": float(ref.used)}
    if provenance and ref.provenance is not None:
        signed = ref.provenance
        try:
            texts = {"signature": signed.signature.decode(), "statement": signed.statement.decode()}
        except UnicodeDecodeError as error:
            raise corrupt("an artifact's statement is no text") from error
        fields["provenance"] = texts
    ref_of(Fields(fields, "artifact"))  # raises if a reader would reject the fields
    return fields


def ref_of(fields: Fields, provenance: Provenance | None = None) -> ArtifactRef:
    """Return the reference in `fields`; `provenance` is its default."""
    if not fields.text("type"):
        raise corrupt("an artifact has no type")
    if fields.has("provenance"):
        signed = Fields(fields.object("provenance"), "provenance")
        provenance = Provenance(signed.text("statement").encode(), signed.text("signature").encode())
    return ArtifactRef(
        type=fields.text("type"),
        key=fields.text("key"),
        digest=hex64(fields.text("digest")),
        size=fields.integer("size"),
        created=fields.seconds("created"),
        used=fields.seconds("used"),
        cell=fields.text("cell"),
        function=fields.text("function"),
        provenance=provenance,
    )


def _manifest_fields(manifest: Manifest) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "artifacts": [ref_fields(ref) for ref in manifest.artifacts],
        "environment": [[part.label, part.value] for part in manifest.environment.components],
    }
    if manifest.graphs:
        fields["graphs"] = [graph.to_json() for graph in manifest.graphs]
    return fields


def _decode_manifest(fields: Fields, notebook: str, provenance: Provenance | None = None) -> Manifest:
    """Decode a manifest; `provenance` replaces that of each artifact, if it is given."""
    return Manifest(
        environment=Environment(tuple(map(_component, fields.array("environment")))),
        notebook=notebook,
        artifacts=tuple(ref_of(Fields(value, "artifact"), provenance) for value in fields.array("artifacts")),
        graphs=tuple(_graph(Fields(value, "graph")) for value in fields.array("graphs", optional=True)),
    )


def _graph(fields: Fields) -> GraphSummary:
    try:
        direction, outcome = Direction(fields.text("direction")), Outcome(fields.text("outcome"))
    except ValueError as error:
        raise corrupt("a graph's direction or outcome is unknown") from error
    return GraphSummary(
        cell=fields.text("cell"),
        function=fields.text("function"),
        direction=direction,
        outcome=outcome,
        key=fields.text("key"),
        seconds=fields.seconds("seconds"),
        artifacts=tuple(map(hex64, fields.array("artifacts"))),
        threads=fields.integer("threads", optional=True),
        maker=hex64(fields.text("maker")) if fields.has("maker") else "",
        components=fields.text("components", optional=True),
    )


def _content(fields: Fields) -> Packed:
    return Packed(fields.integer("size"), fields.integer("packed"), hex64(fields.text("packed_digest")))


def _component(pair: object) -> Component:
    match pair:
        case [str(label), str(value)] if is_text(label) and is_text(value):
            return Component(label, value)
    raise corrupt("a manifest's environment is not a list of label and value")
