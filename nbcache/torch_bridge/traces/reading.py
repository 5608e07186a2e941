"""Reads a trace, and makes of it what depends on no object of the user's: while no cell runs, if it can."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

from nbcache.artifacts.traces import Trace, code_from, from_bytes
from nbcache.core.errors import FormatError
from nbcache.core.fingerprints.instructions import steps_of
from nbcache.core.log import logger
from nbcache.kernel.prewarming import Slice, Steps
from nbcache.torch_bridge.traces.facts import Expression, expression_of
from nbcache.torch_bridge.traces.object_digests import Untold, constant_from
from nbcache.torch_bridge.traces.sources import made_guard, needs_value, read_sources

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["ReadAhead", "ReadTrace", "read"]

_MOST_BYTES = 16 << 20
"""Of content that is read ahead: the traces of some hundred models."""


class ReadTrace:
    """A trace for one adoption: its sources and guards belong to whoever adopts it."""

    def __init__(self, trace: Trace) -> None:
        """Raise CorruptEntry of sources, guards and code that are none, Untold of code that sets globals."""
        import torch._dynamo.guards as guards
        import torch._dynamo.source as source_module

        self.trace = trace
        self.names: Mapping[str, str] = {
            name: f"{name}_{os.urandom(8).hex()}" for name, _, _ in trace.installed
        }
        """What globals that Dynamo set are called here: a trace may be adopted for several objects."""
        self.code = renamed(code_from(trace.code, constant_from), self.names)
        """The code that is to run, but for the place where it stands."""
        self.sources: Sequence[Any] = read_sources([*_sources(trace, self.names)], source_module)
        self.expressions: Sequence[Expression | None] = [*map(expression_of, self.sources)]
        """What each source is found by; None of those that stand for no value."""
        self._guards: list[Any] = [
            None if needs_value(row) else made_guard(row, self.sources, guards.GuardBuilder)
            for row in trace.guards
        ]

    def guards(self, values: Mapping[Any, Any]) -> Iterator[Any]:
        """Return the guards, where the sources stand for these `values`."""
        import torch._dynamo.guards as guards

        def weak(source: Any) -> Any:
            return guards.TensorWeakRef(values[source])

        for row, guard in zip(self.trace.guards, self._guards, strict=True):
            yield guard or made_guard(row, self.sources, guards.GuardBuilder, weak)


def read(content: bytes) -> ReadTrace:
    """Return the trace that these bytes hold; raises CorruptEntry, UnsupportedVersion or Untold."""
    return ReadTrace(from_bytes(content))


class ReadAhead:
    """The traces of this notebook, read before anything asks for them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._read: dict[str, ReadTrace] = {}
        """By the digest of the content."""
        self._met: set[str] = set()
        self._bytes = 0

    def steps(self) -> Steps:
        """Yield what reads the traces that the session has at hand by now."""
        for artifact in self._session.cache.at_hand("trace"):
            more = self._bytes + len(artifact.content)
            if artifact.digest not in self._met and more <= _MOST_BYTES:
                self._met.add(artifact.digest)
                self._bytes = more
                yield Slice("read a trace", partial(self._keep, artifact.digest, artifact.content))

    def pop(self, digest: str, content: bytes) -> ReadTrace:
        """Return the trace with this digest, as `read` does."""
        return self._read.pop(digest, None) or read(content)

    def _keep(self, digest: str, content: bytes) -> None:
        try:
            self._read[digest] = read(content)
        except (FormatError, Untold) as error:  # whoever asks for it says so
            logger.debug("a trace cannot be read: %s", error)


def renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    """Return code that reads its globals by other names; Untold of code that sets one of them."""
    constants = tuple(renamed(each, names) if isinstance(each, CodeType) else each for each in code.co_consts)
    sets = {step.value for step in steps_of(code) if step.operation in ("STORE_GLOBAL", "IMPORT_NAME")}
    if names.keys() & sets:
        raise Untold("its code sets a global that Dynamo has set")
    return code.replace(co_names=tuple(names.get(name, name) for name in code.co_names), co_consts=constants)


def _sources(trace: Trace, names: Mapping[str, str]) -> Iterator[list[Any]]:
    """Return the rows of the sources of a trace, with other names for the globals that Dynamo set."""
    for kind, base, fields in trace.sources:
        if kind == "GlobalSource" and fields.get("global_name") in names:
            yield [kind, base, {**fields, "global_name": names[fields["global_name"]]}]
        else:
            yield [kind, base, fields]
