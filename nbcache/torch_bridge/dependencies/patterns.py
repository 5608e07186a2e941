"""Patterns that user code or packages have registered, and the pattern passes that hold them."""

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
    """Records third-party patterns and adds them to fingerprints."""

    def __init__(self, known: KnownPackages) -> None:
        """`known` recognizes torch's code."""
        self._known = known
        self._entries: list[tuple[Any, Any, bool]] = []
        """Third-party patterns: the entry, its pass, and whether the pass tries it first."""
        self._locations: dict[int, str] = {}
        """Id of a pass → its first location in torch's modules; empty for third-party passes."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def follow(self, pattern_matcher: ModuleType, patches: Patches, through: str, *, late: bool) -> None:
        """Record each pattern that `PatternEntry.register` gets from now on.

        `through` is nbcache's folder; `late` says that patterns may have been registered before.
        """
        files = (through, os.path.abspath(pattern_matcher.__file__ or ""))

        def register(original: Any, entry: Any, pass_dicts: Any, *args: Any, **kwargs: Any) -> Any:
            arguments = dict(zip(("target", "prepend"), args, strict=False)) | kwargs
            if arguments.get("target") is None or isinstance(pass_dicts, (list, tuple)):
                pass  # it calls itself for each pass
            elif not (self._is_torch_pattern(entry) and self._known.is_caller(sys._getframe(), files)):
                self._entries.append((entry, pass_dicts, bool(arguments.get("prepend"))))
            return original(entry, pass_dicts, *args, **kwargs)

        patches.hook(pattern_matcher.PatternEntry, "register", register)
        if late:
            for _, pattern_pass in _passes(pattern_matcher):
                entries = [entry for listed in list(pattern_pass.patterns.values()) for entry in list(listed)]
                self._entries += [
                    (entry, pattern_pass, False) for entry in entries if not self._is_torch_pattern(entry)
                ]

    def add(self, state: Fingerprint) -> None:
        """Add all third-party patterns, each with the location of its pass."""
        for entry, pattern_pass, first in self._entries:
            state.note("pattern", self._location(pattern_pass), first)
            state.add(entry, "a pattern")

    def add_pass(self, state: Fingerprint, value: Any) -> bool:
        """Add a pass that code holds by its location and its third-party patterns.

        Return False, and add nothing, if the value is no `PatternMatcherPass`.
        """
        matcher = sys.modules.get(_MATCHER)
        if matcher is None or type(value) is not matcher.PatternMatcherPass:
            return False
        state.note("pass of patterns", self._location(value))
        for entry, pattern_pass, first in self._entries:
            if pattern_pass is value or pattern_pass is value.patterns:
                state.note(first)
                state.add(entry, "a pattern")
        return True

    def _location(self, pattern_pass: Any) -> str:
        if id(pattern_pass) not in self._locations:
            for location, pattern_pass in _passes(sys.modules[_MATCHER]):
                self._locations[id(pattern_pass)] = min(
                    location, self._locations.get(id(pattern_pass), location)
                )
        return self._locations.setdefault(id(pattern_pass), "")

    def _is_torch_pattern(self, entry: Any) -> bool:
        return all(self._known.is_library_code(value) for value in vars(entry).values() if callable(value))


def _passes(pattern_matcher: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield all passes in torch's modules with their locations."""
    kind = pattern_matcher.PatternMatcherPass
    for name, module in list(sys.modules.items()):
        if not name.startswith("torch._inductor"):
            continue
        members = [
            item for item in list(vars(module).items()) if isinstance(item[1], (kind, dict, list, tuple))
        ]
        stack = [(f"{name}.{key}", value) for key, value in members]
        while stack:
            location, value = stack.pop()
            if isinstance(value, kind):
                yield location, value
            elif type(value) in (list, tuple) and len(value) < 100:
                stack += [(f"{location}[{number}]", item) for number, item in enumerate(value)]
            elif type(value) is dict and len(value) < 100:
                stack += [(f"{location}[{key}]", item) for key, item in value.items()]
