"""Read and write torch's bundle, the bytes of `torch.compiler.save_cache_artifacts`, without torch.

docs/formats.md has its grammar. torch appends a group at each save, and reads only the last group of a type
(`dict(...)` in `CacheArtifactManager.deserialize`; 2.11, 2.13). So this module writes one group for each
type, and reads all groups. A bundle is unsigned, and names neither torch's version nor its CPU and GPU.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import zlib
from collections.abc import Iterable

from nbcache.core.canonical_json import newer_version
from nbcache.core.errors import CorruptSnapshot
from nbcache.core.model import Artifact
from nbcache.storage.types import type_of

_CPP = (b"async_compile.cpp", b"#include")
"""Texts in C++ code that inductor generates. Pickled graphs contain that code verbatim (2.11, 2.13)."""
AUTOTUNE_KEY = re.compile(r"[a-z0-9]{2}/[a-z0-9]{1,64}\.best_config")
"""Keys of best configurations. nbcache rejects others, since torch joins a key to its folder unchecked."""
_VERSION = 1
_CHECKSUM_BYTES, _INTEGER_BYTES = 4, 8


def encode_bundle(artifacts: Iterable[Artifact]) -> bytes:
    groups: dict[str, dict[tuple[str, bytes], None]] = {}
    for artifact in artifacts:
        if fits_in_bundle(artifact):
            groups.setdefault(artifact.type, {})[artifact.key, artifact.content] = None
    body = [_integer(_VERSION)]
    for type, members in groups.items():
        body += [_text(type), _integer(len(members))]
        for key, content in members:
            body += [_text(key), _integer(len(content)), content]
    data = b"".join(body)
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES) + data


def decode_bundle(data: bytes) -> list[Artifact]:
    """Return the artifacts of a bundle, in order; raises CorruptSnapshot or UnsupportedVersion."""
    reader = _Reader(data)
    if int.from_bytes(reader.take(_CHECKSUM_BYTES)) != zlib.crc32(memoryview(data)[_CHECKSUM_BYTES:]):
        raise _corrupt("its checksum is wrong")
    if (version := reader.integer()) != _VERSION:
        raise newer_version("bundle", version)
    artifacts: dict[Artifact, None] = {}
    while reader.tell() < len(data):
        type = reader.text()
        for _ in range(reader.integer()):
            artifacts[Artifact(type, reader.text(), reader.take(reader.integer()))] = None
    return list(artifacts)


def fits_in_bundle(artifact: Artifact) -> bool:
    """Return whether torch's bundle can hold the artifact."""
    if artifact.type == "autotune":
        return AUTOTUNE_KEY.fullmatch(artifact.key) is not None
    return type_of(artifact.type).in_mega_cache


def holds_cpu_code(artifact: Artifact) -> bool:
    """Return whether an artifact holds C++ kernels: they depend on a CPU that the bundle does not name."""
    return any(mark in artifact.content for mark in _CPP)


class _Reader(io.BytesIO):
    def take(self, length: int) -> bytes:
        if length > len(self.getbuffer()) - self.tell():
            raise _corrupt("it ends too early")
        return self.read(length)

    def integer(self) -> int:
        return int.from_bytes(self.take(_INTEGER_BYTES))

    def text(self) -> str:
        try:
            return base64.b64decode(self.take(self.integer()), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise _corrupt("a name in it is not base64 of UTF-8") from error


def _integer(value: int) -> bytes:
    return value.to_bytes(_INTEGER_BYTES)


def _text(value: str) -> bytes:
    data = base64.b64encode(value.encode())
    return _integer(len(data)) + data


def _corrupt(reason: str) -> CorruptSnapshot:
    return CorruptSnapshot(
        f"this is not a torch bundle: {reason}",
        next_step="write it again with torch.compiler.save_cache_artifacts()",
    )
