"""The formats: golden bytes, and what readers do with bytes that are wrong."""

import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nbcache.core.errors import CorruptEntry, FormatError, UnsupportedVersion
from nbcache.core.key import components
from nbcache.core.model import ArtifactRef, Environment, Manifest
from nbcache.storage.encoding import (
    decode_entry,
    decode_manifest,
    decode_ref,
    encode_entry,
    encode_manifest,
    encode_ref,
    pack,
)

HEADER_BYTES = 54

RAW_ENTRY = bytes.fromhex(
    "4e424345"  # NBCE
    "01"  # version
    "00"  # raw
    "0000000000000003"
    "0000000000000003"
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    "616263"
)

ZSTD_CONTENT = b"nbcache " * 100
ZSTD_ENTRY = bytes.fromhex(
    "4e424345"
    "01"
    "01"  # zstd
    "0000000000000320"
    "0000000000000019"
    "b0d95a596b804674cf3bc06594784aa9bbe4851ee4ca45013debb371d113dcf7"
    "28b52ffd6020027d0000406e6263616368652001001557152e"
)

REF = ArtifactRef(
    type="inductor",
    key="fé/x",
    digest="ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    size=3,
    created=1700000000.5,
    used=1700000001.0,
    cell="0123456789abcdef",
    function="Model.forward",
)
REF_JSON = (
    '{"cell":"0123456789abcdef","created":1700000000.5,'
    '"digest":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",'
    '"format":"nbcache.ref","function":"Model.forward","key":"fé/x","size":3,"type":"inductor",'
    '"used":1700000001.0,"version":1}'
).encode()

MANIFEST = Manifest(
    environment=Environment(components({"torch": "2.13.0", "cpu": "avx2"})),
    notebook="work/quickstart.ipynb",
    artifacts=(REF, replace(REF, type="pgo", cell="", function="")),
)
MANIFEST_JSON = (
    '{"artifacts":['
    '{"cell":"0123456789abcdef","created":1700000000.5,'
    '"digest":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",'
    '"function":"Model.forward","key":"fé/x","size":3,"type":"inductor","used":1700000001.0},'
    '{"cell":"","created":1700000000.5,'
    '"digest":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",'
    '"function":"","key":"fé/x","size":3,"type":"pgo","used":1700000001.0}],'
    '"environment":[["cpu","avx2"],["torch","2.13.0"]],"format":"nbcache.manifest",'
    '"notebook":"work/quickstart.ipynb","version":1}'
).encode()

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
refs = st.builds(
    ArtifactRef,
    type=st.sampled_from(["inductor", "aot_autograd", "pgo", "é"]),
    key=texts,
    digest=st.binary(max_size=2).map(lambda content: hashlib.sha256(content).hexdigest()),
    size=st.integers(0, 2**63 - 1),
    created=st.floats(0, 2**40),
    used=st.floats(0, 2**40),
    cell=texts,
    function=texts,
)


def entry(payload: bytes, *, version: int = 1, codec: int = 0, content_length: int | None = None) -> bytes:
    """Build an entry by hand, sound but for what is given."""
    length = len(payload) if content_length is None else content_length
    digest = hashlib.sha256(payload).digest()
    return struct.pack(">4sBBQQ32s", b"NBCE", version, codec, length, len(payload), digest) + payload


# --- entries ------------------------------------------------------------------------------------


def test_the_bytes_of_a_raw_entry_are_frozen() -> None:
    assert encode_entry(b"abc") == RAW_ENTRY
    assert decode_entry(RAW_ENTRY) == b"abc"


def test_a_compressed_entry_of_version_1_stays_readable() -> None:
    # Encoding is not compared: another zstd may compress better.
    assert decode_entry(ZSTD_ENTRY) == ZSTD_CONTENT


def test_content_is_compressed_where_that_saves_bytes() -> None:
    assert len(encode_entry(ZSTD_CONTENT)) < len(ZSTD_CONTENT)
    for content in (b"", b"a", hashlib.sha256(b"").digest()):
        assert len(encode_entry(content)) == HEADER_BYTES + len(content)


@given(st.binary(max_size=2000))
def test_content_comes_back_as_it_was(content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    assert decode_entry(encode_entry(content), digest=digest) == content
    assert encode_entry(content, pack(content)) == encode_entry(content)


@pytest.mark.parametrize("sound", [RAW_ENTRY, ZSTD_ENTRY])
def test_no_damage_of_an_entry_passes(sound: bytes) -> None:
    cut = [sound[:length] for length in range(len(sound))]
    flipped = [
        sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :]
        for at in range(len(sound))
        for bit in range(8)
    ]
    for damaged in (*cut, *flipped, sound + b"\0"):
        with pytest.raises(FormatError) as caught:
            decode_entry(damaged)
        assert caught.value.what and caught.value.next_step


def test_content_with_another_digest_than_asked_for_is_corrupt() -> None:
    with pytest.raises(CorruptEntry, match="the digest in its name"):
        decode_entry(RAW_ENTRY, digest="0" * 64)


def test_a_newer_version_is_no_corruption_whatever_follows_it() -> None:
    for newer in (entry(b"abc", version=2), b"NBCE\x02", b"NBCE\xff\x00another header"):
        with pytest.raises(UnsupportedVersion) as caught:
            decode_entry(newer)
        assert "upgrade" in (caught.value.next_step or "")


@pytest.mark.parametrize("broken", [{"version": 0}, {"codec": 2}, {"content_length": 2}])
def test_a_version_codec_or_length_that_never_was_is_corrupt(broken: dict[str, int]) -> None:
    with pytest.raises(CorruptEntry):
        decode_entry(entry(b"abc", **broken))


def test_more_content_than_may_be_taken_is_refused() -> None:
    assert decode_entry(RAW_ENTRY, max_bytes=3) == b"abc"
    with pytest.raises(CorruptEntry, match="at most 2"):
        decode_entry(RAW_ENTRY, max_bytes=2)


def zeros(length: int, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(b"\0" * length)


@pytest.mark.parametrize(
    "payload",
    [
        zeros(1 << 20),  # a bomb: its frame states more than the entry
        zeros(1 << 20, write_content_size=False),  # one that does not say
        zstandard.ZstdCompressor(write_content_size=False).compress(b"abc"),
        zeros(3) + zeros(3),  # two frames
        zeros(3)[:-1],  # cut off, its digest made anew
        b"no zstd at all",
        b"",
        # A frame whose header states 2^62 bytes.
        bytes.fromhex("28b52ffde0") + struct.pack("<Q", 1 << 62) + b"\0" * 8,
    ],
)
def test_a_payload_that_is_not_the_stated_frame_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptEntry):
        decode_entry(entry(payload, codec=1, content_length=3))


def test_a_frame_that_states_more_than_memory_is_corrupt() -> None:
    frame = bytes.fromhex("28b52ffde0") + struct.pack("<Q", 1 << 62) + b"\0" * 8
    with pytest.raises(CorruptEntry):
        decode_entry(entry(frame, codec=1, content_length=1 << 62), max_bytes=1 << 63)


@settings(max_examples=200)
@given(
    st.one_of(
        st.binary(max_size=100),
        st.builds(
            entry,
            st.binary(max_size=60),
            version=st.integers(0, 2),
            codec=st.integers(0, 2),
            content_length=st.none() | st.integers(0, 100) | st.integers(0, 2**64 - 1),
        ),
        st.builds(
            lambda frame, cut, length: entry(frame[:cut], codec=1, content_length=length),
            st.binary(max_size=100).map(zstandard.compress),
            st.integers(0, 120),
            st.integers(0, 100),
        ),
    )
)
@example(b"")
def test_any_bytes_are_content_or_a_format_error(data: bytes) -> None:
    try:
        content = decode_entry(data)
    except FormatError:
        return
    assert data.startswith(b"NBCE")
    assert decode_entry(encode_entry(content)) == content


# --- references and manifests -------------------------------------------------------------------


def test_the_bytes_of_a_reference_are_frozen() -> None:
    assert encode_ref(REF) == REF_JSON
    assert decode_ref(REF_JSON) == REF


def test_the_bytes_of_a_manifest_are_frozen() -> None:
    assert encode_manifest(MANIFEST) == MANIFEST_JSON
    assert decode_manifest(MANIFEST_JSON) == MANIFEST


@given(refs)
def test_a_reference_comes_back_as_it_was(ref: ArtifactRef) -> None:
    assert decode_ref(encode_ref(ref)) == ref


@given(
    st.builds(
        Manifest,
        st.dictionaries(texts, texts, max_size=3).map(lambda values: Environment(components(values))),
        texts,
        st.lists(refs, max_size=3).map(tuple),
    )
)
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_equal_references_have_equal_bytes() -> None:
    assert encode_ref(replace(REF, used=1)) == encode_ref(replace(REF, used=1.0))


def changed(content: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(content) | fields).encode()


def without(content: bytes, field: str) -> bytes:
    return json.dumps({name: value for name, value in json.loads(content).items() if name != field}).encode()


def test_fields_that_a_reader_does_not_know_are_ignored() -> None:
    assert decode_ref(changed(REF_JSON, colour="blue")) == REF
    assert decode_manifest(changed(MANIFEST_JSON, signer={"name": "x"})) == MANIFEST


def test_a_newer_reference_or_manifest_is_no_corruption() -> None:
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_ref(b'{"format": "nbcache.ref", "version": 2, "all else": "is different"}')
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_manifest(b'{"format": "nbcache.manifest", "version": 2}')


@pytest.mark.parametrize(("decode", "content"), [(decode_ref, REF_JSON), (decode_manifest, MANIFEST_JSON)])
def test_what_lacks_one_of_its_fields_is_corrupt(decode: Callable[[bytes], object], content: bytes) -> None:
    for field in json.loads(content):
        with pytest.raises(CorruptEntry):
            decode(without(content, field))


@pytest.mark.parametrize(
    "fields",
    [
        {"digest": "0" * 63},
        {"digest": "A" * 64},
        {"digest": "0" * 64 + "\n"},
        {"digest": "../" * 21 + "x"},
        {"digest": None},
        {"type": ""},
        {"type": 1},
        {"key": ["k"]},
        {"key": "\ud800"},
        {"size": -1},
        {"size": 1.5},
        {"size": True},
        {"size": 1 << 63},
        {"used": -1},
        {"used": "now"},
        {"used": True},
        {"used": float("nan")},
        {"used": float("inf")},
        {"created": 10**400},
        {"version": 0},
        {"version": "1"},
        {"version": True},
        {"format": "nbcache.manifest"},
    ],
)
def test_a_reference_with_a_field_out_of_range_is_corrupt(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptEntry):
        decode_ref(changed(REF_JSON, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"environment": {}},
        {"environment": [["torch"]]},
        {"environment": [["torch", 2]]},
        {"environment": [["torch", "\ud800"]]},
        {"environment": ["ab"]},
        {"notebook": None},
        {"artifacts": None},
        {"artifacts": [None]},
        {"artifacts": [{}]},
        {"artifacts": {"0": 1}},
        {"format": "nbcache.ref"},
    ],
)
def test_a_manifest_with_a_field_out_of_range_is_corrupt(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptEntry):
        decode_manifest(changed(MANIFEST_JSON, **fields))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"\xef\xbb\xbf" + REF_JSON,
        REF_JSON + b"x",
        REF_JSON.decode().encode("utf-16"),
        b'{"version": ' + b"1" * 5000 + b"}",
    ],
)
def test_what_is_not_the_json_of_a_reference_is_corrupt(content: bytes) -> None:
    with pytest.raises(CorruptEntry):
        decode_ref(content)
    with pytest.raises(CorruptEntry):
        decode_manifest(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(json.loads(REF_JSON))), json_values)
def test_a_reference_with_any_value_in_a_field_is_read_or_refused(field: str, value: object) -> None:
    try:
        ref = decode_ref(changed(REF_JSON, **{field: value}))
    except FormatError:
        return
    assert decode_ref(encode_ref(ref)) == ref


@pytest.mark.parametrize(
    "fields", [{"digest": "x"}, {"size": -1}, {"used": float("nan")}, {"type": ""}, {"key": "\ud800"}]
)
def test_what_could_not_be_read_again_is_not_written(fields: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        encode_ref(replace(REF, **fields))
    with pytest.raises(FormatError):
        encode_manifest(replace(MANIFEST, artifacts=(replace(REF, **fields),)))


# --- imports ------------------------------------------------------------------------------------


def test_importing_the_stores_does_not_import_zstandard() -> None:  # `test_layers` covers others
    modules = "sys, nbcache.storage.store, nbcache.storage.backends.directory"
    program = f"import {modules}; print('zstandard' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
