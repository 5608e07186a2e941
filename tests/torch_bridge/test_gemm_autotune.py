"""What max-autotune has measured: kept by the rules of torch, and not measured again.

On a CPU torch benchmarks its C++ templates against its libraries for batched products in float32. All else
is asked of torch's own cache, with candidates that are none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbcache.core.errors import CorruptEntry
from nbcache.core.key import components
from nbcache.core.model import ArtifactRef, Environment, Manifest
from nbcache.storage.compatibility import fitting, scope
from nbcache.torch_bridge.providers.gemm_autotune import decode_times, encode_times
from support.front_door import LOAD, REPORTS, SESSION, Environ, RunCells, graphs, tell, told

TORCH = f"import json, math, torch; session = {SESSION}"
CANDIDATES = """\
from torch._inductor import codecache, config

class Candidate:
    def __init__(self, name):
        self.name = name
    def hash_key(self):
        return self.name

cache = codecache.PersistentCache()
MM = "[('cuda', 'torch.float32', 64, 64)]"

def look(names="abc", op="mm", inputs=MM, hint=None, measure=True, times=(1.5, 2.0, math.inf)):
    '''Return the times that torch finds, and how many candidates it has benchmarked for them.'''
    benchmarked = []
    def benchmark(candidates):
        benchmarked.extend(candidates)
        return dict(zip(candidates, times))
    candidates = [Candidate(name) for name in names]
    found = cache.lookup(candidates, op, inputs, benchmark if measure else None, hint_override=hint)
    return [[repr(found[each]) for each in candidates if each in found], len(benchmarked)]

def stored():
    session.flush()
    return [ref.key for ref in session.cache.manifest().artifacts if ref.type == "gemm_autotune"]
"""
MEASURED = ["1.5", "2.0", "inf"]


# --- the content ----------------------------------------------------------------------------------


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.floats(0, 1e18) | st.just(math.inf)))
def test_times_come_back_as_they_were(times: dict[str, float]) -> None:
    assert decode_times(encode_times(times)) == times


HEAD = b'{"format":"gemm_autotune","version":1,'
HOSTILE = {
    "not JSON": b"\xff{",
    "no object": b"[1]",
    "another format": b'{"format":"probe","version":1,"times":{"a":1.0}}',
    "no times": HEAD + b'"times":[1.0]}',
    "a text": HEAD + b'"times":{"a":"1.0","b":1.0,"c":1.0}}',
    "a list": HEAD + b'"times":{"a":[1.0],"b":1.0,"c":1.0}}',
    "a truth": HEAD + b'"times":{"a":true,"b":1.0,"c":1.0}}',
    "NaN": HEAD + b'"times":{"a":NaN,"b":1.0,"c":1.0}}',
    "Infinity": HEAD + b'"times":{"a":Infinity,"b":1.0,"c":1.0}}',
    "negative": HEAD + b'"times":{"a":-1.0,"b":1.0,"c":1.0}}',
    "beyond floats": HEAD + b'"times":{"a":1' + b"0" * 400 + b',"b":1.0,"c":1.0}}',
    "nested": HEAD + b'"times":' + b"[" * 100_000,
    "enormous": HEAD + b'"times":{"a":1.0,"b":1.0,"c":1.0},"more":"' + b"x" * (4 << 20) + b'"}',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_measurement_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptEntry):
        decode_times(content)


# --- what it is bound to --------------------------------------------------------------------------


def test_times_of_a_gpu_fit_beside_another_cpu_and_those_of_a_cpu_do_not() -> None:
    def environment(device: str, cpu: str) -> Environment:
        return Environment(components({"torch.version": "2.13.0", "device": device, "cpu.features": cpu}))

    def fits(there: Environment, here: Environment) -> bool:
        fitted = fitting([Manifest(there, "", (ArtifactRef("gemm_autotune", "k", "d", 1),))], here)
        alike = scope(there, "gemm_autotune") == scope(here, "gemm_autotune")
        assert alike == (fitted is not None)
        return alike

    assert fits(environment("H200", "avx2"), environment("H200", "avx512"))
    assert not fits(environment("H200", "avx2"), environment("H100", "avx2"))
    assert not fits(environment("cpu", "avx2"), environment("cpu", "avx512"))


# --- torch's rules --------------------------------------------------------------------------------


@pytest.mark.compile
def test_what_was_measured_is_found_again_by_the_rules_of_torch_unless_it_cannot_be_used(
    isolated: dict[str, str], run_cells: RunCells, wipe: Callable[[Environ], None]
) -> None:
    exact = f"{TORCH}; torch.set_float32_matmul_precision('highest')"  # torch 2.15 tells it from the default
    first = run_cells([LOAD, exact, CANDIDATES, tell("[look(), look(), look('ax', times=(3.0, 4.0))]")])
    assert told(first) == [[MEASURED, 3], [MEASURED, 0], [["3.0", "4.0"], 2]]
    wipe(isolated)
    read = """\
from torch._inductor.utils import fresh_cache
nowhere = []
with torch.compiler.config.patch(force_disable_caches=True):
    nowhere.append(look(measure=False))
with config.patch(autotune_local_cache=False):
    nowhere.append(look(measure=False))
with fresh_cache():
    nowhere.append(look())
found = {
    "before compiling candidates": look(measure=False),
    "same": look(),
    "of another order": look("cab"),
    "of fewer": look("ab"),
    "of others": look("ax"),
    "one is new": look("abd"),
    "another operator": look(op="bmm"),
    "other inputs": look(inputs=MM + " "),
    "another hint": look(hint=1),
}
torch.set_float32_matmul_precision("high")
found["another precision"] = look()
torch.set_float32_matmul_precision("highest")
found["again"] = look()
"""
    second = run_cells([LOAD, exact, CANDIDATES, read, tell("found"), tell("[nowhere, session.notices]")])
    assert told(second) == [[[[], 0], [[], 0], [MEASURED, 3]], []]
    assert told(second, 4) == {
        "before compiling candidates": [MEASURED, 0],
        "same": [MEASURED, 0],
        "of another order": [["inf", "1.5", "2.0"], 0],
        "of fewer": [["1.5", "2.0"], 0],
        "of others": [["3.0", "4.0"], 0],
        "one is new": [MEASURED, 3],
        "another operator": [MEASURED, 3],
        "other inputs": [MEASURED, 3],
        "another hint": [MEASURED, 3],
        "another precision": [MEASURED, 3],
        "again": [["1.5", "2.0", "inf"], 0],
    }
    wipe(isolated)
    spoil = f"""\
from nbcache.core.model import Artifact
for ref in session.cache.manifest().artifacts:
    if ref.type == "gemm_autotune":
        session.artifacts.forget(session.environment.digest, ref.type, ref.key)
        session.artifacts.put(session.environment.digest, Artifact(ref.type, ref.key, {HOSTILE["NaN"]!r}))
"""
    said = tell("[look(measure=False), len(session.notices) > 0, look()]")
    third = run_cells([LOAD, exact, CANDIDATES, spoil, said], {**isolated, "NBCACHE_PREFETCH": "off"})
    assert told(third) == [[[], 0], True, [MEASURED, 3]]


@pytest.mark.compile
def test_only_what_was_measured_here_and_may_serve_is_stored(
    isolated: dict[str, str], run_cells: RunCells, tmp_path: Path
) -> None:
    theirs = {**isolated, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "theirs")}
    run_cells(
        [LOAD, TORCH, CANDIDATES, "look(); look(op='bmm')"],
        {**theirs, "NBCACHE_DIR": str(tmp_path / "other")},
    )
    cells = [
        LOAD,
        TORCH,
        CANDIDATES,
        tell("[look(), len(stored())]"),  # it lies in a folder that the user has set
        tell("[look(op='none can run', times=[math.inf] * 3), len(stored())]"),
        tell("[look(op='no number', times=[1.0, math.nan, 1.0]), len(stored())]"),
        tell("[look(op='addmm'), len(stored())]"),
    ]
    notebook = run_cells(cells, theirs)
    assert [told(notebook, index) for index in range(3, 7)] == [
        [[MEASURED, 0], 0],
        [[["inf"] * 3, 3], 0],
        [[["1.0", "nan", "1.0"], 3], 0],
        [[MEASURED, 3], 1],
    ]


@pytest.mark.compile
def test_kernels_that_share_find_what_another_has_measured(
    isolated: dict[str, str], run_cells: RunCells, wipe: Callable[[Environ], None], tmp_path: Path
) -> None:
    env = {**isolated, "NBCACHE_PREFETCH": "off", "NBCACHE_SHARED_URL": (tmp_path / "shared").as_uri()}
    run_cells([LOAD, TORCH, CANDIDATES, "look('xyz')", "look()", tell("session.flush()")], env)
    wipe(env)
    elsewhere = {**env, "NBCACHE_DIR": str(tmp_path / "elsewhere")}
    notebook = run_cells([LOAD, TORCH, CANDIDATES, tell("[look(), look('xyz'), look('new')]")], elsewhere)
    assert told(notebook) == [[MEASURED, 0], [MEASURED, 0], [MEASURED, 3]]


# --- through the front door -----------------------------------------------------------------------

INPUTS = """\
import json, torch
from torch._dynamo.utils import counters
torch.manual_seed(0)
a, b = torch.randn(4, 64, 64), torch.randn(4, 64, 48)
"""
CALL = "with torch.no_grad():\n    result = f(a, b)"
BENCHMARKED = tell(
    "[counters['inductor']['select_algorithm_autotune'], torch.allclose(result, eager(a, b), atol=1e-4)]"
)


def compiled(body: str) -> list[str]:
    define = f"%%compile_cached f --mode max-autotune\ndef f(a, b):\n    return {body}\n"
    return [LOAD, f"{INPUTS}def eager(a, b):\n    return {body}\n", define, CALL, BENCHMARKED]


@pytest.mark.compile
@pytest.mark.proof
def test_another_graph_with_the_same_multiplication_benchmarks_nothing(
    isolated: dict[str, str], run_cells: RunCells, wipe: Callable[[Environ], None], tmp_path: Path
) -> None:
    snapshot = f"%nbcache snapshot {tmp_path / 'tuned.nbcache'}"
    first = run_cells([*compiled("(a @ b).relu()"), snapshot, REPORTS])
    assert told(first, 4) == [1, True]
    (graph,) = graphs(first)
    assert graph["outcome"] == "miss" and 100 < graph["bytes"]["gemm_autotune"] < 1000

    wipe(isolated)
    second = run_cells([*compiled("(a @ b).sigmoid() + 1"), REPORTS])
    assert told(second, 4) == [0, True]
    (graph,) = graphs(second)
    assert graph["outcome"] == "miss" and graph["bytes"]["gemm_autotune"] > 100

    wipe(isolated)
    elsewhere = {**isolated, "NBCACHE_DIR": str(tmp_path / "elsewhere")}
    restored, *cells = compiled("(a @ b).tanh() - 1")
    restore = f"%nbcache restore {tmp_path / 'tuned.nbcache'}"
    third = run_cells([restored, cells[0], restore, *cells[1:]], elsewhere)
    assert told(third) == [0, True]

    wipe(isolated)
    forget = f"""\
session = {SESSION}
for ref in session.cache.manifest().artifacts:
    if ref.type == "gemm_autotune":
        session.artifacts.forget(session.environment.digest, ref.type, ref.key)
session.cache.start_reading_ahead()
"""
    fourth = run_cells([restored, cells[0], forget, *cells[1:]])
    assert told(fourth) == [1, True]
