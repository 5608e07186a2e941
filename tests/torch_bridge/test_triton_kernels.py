"""Triton kernels: what torch bundles with a graph, and a tuned kernel's files, written whole or not at all.

Kernels are compiled, tuned and restored on a GPU only: tests/gpu/test_gpu_cells.py.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from nbcache.core.canonical_json import to_json
from nbcache.core.errors import FormatError
from nbcache.torch_bridge.providers.triton_kernels import KERNEL, pack, unpack
from support.front_door import LOAD, RunCells, printed

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
    assert all(Path(each).exists() for each in group.values())  # or Triton 3.8 finds none of them
    assert [each.name for each in there.parent.iterdir()] == [KEY]
    (folder / "k.ptx").unlink()
    assert pack(there) == pack(folder)


def test_what_an_earlier_nbcache_has_stored_names_what_is_there_only(folder: Path, tmp_path: Path) -> None:
    files = {name: (folder / name).read_bytes() for name in ("k.json", "k.cubin", "__grp__k.json")}
    files["__grp__k.json"] = files["__grp__k.json"].replace(str(folder).encode(), b"[nbcache folder]")
    stored = {name: base64.b64encode(content).decode() for name, content in files.items()}
    there = tmp_path / "there" / KEY

    unpack(to_json(KERNEL, {"files": stored}), there)

    group = json.loads((there / "__grp__k.json").read_text())["child_paths"]
    assert group == {name: str(there / name) for name in ("k.json", "k.cubin")}


def test_triton_finds_what_was_unpacked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "there"))
    from triton.runtime.cache import FileCacheManager

    unpack(pack(folder), tmp_path / "there" / KEY)

    assert set(FileCacheManager(KEY).get_group("k.json")) == {"k.json", "k.cubin"}


def test_what_another_process_compiles_there_meanwhile_is_left_alone(folder: Path, tmp_path: Path) -> None:
    """Two kernels share Triton's folder: taking a file from one that is writing it would fail its cell."""
    there = tmp_path / "there" / KEY
    writing = there / "tmp.pid_1_a"
    writing.mkdir(parents=True)
    (writing / "k.ptx").touch()
    (there / "k.ttir").touch()

    unpack(pack(folder), there)

    assert (writing / "k.ptx").exists() and (there / "k.ttir").exists()
    assert (there / "__grp__k.json").exists()


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
        to_json(KERNEL, {"files": {}}),
        to_json(KERNEL, {"files": {"k.json": "", "__grp__k.json": ""}}),  # Triton would find no machine code
        to_json(KERNEL, {"files": {"k.json": "", "k.cubin": ""}}),
        *(
            to_json(KERNEL, {"files": {"k.cubin": "", "__grp__k.json": base64.b64encode(group).decode()}})
            for group in (b"", b"[]", b"{}", b'{"child_paths": 1}', b"[" * 100_000)
        ),
    ],
)
def test_what_is_no_kernel_is_refused_and_leaves_nothing(content: bytes, tmp_path: Path) -> None:
    there = tmp_path / "there" / KEY

    with pytest.raises(FormatError):
        unpack(content, there)

    assert not there.exists()


BUNDLE = """\
import json, threading, types
from torch._inductor.runtime import triton_heuristics
from torch._inductor.triton_bundler import TritonBundler
def bundled(name):
    tuner = object.__new__(triton_heuristics.CachingAutotuner)
    tuner.inductor_meta, tuner.triton_meta = {"kernel_name": name}, {"device": 0}
    tuner.compile_results = [types.SimpleNamespace(kernel=types.SimpleNamespace(hash="ab" * 32))]
    TritonBundler.begin_compile()
    if hasattr(TritonBundler, "put_winner"):
        TritonBundler.put_winner("CANDIDATE")
    tuner.precompile(warm_cache_only=True)
    found = [len(TritonBundler._entries), len(getattr(TritonBundler, "_winners", ()))]
    TritonBundler.end_compile()
    return found
"""
TELL = 'print(json.dumps([bundled(each) for each in ("triton_poi_fused_0", "Placeholder.DESCRIPTIVE_NAME")]))'


@pytest.mark.compile
def test_a_graphs_own_kernels_are_bundled_and_candidates_are_not_until_it_is_unloaded(
    run_cells: RunCells,
) -> None:
    notebook = run_cells([LOAD, BUNDLE, TELL, "%unload_ext nbcache", TELL])

    own, candidate = json.loads(printed(notebook, 2))
    assert (own, candidate) == ([1, 0], [0, 0])
    own, candidate = json.loads(printed(notebook, 4))
    assert own[0] == candidate[0] == 1
