"""How checks are run: each looks, and yields what it found; one that fails stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from nbcache.core.errors import NbcacheError
from nbcache.ui.display.rows import Check, CheckState

__all__ = ["REPORT", "Checks", "Look", "checked", "note", "ok", "problem"]

REPORT = "please report this line"
"""What to do about a fault of ours."""
Checks: TypeAlias = Iterator[Check]
Look: TypeAlias = Callable[[], Iterable[Check]]


def checked(*looks: tuple[str, Look]) -> list[Check]:
    """Return what all these found, each by its name."""
    found: list[Check] = []
    for name, look in looks:
        try:
            for check in look():
                found.append(check)  # at once: what was found before a failure counts
        except NbcacheError as error:
            found.append(problem(name, str(error), error.next_step or REPORT))
        except Exception as error:
            found.append(problem(name, f"this could not be checked: {error!r}", REPORT))
    return found


def ok(name: str, found: str) -> Check:
    """Return that all is well."""
    return Check(name, CheckState.OK, found)


def note(name: str, found: str, next_step: str) -> Check:
    """Return that there is something to know, and what can be done."""
    return Check(name, CheckState.NOTE, found, next_step)


def problem(name: str, found: str, next_step: str) -> Check:
    """Return that something is wrong, and what to do."""
    return Check(name, CheckState.PROBLEM, found, next_step)
