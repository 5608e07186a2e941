"""The interface between a panel and its session: the verbs of the magics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from nbcache.core.reports import GraphContents, GraphRecord
from nbcache.explain.why import Why
from nbcache.ui.display.render import Rendered
from nbcache.ui.panels.values import Facts, Now

__all__ = ["Verbs"]


class Verbs(Protocol):
    """The session behind a panel.

    What returns lines to be shown raises NbcacheError or UsageError where it cannot be done.
    """

    def now(self) -> Now:
        """Return what changes while a cell runs."""

    def facts(self) -> Facts:
        """Gather the rest; this may take a second or more."""

    def explain(self, graph: GraphRecord) -> Why:
        """Return all that there is to say of a graph."""

    def contents(self, graph: GraphRecord) -> GraphContents:
        """Return the guards and the generated code of a graph."""

    def later(self, action: Callable[[], None]) -> str:
        """Call `action` when the running cell has ended; return that cell, empty if none runs."""

    def shown(self, verb: str) -> Rendered:
        """Return what `%nbcache doctor`, `why`, `stats` or `timeline` shows."""

    def snapshot(self) -> Sequence[str]: ...
    def restore(self) -> Sequence[str]: ...
    def share(self) -> Sequence[str]: ...
    def verify(self) -> Sequence[str]: ...
    def attach(self) -> Sequence[str]: ...
    def connect(self, url: str) -> Sequence[str]: ...
    def disconnect(self) -> Sequence[str]: ...
    def trust(self, fingerprint: str, name: str) -> Sequence[str]: ...
    def ignore(self, fingerprint: str) -> Sequence[str]: ...
    def change(self, name: str, value: str) -> Sequence[str]: ...

    def going(self, *, everything: bool = False) -> tuple[str, Callable[[], Sequence[str]] | None]:
        """Return in words what is stored of this notebook, or altogether, and what removes just that.

        None where there is nothing to remove. What removes raises NbcacheError where it is not that any more.
        """
