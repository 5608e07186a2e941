"""Fixtures of kernels that are forked from a nursery: one nursery for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
    yield place.start
    place.end_kernels()


@pytest.fixture
def own_place(tmp_path: Path) -> Iterator[Place]:
    """Return an environment of the test's own, whose kernels and nurseries end with the test."""
    place = Place(tmp_path)
    yield place
    place.end_kernels()
    place.nbcache("stop")
