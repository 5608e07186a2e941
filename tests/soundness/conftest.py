"""The process that the kernels of a test run's worker are forked from."""

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
