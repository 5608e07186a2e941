"""The values of the live shared level: golden bytes, damage of every kind, and later versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcache.core.errors import CorruptEntry, FormatError, UnsupportedVersion
from nbcache.core.key import components, sha256
from nbcache.core.model import ArtifactRef, Environment, Packed
from nbcache.core.settings import Policy
from nbcache.sharing.live.layout import MAX_VARIANTS, Variant, decode_shared, encode_shared
from nbcache.sharing.live.level import SharedLevel
from nbcache.sharing.live.signing import Signer
from nbcache.sharing.provenance import Statement
from nbcache.sharing.trust import Keyring
from nbcache.storage.backends.memory import MemoryStore
from nbcache.storage.encoding import pack

REF = ArtifactRef("inductor", "fabc", "0" * 64, 7, 1.0, 2.5, "cell", "f")
STATEMENT = Statement("1" * 64, "3" * 64, REF, Packed(7, 11, "2" * 64), "ada", "engine")
GOLDEN_STATEMENT = (
    b'{"cell":"cell","created":1.0,"digest":"' + b"0" * 64 + b'","environment":"' + b"1" * 64 + b'",'
    b'"format":"nbcache.statement","function":"f","host":"engine","key":"fabc","packed":11,'
    b'"packed_digest":"' + b"2" * 64 + b'","size":7,"type":"inductor","used":2.5,"user":"ada","version":1,'
    b'"without_cpu":"' + b"3" * 64 + b'"}'
)
VARIANTS = [Variant(b"said", b"signed", b"\x00\xff"), Variant(b"", b"", b"")]
GOLDEN = (
    b"NBCS\x01\x02"
    b"\x00\x00\x00\x04said\x00\x00\x00\x06signed\x00\x00\x00\x00\x00\x00\x00\x02\x00\xff"
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
)


def test_the_bytes_of_version_1_are_these() -> None:
    assert encode_shared(VARIANTS) == GOLDEN
    assert decode_shared(GOLDEN) == VARIANTS
    assert STATEMENT.encode() == GOLDEN_STATEMENT
    assert Statement.decode(GOLDEN_STATEMENT) == STATEMENT


@given(st.lists(st.builds(Variant, *[st.binary(max_size=50)] * 3), max_size=MAX_VARIANTS))
def test_what_is_written_is_read(variants: list[Variant]) -> None:
    assert decode_shared(encode_shared(variants)) == variants


@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_be_refused(tail: bytes) -> None:
    for value in (tail, b"NBCS" + tail, b"NBCS\x01" + tail, b"NBCS\x01\x01\x00\x00\x00\x04" + tail):
        try:
            assert encode_shared(decode_shared(value)) == value
        except FormatError:
            continue


@pytest.mark.parametrize(
    "value",
    [
        GOLDEN + b"\0",
        b"NBCS\x00" + GOLDEN[5:],
        b"NBCS\x01\x21" + b"\0" * 16 * 33,
        b"NBCS\x01\x01\xff\xff\xff\xff" + GOLDEN,
        b"NBCS\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
)
def test_lengths_and_counts_that_never_were_are_corrupt(value: bytes) -> None:
    with pytest.raises(CorruptEntry):
        decode_shared(value)


def test_a_later_version_is_said_to_be_one() -> None:
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_shared(b"NBCS\x02")
    later = json.dumps({**json.loads(GOLDEN_STATEMENT), "version": 2}).encode()
    with pytest.raises(UnsupportedVersion, match="version 2"):
        Statement.decode(later)


def test_fields_that_come_later_are_ignored() -> None:
    more = json.dumps({**json.loads(GOLDEN_STATEMENT), "later": [1]}).encode()
    assert Statement.decode(more) == STATEMENT


@pytest.mark.parametrize("field", sorted(json.loads(GOLDEN_STATEMENT)))
def test_a_statement_lacks_no_field_and_has_none_of_another_kind(field: str) -> None:
    fields = json.loads(GOLDEN_STATEMENT)
    wrong: list[object] = [
        None,
        [],
        {},
        -1,
        True,
        float("nan"),
        "\ud800",
        "x" if "digest" in field else -2,
    ]
    for value in wrong:
        with pytest.raises(FormatError):
            Statement.decode(json.dumps({**fields, field: value}).encode())
    del fields[field]
    with pytest.raises(CorruptEntry):
        Statement.decode(json.dumps(fields).encode())


@pytest.mark.parametrize("part", ["statement", "signature"])
def test_what_would_be_too_long_to_be_read_is_not_written(part: str) -> None:
    with pytest.raises(FormatError, match=part):
        encode_shared([replace(VARIANTS[1], **{part: b"x" * 70_000})])


# --- damage, as a kernel meets it -----------------------------------------------------------------

HERE = Environment(components({"torch.version": "2.13.0", "device": "cpu"}))
CONTENT = b"a graph " * 4


class Reader:
    """Somebody who reads one entry of their own, from a store in memory."""

    def __init__(self, folder: Path) -> None:
        keyring = Keyring(folder)
        self.store = MemoryStore()
        self.said: list[str] = []
        signer = Signer(lambda: keyring, lambda: Policy.STRICT, "ada", "engine")
        self.level = SharedLevel(
            self.store, signer, wait_seconds=600, say=lambda text, slug: self.said.append(text)
        )
        packed = pack(CONTENT)
        ref = ArtifactRef("inductor", "one", sha256(CONTENT), len(CONTENT), 1.0, 1.0)
        self.level.publish(HERE, ref, packed)
        assert self.level.flush(10)
        (self.slot,) = self.store.keys()
        self.value = self.store.get(self.slot) or b""

    def contents(self, value: bytes) -> list[bytes]:
        """Return the contents that are found where `value` is stored."""
        self.store.put(self.slot, value)
        return [found.unpack() for found in self.level.find(HERE, "inductor", "one")]


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    reader = Reader(tmp_path / "keys")
    assert reader.contents(reader.value) == [CONTENT]
    return reader


def truncations(value: bytes) -> list[bytes]:
    return [value[:end] for end in range(len(value))]


def flips(value: bytes) -> list[bytes]:
    """Return `value` with each of its bits changed."""
    return [
        value[:at] + bytes([value[at] ^ 1 << bit]) + value[at + 1 :]
        for at in range(len(value))
        for bit in range(8)
    ]


@pytest.mark.parametrize("damages", [truncations, flips])
def test_no_damage_yields_anything_or_raises(reader: Reader, damages: Callable[[bytes], list[bytes]]) -> None:
    for damaged in damages(reader.value):
        reader.said.clear()
        assert reader.contents(damaged) == [], damaged
        assert len(reader.said) <= 1
        assert reader.level.failure is None
    assert reader.contents(reader.value) == [CONTENT]


def test_content_that_would_be_far_longer_than_its_bytes_is_not_unpacked(reader: Reader) -> None:
    keyring = Keyring(reader.level._signer.keyring().folder)
    (whole,) = decode_shared(reader.value)
    statement = Statement.decode(whole.statement)
    bomb = replace(
        statement, ref=replace(statement.ref, size=1 << 40), packed=replace(statement.packed, size=1 << 40)
    )
    said = bomb.sign(keyring)
    assert reader.contents(encode_shared([Variant(said.statement, said.signature, whole.packed)])) == []
    assert "much longer" in reader.said[-1]
