"""Fixtures of kernels that are left idle, and of the driver of a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from support import nvidia_driver
from support.front_door import environ_below


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvidia_driver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def sampled(cold: tuple[Path, nbformat.NotebookNode], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with what `cold` compiled and the sample, which a process of its own compiled."""
    folder = tmp_path_factory.mktemp("sampled")
    shutil.copytree(cold[0] / "store", folder / "store")
    environ = {
        **environ_below(folder / "made"),  # torch's folder would be that of the process that tests
        "NBCACHE_DIR": str(folder / "store"),
        "TMPDIR": str(cold[0] / "tmp"),  # with the precompiled headers
    }
    command = [sys.executable, "-P", "-m", "nbcache.torch_bridge", "cpu"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "store"


@pytest.fixture
def prewarming(sampled: Path, isolated: dict[str, str]) -> dict[str, str]:
    """Return an isolated environment with prewarming on, and the store that `sampled` left."""
    shutil.copytree(sampled, isolated["NBCACHE_DIR"])
    del isolated["NBCACHE_PREWARM"]
    return isolated
