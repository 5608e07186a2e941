"""A panel of ipywidgets' own controls: shows the documents of `pages`, and calls verbs."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ipywidgets as widgets
from IPython.core.error import UsageError

from nbcache.core.errors import NbcacheError
from nbcache.core.log import logger
from nbcache.ui.display.html import to_html
from nbcache.ui.display.render import Rendered
from nbcache.ui.panels import pages
from nbcache.ui.panels.pages import Facts, Verbs
from nbcache.ui.panels.sections import (
    FITTING,
    Graphs,
    People,
    Refresher,
    Section,
    SettingsForm,
    button,
    close_all,
    draw,
    html,
    row,
    with_magic,
)

__all__ = ["Panel"]

_INTERVAL = 0.2
"""Seconds between two updates: a page that is sent more sticks, and loses the last one."""
_SAVED_INTERVAL = 5.0
"""Seconds between two updates of what a saved notebook keeps, while a cell runs."""
_LIVE, _SAVED = "nbcache-live-", "nbcache-saved-"
_SHOWN = (
    ("why", "why the graphs of the last cell missed"),
    ("timeline", "where the seconds of each cell went"),
    ("stats", "what restoring came to"),
    ("doctor", "check all that nbcache needs"),
)
"""The verbs whose output a button shows."""
_SNAPSHOT_BUTTONS = (
    ("update", "snapshot", "%nbcache snapshot", "write it beside the notebook"),
    ("restore", "restore", "%nbcache restore", "use what the notebook carries"),
    ("share", "share", "%nbcache share", "have the line for a colleague"),
    ("verify", "verify", "%nbcache verify", "check lengths, digests, signatures, contents"),
    ("attach", "attach", "%nbcache attach", "say how it gets into the notebook"),
)
"""Label, verb, magic and purpose of each button."""


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """A question, and the verb that waits for its answer."""

    lines: Sequence[str]
    verb: Callable[[], Sequence[str]]


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
        sections: Sequence[str] = pages.SECTIONS,
    ) -> None:
        self._verbs = verbs
        self._publish = publish
        self._names = sections
        self._ident = uuid.uuid4().hex[:12]
        self._facts = Facts(time=time.time(), is_read=False)
        self._lock = threading.RLock()
        self._question: _Question | None = None
        """The question that is shown."""
        self._saved_at = 0.0
        self._is_closed = False
        self._drawn: tuple[object, ...] = ()
        """The state that the sections show: they are drawn again once it has changed."""
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
        self._say(to_html(pages.quoted(lines)))
        self.ask(facts=True)

    def close(self) -> None:
        """Leave the last state as static HTML, and no widget."""
        self._refresher.close()
        self._gatherer.close()
        with self._lock:
            self._is_closed = True
            self._save(update=True)
            close_all(self.root)

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
            draw(self._live, pages.live_blocks(now))
            state = (len(now.graphs), now.shared, now.running, id(self._facts))
            if state != self._drawn:
                self._drawn = state
                for part in self._sections:
                    part.draw(self._facts, now)
                draw(self._head, pages.head_blocks(self._facts))
        return bool(now.running)

    def _save(self, *, update: bool) -> None:
        """Put what is to be kept in a saved notebook in the place of the last."""
        self._saved_at = time.monotonic()
        note = "run this cell again to have it live"
        rendered = pages.render_panel(self._verbs.now(), self._facts, self._names, note=note)
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

    def _act(self, verb: Callable[[], Sequence[str | Rendered] | _Question]) -> None:
        """Call the verb of a button, now or when the running cell has ended, and show its answer."""

        def act() -> None:
            question = None
            try:
                answer = verb()
                if isinstance(answer, _Question):
                    question, answer = answer, answer.lines
                message = "".join(
                    part.html if isinstance(part, Rendered) else to_html(pages.quoted([part]))
                    for part in answer
                )
            except (NbcacheError, UsageError) as error:
                message = to_html(pages.problem_blocks(str(error), getattr(error, "next_step", None)))
            except Exception as error:  # a bug; its message may quote what is secret
                logger.info("the verb of a button failed", exc_info=error)
                what = f"it failed unexpectedly ({type(error).__name__})"
                next_step = "report it; %nbcache config log=debug says more"
                message = to_html(pages.problem_blocks(what, next_step))
            self._say(message, question)
            self.ask(facts=True)

        if waits_for := self._verbs.later(act):
            self._say(to_html(pages.quoted([f"waits for {waits_for} to end"])))
            self.ask()

    def _say(self, message: str, question: _Question | None = None) -> None:
        """Show a message, and the buttons that answer its question, in the place of the last.

        Each question has buttons of its own: one that is pressed late answers what stood beside it.
        """
        with self._lock:
            if self._is_closed:
                return
            self._question = question
            before = self._answer.children
            self._answer.children = ()
            if message:
                text = html(f'<div style="{FITTING}">{message}</div>')
                self._answer.children = (text, row(self._buttons(question)))
            for part in before:
                close_all(part)

    def _buttons(self, question: _Question | None) -> list[Any]:
        close = button("close", "", "close what is shown here", partial(self._say, ""))
        if question is None:
            return [close]
        yes, no = (partial(self._take_answer, question, answer) for answer in (True, False))
        return [
            button("yes", "", "do what is shown", yes, style="danger"),
            button("no", "", "do nothing", no),
            close,
        ]

    def _ask_first(
        self, what: Callable[[], tuple[str, Callable[[], Sequence[str]] | None]], question: str
    ) -> None:
        """Show what would be done, and do it once that is confirmed; without a verb, only say it."""

        def asked() -> Sequence[str] | _Question:
            text, verb = what()
            return [text] if verb is None else _Question([text, question], verb)

        self._act(asked)

    def _take_answer(self, question: _Question, yes: bool) -> None:
        with self._lock:
            if self._question is not question:  # it is answered already, or another one is asked by now
                return
            self._question = None
        if yes:
            self._act(question.verb)
        else:
            self.say(["Nothing was done."])

    # --- layout ---------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        self._head, self._live, self._answer = html(), html(), widgets.VBox()
        shown = [
            button(verb, f"%nbcache {verb}", what, partial(self._act, partial(self._output, verb)))
            for verb, what in _SHOWN
        ]
        refresh = button("refresh", "%nbcache panel", "read all of it again", partial(self.ask, facts=True))
        self._sections = [self._section(name) for name in self._names]
        top = widgets.HBox([self._head, row([*shown, refresh])], layout={"flex_flow": "row wrap"})
        top.layout.justify_content = "space-between"
        boxes = [section.box for section in self._sections]
        self.root = widgets.VBox([top, self._live, self._answer, *boxes])
        self.root.add_class(f"{_LIVE}{self._ident}")

    def _output(self, verb: str) -> list[Rendered]:
        return [self._verbs.shown(verb)]

    def _section(self, name: str) -> Section:
        verbs, act = self._verbs, self._act
        is_open = name in pages.OPEN or len(self._names) < len(pages.SECTIONS)
        if name == "graphs":
            return Graphs(act, verbs, is_open)
        if name == "people":
            return People(act, verbs, self._ask_first, is_open)
        if name == "settings":
            return SettingsForm(act, verbs, self._ask_first, is_open)
        buttons = []
        if name == "snapshot":
            buttons = [
                with_magic(label, magic, what, partial(act, getattr(verbs, verb)))
                for label, verb, magic, what in _SNAPSHOT_BUTTONS
            ]
        if name == "space":
            whole = partial(verbs.going, everything=True)
            buttons = [
                with_magic(label, magic, what, partial(self._ask_first, going, "Remove it?"))
                for label, magic, what, going in (
                    ("this notebook…", "%nbcache clear", "show what of this notebook would go", verbs.going),
                    ("all…", "%nbcache clear --all", "show what all would go", whole),
                )
            ]
        return Section(name, is_open, (), [row(buttons)] if buttons else ())
