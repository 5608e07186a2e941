"""Tests that reading a snapshot file costs no more than its length, whatever somebody has made of it."""

from __future__ import annotations

import io
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from itertools import accumulate

import pytest

from nbcache.core.errors import CorruptSnapshot, SnapshotError
from nbcache.sharing.snapshots.file import Signed, SnapshotFile, decode_file, encode_file

PACKED = {"a" * 64: b"one", "b" * 64: b"two" * 1000}
MANIFEST, SIGNATURE = b"versions/00/manifest.json", b"versions/00/signature.json"
WHOLE = SnapshotFile([Signed(b'{"a":1}', b"signature")], PACKED)
MOST_SECONDS = 2.0
"""Of processor time, for a few MB: on a slow machine, too."""


def entry(name: bytes, offset: int, *, size: int, compressed: int, crc: int = 0, extra: bytes = b"") -> bytes:
    """Return an entry of a directory."""
    fields = (20, 20, 0, 0, 0, 33, crc, compressed, size, len(name), len(extra), 0, 0, 0, 0, offset)
    return struct.pack("<4s6H3I5H2I", b"PK\x01\x02", *fields) + name + extra


def local(name: bytes, content: bytes, extra: bytes = b"") -> bytes:
    fields = (20, 0, 0, 0, 33, zlib.crc32(content), len(content), len(content), len(name), len(extra))
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields) + name + extra + content


def end(count: int, directory: bytes, start: int) -> bytes:
    return struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, len(directory), start, 0)


def archive(members: bytes, entries: list[bytes], *, before_end: bytes = b"") -> bytes:
    directory = b"".join(entries) + before_end
    return members + directory + end(len(entries) % 65536, directory, len(members))


def names(count: int) -> list[bytes]:
    return [MANIFEST, *(b"artifacts/%064x.zst" % number for number in range(count))]


def two_lengths() -> bytes:
    """Members of one byte each, that state to be all the rest of the file in the archive."""
    every = names(10_000)
    parts = [local(name, b"x") for name in every]
    offsets = accumulate((len(part) for part in parts[:-1]), initial=0)
    members = b"".join(parts) + bytes(4 << 20)
    return archive(
        members,
        [
            entry(name, at, size=1, compressed=len(members) - at - 30 - len(name), crc=zlib.crc32(b"x"))
            for name, at in zip(every, offsets, strict=True)
        ],
    )


def one_in_another() -> bytes:
    """Members whose bytes hold each other's."""
    made = b""
    offsets = []
    for name in reversed(names(400)):
        made = local(name, made[:200_000])[: 30 + len(name)] + made
        offsets.append(len(made))
    return archive(
        made,
        [
            entry(name, len(made) - at, size=at - 30 - len(name), compressed=at - 30 - len(name))
            for name, at in zip(names(400), reversed(offsets), strict=True)
        ],
    )


def names_that_overlap() -> bytes:
    """Local headers whose extra fields are the members that follow."""
    each = local(b"manifest.json", b"", b"")[:-15] + struct.pack("<2H", 13, 65_535)
    made = (each + b"manifest.json") * 20_000
    return archive(
        made,
        [entry(name, number * 43, size=0, compressed=0) for number, name in enumerate(names(19_000))],
    )


def long_directory() -> bytes:
    """Many more members than the last record counts: zipfile reads them all."""
    content = local(MANIFEST, b"{}")
    directory = entry(b"", 0, size=0, compressed=0) * 500_000
    return content + directory + end(1, directory, len(content))


def another_directory() -> bytes:
    """A record of zip64 that leads to another, longer directory than the last record's."""
    content = local(MANIFEST, b"{}")
    directory = entry(b"", 0, size=0, compressed=0) * 500_000
    record = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(directory), len(content))
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(content) + len(directory), 1)
    before = content + directory + record + locator
    return before + end(1, b"", len(before))


def long_extra_fields() -> bytes:
    """Extra fields in the directory, which zipfile takes apart."""
    content = local(MANIFEST, b"{}")
    extra = struct.pack("<HH", 0x9999, 0) * 16_000
    entries = [entry(n, 0, size=2, compressed=2, extra=extra) for n in names(100)]
    return archive(content, entries)


@pytest.mark.parametrize(
    "attack",
    [
        two_lengths,
        one_in_another,
        names_that_overlap,
        long_directory,
        another_directory,
        long_extra_fields,
    ],
)
def test_a_file_that_is_made_to_keep_a_reader_busy_is_refused_at_once(attack: Callable[[], bytes]) -> None:
    data = attack()
    began = time.process_time()

    with pytest.raises(CorruptSnapshot):
        decode_file(data)

    assert time.process_time() - began < MOST_SECONDS


@pytest.mark.parametrize("field", [8, 12], ids=["in the archive", "whole"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_member_that_states_two_lengths_is_refused(field: int, change: int) -> None:
    data = bytearray(encode_file(WHOLE))
    at = data.index(b"PK\x01\x02") + 12 + field
    (size,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at, size + change)

    with pytest.raises(CorruptSnapshot, match="two lengths"):
        decode_file(bytes(data))


def test_members_that_overlap_by_one_byte_are_refused() -> None:
    names = (MANIFEST, SIGNATURE)
    first = local(names[0], b"{}PK\x03\x04")
    second = local(names[1], b"x")
    made = first[:-4] + second
    entries = [
        entry(names[0], 0, size=6, compressed=6, crc=zlib.crc32(b"{}PK\x03\x04")),
        entry(names[1], len(first) - 4, size=1, compressed=1, crc=zlib.crc32(b"x")),
    ]
    sound = archive(
        first + second, [entries[0], entry(names[1], len(first), size=1, compressed=1, crc=zlib.crc32(b"x"))]
    )

    assert decode_file(sound).versions[0].signature == b"x"
    with pytest.raises(CorruptSnapshot, match="overlap"):
        decode_file(archive(made, entries))


def test_a_member_that_reaches_into_the_directory_is_refused() -> None:
    data = bytearray(encode_file(SnapshotFile([Signed(b"{}", None)], {})))
    at = data.index(b"PK\x01\x02")
    for start in (18, 22, at + 20, at + 24):
        struct.pack_into("<I", data, start, 40)

    with pytest.raises(CorruptSnapshot, match="overlap"):
        decode_file(bytes(data))


def test_what_zipfile_writes_is_read() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        made.writestr(MANIFEST.decode(), b"{}")
        for digest, content in PACKED.items():
            made.writestr(f"artifacts/{digest}.zst", content)

    assert decode_file(stream.getvalue()) == SnapshotFile([Signed(b"{}", None)], PACKED)
    assert decode_file(encode_file(WHOLE)) == WHOLE


def test_no_message_quotes_what_the_file_says_of_itself() -> None:
    said = "click here"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        made.writestr(MANIFEST.decode(), b"{}")
        made.writestr(said, b"x")
    changed = bytearray(stream.getvalue())
    changed[changed.index(said.encode())] ^= 1  # the directory's name is another than the member's
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(said, b"x" * 100)

    for data in (bytes(changed), stream.getvalue()):
        with pytest.raises(CorruptSnapshot) as raised:
            decode_file(data)
        assert "here" not in "\n".join(raised.value.diagnostics()).replace("there", "")


def test_nothing_is_written_that_would_not_be_read_again() -> None:
    for file, said in (
        (
            SnapshotFile(WHOLE.versions, {f"{number:064x}": b"" for number in range(20_001)}),
            "20,001 artifacts",
        ),
        (SnapshotFile([Signed(b"%d" % number, None) for number in range(65)], {}), "65 versions"),
    ):
        with pytest.raises(SnapshotError, match=said):
            encode_file(file)
    most = SnapshotFile(WHOLE.versions, {f"{number:064x}": b"" for number in range(20_000)})
    assert len(decode_file(encode_file(most)).packed) == 20_000
