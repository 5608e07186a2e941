"""torch's bundle, read and written without torch."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcache.core.errors import CorruptSnapshot, FormatError, UnsupportedVersion
from nbcache.core.model import Artifact
from nbcache.storage.mega_cache import decode_bundle, encode_bundle, fits_in_bundle
from support.front_door import RunPython

artifacts = st.lists(
    st.builds(
        Artifact,
        type=st.sampled_from(["inductor", "aot_autograd", "pgo"]),
        key=st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
        content=st.binary(max_size=20),
    ),
    unique=True,
)


def grouped(artifacts: list[Artifact]) -> list[Artifact]:
    """Return artifacts in the order of a bundle: by type, types as they first come."""
    types = list(dict.fromkeys(artifact.type for artifact in artifacts))
    return sorted(artifacts, key=lambda artifact: types.index(artifact.type))


@given(artifacts)
def test_a_bundle_survives_its_codec(artifacts: list[Artifact]) -> None:
    assert decode_bundle(encode_bundle(artifacts)) == grouped(artifacts)


@given(artifacts, st.data())
def test_a_corrupt_bundle_is_refused(artifacts: list[Artifact], data: st.DataObject) -> None:
    bundle = encode_bundle(artifacts)
    at = data.draw(st.integers(0, len(bundle) - 1))
    for wrong in (bundle[:at], bundle[:at] + bytes([bundle[at] ^ 0x10]) + bundle[at + 1 :], bundle + b"x"):
        with pytest.raises(FormatError):
            decode_bundle(wrong)


def test_what_torch_has_no_type_for_is_left_out() -> None:
    kept = Artifact("inductor", "key", b"abc")
    assert decode_bundle(encode_bundle([Artifact("cpp_kernel", "key", b"so"), kept, kept])) == [kept]


def test_keys_that_torch_would_take_for_paths_are_left_out() -> None:
    keys = ["ab/c0ffee.best_config", "../../../evil.best_config", "/etc/x.best_config", "ab/../x.best_config"]
    made = [Artifact("autotune", key, b"{}") for key in keys]
    assert [each.key for each in decode_bundle(encode_bundle(made))] == keys[:1]
    assert [fits_in_bundle(each) for each in made] == [True, False, False, False]


def test_a_later_version_says_so() -> None:
    body = (2).to_bytes(8)
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_bundle(zlib.crc32(body).to_bytes(4) + body)


def test_a_length_beyond_the_end_is_refused() -> None:
    body = (1).to_bytes(8) + (1 << 62).to_bytes(8)
    with pytest.raises(CorruptSnapshot, match="ends too early"):
        decode_bundle(zlib.crc32(body).to_bytes(4) + body)


@pytest.mark.compile
def test_torch_reads_and_writes_the_same_bytes(run_python: RunPython) -> None:
    done = run_python("""
import torch
from torch.compiler._cache import CacheArtifactManager as manager
from nbcache.storage.mega_cache import decode_bundle, encode_bundle
from nbcache.core.model import Artifact
import torch._inductor.codecache, torch._dynamo.pgo, torch._functorch._aot_autograd.autograd_cache

ours = [Artifact("inductor", "kéy", b"abc"), Artifact("inductor", "other", b"")]
ours.append(Artifact("aot_autograd", "key", b"d"))
with manager.with_fresh_cache():
    for each in ours:
        manager.record_artifact(each.type, each.key, each.content)
    theirs, _ = manager.serialize()
assert encode_bundle(ours) == theirs
assert decode_bundle(theirs) == ours
read = manager.deserialize(encode_bundle(ours))
assert {(type, each.key, each.content) for type, found in read.items() for each in found} == {
    (each.type, each.key, each.content) for each in ours
}
with manager.with_fresh_cache():  # saving again loses nothing here, as it does in torch
    for each in ours:
        manager.record_artifact(each.type, each.key, each.content)
        twice, _ = manager.serialize()
assert decode_bundle(twice) == ours
assert sum(map(len, manager.deserialize(twice).values())) < len(ours)
assert sum(map(len, manager.deserialize(encode_bundle(decode_bundle(twice))).values())) == len(ours)
""")
    assert done.stderr == ""
