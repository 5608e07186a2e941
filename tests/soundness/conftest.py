"""The processes that the kernels of a test run's worker are forked from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from soundness.restarts import Restarts

from support.front_door import environ_below


@pytest.fixture(scope="session")
def restarts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarts]:
    process = Restarts(environ_below(tmp_path_factory.mktemp("restarts")))
    yield process
    process.close()


@pytest.fixture(scope="module")
def both(restarts: Restarts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Restarts, Restarts]]:
    """Return two machines whose kernels keep traces, each with an order of its own for sets of texts."""
    other = Restarts(environ_below(tmp_path_factory.mktemp("restarts")), hash_seed=2)
    settings = {"NBCACHE_TRACE": "on", "NBCACHE_AUDIT": "0"}
    yield restarts.having(**settings), other.having(**settings)
    other.close()
