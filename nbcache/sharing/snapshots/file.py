"""The snapshot file: a zip archive of versions, each a manifest and its signature, and compressed artifacts.

docs/formats.md has the grammar (version 2, frozen). Every member is stored: not deflated, not encrypted,
dated 1980-01-01; the archive has no zip64 parts and no comments. So the bytes follow from the contents alone,
and no reader has to inflate anything.

Anybody can put such a file beside a notebook. So before any member is read, the directory's length is
bounded, and the members must follow each other, each as long as both its lengths say: reading them reads the
file once. No message quotes what the file says of itself: nobody has answered for that yet.

Readers take nothing from the archive but the members' bytes. The manifest states each artifact's length and
digest, and `nbcache.sharing.snapshots.verify` compares the two.
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
"""The last record: members, twice; the directory's length and place; length of a comment."""
_LOCAL = struct.Struct("<4s22xHH")
_ZIP64, _ZIP64_BYTES = b"PK\x06\x07", 20
"""Beginning and length of a record that leads zipfile to another directory than the last one."""
MAX_ARTIFACTS = 20_000
_MAX_MEMBERS = MAX_ARTIFACTS + 2 * MAX_VERSIONS
_MAX_DIRECTORY_BYTES = 160 * _MAX_MEMBERS
"""124 bytes a member are written."""
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
    size = sum(len(each.manifest) for _, each in versions) + sum(map(len, file.packed.values()))
    bounds = (
        (size, MAX_SNAPSHOT_BYTES, "bytes"),
        (len(versions), MAX_VERSIONS, "versions"),
        (len(file.packed), MAX_ARTIFACTS, "artifacts"),
    )
    if over := [f"{count:,} {what}; at most {most:,}" for count, most, what in bounds if count > most]:
        raise SnapshotError(
            f"a snapshot would have {over[0]} are written",
            next_step="share a Redis or a folder instead, or choose another file",
        )
    members: dict[str, bytes] = {}
    for number, (_, each) in enumerate(versions):
        members[f"versions/{number:02}/{_MANIFEST}"] = each.manifest
        if each.signature is not None:
            members[f"versions/{number:02}/{_SIGNATURE}"] = each.signature
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
        raise refused(f"it has {len(data):,} bytes; at most {MAX_SNAPSHOT_BYTES:,} are read")
    start = _directory(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = _members(archive, data, start)
    except CorruptSnapshot:
        raise
    except Exception as error:  # zipfile raises many kinds on what is no sound archive
        raise refused("it is no sound zip archive") from error
    parts: dict[int, dict[str, bytes]] = {}
    packed = {}
    for name, content in members.items():
        if (part := _PART.fullmatch(name)) is not None:
            parts.setdefault(int(part[1]), {})[part[2]] = content
        elif (match := _PACKED.fullmatch(name)) is not None:
            packed[match[1]] = content
        else:
            raise refused("it has a member that no snapshot has")
    if not parts or len(parts) > MAX_VERSIONS or any(_MANIFEST not in each for each in parts.values()):
        raise refused("it does not begin with manifests, or has too many")
    return SnapshotFile([Signed(each[_MANIFEST], each.get(_SIGNATURE)) for each in parts.values()], packed)


def _directory(data: bytes) -> int:
    whole = len(data) >= _END.size and data.startswith(b"PK\x03\x04")
    start: int
    mark, here, every, length, start, comment = _END.unpack(data[-_END.size :] if whole else bytes(_END.size))
    if mark != b"PK\x05\x06" or comment:
        raise refused("it is no zip archive, or has something before or after it")
    if max(here, every) > _MAX_MEMBERS or length > _MAX_DIRECTORY_BYTES:
        raise refused("it has more members than a snapshot may")
    end = len(data) - _END.size
    if start + length != end or data[end - _ZIP64_BYTES : end].startswith(_ZIP64):
        raise refused("its directory is not where its end says")
    return start


def _members(archive: zipfile.ZipFile, data: bytes, directory: int) -> dict[str, bytes]:
    """Return the archive's members in order, each stored and named once, and read once."""
    infos = archive.infolist()
    if len(infos) > _MAX_MEMBERS:
        raise refused("it has other members than its end says")
    end = 0
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise refused("a member of it is compressed or encrypted")
        if info.compress_size != info.file_size:
            raise refused("a member of it states two lengths")
        at = info.header_offset
        if at < end or at + _LOCAL.size > directory:
            raise refused("its members overlap")
        _, name, more = _LOCAL.unpack_from(data, at)
        end = at + _LOCAL.size + name + more + info.file_size
    if end > directory or (infos and infos[0].header_offset):
        raise refused("its members overlap, or something is before them")
    if len({info.filename for info in infos}) != len(infos):
        raise refused("it has two members of one name")
    return {info.filename: archive.read(info) for info in infos}


def refused(what: str, where: str | None = None) -> CorruptSnapshot:
    return CorruptSnapshot(
        f"the snapshot is refused whole: {what}", where=where, next_step="get the file again from who made it"
    )
