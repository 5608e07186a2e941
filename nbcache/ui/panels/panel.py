"""A panel made of ipywidgets' own controls: lays out what `pages` returns, and calls verbs."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ipywidgets as widgets
from IPython.core.error import UsageError

from nbcache.core.errors import NbcacheError
from nbcache.core.log import logger
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.snapshots import COMPARE, MEANS
from nbcache.ui.display.timeline import timeline_parts
from nbcache.ui.panels import pages, timeline
from nbcache.ui.panels.controls import Section, button, close_all, html, row, show, with_magic
from nbcache.ui.panels.people import People, Snapshots
from nbcache.ui.panels.refresh import Refresher
from nbcache.ui.panels.saved import SECTIONS, render_panel
from nbcache.ui.panels.sections import Graphs, SettingsForm
from nbcache.ui.panels.values import Facts
from nbcache.ui.panels.verbs import Verbs

__all__ = ["Panel"]

_INTERVAL = 0.2
"""Seconds between two updates: a page that is sent more sticks, and loses the last one."""
_SAVED_INTERVAL = 5.0
"""Seconds between two updates of what a saved notebook keeps, while a cell runs."""
_OPEN = ("graphs", "people", "snapshot")
"""Sections that are open from the start, where a panel has all."""
_LIVE, _SAVED = "nbcache-live-", "nbcache-saved-"


class _Question:
    """What is asked before `verb` is done, and the buttons that answer it and no other."""

    def __init__(
        self,
        lines: Sequence[str],
        verb: Callable[[], Sequence[str]],
        answer: Callable[[_Question, bool], None],
    ) -> None:
        self.lines = lines
        self.verb = verb
        self.answers = (
            button("yes", "", "do what is shown", partial(answer, self, True), style="danger"),
            button("no", "", "do nothing", partial(answer, self, False)),
        )


class Panel:
    """One live panel. `publish(data, update)` shows a MIME bundle in the cell, or replaces the last by it.

    A cell's output has two displays. The first is the widgets; the second is the last state as static HTML,
    which is what remains in a saved notebook. Style rules in the second hide it for as long as the widgets
    are there and connected, and hide in the first what a front end says of widgets that are gone. Where
    styles are stripped, as in an untrusted notebook, there are no widgets either: the static HTML is seen.
    """

    def __init__(
        self,
        verbs: Verbs,
        publish: Callable[[dict[str, Any], bool], None],
        sections: Sequence[str] = SECTIONS,
    ) -> None:
        self._verbs = verbs
        self._publish = publish
        self._names = sections
        self._ident = uuid.uuid4().hex[:12]
        self._facts = Facts(time=time.time(), is_read=False)
        self._lock = threading.RLock()
        self._message = ""
        self._question: _Question | None = None
        """What `_message` asks."""
        self._saved_at = 0.0
        self._is_closed = False
        self._drawn: tuple[int, Facts | None] = (-1, None)
        """How many graphs, and which facts: they are drawn again where they have changed."""
        self._refresher = Refresher(self._draw, _INTERVAL, "panel")
        self._gatherer = Refresher(self._gather, 0.5, "panel-facts")
        self._lay_out()

    # --- life -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Draw for the first time, and display."""
        self._draw_live()
        bundle = self.root._repr_mimebundle_()
        data = dict(bundle[0] if isinstance(bundle, tuple) else bundle)
        view = {mime: each for mime, each in data.items() if "widget-view" in mime}
        self._publish({**view, "text/plain": "", "text/html": ""}, False)
        self._save(update=False)
        self._gatherer.ask()

    def ask(self, *, facts: bool = False) -> None:
        """Have it drawn soon; with `facts`, after those were gathered anew as well."""
        self._refresher.ask()
        if facts:
            self._gatherer.ask()

    def say(self, lines: Sequence[str]) -> None:
        """Show what has been done."""
        self._say(pages.said_html(lines))
        self.ask(facts=True)

    def close(self) -> None:
        """Leave the last state as static HTML, and no widget."""
        self._refresher.close()
        self._gatherer.close()
        with self._lock:
            self._is_closed = True
            self._save(update=True)
            for box in (self.root, *self._unseen):
                close_all(box)

    # --- drawing --------------------------------------------------------------------------------

    def _gather(self) -> bool:
        try:
            facts = self._verbs.facts()
        except Exception as error:  # a bug; what it says may quote what is secret
            logger.info("what a panel shows could not be read", exc_info=error)
            problem = f"it could not be read ({type(error).__name__}; %nbcache config log=debug says more)"
            facts = replace(self._facts, plan_problem=problem)
        with self._lock:
            self._facts = facts
        self._refresher.ask()
        return False

    def _draw(self) -> bool:
        """Draw; return whether a cell runs, so that it is to be drawn again."""
        running = self._draw_live()
        if self._is_closed:
            return False
        if not running or time.monotonic() - self._saved_at >= _SAVED_INTERVAL:
            self._save(update=True)
        return running

    def _draw_live(self) -> bool:
        now = self._verbs.now()
        with self._lock:
            if self._is_closed:
                return False
            facts = self._facts
            self._live.value = pages.live_html(now)
            self._said.value = pages.fitting(self._message)
            self._draw_answers()
            show(self._said_row, bool(self._message))
            self._people.draw(facts, now)
            self._graphs.draw(now, anew=facts is not self._drawn[1])
            if len(now.graphs) != self._drawn[0]:
                levels = pages.by_level(now.graphs)
                self._levels.tell(pages.levels_words(levels))
                self._bars.value = pages.fitting(pages.levels_html(levels))
            if facts is not self._drawn[1]:
                self._draw_facts(facts)
            self._drawn = (len(now.graphs), facts)
        return bool(now.running)

    def _draw_answers(self) -> None:
        """Show the answers to the question that is asked now.

        Each question has buttons of its own: one that is pressed late answers what stood beside it.
        """
        wanted = () if self._question is None else self._question.answers
        before = self._answers.children
        if before != wanted:
            self._answers.children = wanted
            for each in before:
                close_all(each)
        show(self._answers, bool(wanted))

    def _draw_facts(self, facts: Facts) -> None:
        self._head.value = pages.head_html(facts)
        self._next.tell(pages.plan_words(facts))
        self._plan.value = pages.fitting(pages.plan_html(facts))
        self._snapshots.draw(facts)
        self._draw_timeline(facts)
        self._settings.draw(facts)
        self._space.tell(pages.space_words(facts))
        self._spaces.value = pages.fitting(pages.space_html(facts))

    def _draw_timeline(self, facts: Facts) -> None:
        found = facts.timeline
        parts = timeline_parts(found)
        self._timeline.tell(timeline.cells_words(found))
        self._bars_of_cells.value = timeline.cells_html(found)
        self._lost.tell(timeline.lost_words(found))
        self._reasons.value = pages.fitting(pages.boxed(parts["lost"][1]))
        self._runs.tell(timeline.runs_words(found))
        self._columns.value = pages.fitting(pages.boxed(timeline.runs_html(found) + parts["runs"][1]))

    def _save(self, *, update: bool) -> None:
        """Put what is to be kept in a saved notebook in the place of the last."""
        self._saved_at = time.monotonic()
        note = "run this cell again to have it live"
        rendered = render_panel(self._verbs.now(), self._facts, self._names, note=note)
        live, saved = f"{_LIVE}{self._ident}", f"{_SAVED}{self._ident}"
        dead, child = "jupyter-widgets-disconnected", ".jp-OutputArea-child"
        style = (
            f"<style>body:has(.{live}:not(.{dead})) .{saved}{{display:none}}"
            f".{live}.{dead}{{display:none!important}}"
            f"{child}:has(+ {child} .{saved})>.jp-OutputArea-output:not(:has(*)){{display:none}}</style>"
        )
        content = f'{style}<div class="{saved}">{rendered.html}</div>'
        self._publish({"text/plain": rendered.text, "text/html": content}, update)

    # --- acting ---------------------------------------------------------------------------------

    def _act(self, verb: Callable[[], Sequence[str] | Rendered | _Question]) -> None:
        """Do what a button says, now or when the running cell has ended, and show what came of it."""

        def act() -> None:
            question = None
            try:
                said = verb()
                if isinstance(said, _Question):
                    question, said = said, said.lines
                message = said.html if isinstance(said, Rendered) else pages.said_html(said)
            except NbcacheError as error:
                message = pages.problem_html(str(error), error.next_step)
            except UsageError as error:
                message = pages.problem_html(str(error), None)
            except Exception as error:  # a bug; what it says may quote what is secret
                logger.info("what a button does failed", exc_info=error)
                what = f"it failed unexpectedly ({type(error).__name__})"
                message = pages.problem_html(what, "report it; %nbcache config log=debug says more")
            self._say(message, question)
            self.ask(facts=True)

        if waits_for := self._verbs.later(act):
            self._say(pages.said_html([f"waits for {waits_for} to end"]))
            self.ask()

    def _say(self, message: str, question: _Question | None = None) -> None:
        """Show a message, and what it asks, in the place of the last."""
        with self._lock:
            self._message, self._question = message, question

    def _ask_first(
        self, what: Callable[[], tuple[str, Callable[[], Sequence[str]] | None]], question: str
    ) -> None:
        """Show what would be done, and do it once that is confirmed; without a verb, only say it."""

        def asked() -> Sequence[str] | _Question:
            said, verb = what()
            return [said] if verb is None else _Question([said, question], verb, self._answer)

        self._act(asked)

    def _answer(self, question: _Question, yes: bool) -> None:
        with self._lock:
            if self._question is not question:  # it is answered already, or another one is asked by now
                return
            self._question = None
        if yes:
            self._act(question.verb)
        else:
            self._say(pages.said_html(["Nothing was done."]))
            self.ask()

    def _remove(self, *, everything: bool) -> None:
        self._ask_first(partial(self._verbs.going, everything=everything), "Remove it?")

    def _trust(self, fingerprint: str, name: str) -> None:
        shown = f"{fingerprint} ({name})" if name else fingerprint
        what = (shown, partial(self._verbs.trust, fingerprint, name))
        self._ask_first(lambda: what, f"{MEANS} {COMPARE} Trust this signer?")

    def _clear_message(self) -> None:
        self._say("")
        self.ask()

    # --- layout ---------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        verbs, act = self._verbs, self._act
        self._head, self._live, self._said = html(), html(), html()
        shown = [
            button(verb, f"%nbcache {verb}", what, partial(act, partial(verbs.shown, verb)))
            for verb, what in (
                ("why", "why the graphs of the last cell missed"),
                ("timeline", "where the seconds of each cell went"),
                ("stats", "what restoring came to"),
                ("doctor", "check all that nbcache needs"),
            )
        ]
        refresh = button("refresh", "%nbcache panel", "read all of it anew", partial(self.ask, facts=True))
        self._answers = row(())
        close = button("close", "", "close what is shown here", self._clear_message)
        self._said_row = widgets.VBox([self._said, row([self._answers, close])])
        self._plan = html()
        self._next = Section("NEXT RUN", [self._plan], self._is_open("next"))
        self._graphs = Graphs(verbs, self.ask, is_open=self._is_open("graphs"))
        self._bars = html()
        self._levels = Section("LEVELS", [self._bars], self._is_open("levels"))
        self._people = People(act, verbs, self._trust, is_open=self._is_open("people"))
        self._snapshots = Snapshots(act, verbs, is_open=self._is_open("snapshot"))
        self._bars_of_cells, self._reasons, self._columns = html(), html(), html()
        self._timeline = Section("TIMELINE", [self._bars_of_cells], self._is_open("timeline"))
        self._lost = Section("SECONDS LOST", [self._reasons], self._is_open("lost"))
        self._runs = Section("LAST RUNS", [self._columns], self._is_open("runs"))
        self._settings = SettingsForm(act, verbs, self._ask_first, is_open=self._is_open("settings"))
        self._spaces = html()
        here, every = (partial(self._remove, everything=each) for each in (False, True))
        removing = row(
            (
                with_magic(
                    button("this notebook…", "%nbcache clear", "show what of this notebook would go", here),
                    "%nbcache clear",
                ),
                with_magic(
                    button("all…", "%nbcache clear --all", "show what all would go", every),
                    "%nbcache clear --all",
                ),
            )
        )
        self._space = Section("SPACE", [self._spaces, removing], self._is_open("space"))
        parts = {
            "next": self._next.box,
            "graphs": self._graphs.section.box,
            "levels": self._levels.box,
            "people": self._people.section.box,
            "snapshot": self._snapshots.section.box,
            "timeline": self._timeline.box,
            "lost": self._lost.box,
            "runs": self._runs.box,
            "settings": self._settings.section.box,
            "space": self._space.box,
        }
        self._unseen = [box for name, box in parts.items() if name not in self._names]
        top = widgets.HBox([self._head, row([*shown, refresh])], layout={"flex_flow": "row wrap"})
        top.layout.justify_content = "space-between"
        self.root = widgets.VBox([top, self._live, self._said_row, *(parts[name] for name in self._names)])
        self.root.add_class(f"{_LIVE}{self._ident}")

    def _is_open(self, name: str) -> bool:
        return name in _OPEN or len(self._names) < len(SECTIONS)
