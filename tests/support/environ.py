"""The environment that tests start from: what may pass from the shell that they are run in."""

from __future__ import annotations

import os
from collections.abc import Mapping

_PASSED = frozenset(
    {
        "CI",
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
        "HOME",
        "LD_LIBRARY_PATH",  # some interpreters start only with it
        "LOGNAME",
        "PATH",
        "SHELL",
        "TMPDIR",
        "USER",
    }
)
"""Any other variable would make a test depend on where it is run."""
_MORE = "NBCACHE_TEST_PASSED"
"""Variable that names more variables that pass, separated by commas: those that the machine needs."""
_RUNNER = ("COV_", "NBCACHE_TEST_", "PYTEST_")
"""Beginnings of variables that pytest, its plugins and our own test options use."""


def passed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environ` that processes of tests inherit, and a common locale."""
    names = _PASSED.union(environ.get(_MORE, "").split(","))
    return {name: value for name, value in environ.items() if name in names} | {"LANG": "C.UTF-8"}


def clean_own() -> None:
    """Remove from this process's environment all variables that may not pass."""
    runner = {name: value for name, value in os.environ.items() if name.startswith(_RUNNER)}
    kept = passed(os.environ) | runner
    os.environ.clear()
    os.environ.update(kept)
