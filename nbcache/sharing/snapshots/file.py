"""The snapshot file: a zip archive of versions, each a manifest and its signature, and compressed artifacts.

docs/formats.md has the grammar (version 2, frozen). Members are stored uncompressed and unencrypted, and
dated 1980-01-01. The archive has no zip64 parts and no comments. So equal contents give equal bytes, and
readers inflate nothing.

Anybody can put such a file beside a notebook. So before any member is read, the directory's length is
checked. Members must follow each other, and the two lengths of each must agree: reading all members reads
the file once. Messages do not quote the file, since no signature has been checked yet.

Readers use only the members' bytes. The manifest states each artifact's length and digest, and
`nbcache.sharing.snapshots.verify` compares them.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nbcache.core.errors import CorruptSnapshot, SnapshotError
from nbcache.core.key import sha256

MAX_SNAPSHOT_BYTES = 1 << 30

MAX_VERSIONS = 64
_MANIFEST, _SIGNATURE = "manifest.json", "signature.json"
_PART = re.compile(rf"versions/([0-9]{{2}})/({_MANIFEST}|{_SIGNATURE})", re.ASCII)
_PACKED = re.compile(r"artifacts/([0-9a-f]{64})\.zst", re.ASCII)
_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_END = struct.Struct("<4s4xHHIIH")
"""The end record: number of members, twice; the directory's length and offset; the comment's length."""
_LOCAL = struct.Struct("<4s22xHH")
_ZIP64, _ZIP64_BYTES = b"PK\x06\x07", 20
"""Start and length of a record that makes zipfile read another directory than the last one."""
MAX_ARTIFACTS = 20_000
_MAX_MEMBERS = MAX_ARTIFACTS + 2 * MAX_VERSIONS
_MAX_DIRECTORY_BYTES = 160 * _MAX_MEMBERS
"""Writers use 124 bytes for a member."""
_FILE_MODE = 0o100644 << 16


@dataclass(frozen=True, slots=True)
class Signed:
    manifest: bytes
    signature: bytes | None

    @property
    def digest(self) -> str:
        return sha256(b"%d:%b%b" % (len(self.manifest), self.manifest, self.signature or b""))


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    versions: Sequence[Signed]
    packed: Mapping[str, bytes] = field(repr=False)


def encode_file(file: SnapshotFile) -> bytes:
    versions = sorted({version.digest: version for version in file.versions}.items())
    size = sum(len(version.manifest) for _, version in versions) + sum(map(len, file.packed.values()))
    bounds = (
        (size, MAX_SNAPSHOT_BYTES, "bytes"),
        (len(versions), MAX_VERSIONS, "versions"),
        (len(file.packed), MAX_ARTIFACTS, "artifacts"),
    )
    if over := [f"{count:,} {unit}; at most {most:,}" for count, most, unit in bounds if count > most]:
        raise SnapshotError(
            f"a snapshot would have {over[0]} are written",
            next_step="share a Redis or a folder instead, or choose another file",
        )
    members: dict[str, bytes] = {}
    for number, (_, version) in enumerate(versions):
        members[f"versions/{number:02}/{_MANIFEST}"] = version.manifest
        if version.signature is not None:
            members[f"versions/{number:02}/{_SIGNATURE}"] = version.signature
    members |= {f"artifacts/{digest}.zst": file.packed[digest] for digest in sorted(file.packed)}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr = _UNIX, _FILE_MODE
            archive.writestr(info, content)
    return stream.getvalue()


def decode_file(data: bytes) -> SnapshotFile:
    """Return the members of a snapshot file. CorruptSnapshot, and nothing else, for other bytes."""
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise refusal(f"it has {len(data):,} bytes; at most {MAX_SNAPSHOT_BYTES:,} are read")
    start = _directory_start(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = _members(archive, data, start)
    except CorruptSnapshot:
        raise
    except Exception as error:  # zipfile raises many kinds of errors for damaged archives
        raise refusal("it is not a valid zip archive") from error
    parts: dict[int, dict[str, bytes]] = {}
    packed = {}
    for name, content in members.items():
        if (part := _PART.fullmatch(name)) is not None:
            parts.setdefault(int(part[1]), {})[part[2]] = content
        elif (match := _PACKED.fullmatch(name)) is not None:
            packed[match[1]] = content
        else:
            raise refusal("it has an unknown member")
    if not parts or len(parts) > MAX_VERSIONS or any(_MANIFEST not in part for part in parts.values()):
        raise refusal("it does not begin with manifests, or has too many")
    return SnapshotFile([Signed(part[_MANIFEST], part.get(_SIGNATURE)) for part in parts.values()], packed)


def _directory_start(data: bytes) -> int:
    valid = len(data) >= _END.size and data.startswith(b"PK\x03\x04")
    start: int
    mark, disk, total, length, start, comment = _END.unpack(data[-_END.size :] if valid else bytes(_END.size))
    if mark != b"PK\x05\x06" or comment:
        raise refusal("it is not a zip archive, or has other data before or after it")
    if max(disk, total) > _MAX_MEMBERS or length > _MAX_DIRECTORY_BYTES:
        raise refusal("it has too many members")
    end = len(data) - _END.size
    if start + length != end or data[end - _ZIP64_BYTES : end].startswith(_ZIP64):
        raise refusal("its directory is not at the stated place")
    return start


def _members(archive: zipfile.ZipFile, data: bytes, directory: int) -> dict[str, bytes]:
    """Return the archive's members in order; CorruptSnapshot if they overlap, or two have one name."""
    infos = archive.infolist()
    if len(infos) > _MAX_MEMBERS:
        raise refusal("the number of its members differs from the stated one")
    end = 0
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise refusal("a member of it is compressed or encrypted")
        if info.compress_size != info.file_size:
            raise refusal("a member of it states two lengths")
        offset = info.header_offset
        if offset < end or offset + _LOCAL.size > directory:
            raise refusal("its members overlap")
        _, name, more = _LOCAL.unpack_from(data, offset)
        end = offset + _LOCAL.size + name + more + info.file_size
    if end > directory or (infos and infos[0].header_offset):
        raise refusal("its members overlap, or other data precedes them")
    if len({info.filename for info in infos}) != len(infos):
        raise refusal("it has two members of one name")
    return {info.filename: archive.read(info) for info in infos}


def refusal(flaw: str, where: str | None = None) -> CorruptSnapshot:
    return CorruptSnapshot(
        f"the snapshot is refused whole: {flaw}", where=where, next_step="ask its author for the file again"
    )
