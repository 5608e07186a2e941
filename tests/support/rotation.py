"""The tenth of a long list of tests that `make test` runs on a day; `make test-all` runs all of it."""

from __future__ import annotations

import os
from datetime import date

import pytest

TENTHS = 10
VARIABLE = "NBCACHE_TEST_DATE"
os.environ.setdefault(VARIABLE, date.today().isoformat())  # pytest's workers inherit it
DATE = os.environ[VARIABLE]
"""The date whose tenth runs: today, or the date that the variable gives."""
REPEAT = f"{VARIABLE}={DATE} runs the same tenth again"


def marks(number: int) -> tuple[pytest.MarkDecorator, ...]:
    """Return the marks of a test by its place in the list: those of other days are proofs."""
    today = number % TENTHS == date.fromisoformat(DATE).toordinal() % TENTHS
    return (pytest.mark.compile,) if today else (pytest.mark.compile, pytest.mark.proof)
