"""A team through the front door: real kernels with homes of their own, and one real Redis."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.front_door import (
    CALL,
    DEFINE,
    LOAD,
    REPORTS,
    SET_UP,
    Kernel,
    environ_below,
    give_to_client,
)
from support.redis_servers import RedisServer

pytestmark = pytest.mark.compile

NUMBERS = "print(loss.item(), model[0].weight.grad.abs().sum().item())"


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
