"""Fixtures of kernels that are forked from a nursery: one nursery for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.front_door import Kernel
from support.nurseries import Place, Start


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Return an environment with a nursery in it."""
    made = Place(tmp_path_factory.mktemp("nursery"))
    assert made.nbcache("start").startswith("ready: nursery")
    yield made
    made.nbcache("stop")


@pytest.fixture
def start(place: Place) -> Iterator[Start]:
    """Return what starts a kernel, which ends with the test; there is a nursery."""
    place.nbcache("start")
    kernels = []

    def started(**environ: str) -> Kernel:
        kernels.append(place.start(**environ))
        return kernels[-1]

    yield started
    for each in kernels:
        each.client.stop_channels()
        if each.manager.has_kernel:
            each.manager.shutdown_kernel(now=True)
        each.manager.cleanup_resources()
