"""One line that says that the extension is loaded, what is stored of this notebook, and what that saves."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from nbcache.artifacts.history import asked_for
from nbcache.artifacts.manifests import union
from nbcache.core.errors import NbcacheError
from nbcache.core.model import Environment, GraphSummary, Manifest
from nbcache.core.text import DOT, counted, duration, one_line
from nbcache.core.threads import start_thread
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import present_cells
from nbcache.ui.display.plan import plan_parts
from nbcache.ui.ipython.planning import quick_plan, stored_here

__all__ = ["Greeting"]

_NOTEBOOK_SECONDS = 2.0
"""How long finding the notebook may take; whoever waits for the line waits for much less."""
_NAME = 60
"""Characters of the notebook's name that are shown."""


class Greeting:
    """Reads what is stored of the notebook, on a thread of its own: loading waits for nothing long."""

    def __init__(
        self, session: Session, foreseen: Callable[[], Environment | None], *, forked: bool = False
    ) -> None:
        """`foreseen` tells what is known of the environment before torch is imported.

        `forked` tells whether this kernel was forked from a nursery, which has done the imports.
        """
        self._session = session
        self._foreseen = foreseen
        self._known = threading.Event()
        self._loaded = "nbcache: loaded, imports done ahead" if forked else "nbcache: loaded"
        self._parts: list[str] = []

    def look(self) -> None:
        """Begin to read."""
        start_thread(self._look, "greet")  # without a thread the line says less

    def line(self, timeout: float) -> str:
        """Return the line: with what is stored, where that is known within `timeout` seconds."""
        self._known.wait(timeout)
        return DOT.join([self._loaded, *self._parts])

    def _look(self) -> None:
        try:
            self._find()
        except NbcacheError:
            pass  # a store that fails says so elsewhere
        except Exception as error:  # of anything else nobody would hear on this thread
            self._session.failed("reading what is stored of the notebook", error)
        finally:
            self._known.set()

    def _present(self, manifest: Manifest, notebook: str) -> tuple[GraphSummary, ...]:
        """Return the graphs that the notebook's present cells use; all where these are unknown or none."""
        cells = present_cells(notebook)
        if not cells:
            return manifest.graphs
        runs = self._session.artifacts.history.read(notebook)
        return asked_for(manifest, cells, runs).graphs or manifest.graphs

    def _find(self) -> None:
        notebook = self._session.notebook(timeout=_NOTEBOOK_SECONDS)
        places, unfit = stored_here(self._session, self._session.environment or self._foreseen(), notebook)
        of = f" of {one_line(os.path.basename(notebook), _NAME)}" if notebook else ""
        fits = [each.manifest for each in places]
        graphs = self._present(union(fits[0].environment, notebook, fits), notebook) if fits else ()
        others = sum(each.graphs for each in unfit)
        count = len(graphs) or others
        said = f"{counted(count, 'graph')}{of} {'is' if count == 1 else 'are'} stored here"
        if not graphs:
            why = "and does not fit" if others == 1 else "and none fits"
            self._parts = [f"{said}, {why} (%nbcache plan)" if others else f"nothing{of} is stored here yet"]
            return
        self._parts = [said, f"saves about {duration(sum(graph.seconds for graph in graphs))}"]
        plan = quick_plan(self._session, notebook, places)
        if plan is not None and plan.graphs:
            self._parts = [said, *plan_parts(plan)]
