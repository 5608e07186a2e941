"""`%nbcache panel`, `graphs`, `timeline` and `share`: widgets in notebooks; elsewhere text or static HTML."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.display import display as _display

from nbcache.artifacts.manifests import Clearing
from nbcache.core.errors import NbcacheError, StoreError
from nbcache.core.model import Environment
from nbcache.core.reports import GraphContents, GraphRecord
from nbcache.core.text import DOT, ago, counted, one_line, size
from nbcache.core.trust import spelled
from nbcache.explain.plan import Plan
from nbcache.explain.why import Why, explain
from nbcache.kernel.session import Session
from nbcache.kernel.shared_client import SharedClient
from nbcache.snapshots.sources import beside
from nbcache.torch_bridge.contents import contents_of
from nbcache.ui.display.graph import render_graph
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.rows import StoreFigures, shared_parts
from nbcache.ui.display.snapshots import fit_words, pending_words, restored_words
from nbcache.ui.doctor.places import store_figures
from nbcache.ui.ipython.cells import Cells
from nbcache.ui.ipython.connect_magics import ConnectMagics, shared_name
from nbcache.ui.ipython.history_magics import HistoryMagics
from nbcache.ui.ipython.session_magics import SessionMagics, going_words, show
from nbcache.ui.ipython.snapshot_magics import ShareMagics
from nbcache.ui.panels.pages import SECTIONS, render_panel
from nbcache.ui.panels.values import Facts, Now, Space, Stranger, machine_parts, spaces

if TYPE_CHECKING:
    from nbcache.ui.panels.panel import Panel

__all__ = ["PANELS", "PanelMagics"]

PANELS = {
    "panel": SECTIONS,
    "graphs": ("next", "graphs", "levels"),
    "timeline": ("timeline", "lost", "runs"),
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
        """Show the panel of graphs, or one graph whole."""
        names = [word for word in arguments if word != "--json"]
        if len(names) > 1 or any(word.startswith("-") for word in names) or (arguments and not names):
            raise UsageError("%nbcache graphs takes one GRAPH, such as 0/1 or a function, and --json")
        if not names:
            self._show("graphs")
            return
        for rendered in self._verbs.whole(names[0]):
            show(rendered, "--json" in arguments)

    def timeline(self, arguments: list[str]) -> None:
        """Show the panel of the timeline; where there are no widgets, the timeline."""
        if not arguments and self._has_widgets():
            self._open_panel("timeline")
        else:
            self._verbs.print_timeline(arguments)

    def share(self, arguments: list[str]) -> None:
        """Take a snapshot where others find it, and show the panel of sharing with what they paste."""
        if "--json" in arguments or not self._has_widgets():
            self._verbs.print_share(arguments)
            return
        lines = self._verbs.share(shared_name(arguments))
        self._open_panel("sharing").say(lines)

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
        if self._has_widgets():
            self._open_panel(kind)
        else:
            _display(render_panel(self._verbs.now(), self._verbs.facts(), PANELS[kind]))  # type: ignore[no-untyped-call]

    def _open_panel(self, kind: str) -> Panel:
        from nbcache.ui.panels.panel import Panel  # widgets take a moment to import

        if (before := self._open.pop(kind, None)) is not None:
            before.close()
        panel = Panel(self._verbs, self._publisher(), PANELS[kind])
        panel.open()
        self._open[kind] = panel
        return panel

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
            people=[] if shared is None else self._connecting.people(shared),
            strangers=self._strangers(),
            snapshots=self._snapshot_lines(notebook),
            paste=self._paste(),
            timeline=self._history.times(notebook),
            settings=settings,
            torch_settings=torch_settings,
            store=store,
            spaces=found,
            time=time.time(),
        )

    def explain(self, graph: GraphRecord) -> Why:
        """Return all that there is to say of a graph."""
        return explain([graph], self._session.graphs)[0]

    def contents(self, graph: GraphRecord) -> GraphContents:
        """Return the guards and the generated code of a graph."""
        return contents_of(graph, self._session)

    def whole(self, name: str) -> list[Rendered]:
        """Return the graphs of a function, or that of a compile id, each with all that is known of it."""
        found = self._session.why(name)
        if not found:
            raise UsageError(f"%nbcache graphs: no graph of this kernel is called `{one_line(name, 40)}`")
        return [render_graph(why, self.contents(why.graph)) for why in found]

    def print_timeline(self, arguments: list[str]) -> None:
        """Do what `%nbcache timeline` does where there are no widgets."""
        self._history.timeline(arguments)

    def print_share(self, arguments: list[str]) -> None:
        """Do what `%nbcache share` does where there are no widgets."""
        self._connecting.share(arguments)

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
        here = self._session.environment or self._foreseen()
        return [
            Stranger(
                spelled(each.fingerprint),
                each.name,
                each.received.name,
                fit_words(each.received.snapshot.manifests, here),
            )
            for each in found
        ]

    def _paste(self) -> list[str]:
        try:
            return self._connecting.to_paste()
        except NbcacheError:  # keys that cannot be read, as a line says
            return []

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

    def share(self, name: str = "") -> Sequence[str]:
        """Do what `%nbcache share` does."""
        return self._connecting.hand_over(name)

    def verify(self) -> Sequence[str]:
        """Do what `%nbcache verify` does."""
        return self._snapshots.verified().lines

    def attach(self) -> Sequence[str]:
        """Do what `%nbcache attach` does."""
        return self._snapshots.attaching()

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

    def ignore(self, fingerprint: str) -> Sequence[str]:
        """Do what `%nbcache trust ignore` does."""
        return self._snapshots.ignore(fingerprint)

    def change(self, name: str, value: str) -> Sequence[str]:
        """Do what `%nbcache config` does."""
        return [f"{name} is {value or 'empty'} for this kernel", *self._own.change([f"{name}={value}"])]

    def going(self, *, everything: bool = False) -> tuple[str, Callable[[], Sequence[str]] | None]:
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
