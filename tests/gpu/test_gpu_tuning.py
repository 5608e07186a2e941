"""Best configurations of Triton kernels, and what of max-autotune travels: what runs, no candidates."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_gpu_cells import SAMPLES, TELL, cells, graphs_of, told

from support.front_door import SESSION, Environ
from support.gpu_machines import Machine, Machines
from support.redis_servers import RedisServer

pytestmark = pytest.mark.gpu

SAMPLE = SAMPLES["coordinate descent"]
SETTINGS = {
    "local": {},
    "remote": {"TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "1"},
    "bundled": {"TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE": "1"},
}
DESCENDS = replace(
    SAMPLE,
    set_up=f"""{SAMPLE.set_up}
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
times = iter([1.0, 0.5])  # the second configuration that is tried is the best, and none that the graph has
CachingAutotuner.bench = lambda *args, **kwargs: next(times, 1.0)
""",
)
WAIT = f"assert {SESSION}.flush(60)"
STORED = f"""\
assert {SESSION}.flush(60)
print(json.dumps([each.key for each in {SESSION}.cache.manifest().artifacts if each.type == "triton_kernel"]))
"""


@pytest.mark.parametrize("kind", SETTINGS)
def test_what_is_tuned_on_one_machine_is_tuned_on_all_that_share(
    kind: str, machines: Machines, redis_server: RedisServer
) -> None:
    urls = {"NBCACHE_SHARED_URL": redis_server.url, "TORCHINDUCTOR_REDIS_URL": redis_server.url}
    environ = {**SETTINGS[kind], **urls}
    first = machines.make("first", **environ)
    before = told(first.run(*cells(SAMPLE, TELL, WAIT)), 4)
    assert before["benchmarks"] and not before["notices"]

    fresh = machines.make("fresh", **environ)
    found = told(fresh.run(*cells(SAMPLE, TELL)), 4)

    hits = [(each["outcome"], each["level"], each["reason"]) for each in graphs_of(found)]
    assert hits == [("hit", "L3", None)]
    assert (found["compilers"], found["benchmarks"], found["notices"]) == ([], 0, [])
    with redis_server.client() as client:
        assert not [key for key in client.scan_iter() if not key.startswith(b"nbcache")]


def test_no_candidate_of_a_matrix_product_travels(machines: Machines) -> None:
    """On plain torch the graph brings all of them: some twenty kernels for one product."""
    first = machines.make("first")
    snapshot = first.folder / "model.nbcache"
    sample = SAMPLES["max-autotune"]
    compiled = graphs_of(told(first.run(*cells(sample, TELL, f"%nbcache snapshot {snapshot}")), 4))
    assert kernels_of(first) > 10

    fresh = machines.make("fresh")
    load, *rest = cells(sample, TELL)
    hits = graphs_of(told(fresh.run(load, f"%nbcache restore {snapshot}", *rest), 5))

    assert [each["outcome"] for each in hits] == ["hit"]
    assert kernels_of(fresh) < kernels_of(first) / 3
    assert compiled[0]["kernels"] == hits[0]["kernels"] < 5


def test_ones_own_kernel_hits_whichever_assembler_torch_chooses(machines: Machines) -> None:
    """That of torch is chosen in the midst of the first compile, or before a hit."""
    sample = SAMPLES["a Triton kernel of one's own"]
    first, fresh = machines.make("first"), machines.make("fresh")
    for machine in (first, fresh):
        del machine.environ["TRITON_PTXAS_PATH"]
    snapshot = first.folder / "model.nbcache"
    first.run(*cells(sample, TELL, f"%nbcache snapshot {snapshot}"))

    load, *rest = cells(sample, TELL)
    hits = graphs_of(told(fresh.run(load, f"%nbcache restore {snapshot}", *rest), 5))

    assert [(each["outcome"], each["reason"]) for each in hits] == [("hit", None)]
    assert kernels_of(fresh) == kernels_of(first)


def test_a_tuned_kernel_is_stored_if_it_was_compiled_here(machines: Machines, tmp_path: Path) -> None:
    """Whoever else writes to a folder that the user has chosen for Triton: nobody signs for that."""
    folder = tmp_path / "triton"
    first = machines.make("first", TRITON_CACHE_DIR=str(folder))
    (key,) = told(first.run(*cells(DESCENDS, STORED)), 4)
    assert key in names_in(folder)
    for file in folder.rglob("*.cubin"):
        os.utime(file, (0, 0))

    second = machines.make("second", TRITON_CACHE_DIR=str(folder))

    assert told(second.run(*cells(DESCENDS, STORED)), 4) == []


def test_no_tuned_kernel_is_stored_where_the_user_replaces_what_triton_compiles(machines: Machines) -> None:
    """Triton's hash of it is the same, and others would run the replaced kernel."""
    usual = machines.make("usual")
    assert told(usual.run(*cells(DESCENDS, STORED)), 4)

    replacing = machines.make("replacing", TRITON_KERNEL_OVERRIDE="1")
    assert told(replacing.run(*cells(DESCENDS, STORED)), 4) == []


def test_a_kernel_that_the_descent_found_is_not_compiled_elsewhere(machines: Machines) -> None:
    first = machines.make("first")
    snapshot = first.folder / "model.nbcache"
    assert told(first.run(*cells(DESCENDS, STORED, f"%nbcache snapshot {snapshot}")), 4)

    fresh = machines.make("fresh")
    load, *rest = cells(DESCENDS, TELL)
    found = told(fresh.run(load, f"%nbcache restore {snapshot}", *rest), 5)

    assert [(each["outcome"], each["reason"]) for each in graphs_of(found)] == [("hit", None)]
    assert (found["compilers"], found["notices"]) == ([], [])


def names_in(folder: Path) -> set[str]:
    return {each.parent.name for each in folder.rglob("*.cubin")}


def kernels_of(machine: Machine) -> int:
    """Return how many kernels Triton has in its cache there, each configuration by itself."""
    return len(list(machine.folder.rglob("*.cubin")))


def test_a_kernel_whose_best_configuration_is_lost_is_tuned_again_and_says_so(
    machines: Machines, wipe: Callable[[Environ], None]
) -> None:
    machine = machines.make("machine")
    forget = """\
session = __import__("nbcache").session()
keys = [each.key for each in session.cache.manifest().artifacts if each.type == "autotune"]
assert session.flush(60) and keys
for key in keys:
    session.artifacts.forget(session.environment.digest, "autotune", key)
for key in list(session.artifacts.store.keys("manifest/")):
    session.artifacts.store.delete(key)
"""
    machine.run(*cells(SAMPLE, forget))
    wipe(machine.environ)

    found = told(machine.run(*cells(SAMPLE, TELL)), 4)

    assert [each["outcome"] for each in graphs_of(found)] == ["hit"]
    assert "re-tuned: 1 kernel was benchmarked again" in str(graphs_of(found)[0]["reason"])
    assert found["benchmarks"]
