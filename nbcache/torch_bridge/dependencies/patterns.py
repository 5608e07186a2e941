"""Patterns that others than torch have registered, and the passes of patterns that they are in."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbcache.core.fingerprints.digests import Fingerprint
from nbcache.core.fingerprints.known_code import KnownPackages

if TYPE_CHECKING:
    from nbcache.torch_bridge.patches import Patches

__all__ = ["Patterns"]

_MATCHER = "torch._inductor.pattern_matcher"


class Patterns:
    """Remembers which patterns others have registered, and adds them to fingerprints."""

    def __init__(self, known: KnownPackages) -> None:
        """`known` tells what is torch's."""
        self._known = known
        self._entries: list[tuple[Any, Any, bool]] = []
        """Those patterns, each with its pass, and whether it is tried first there."""
        self._places: dict[int, str] = {}
        """Where torch keeps those passes, of several places the first; empty for the passes of others."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def follow(self, pattern_matcher: ModuleType, patches: Patches, through: str, *, late: bool) -> None:
        """Note each pattern from now on: `PatternEntry.register`.

        `through` is the folder of nbcache; `late` says that some may have been registered before.
        """
        files = (through, os.path.abspath(pattern_matcher.__file__ or ""))

        def register(original: Any, entry: Any, pass_dicts: Any, *args: Any, **kwargs: Any) -> Any:
            given = dict(zip(("target", "prepend"), args, strict=False)) | kwargs
            if given.get("target") is None or isinstance(pass_dicts, (list, tuple)):
                pass  # it calls itself, for each of them
            elif not (self._is_torchs(entry) and self._known.is_caller(sys._getframe(), files)):
                self._entries.append((entry, pass_dicts, bool(given.get("prepend"))))
            return original(entry, pass_dicts, *args, **kwargs)

        patches.hook(pattern_matcher.PatternEntry, "register", register)
        if late:
            for _, found in _passes(pattern_matcher):
                entries = [entry for listed in list(found.patterns.values()) for entry in list(listed)]
                self._entries += [(entry, found, False) for entry in entries if not self._is_torchs(entry)]

    def add(self, state: Fingerprint) -> None:
        """Add all of them, each with the place of its pass."""
        for entry, owner, first in self._entries:
            state.note("pattern", self._place(owner), first)
            state.add(entry, "a pattern")

    def add_pass(self, state: Fingerprint, value: Any) -> bool:
        """Add a pass that code holds, by its place and by what others have registered for it.

        Returns False, and adds nothing, where the value is no pass of torch's class.
        """
        matcher = sys.modules.get(_MATCHER)
        if matcher is None or type(value) is not matcher.PatternMatcherPass:
            return False
        state.note("pass of patterns", self._place(value))
        for entry, owner, first in self._entries:
            if owner is value or owner is value.patterns:
                state.note(first)
                state.add(entry, "a pattern")
        return True

    def _place(self, owner: Any) -> str:
        if id(owner) not in self._places:
            for place, found in _passes(sys.modules[_MATCHER]):
                self._places[id(found)] = min(place, self._places.get(id(found), place))
        return self._places.setdefault(id(owner), "")

    def _is_torchs(self, entry: Any) -> bool:
        return all(self._known.is_library_code(value) for value in vars(entry).values() if callable(value))


def _passes(pattern_matcher: ModuleType) -> Iterator[tuple[str, Any]]:
    """Return all the passes that torch's own modules hold, and where."""
    kind = pattern_matcher.PatternMatcherPass
    for name, module in list(sys.modules.items()):
        if not name.startswith("torch._inductor"):
            continue
        held = [each for each in list(vars(module).items()) if isinstance(each[1], (kind, dict, list, tuple))]
        stack = [(f"{name}.{key}", value) for key, value in held]
        while stack:
            place, value = stack.pop()
            if isinstance(value, kind):
                yield place, value
            elif type(value) in (list, tuple) and len(value) < 100:
                stack += [(f"{place}[{number}]", each) for number, each in enumerate(value)]
            elif type(value) is dict and len(value) < 100:
                stack += [(f"{place}[{key}]", each) for key, each in value.items()]
