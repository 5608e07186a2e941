"""A tuned Triton kernel's files: stored without their place, and written whole or not at all.

Torch and Triton look for them on a GPU only: tests/gpu/test_gpu_cells.py.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from nbcache.canonical import to_json
from nbcache.errors import FormatError
from nbcache.torch_bridge.triton_kernels import KERNEL, pack, unpack

KEY = "KGZXXPTVUR2BF6O7MO3TUN5EREGHXM7F2NWVYSYDQB7KHIWHMZ7Q"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A kernel's folder, as Triton leaves it."""
    made = tmp_path / "here" / KEY
    made.mkdir(parents=True)
    paths = {name: str(made / name) for name in ("k.json", "k.cubin", "k.ptx")}
    (made / "__grp__k.json").write_text(json.dumps({"child_paths": paths}))
    (made / "k.json").write_text(json.dumps({"hash": "ab", "num_warps": 4}))
    (made / "k.cubin").write_bytes(b"\x7fELF" + str(made).encode())
    (made / "k.ptx").write_text(".version 8.7")
    return made


def test_what_runs_is_the_same_elsewhere_and_names_its_new_place(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "there" / KEY
    there.mkdir(parents=True)

    unpack(pack(folder), there)

    assert sorted(each.name for each in there.iterdir()) == ["__grp__k.json", "k.cubin", "k.json"]
    assert (there / "k.cubin").read_bytes() == (folder / "k.cubin").read_bytes()
    assert (there / "k.json").read_bytes() == (folder / "k.json").read_bytes()
    group = json.loads((there / "__grp__k.json").read_text())["child_paths"]
    assert group["k.cubin"] == str(there / "k.cubin")
    assert [each.name for each in there.parent.iterdir()] == [KEY]


def test_equal_kernels_are_equal_bytes_wherever_they_are(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "there" / KEY
    unpack(pack(folder), there)
    (folder / "k.ptx").unlink()

    assert pack(there) == pack(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        to_json("another", {"files": {}}),
        to_json(KERNEL, {"files": []}),
        to_json(KERNEL, {"files": {"../k.json": ""}}),
        to_json(KERNEL, {"files": {"/tmp/k.cubin": ""}}),
        to_json(KERNEL, {"files": {"k.so": ""}}),
        to_json(KERNEL, {"files": {"k.json\n": ""}}),
        to_json(KERNEL, {"files": {"k.json": 1}}),
        to_json(KERNEL, {"files": {"k.json": "no base64"}}),
        to_json(KERNEL, {"files": {"k.json": base64.b64encode(b"{}").decode(), "k.cubin": "*"}}),
    ],
)
def test_what_is_no_kernel_is_refused_and_leaves_nothing(content: bytes, tmp_path: Path) -> None:
    there = tmp_path / "there" / KEY

    with pytest.raises(FormatError):
        unpack(content, there)

    assert not there.exists()
