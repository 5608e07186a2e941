"""`nbcache bench --stores`: what stores cost, in parts that `--parts` chooses.

A part is one class that fits `Part`, and a line of `_PARTS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from nbcache.bench.interrupts import told_as_interrupt
from nbcache.bench.options import Options, Variant
from nbcache.bench.output import machine, write_json
from nbcache.bench.redis_server import Server, needed_server
from nbcache.bench.report import report_json, report_text
from nbcache.bench.runner import Runner
from nbcache.bench.stores.at_once import AtOnce
from nbcache.bench.stores.entries import Entries
from nbcache.bench.stores.populations import Populations
from nbcache.core.errors import NbcacheError

__all__ = ["Part", "run_stores"]

_INTERRUPTED = 130
JSON_VERSION = 2


class Part(Protocol):
    """One part of the measurement. What it has measured until an interrupt, or an error, is shown."""

    def measure(self) -> None:
        """Measure; NbcacheError where something cannot be measured."""

    def text(self) -> str:
        """Return the table; empty where nothing was measured yet."""

    def to_json(self) -> Mapping[str, Any]:
        """Return the same as JSON values."""

    @property
    def complete(self) -> bool:
        """Whether all was measured, and is as it must be for its figures to count."""


class _AgainstTorch:
    """`redis`: models by torch's own remote caches and by nbcache, on one server."""

    def __init__(
        self, options: Options, folder: Path, say: Callable[[str], None], server: Server | None
    ) -> None:
        variants = tuple(variant for variant in Variant if variant.needs_server)
        models = options.models or ("nanogpt",)
        self._options = replace(options, models=models, variants=variants, stores=False)
        self._runner = Runner(self._options, folder, say, server)

    def measure(self) -> None:
        self._runner.run()

    def text(self) -> str:
        return report_text(self._runner.results, self._environment, self._options)

    def to_json(self) -> Mapping[str, Any]:
        return report_json(self._runner.results, self._environment, self._options, interrupted=False)

    @property
    def complete(self) -> bool:
        return all(result.error is None for result in self._runner.results)

    @property
    def _environment(self) -> dict[str, Any]:
        return {**self._runner.environment, **machine()}


_PARTS: Mapping[str, Callable[[Options, Path, Callable[[str], None], Server | None], Part]] = {
    "populate": Populations,
    "redis": _AgainstTorch,
    "processes": AtOnce,
    "entries": Entries,
}


def run_stores(options: Options, folder: Path, say: Callable[[str], None], interrupt: Event) -> int:
    """Measure the parts that `options` name; show them, and return the exit status."""
    parts: dict[str, Part] = {}
    errors: dict[str, str] = {}
    interrupted = False
    try:
        with contextlib.ExitStack() as ending:
            server = None
            if options.needs_server:
                server = ending.enter_context(needed_server(options.redis, folder))
            for name in options.parts:
                place = folder / name
                place.mkdir()
                parts[name] = _PARTS[name](options, place, say, server)
                try:
                    with told_as_interrupt(interrupt):
                        parts[name].measure()
                except NbcacheError as error:
                    errors[name] = str(error)
                    say(f"{name}: FAILED {error}")
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted; what was measured until now:")
    if options.json != "-":
        blocks = [
            "\n".join(filter(None, (part.text(), f"FAILED {errors[name]}" if name in errors else "")))
            for name, part in parts.items()
        ]
        print("\n\n".join(filter(None, blocks)), flush=True)
    write_json(
        options,
        {
            "format": "nbcache.bench.stores",
            "version": JSON_VERSION,
            "interrupted": interrupted,
            "environment": machine(),
            "options": options.to_json(),
            "errors": errors,
            "parts": {name: part.to_json() for name, part in parts.items()},
        },
    )
    if interrupted:
        return _INTERRUPTED
    return 1 if errors or not all(part.complete for part in parts.values()) else 0
