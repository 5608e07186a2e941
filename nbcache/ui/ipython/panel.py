"""A live panel of ipywidgets' controls, which shows the documents of `display.panel` and calls verbs."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import ipywidgets as widgets
from IPython.core.error import UsageError

from nbcache.core.errors import NbcacheError
from nbcache.core.log import logger
from nbcache.core.settings import Policy
from nbcache.core.text import DOT, one_line
from nbcache.core.threads import start_thread
from nbcache.ui.display import document as doc
from nbcache.ui.display import panel as pages
from nbcache.ui.display.document import faint, line
from nbcache.ui.display.panel import Facts, Now
from nbcache.ui.display.render import BOX, Rendered, to_html
from nbcache.ui.display.snapshots import COMPARE, MEANS
from nbcache.ui.ipython.kernel_verbs import KernelVerbs
from nbcache.ui.terminal.shown import Shown

Answer: TypeAlias = Rendered | Shown | Sequence[str | Rendered]
"""The answer of a verb. A verb raises NbcacheError or UsageError if it fails."""
Removal: TypeAlias = Callable[[], Sequence[str]]

_INTERVAL, _FACTS_INTERVAL = 0.2, 0.5
"""Seconds between two updates: with more, a page hangs and loses the last one."""
_SAVED_INTERVAL = 5.0
"""Seconds between two updates of the static HTML for saved notebooks, while a cell runs."""
_LIVE, _SAVED = "nbcache-live-", "nbcache-saved-"
_SHOWN = (
    ("why", "why", "why the graphs of the last cell missed"),
    ("timeline", "timeline", "where the seconds of each cell went"),
    ("stats", "stats", "hits, and the seconds that they saved"),
    ("doctor", "doctor", "check all that nbcache needs"),
)
_SNAPSHOT_BUTTONS = (
    ("update", "snapshot", "write the snapshot beside the notebook"),
    ("restore", "restore", "use the snapshot in the notebook"),
    ("share", "share", "show the line for a colleague"),
    ("verify", "verify", "check lengths, digests, signatures, contents"),
    ("attach", "attach", "show how to put it into the notebook"),
)
"""Label, verb and purpose of each button, as in `_SHOWN`."""
_MOST_OFFERED = 200
"""The most graphs in the list to choose from, the newest first."""
_TRUST_OFF = (
    "With trust=off, what anybody has compiled runs as you, with all your rights, signed or not, "
    "for as long as this kernel runs."
)
_CARET = {"width": "24px", "height": "22px", "margin": "-3px 2px 2px 2px", "padding": "0"}
"""The layout of the button that folds a section."""
_TURNS = 0.05
"""Seconds in which a kernel's event loop handles all messages that have arrived."""
_FITTING = f"{BOX};display:grid;grid-template-columns:minmax(0,1fr)"
"""Style of a box that is no wider than the page; wider content scrolls."""


def html(value: str = "") -> Any:
    """Return a widget for HTML that may shrink to the available width."""
    return widgets.HTML(value, layout={"min_width": "0", "margin": "0 2px"})


def draw(place: Any, blocks: Sequence[doc.Block]) -> None:
    place.value = to_html(blocks, box=_FITTING) if blocks else ""


def button(label: str, magic: str, purpose: str, act: Callable[[], object], *, style: str = "") -> Any:
    """Return a button; its tooltip has its purpose, and the magic that does the same."""
    tooltip = f"{purpose} ({magic})" if magic else purpose
    layout = {"width": "auto", "flex": "0 0 auto"}
    control = widgets.Button(description=label, tooltip=tooltip, button_style=style, layout=layout)
    control.on_click(lambda _: act())
    return control


def with_magic(label: str, magic: str, purpose: str, act: Callable[[], object]) -> Any:
    """Return a button with its magic beside it."""
    place = html()
    draw(place, [line(doc.Span(magic, doc.Style.CODE), style=doc.Style.FAINT)])
    return widgets.HBox([button(label, magic, purpose, act), place], layout={"align_items": "center"})


def text(width: str, placeholder: str) -> Any:
    """Return a field for a line of text. It sends its value once, when the user leaves it."""
    return widgets.Text(placeholder=placeholder, continuous_update=False, layout={"width": width})


def after_typing(act: Callable[[], object]) -> None:
    """Call `act` for a pressed button once the text that was typed before has arrived.

    Pressing a button leaves the text field, so the front end sends the field's value right before the press.
    ipykernel 7, which handles comm messages in a separate event loop, may handle the two in either order.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        act()
    else:
        loop.call_later(_TURNS, act)


def row(children: Iterable[Any]) -> Any:
    """Return widgets side by side, wrapped if the page is narrow."""
    return widgets.HBox(list(children), layout={"flex_flow": "row wrap", "align_items": "center"})


def dropdown(tooltip: str) -> Any:
    return widgets.Dropdown(layout={"width": "220px"}, tooltip=tooltip)


def offer(choice: Any, names: Mapping[str, str]) -> None:
    """Offer values by name (`names`: value → name), and keep the selected one."""
    options = tuple((name, value) for value, name in names.items())
    if options != choice.options:
        selected = choice.value
        choice.options = options
        choice.value = selected if selected in names else next(iter(names), None)


def show(widget: Any, wanted: bool) -> None:
    widget.layout.display = None if wanted else "none"


def close_all(root: Any) -> None:
    """Remove a widget and all widgets in it from the front end."""
    for child in getattr(root, "children", ()):
        close_all(child)
    for part in (root, getattr(root, "layout", None), getattr(root, "style", None)):
        with suppress(Exception):  # the front end or the kernel has ended
            part.close()  # type: ignore[union-attr]


class Refresher:
    """Calls `draw` on a thread, at most once in `interval` seconds, after each `ask`.

    `draw` returns whether to call it again without another `ask`. Its errors are logged.
    """

    def __init__(
        self,
        draw: Callable[[], bool],
        interval: float,
        name: str,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._draw = draw
        self._sleep = partial(sleep, interval)
        self._name = name
        self._lock = threading.Lock()
        self._asked = self._runs = self._closed = False

    def ask(self) -> None:
        """Call `draw` soon, once for all requests until then."""
        with self._lock:
            self._asked = True
            if not self._runs and not self._closed:
                run = partial(contextvars.copy_context().run, self._run)
                self._runs = start_thread(run, self._name) is not None

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _run(self) -> None:
        goes_on = False
        while True:
            with self._lock:
                self._runs = not self._closed and (self._asked or goes_on)
                self._asked = False
                if not self._runs:
                    return
            try:
                goes_on = self._draw()
            except Exception as error:
                goes_on = False
                logger.info("drawing a panel failed", exc_info=error)
            self._sleep()


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """A question, and the verb that waits for its answer."""

    lines: Sequence[str]
    verb: Removal


class Panel:
    """One live panel. `publish(data, update)` shows a MIME bundle in the cell, or replaces the last one.

    A cell's output has two displays. The first has the widgets. The second has the last state as static HTML,
    which remains in a saved notebook. Style rules in the second hide it while the widgets are connected;
    later, they hide a front end's error message about missing widgets in the first. If styles are stripped,
    as in an untrusted notebook, widgets are missing, too, and the static HTML is visible.
    """

    def __init__(
        self,
        verbs: KernelVerbs,
        publish: Callable[[dict[str, Any], bool], None],
        names: Sequence[str] = pages.SECTIONS,
    ) -> None:
        self.verbs = verbs
        self.names = names
        self._publish = publish
        self._ident = uuid.uuid4().hex[:12]
        self._facts = Facts(time=time.time(), is_read=False)
        self._lock = threading.RLock()
        self._question: _Question | None = None
        self._saved_at = 0.0
        self._is_closed = False
        self._drawn: tuple[object, ...] = ()
        """The state that the sections show; they are drawn again when it changes."""
        self._refresher = Refresher(self._draw, _INTERVAL, "panel")
        self._gatherer = Refresher(self._gather, _FACTS_INTERVAL, "panel-facts")
        self._head, self._live, self._answer = html(), html(), widgets.VBox()
        shown = self.buttons(_SHOWN, button)
        refresh = button("refresh", "%nbcache panel", "read everything again", partial(self.ask, facts=True))
        self._sections = [_SECTIONS.get(name, Section)(self, name) for name in names]
        layout = {"flex_flow": "row wrap", "justify_content": "space-between"}
        top = widgets.HBox([self._head, row([*shown, refresh])], layout=layout)
        boxes = [section.box for section in self._sections]
        self.root = widgets.VBox([top, self._live, self._answer, *boxes])
        self.root.add_class(f"{_LIVE}{self._ident}")

    def buttons(
        self, verbs: Iterable[tuple[str, str, str]], kind: Callable[..., Any] = with_magic
    ) -> list[Any]:
        """Return a button for each verb, given as (label, name, purpose)."""
        return [
            kind(label, f"%nbcache {verb}", purpose, partial(self.act, getattr(self.verbs, verb)))
            for label, verb, purpose in verbs
        ]

    def open(self) -> None:
        self._draw_live()
        bundle = self.root._repr_mimebundle_()
        data = dict(bundle[0] if isinstance(bundle, tuple) else bundle)
        view = {mime: value for mime, value in data.items() if "widget-view" in mime}
        self._publish({**view, "text/plain": "", "text/html": ""}, False)
        self._save(update=False)
        self._gatherer.ask()

    def ask(self, *, facts: bool = False) -> None:
        """Draw the panel soon; with `facts`, also gather facts and draw again."""
        self._refresher.ask()
        if facts:
            self._gatherer.ask()

    def say(self, lines: Sequence[str]) -> None:
        self._say(to_html(pages.quoted(lines)))
        self.ask(facts=True)

    def close(self) -> None:
        """Close all widgets, and leave the last state as static HTML."""
        self._refresher.close()
        self._gatherer.close()
        with self._lock:
            self._is_closed = True
            self._save(update=True)
            close_all(self.root)

    def _gather(self) -> bool:
        try:
            facts = self.verbs.facts()
        except Exception as error:  # a bug; its message may quote a secret
            logger.info("reading the values of a panel failed", exc_info=error)
            problem = f"it could not be read ({type(error).__name__}; %nbcache config log=debug says more)"
            facts = replace(self._facts, plan=replace(self._facts.plan, problem=problem))
        with self._lock:
            self._facts = facts
        self._refresher.ask()
        return False

    def _draw(self) -> bool:
        """Draw; return whether a cell runs, in which case the refresher draws again."""
        running = self._draw_live()
        if self._is_closed:
            return False
        if not running or time.monotonic() - self._saved_at >= _SAVED_INTERVAL:
            self._save(update=True)
        return running

    def _draw_live(self) -> bool:
        live = self.verbs.now()
        with self._lock:
            if self._is_closed:
                return False
            draw(self._live, pages.live_blocks(live))
            state = (len(live.graphs), live.shared, live.running, id(self._facts))
            if state != self._drawn:
                self._drawn = state
                for section in self._sections:
                    section.draw(self._facts, live)
                draw(self._head, pages.head_blocks(self._facts))
        return bool(live.running)

    def _save(self, *, update: bool) -> None:
        """Update the static HTML, which a saved notebook keeps."""
        self._saved_at = time.monotonic()
        note = "run this cell again to have it live"
        rendered = pages.render_panel(self.verbs.now(), self._facts, self.names, note=note)
        live, saved = f"{_LIVE}{self._ident}", f"{_SAVED}{self._ident}"
        dead, child = "jupyter-widgets-disconnected", ".jp-OutputArea-child"
        style = (
            f"<style>body:has(.{live}:not(.{dead})) .{saved}{{display:none}}"
            f".{live}.{dead}{{display:none!important}}"
            f"{child}:has(+ {child} .{saved})>.jp-OutputArea-output:not(:has(*)){{display:none}}</style>"
        )
        content = f'{style}<div class="{saved}">{rendered.html}</div>'
        self._publish({"text/plain": rendered.text, "text/html": content}, update)

    def act(self, verb: Callable[[], Answer | _Question]) -> None:
        """Call the verb of a button, now or after the running cell, and show its answer."""

        def act() -> None:
            question = None
            try:
                answer = verb()
                question = answer if isinstance(answer, _Question) else None
                if isinstance(answer, _Question | Shown):
                    answer = answer.lines
                parts = [answer] if isinstance(answer, Rendered) else answer
                message = "".join(
                    part.html if isinstance(part, Rendered) else to_html(pages.quoted([part]))
                    for part in parts
                )
            except (NbcacheError, UsageError) as error:
                message = to_html(pages.problem_blocks(str(error), getattr(error, "next_step", None)))
            except Exception as error:  # a bug; its message may quote a secret
                logger.info("the verb of a button failed", exc_info=error)
                problem = f"it failed unexpectedly ({type(error).__name__})"
                next_step = "report it; %nbcache config log=debug says more"
                message = to_html(pages.problem_blocks(problem, next_step))
            self._say(message, question)
            self.ask(facts=True)

        if waits_for := self.verbs.later(act):
            self._say(to_html(pages.quoted([f"waits for {waits_for} to end"])))
            self.ask()

    def ask_first(self, plan: Callable[[], tuple[str, Removal]], question: str) -> None:
        """Show a verb's effect in words, and call it once the user agrees."""

        def ask() -> _Question:
            words, verb = plan()
            return _Question([words, question], verb)

        self.act(ask)

    def _say(self, message: str, question: _Question | None = None) -> None:
        """Replace the last message. The new buttons answer only this question, even if pressed late."""
        with self._lock:
            if self._is_closed:
                return
            self._question = question
            previous = self._answer.children
            self._answer.children = ()
            if message:
                place, buttons = html(f'<div style="{_FITTING}">{message}</div>'), []
                if question is not None:
                    yes, no = (partial(self._take_answer, question, answer) for answer in (True, False))
                    buttons.append(button("yes", "", "do it", yes, style="danger"))
                    buttons.append(button("no", "", "do nothing", no))
                buttons.append(button("close", "", "close this", partial(self._say, "")))
                self._answer.children = (place, row(buttons))
            for part in previous:
                close_all(part)

    def _take_answer(self, question: _Question, yes: bool) -> None:
        with self._lock:
            if self._question is not question:  # it is answered already, or a newer one has replaced it
                return
            self._question = None
        if yes:
            self.act(question.verb)
        else:
            self.say(["Nothing was done."])


class Section:
    """A part of a panel that folds: a title, a document, and controls."""

    _order = 1
    """1 if the controls are below the document, -1 if above."""

    def __init__(self, panel: Panel, name: str) -> None:
        self._panel = panel
        self._verbs = panel.verbs
        self._name = name
        self._is_open = name in pages.OPEN or len(panel.names) < len(pages.SECTIONS)
        self._line = html()
        self._content = html()
        self._toggle = button("", "", "", self._fold)
        for trait, value in _CARET.items():
            setattr(self._toggle.layout, trait, value)
        self._toggle.style.button_color = "transparent"
        parts = [self._content, *self._controls()]
        self._body = widgets.VBox(parts[:: self._order], layout={"padding": "0 0 6px 28px"})
        head = widgets.HBox([self._toggle, self._line], layout={"align_items": "flex-start"})
        self.box = widgets.VBox([head, self._body], layout={"border_top": "1px solid rgba(128,128,128,0.3)"})
        self._show_fold()

    def draw(self, facts: Facts, live: Now) -> None:
        words, blocks = pages.section(self._name, facts, live)
        title = doc.Span(self._name.upper(), doc.Style.BOLD)
        draw(self._line, [line(title, faint(DOT.join(words)))])
        draw(self._content, blocks)

    def _controls(self) -> list[Any]:
        return []

    def _fold(self) -> None:
        self._is_open = not self._is_open
        self._show_fold()

    def _show_fold(self) -> None:
        show(self._body, self._is_open)
        self._toggle.icon = "caret-down" if self._is_open else "caret-right"
        self._toggle.tooltip = f"{'close' if self._is_open else 'open'} {self._name}"


class _Graphs(Section):
    """Graphs, and a list to choose one and show it with its guards and code."""

    def _controls(self) -> list[Any]:
        self._graph = dropdown("graph")
        purpose = "show it whole, with its guards and the code that torch has generated"
        act = partial(self._panel.act, lambda: self._verbs.graph(self._graph.value))
        self._choice = row([self._graph, with_magic("show", "%nbcache graphs GRAPH", purpose, act)])
        return [self._choice]

    def draw(self, facts: Facts, live: Now) -> None:
        super().draw(facts, live)
        newest = reversed(live.graphs[-_MOST_OFFERED:])
        names = {graph.compile_id: one_line(f"{graph.compile_id} {graph.function}", 40) for graph in newest}
        offer(self._graph, names)
        show(self._choice, bool(names))


class _People(Section):
    """The shared store, its publishers, and untrusted signers."""

    def _controls(self) -> list[Any]:
        self._url = text("280px", "redis://host, s3://bucket/folder, a folder")
        start = partial(after_typing, self._connect)
        connect = with_magic(
            "connect", "%nbcache connect URL", "share live with all who connect there", start
        )
        self._connecting = row([self._url, connect])
        stop = partial(self._panel.act, self._verbs.disconnect)
        self._connected = with_magic("disconnect", "%nbcache disconnect", "share no more", stop)
        self._who = dropdown("signer")
        self._nickname = text("180px", "your name for this signer")
        self._who.observe(self._forget_name, "value")
        add, ignore = "%nbcache trust add FINGERPRINT --name NAME", "%nbcache trust ignore FINGERPRINT"
        trust = with_magic("trust…", add, "show what trusting means", partial(after_typing, self._trust))
        act = partial(self._panel.act, lambda: self._verbs.ignore(self._who.value))
        hide = with_magic("ignore", ignore, "ignore this signer in this kernel", act)
        self._strangers = row([self._who, self._nickname, trust, hide])
        return [self._strangers, self._connecting, self._connected]

    def draw(self, facts: Facts, live: Now) -> None:
        super().draw(facts, live)
        self._url.disabled = bool(live.running)  # a typed password would stay visible until the cell ends
        show(self._connecting, not live.shared)
        show(self._connected, bool(live.shared))
        offer(self._who, {stranger.fingerprint: stranger.fingerprint for stranger in facts.strangers})
        show(self._strangers, bool(facts.strangers))

    def _forget_name(self, change: object) -> None:
        self._nickname.value = ""  # the name is for one signer, and is never the one that the signer chose

    def _trust(self) -> None:
        fingerprint, name = self._who.value, self._nickname.value.strip()
        shown = f"{fingerprint} ({name})" if name else fingerprint
        plan = (shown, partial(self._verbs.trust, fingerprint, name))
        self._panel.ask_first(lambda: plan, f"{MEANS} {COMPARE} Trust this signer?")

    def _connect(self) -> None:
        url, self._url.value = self._url.value.strip(), ""  # the URL may have a password: empty the field
        self._panel.act(partial(self._verbs.connect, url))


class _Snapshot(Section):
    def _controls(self) -> list[Any]:
        return [row(self._panel.buttons(_SNAPSHOT_BUTTONS))]


class _Settings(Section):
    """All settings, and a field to change one."""

    _order = -1

    def _controls(self) -> list[Any]:
        self._change = text("260px", "NAME=VALUE")
        magic, act = "%nbcache config NAME=VALUE", partial(after_typing, self._set_value)
        return [row([self._change, with_magic("set", magic, "change it for this kernel", act)])]

    def _set_value(self) -> None:
        name, _, value = map(str.strip, self._change.value.partition("="))
        self._change.value = ""
        change = partial(self._verbs.change, name, value)
        if (name, value.lower()) == ("trust", Policy.OFF):
            self._panel.ask_first(lambda: (_TRUST_OFF, change), "Change it?")
        else:
            self._panel.act(change)


class _Space(Section):
    """The local store's size, and buttons to empty it."""

    def _controls(self) -> list[Any]:
        going, magic = self._verbs.going, "%nbcache clear"
        one = partial(self._panel.ask_first, going, "Remove it?")
        every = partial(self._panel.ask_first, partial(going, everything=True), "Remove it?")
        of_one = with_magic("this notebook…", magic, "list what would be removed of this notebook", one)
        of_all = with_magic("all…", f"{magic} --all", "list everything that would be removed", every)
        return [row([of_one, of_all])]


_SECTIONS: Mapping[str, type[Section]] = {
    "graphs": _Graphs,
    "people": _People,
    "snapshot": _Snapshot,
    "settings": _Settings,
    "space": _Space,
}
"""The sections that have controls."""
