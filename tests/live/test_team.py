"""A team through the front door: real kernels with homes of their own, and one real Redis."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.front_door import (
    CALL,
    DEFINE,
    LOAD,
    REPORTS,
    SET_UP,
    Kernel,
    environ_below,
    execute,
    give_to_client,
    graphs,
    outcomes,
    printed,
    reports,
    run_interpreter,
)
from support.redis_servers import RedisServer

pytestmark = pytest.mark.compile

NUMBERS = "print(loss.item(), model[0].weight.grad.abs().sum().item())"
CELLS = [LOAD, SET_UP, DEFINE, CALL, "%nbcache flush", REPORTS]


@pytest.fixture
def member(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, str]]:
    """Return a function that makes a fresh machine of somebody: `member(name, keys)`."""

    def member(name: str, keys: str) -> dict[str, str]:
        (tmp_path / name).mkdir()
        environ = environ_below(tmp_path / name)
        give_to_client(environ, monkeypatch)
        return environ | {"NBCACHE_SHARED_URL": redis_server.url, "NBCACHE_TRUST_DIR": str(tmp_path / keys)}

    return member


def kernels_compiled(found: list[dict[str, Any]]) -> int:
    return sum(graph["kernels_compiled"] for graph in found)


@pytest.mark.proof
def test_what_one_has_compiled_all_hit_who_trust_them(
    member: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    first = execute(CELLS, member("first", "team"), tmp_path)
    assert set(outcomes(first)) == {"miss"} and kernels_compiled(graphs(first)) > 0
    assert "and shared" in printed(first, 4)

    second = execute(CELLS, member("second", "team"), tmp_path)
    assert outcomes(second) == ["hit"] * len(graphs(first))
    assert {graph["level"] for graph in graphs(second)} == {"L3"}
    assert kernels_compiled(graphs(second)) == 0
    assert printed(second, 3) == printed(first, 3)
    assert [report["notices"] for report in reports(second) if report["notices"]] == []

    environ = member("stranger", "another")
    stranger = execute(CELLS, environ, tmp_path)
    assert set(outcomes(stranger)) == {"miss"}
    assert printed(stranger, 3) == printed(first, 3)
    (notice,) = [notice for report in reports(stranger) for notice in report["notices"]]
    (fingerprint,) = re.findall(r"%nbcache trust add ([0-9a-f-]{79})", notice)

    added = run_interpreter(["-m", "nbcache", "trust", "add", fingerprint], environ, tmp_path)
    assert added.returncode == 0, added.stderr
    friend = execute(CELLS, member("friend", "another"), tmp_path)
    assert outcomes(friend) == ["hit"] * len(graphs(first))
    assert kernels_compiled(graphs(friend)) == 0
    assert printed(friend, 3) == printed(first, 3)


def test_two_kernels_that_start_at_once_compile_each_graph_once(
    member: Callable[..., dict[str, str]], start_kernel: Callable[..., Kernel]
) -> None:
    both = [start_kernel(member(name, "team")) for name in ("one", "other")]

    for cell in (LOAD, SET_UP, DEFINE, CALL):
        for kernel in both:
            kernel.begin(cell)
    one, other = (kernel.run(NUMBERS) for kernel in both)
    ones, others = (
        [graph for report in json.loads(kernel.run(REPORTS)) for graph in report["graphs"]] for kernel in both
    )
    assert one == other
    assert len(ones) == len(others) > 0
    compiled = [graph["key"] for graph in (*ones, *others) if graph["outcome"] == "miss"]
    assert sorted(compiled) == sorted({graph["key"] for graph in ones})
    assert all(graph["level"] == "L3" for graph in (*ones, *others) if graph["outcome"] == "hit")
