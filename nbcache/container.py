"""The snapshot file: a zip archive with a manifest, its signature and compressed artifacts.

Grammar (version 1, frozen), by PKWARE's APPNOTE. The manifest comes first, so that the beginning of the
file tells what the rest is::

    snapshot  = manifest [signature] *packed
    manifest  = "manifest.json"              ; `nbcache.snapshot` of `nbcache.format`
    signature = "signature.json"             ; `nbcache.signature` of `nbcache.trust`
    packed    = "artifacts/" hex64 ".zst"    ; one zstd frame, which states its content size
    hex64     = 64 of 0-9 a-f                ; SHA-256 of the content; ascending, none twice

Every member is stored: not deflated, not encrypted, dated 1980-01-01; the archive has no zip64 parts and
no comments. So the bytes follow from the contents alone, and no reader has to inflate anything.

Readers take nothing from the archive but the members' bytes. What an artifact is, how long, and by which
digest, stands in the manifest, and `nbcache.snapshot` compares the two.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from nbcache.errors import CorruptSnapshot, SnapshotError

__all__ = ["MAX_SNAPSHOT_BYTES", "SnapshotFile", "decode_file", "encode_file", "refused"]

MAX_SNAPSHOT_BYTES = 1 << 30
"""The longest file that is read or written."""

_MANIFEST, _SIGNATURE = "manifest.json", "signature.json"
_PACKED = re.compile(r"artifacts/([0-9a-f]{64})\.zst", re.ASCII)
_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_END = struct.Struct("<10xH10x")
"""The archive's last record: how many members there are; it has no comment, and no zip64 part before it."""
_MAX_MEMBERS = 20_002
_FILE_MODE = 0o100644 << 16


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """The members of a snapshot file, none of them judged."""

    manifest: bytes
    signature: bytes | None
    packed: Mapping[str, bytes] = field(repr=False)
    """Compressed artifacts by the digest in their names."""


def encode_file(file: SnapshotFile) -> bytes:
    """Return the bytes of a snapshot file. SnapshotError where they would be too many."""
    size = len(file.manifest) + sum(map(len, file.packed.values()))
    if size > MAX_SNAPSHOT_BYTES:
        raise SnapshotError(
            f"a snapshot would take {size:,} bytes; at most {MAX_SNAPSHOT_BYTES:,} are written",
            next_step="share a Redis or a folder instead, or take a snapshot of fewer cells",
        )
    members = {_MANIFEST: file.manifest}
    if file.signature is not None:
        members[_SIGNATURE] = file.signature
    members |= {f"artifacts/{digest}.zst": file.packed[digest] for digest in sorted(file.packed)}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr = _UNIX, _FILE_MODE
            archive.writestr(info, content)
    return stream.getvalue()


def decode_file(data: bytes) -> SnapshotFile:
    """Return the members of a snapshot file. CorruptSnapshot, and nothing else, where it is none."""
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise refused(f"it has {len(data):,} bytes; at most {MAX_SNAPSHOT_BYTES:,} are read")
    end = data[-_END.size :]
    if data[:4] != b"PK\x03\x04" or len(end) != _END.size or not end.startswith(b"PK\x05\x06"):
        raise refused("it is no zip archive, or has something before or after it")
    if _END.unpack(end)[0] > _MAX_MEMBERS:  # before zipfile reads them all
        raise refused("it has more members than a snapshot may")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = _members(archive, len(data))
    except CorruptSnapshot:
        raise
    except Exception as error:  # zipfile raises many kinds on what is no sound archive
        raise refused(f"it is no sound zip archive: {error}") from error
    if next(iter(members), None) != _MANIFEST:
        raise refused("it does not begin with a manifest")
    packed = {}
    for name in members.keys() - {_MANIFEST, _SIGNATURE}:
        match = _PACKED.fullmatch(name)
        if match is None:
            raise refused(f"it has a member {name[:80]!r}, which no snapshot has")
        packed[match[1]] = members[name]
    return SnapshotFile(members[_MANIFEST], members.get(_SIGNATURE), packed)


def _members(archive: zipfile.ZipFile, length: int) -> dict[str, bytes]:
    """Return the archive's members in order, each stored and named once, and together no longer than it."""
    infos = archive.infolist()
    if len(infos) > _MAX_MEMBERS or (infos and infos[0].header_offset):
        raise refused("it has other members than its end says, or something before them")
    if sum(info.file_size for info in infos) > length:
        raise refused("its members overlap")
    members: dict[str, bytes] = {}
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise refused(f"its member {info.filename[:80]!r} is compressed or encrypted")
        if info.filename in members:
            raise refused(f"it has two members {info.filename[:80]!r}")
        members[info.filename] = archive.read(info)
    return members


def refused(what: str, where: str | None = None) -> CorruptSnapshot:
    """Return the error that says why nothing of a snapshot is used."""
    return CorruptSnapshot(
        f"the snapshot is refused whole: {what}",
        where=where,
        next_step="get the file again from who made it",
    )
