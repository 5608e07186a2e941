"""Gathers what the plan of a notebook rests on: its file, what is at hand of it, and its history."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nbcache.artifacts.compatibility import (
    baseline_for,
    differences,
    fit_lines,
    fitting,
    foreseen_differences,
)
from nbcache.artifacts.manifests import union
from nbcache.artifacts.types import type_of
from nbcache.core.errors import FormatError, NbcacheError
from nbcache.core.files import read
from nbcache.core.model import Environment, Level, Manifest
from nbcache.core.text import ago
from nbcache.explain.notebook import cells_of
from nbcache.explain.plan import Place, Plan, Unfit, planned
from nbcache.kernel.session import Session
from nbcache.kernel.snapshots import Sharing, usable
from nbcache.snapshots.sources import MAX_NOTEBOOK_BYTES
from nbcache.snapshots.verify import Received
from nbcache.ui.display.plan import render_plan
from nbcache.ui.display.render import Rendered

__all__ = ["Planner", "quick_plan", "stored_here"]

_FLUSH_SECONDS = 5.0
_LOOK_SECONDS = 0.5
"""How long to wait until the notebook's snapshots have been looked for."""
_MOST_AT_ONCE = 2 << 20
"""Bytes of a notebook that is looked at while the extension loads: parsing 2 MB takes some 20 ms."""


class Planner:
    """Plans for one session; `foreseen` tells what is known of the environment before torch is imported."""

    def __init__(
        self, session: Session, foreseen: Callable[[], Environment | None], sharing: Sharing
    ) -> None:
        self._session = session
        self._foreseen = foreseen
        self._sharing = sharing

    def rendered(self, notebook: str) -> Rendered:
        """Return the plan of the notebook at this path; empty where it is not known."""
        plan, notes, problem = self.planned(notebook)
        return render_plan(plan, os.path.basename(notebook), notes, problem=problem)

    def planned(self, notebook: str) -> tuple[Plan, list[str], str]:
        """Return the plan, what may make it wrong, and why there is none."""
        if not notebook:
            return Plan((), 0), [], "this kernel cannot tell its notebook: %nbcache config notebook=PATH"
        try:
            cells = cells_of(read(Path(notebook), max_bytes=MAX_NOTEBOOK_BYTES))
            saved = os.stat(notebook).st_mtime
        except FormatError as error:
            return Plan((), 0), [], f"{error.what}: {error.next_step}"
        except (NbcacheError, OSError):
            return Plan((), 0), [], "there is no such file: save the notebook first"
        session = self._session
        session.cache.flush(_FLUSH_SECONDS)
        session.cache.history.read(notebook)
        here = session.environment
        places, unfit = stored_here(session, here or self._foreseen(), notebook)
        places += self._restored(unfit)
        places += self._shared()
        whose = {here.digest} if here else {each.manifest.environment.digest for each in places}
        plan = planned(cells, places, session.cache.history.runs(), whose, unfit)
        notes = [*self._staleness({cell.digest for cell in cells}, saved)]
        if here is None and session.shares:
            notes.append("the shared store is asked as soon as torch is imported")
        return plan, notes, ""

    def _staleness(self, digests: set[str], saved: float) -> Iterator[str]:
        running, age = self._session.cell, ago(time.time() - saved)
        if running is not None and running.digest not in digests:
            yield f"the file was saved {age}, without this cell: save the notebook, and ask again"
        else:
            yield f"by the file as it was saved {age}"

    def _restored(self, unfit: list[Unfit]) -> list[Place]:
        """Return what snapshots that came along hold, and fits; add to `unfit` those that do not."""
        places = []
        self._sharing.looked(_LOOK_SECONDS)
        for received in self._known(unfit):
            graphs = len({graph.identity for each in received.snapshot.manifests for graph in each.graphs})
            try:
                received.unlock(self._session.settings.trust)
                manifests = self._fitting(received)
            except NbcacheError as error:
                unfit.append(Unfit(received.name, graphs, (error.with_next_step(),)))
                continue
            places += [Place(Level.L2, received.name, each, each.digests) for each in manifests]
            if not manifests:
                here = self._session.environment or self._foreseen()
                unfit += [_unfit(received.name, each, here) for each in received.snapshot.manifests]
        return places

    def _known(self, unfit: list[Unfit]) -> list[Received]:
        try:
            return self._sharing.told()
        except NbcacheError as error:  # keys that cannot be read: nobody is trusted
            unfit.append(Unfit("snapshots", 0, (error.with_next_step(),)))
            return []

    def _fitting(self, received: Received) -> list[Manifest]:
        """Return what of a snapshot may be used here, by what is known; raises as `usable` does."""
        manifests, here = received.snapshot.manifests, self._session.environment
        if here is None:
            foreseen = self._foreseen()
            return [each for each in manifests if not _differs(each, foreseen, whole=False)]
        return [] if fitting(manifests, here) is None else [usable(received, here, self._sharing.judge)[0]]

    def _shared(self) -> list[Place]:
        """Return what others have published of the notebook, and fits."""
        here, shared_client = self._session.environment, self._session.shared_client
        if here is None or shared_client is None:
            return []
        level = shared_client.level
        fits = [fitting([each.manifest], here) for each in shared_client.publications()]
        whole = union(here, "", [each for each in fits if each is not None])
        graphs = [ref for ref in whole.artifacts if type_of(ref.type).is_graph]
        present = {ref.digest for ref in level.present(here, graphs)} if graphs else set()
        return [Place(Level.L3, level.name, whole, present)] if graphs else []


def stored_here(session: Session, here: Environment | None, notebook: str) -> tuple[list[Place], list[Unfit]]:
    """Return what the local store has of a notebook for the environment `here`, and what it has for others.

    Where not all is known of the environment yet, by what is. StoreError where the store fails.
    """
    stored, places, unfit = session.artifacts, [], []
    for manifest in stored.manifests(notebook).values():
        found = _differs(manifest, here, whole=session.environment is not None)
        if found:
            unfit.append(_unfit(stored.store.name, manifest, here))
            continue
        admitted = stored.admitted(manifest)
        present = stored.present(admitted.digests)
        places.append(Place(Level.L1, stored.store.name, admitted, present))
    return places, unfit


def quick_plan(session: Session, notebook: str, places: list[Place]) -> Plan | None:
    """Return the plan of a notebook in a hurry: None where its file is not known, not readable, or large."""
    if not notebook:
        return None
    try:
        cells = cells_of(read(Path(notebook), max_bytes=_MOST_AT_ONCE))
    except (NbcacheError, OSError):
        return None
    whose = {each.manifest.environment.digest for each in places}
    return planned(cells, places, session.artifacts.history.read(notebook), whose)


def _differs(manifest: Manifest, here: Environment | None, *, whole: bool) -> bool:
    """Tell whether a manifest of the local store is of another environment than `here`."""
    if here is None:
        return False
    return manifest.environment.digest != here.digest if whole else bool(foreseen_differences(manifest, here))


def _unfit(name: str, manifest: Manifest, here: Environment | None) -> Unfit:
    labels = set() if here is None else {part.label for part in here.components}
    found = [] if here is None else [e for e in differences(manifest, here) if e.label in labels]
    baseline = None if here is None else baseline_for([manifest], here)
    return Unfit(name, len(manifest.graphs), tuple(fit_lines(found, baseline)), tuple(found))
