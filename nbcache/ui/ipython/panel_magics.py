"""`%nbcache panel` and `graphs`: widgets in notebooks; the same as text or HTML where there are none."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.display import display as _display

from nbcache.core.errors import NbcacheError, StoreError
from nbcache.core.model import Environment
from nbcache.core.reports import GraphRecord
from nbcache.core.text import DOT, ago, counted, one_line, size
from nbcache.core.trust import spelled
from nbcache.explain.plan import Plan
from nbcache.explain.why import Why, explain
from nbcache.kernel.clearing import Clearing
from nbcache.kernel.session import Session
from nbcache.shared.client import SharedClient
from nbcache.snapshots.sources import beside
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.rows import StoreFigures, shared_parts
from nbcache.ui.display.snapshots import pending_words, restored_words
from nbcache.ui.doctor.places import store_figures
from nbcache.ui.ipython.cells import Cells
from nbcache.ui.ipython.connect_magics import ConnectMagics, publication_lines
from nbcache.ui.ipython.history_magics import HistoryMagics
from nbcache.ui.ipython.session_magics import SessionMagics, going_words
from nbcache.ui.ipython.snapshot_magics import ShareMagics
from nbcache.ui.panels.saved import SECTIONS, render_panel
from nbcache.ui.panels.values import Facts, Now, Space, Stranger, machine_parts, spaces

if TYPE_CHECKING:
    from nbcache.ui.panels.panel import Panel

__all__ = ["PANELS", "PanelMagics"]

PANELS = {
    "panel": SECTIONS,
    "graphs": ("next", "graphs", "levels"),
    "sharing": ("people", "snapshot"),
    "settings": ("settings",),
    "space": ("space",),
}
"""The sections of each panel."""
_SECONDS = 1.0
"""How long is waited for the notebook's place."""


class PanelMagics:
    """The verbs, for one shell, and the panels that are open."""

    def __init__(self, shell: Any, verbs: PanelVerbs) -> None:
        self._shell = shell
        self._verbs = verbs
        self._open: dict[str, Panel] = {}
        """By kind: of each kind, the newest is live."""

    def panel(self, arguments: list[str]) -> None:
        """Show the whole panel, or one of its parts."""
        names = [name for name in PANELS if name != "panel"]
        if len(arguments) > 1 or any(word not in names for word in arguments):
            raise UsageError(f"%nbcache panel takes one of {', '.join(names)}, or nothing")
        self._show(arguments[0] if arguments else "panel")

    def graphs(self, arguments: list[str]) -> None:
        """Show the panel of graphs."""
        if arguments:
            raise UsageError("%nbcache graphs takes nothing more")
        self._show("graphs")

    def before(self) -> None:
        """Follow a cell that has begun."""
        self._verbs.begin()
        for panel in self._open.values():
            panel.ask()

    def after(self) -> None:
        """Draw what a cell has left, and do what waited for its end."""
        for panel in [*self._open.values()] if self._verbs.end() else []:
            panel.ask(facts=True)

    def close(self) -> None:
        """Leave all panels as static HTML."""
        while self._open:
            self._open.popitem()[1].close()

    def _show(self, kind: str) -> None:
        sections = PANELS[kind]
        if not self._has_widgets():
            _display(render_panel(self._verbs.now(), self._verbs.facts(), sections))  # type: ignore[no-untyped-call]
            return
        from nbcache.ui.panels.panel import Panel  # widgets take a moment to import

        if (before := self._open.pop(kind, None)) is not None:
            before.close()
        panel = Panel(self._verbs, self._publisher(), sections)
        panel.open()
        self._open[kind] = panel

    def _has_widgets(self) -> bool:
        """Tell whether somebody is there to press a button: else, the front end allows no questions."""
        return bool(getattr(getattr(self._shell, "kernel", None), "_allow_stdin", False))

    def _publisher(self) -> Callable[[dict[str, Any], bool], None]:
        """Return what shows a display that stays alone, then one that is replaced again and again."""
        publisher, transient = self._shell.display_pub, {"display_id": f"nbcache-{uuid.uuid4().hex}"}

        def publish(data: dict[str, Any], update: bool) -> None:
            is_saved = "application/vnd.jupyter.widget-view+json" not in data
            publisher.publish(data, {}, transient=transient if is_saved else {}, update=update)

        return publish


class PanelVerbs:
    """What panels ask of one session, and have it do, by its magics: see `nbcache.ui.panels.verbs`."""

    def __init__(
        self,
        session: Session,
        cells: Cells,
        own: SessionMagics,
        history: HistoryMagics,
        snapshots: ShareMagics,
        connecting: ConnectMagics,
        foreseen: Callable[[], Environment | None],
    ) -> None:
        self._session = session
        self._cells = cells
        self._own = own
        self._history = history
        self._snapshots = snapshots
        self._connecting = connecting
        self._foreseen = foreseen
        self._began = time.monotonic()
        self._waiting: list[Callable[[], None]] = []
        """What waits for the running cell to end."""

    # --- cells ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that a cell begins."""
        self._began = time.monotonic()

    def end(self) -> bool:
        """Do what waited, once no cell runs; False where one still does."""
        if self._cells.are_running:
            return False
        while self._waiting:
            self._waiting.pop(0)()
        return True

    def later(self, action: Callable[[], None]) -> str:
        """Have `action` done when the running cell has ended; return that cell, empty where none runs.

        Most kernels have a button wait by themselves. Some call it on a thread, while the cell goes on.
        """
        if self._cells.are_running:
            self._waiting.append(action)
            cell = self._session.cell
            return cell.label if cell else "the running cell"
        action()
        return ""

    # --- values ---------------------------------------------------------------------------------

    def now(self) -> Now:
        """Return what changes while a cell runs."""
        session, cell = self._session, self._session.cell
        shared = session.shared_client
        return Now(
            session.graphs,
            session.activity() if cell else None,
            cell.label if cell else "",
            time.monotonic() - self._began,
            () if shared is None else tuple(shared_parts(shared.level.figures())),
        )

    def facts(self) -> Facts:
        """Gather what has to be read from disks, or asked of others."""
        session = self._session
        notebook = session.notebook(timeout=_SECONDS)
        shared = session.shared_client
        plan, notes, problem = self._planned(notebook)
        settings, torch_settings = self._own.setting_rows()
        store, found = self._stored()
        return Facts(
            notebook=os.path.basename(notebook),
            identity=notebook,
            machine=machine_parts(session.environment or self._foreseen(), session.graphs),
            plan=plan,
            plan_notes=notes,
            plan_problem=problem,
            people=[] if shared is None else publication_lines(shared.publications()),
            strangers=self._strangers(),
            snapshots=self._snapshot_lines(notebook),
            settings=settings,
            torch_settings=torch_settings,
            store=store,
            spaces=found,
            time=time.time(),
        )

    def explain(self, graph: GraphRecord) -> Why:
        """Return all that there is to say of a graph."""
        return explain([graph], self._session.graphs)[0]

    def shown(self, verb: str) -> Rendered:
        """Return what `%nbcache doctor`, `why`, `stats` or `timeline` shows."""
        shows = {
            "doctor": self._own.checked,
            "why": self._own.explained,
            "stats": self._history.figures,
            "timeline": self._history.bars,
        }
        return shows[verb]()

    def _planned(self, notebook: str) -> tuple[Plan, list[str], str]:
        try:
            return self._history.planner.planned(notebook)
        except StoreError as error:
            return Plan((), 0), [], str(error)

    def _stored(self) -> tuple[StoreFigures | None, list[Space]]:
        artifacts = self._session.artifacts
        try:
            figures = store_figures(artifacts.store, self._session.settings.max_bytes)
            return figures, spaces(artifacts.manifests().values())
        except StoreError:
            return None, []

    def _strangers(self) -> list[Stranger]:
        try:
            found = self._snapshots.sharing.strangers()
        except NbcacheError:  # keys that cannot be read, as a line says
            return []
        return [Stranger(spelled(each.fingerprint), each.name, each.received.name) for each in found]

    def _snapshot_lines(self, notebook: str) -> list[str]:
        lines = []
        if notebook:
            near = beside(Path(notebook))
            try:
                found = near.stat()
                written = ago(max(0.0, time.time() - found.st_mtime))
                lines.append(DOT.join([one_line(near.name, 60), size(found.st_size), f"written {written}"]))
            except OSError:
                pass  # there is none
        return lines + [line.removeprefix("nbcache: ") for line in self._snapshots.arrived()]

    # --- verbs ----------------------------------------------------------------------------------

    def snapshot(self) -> Sequence[str]:
        """Do what `%nbcache snapshot` does."""
        taken = self._session.snapshot()
        holds = f"{counted(taken.graphs, 'graph')}, {counted(taken.artifacts, 'artifact')}"
        return [f"{one_line(os.path.basename(taken.where))} holds {holds}"]

    def restore(self) -> Sequence[str]:
        """Do what `%nbcache restore` does."""
        return [
            pending_words(each.where)
            if each.pending
            else restored_words(each.graphs, each.artifacts, each.where)
            for each in self._session.restore()
        ]

    def share(self) -> Sequence[str]:
        """Do what `%nbcache share` does."""
        return self._connecting.hand_over()

    def connect(self, url: str) -> Sequence[str]:
        """Do what `%nbcache connect` does."""
        client: SharedClient = self._connecting.connect_to(url)
        return self._connecting.who_is_there(client)

    def disconnect(self) -> Sequence[str]:
        """Do what `%nbcache disconnect` does."""
        self._session.disconnect()
        return ["disconnected: nothing is shared live any more"]

    def trust(self, fingerprint: str, name: str) -> Sequence[str]:
        """Do what `%nbcache trust add` does."""
        return self._own.trust_signer(fingerprint, name)

    def change(self, name: str, value: str) -> Sequence[str]:
        """Do what `%nbcache config` does."""
        return [f"{name} is {value or 'empty'} for this kernel", *self._own.change([f"{name}={value}"])]

    def going(self, *, everything: bool) -> tuple[str, Callable[[], Sequence[str]] | None]:
        """Return in words what `%nbcache clear` or `clear --all` would remove, and what removes just that."""
        if everything:
            return f"This would be removed: {self._own.everything_words()}", self._own.remove
        shown = self._session.clearing()
        words = going_words(shown)
        if not shown.manifests:
            return words, None

        def remove() -> Sequence[str]:
            only = self._session.clearing()
            if _what_goes(only) != _what_goes(shown):
                raise NbcacheError(
                    "nothing was removed: what is stored of this notebook has changed since it was shown",
                    next_step="press the button again, and look at what would go now",
                )
            return self._own.remove(only)

        return f"This would be removed: {words}", remove


def _what_goes(only: Clearing) -> tuple[object, ...]:
    """Return what tells one removal from another; that something was used meanwhile does not."""
    refs = {(digest, *ref.identity) for digest, ref in only.refs}
    return only.notebook, only.graphs, only.kept, set(only.manifests), refs
