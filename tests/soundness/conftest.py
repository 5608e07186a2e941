"""The processes that the kernels of a test run's worker are forked from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from soundness.restarts import Pair, Restarts

from support.front_door import environ_below

TRACE = "on"
"""The setting `trace` of all kernels here but the audited ones, as users have it."""


@pytest.fixture(scope="session")
def restarts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarts]:
    process = Restarts(environ_below(tmp_path_factory.mktemp("restarts")))
    yield process
    process.close()


@pytest.fixture(scope="session")
def tracing(restarts: Restarts) -> Restarts:
    """Return a machine whose kernels keep traces."""
    return restarts.having(NBCACHE_TRACE=TRACE)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Return two machines whose kernels keep traces, each with an order of its own for sets of texts.

    Both are started alike: a trace is used only where a kernel has the same modules as the one that traced.
    """
    first, second = (
        Restarts(environ_below(tmp_path_factory.mktemp("restarts")), hash_seed=seed) for seed in (1, 2)
    )
    yield tuple(machine.having(NBCACHE_TRACE=TRACE) for machine in (first, second))
    first.close()
    second.close()
