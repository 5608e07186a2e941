"""Notes which code Python runs on this thread."""

from __future__ import annotations

import cProfile
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from nbcache.core import log

__all__ = ["Ran"]

_MONITORING: Any = getattr(sys, "monitoring", None)
"""Tells of each function once, which costs nothing; Python 3.11 has but a profiler."""
_TOOLS = (3, 4)
"""Numbers of tools that nobody has reserved."""


class Ran:
    """Notes what runs between `begin` and `end`, as often as they are called, one after the other.

    Handlers of nbcache's logger run only after `end`: they are no part of what is traced.
    """

    def __init__(self, *, notes: bool = True) -> None:
        """Unless it `notes`, it does nothing: on Python 3.11 that takes half as long again as to trace."""
        self._notes = notes
        self._codes: dict[int, types.CodeType] = {}
        """By id: code that was made of the same text is equal."""
        self._profile = None if _MONITORING else cProfile.Profile(subcalls=False, builtins=False)
        self._tool = 0

    @staticmethod
    def is_possible() -> bool:
        """Tell whether nobody else profiles."""
        if _MONITORING is None:
            return sys.getprofile() is None
        return any(_MONITORING.get_tool(number) is None for number in _TOOLS)

    def begin(self) -> None:
        if not self._notes:
            return
        log.defer()
        if self._profile is not None:
            self._profile.enable()
            return
        here, codes, disable = threading.get_ident(), self._codes, _MONITORING.DISABLE

        def started(code: types.CodeType, offset: int) -> Any:
            if threading.get_ident() != here:
                return None
            codes[id(code)] = code
            return disable

        self._tool = next(number for number in _TOOLS if _MONITORING.get_tool(number) is None)
        _MONITORING.use_tool_id(self._tool, "nbcache")
        _MONITORING.register_callback(self._tool, _MONITORING.events.PY_START, started)
        _MONITORING.set_events(self._tool, _MONITORING.events.PY_START)
        _MONITORING.restart_events()

    def end(self) -> None:
        if not self._notes:
            return
        if self._profile is not None:
            self._profile.disable()
        else:
            _MONITORING.set_events(self._tool, 0)
            _MONITORING.register_callback(self._tool, _MONITORING.events.PY_START, None)
            _MONITORING.free_tool_id(self._tool)
        log.deliver()

    def codes(self) -> Iterator[types.CodeType]:
        """Return the code that was run, each once."""
        if self._profile is None:
            return iter(self._codes.values())
        entries = self._profile.getstats()
        return (each.code for each in entries if isinstance(each.code, types.CodeType))
