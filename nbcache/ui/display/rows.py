"""Values that status, settings, checks and the live line show, and their parts in words."""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbcache.core.reports import Activity
from nbcache.core.text import counted, duration, one_line, percent, size
from nbcache.kernel.prewarming import Prewarming
from nbcache.shared.level import SharedFigures

__all__ = [
    "BAR",
    "Check",
    "CheckState",
    "SettingRow",
    "StoreFigures",
    "activity_parts",
    "check_totals",
    "kernel_parts",
    "prewarming_parts",
    "shared_parts",
    "store_parts",
]

BAR = ("\N{FULL BLOCK}", "\N{LIGHT SHADE}")
"""The full and the empty part of a bar in HTML."""
_DOING = {
    "trace": "looking for a trace",
    "dynamo": "tracing",
    "aot": "AOTAutograd",
    "inductor": "generating code",
    "build": "building kernels",
    "wait": "waiting for another kernel",
    "load": "looking in the cache",
}
"""`Activity.phase` in words."""
_SHORT = 1.0
"""Seconds below which there is no bar."""
_LONG = 10.0
"""Seconds after which the line says that a first compile takes its time."""
_BAR = 10
"""Characters of the bar."""


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The contents of a store in numbers: one line of the status."""

    name: str
    """As people know it: `local store`, `redis://host/0`; free of secrets."""
    entries: int
    bytes: int
    limit: int | None = None
    """Bytes that it may hold; None where it is unbounded."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as `%nbcache config` shows it."""

    name: str
    value: str
    """As text, free of secrets."""
    origin: str
    """The origin of the value: `default`, `%config`, an environment variable's name, …"""
    help: str
    note: str = ""
    """A remark on this value: torch ignores it, or it takes effect after a restart."""


class CheckState(enum.StrEnum):
    """The result of a check of `%nbcache doctor`."""

    OK = "ok"
    NOTE = "note"
    """nbcache works, but not in full, or not as one may think."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that nbcache needs, and how it is here: a row of `%nbcache doctor`."""

    name: str
    state: CheckState
    found: str
    next_step: str = ""
    """The remedy; empty if the state is `ok`."""

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON values, by the names that docs/json.md documents."""
        return {
            "name": self.name,
            "state": self.state.value,
            "found": self.found,
            "next_step": self.next_step or None,
        }


def store_parts(store: StoreFigures) -> list[str]:
    """Return a store in words: its name, entries, bytes."""
    held = size(store.bytes)
    if store.limit is not None:
        held += f" of {size(store.limit)} ({percent(store.bytes, store.limit)})"
    return [store.name, counted(store.entries, "entry", "entries"), held]


def shared_parts(shared: SharedFigures | None) -> list[str]:
    """Return in words what was shared; nothing where this kernel is not connected."""
    if shared is None:
        return []
    parts = [shared.name, f"{shared.found} found", f"{shared.published} published"]
    if shared.waiting:
        parts.append(f"{size(shared.waiting)} to be written")
    return parts + ([f"off for now: {one_line(shared.off)}"] if shared.off else [])


def kernel_parts(nursery: int) -> list[str]:
    """Return in words which process this kernel was forked from; nothing for an ordinary one."""
    return [f"forked from nursery {nursery}", "imports were done ahead"] if nursery else []


def prewarming_parts(prewarming: Prewarming) -> list[str]:
    """Return in words how far prewarming is; nothing where it has not begun."""
    if not prewarming.slices:
        return []
    done = sum(each.seconds for each in prewarming.slices)
    longest = max(prewarming.slices, key=lambda each: each.seconds)
    return [
        "prewarmed" if prewarming.state == "done" else f"prewarming ({prewarming.state})",
        f"{duration(done)} of idle time in {counted(len(prewarming.slices), 'slice')}",
        f"longest {duration(longest.seconds)} ({longest.name})",
    ]


def check_totals(checks: Sequence[Check]) -> list[str]:
    states = Counter(check.state for check in checks)
    wrong = [state for state in (CheckState.PROBLEM, CheckState.NOTE) if states[state]]
    said = [counted(states[state], state.value) for state in wrong] or ["all in order"]
    return [counted(len(checks), "check"), *said]


def activity_parts(now: Activity, bar: tuple[str, str] = ("#", "-")) -> list[str]:
    """Return the parts of the live line; `bar` is what its bar is drawn with, full and empty."""
    clock = _clock(now.seconds)
    if now.phase == "restoring":
        parts = ["restoring " + one_line(now.function or "artifacts", 60), clock]
    elif now.compiled_by:
        since = duration(max(0.0, round(time.time() - now.compiled_since)))
        what = f"waiting for {one_line(now.function, 60)} {now.compile_id}".rstrip()
        parts = [what, f"{one_line(now.compiled_by, 60)} is compiling this, {since}"]
    else:
        what = f"compiling {one_line(now.function, 60)} {now.compile_id}".rstrip()
        done, every = now.candidates
        tuning = f"timing kernels, {done} of {every}" if every else ""
        parts = [what, tuning or one_line(_DOING.get(now.phase, now.phase), 30)]
        if now.usual_seconds >= _SHORT:
            parts.append(f"{_progress(now.seconds, now.usual_seconds, bar)} {clock}{_of_about(now)}")
        elif now.seconds >= _LONG:
            parts += [clock, "a first compile takes its time"]
        else:
            parts.append(clock)
    if now.graphs_done:
        more = f" of about {now.usual_graphs}" if now.usual_graphs > now.graphs_done else ""
        parts.append(f"{counted(now.graphs_done, 'graph')}{more} done")
    return parts


def _clock(seconds: float) -> str:
    """Return seconds so far; whole ones from 10 s on: fewer updates of a line that stands for long."""
    if 9.95 <= seconds < 59.5:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def _of_about(now: Activity) -> str:
    if now.seconds > now.usual_seconds:
        return f", more than the usual {_clock(now.usual_seconds)}"
    return f" of about {_clock(now.usual_seconds)}"


def _progress(seconds: float, usual: float, bar: tuple[str, str]) -> str:
    """Return a bar as people know it from tqdm: `43%|####------|`."""
    share = min(0.99, seconds / usual)
    full = round(share * _BAR)
    return f"{share:3.0%}|{bar[0] * full}{bar[1] * (_BAR - full)}|"
