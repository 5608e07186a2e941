"""The sections of a live panel: a document each, and its controls, which are ipywidgets' own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import ipywidgets as widgets

from nbcache.core.log import logger
from nbcache.core.text import DOT, one_line
from nbcache.core.threads import start_thread
from nbcache.core.trust import Policy
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import faint, line
from nbcache.ui.display.html import BOX, to_html
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.snapshots import COMPARE, MEANS
from nbcache.ui.panels import pages
from nbcache.ui.panels.pages import Facts, Now, Verbs

Act: TypeAlias = Callable[[Callable[[], Sequence[str | Rendered]]], None]
"""Calls a verb, now or when the running cell has ended, and shows its lines."""
Ask: TypeAlias = Callable[[Callable[[], tuple[str, Callable[[], Sequence[str]] | None]], str], None]
"""Shows what would be done, asks the question, and calls the verb once that is confirmed."""
_MOST_OFFERED = 200
"""Graphs that can be chosen, the newest."""
_TRUST_OFF = (
    "With trust=off, what anybody has compiled runs as you, with all your rights, signed or not, "
    "for as long as this kernel runs."
)
_CARET = {"width": "24px", "height": "22px", "margin": "-3px 2px 2px 2px", "padding": "0"}
"""The layout of the small button before a title."""
_TRUST_OFF = (
    "With trust=off, what anybody has compiled runs as you, with all your rights, signed or not, "
    "for as long as this kernel runs."
)
_TURNS = 0.05
"""Seconds in which a kernel's event loop takes all messages that it has."""
FITTING = f"{BOX};display:grid;grid-template-columns:minmax(0,1fr)"
"""No wider than the page: what is in it scrolls."""


def html(value: str = "") -> Any:
    """Return a place for HTML that is as wide as there is room."""
    return widgets.HTML(value, layout={"min_width": "0", "margin": "0 2px"})


def draw(place: Any, blocks: Sequence[doc.Block]) -> None:
    """Show a document in a place for HTML."""
    place.value = to_html(blocks, box=FITTING) if blocks else ""


def button(label: str, magic: str, what: str, act: Callable[[], object], *, style: str = "") -> Any:
    """Return a button; its tooltip says what it does, and the magic that does the same."""
    tooltip = f"{what} ({magic})" if magic else what
    layout = {"width": "auto", "flex": "0 0 auto"}
    made = widgets.Button(description=label, tooltip=tooltip, button_style=style, layout=layout)
    made.on_click(lambda _: act())
    return made


def with_magic(label: str, magic: str, what: str, act: Callable[[], object]) -> Any:
    """Return a button with the magic that does the same beside it."""
    place = html()
    draw(place, [line(doc.Span(magic, doc.Style.CODE), style=doc.Style.FAINT)])
    return widgets.HBox([button(label, magic, what, act), place], layout={"align_items": "center"})


def text(width: str, placeholder: str = "") -> Any:
    """Return a field for a line of text; its value is what stands there when it is left."""
    layout = {"width": width}
    # what is typed is sent once: of many values, the last may come after the press of a button
    return widgets.Text(placeholder=placeholder, continuous_update=False, layout=layout)


def once_typed(act: Callable[[], object]) -> None:
    """Call `act` for a button once the text that was typed before its press has arrived.

    Pressing a button leaves the field, so the front end sends its value right before the press. A kernel
    whose comm messages have an event loop of their own (ipykernel 7) may handle the two in either order.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        act()
    else:
        loop.call_later(_TURNS, act)


def row(children: Iterable[Any]) -> Any:
    """Return widgets side by side, folded where the page is narrow."""
    return widgets.HBox(list(children), layout={"flex_flow": "row wrap", "align_items": "center"})


def show(widget: Any, wanted: bool) -> None:
    """Show a widget, or hide it."""
    widget.layout.display = None if wanted else "none"


def close_all(root: Any) -> None:
    """Remove a widget and all widgets in it from the front end."""
    for child in getattr(root, "children", ()):
        close_all(child)
    for part in (root, getattr(root, "layout", None), getattr(root, "style", None)):
        with suppress(Exception):  # a front end or a kernel that is gone
            part.close()  # type: ignore[union-attr]


class Refresher:
    """Calls `draw` on a thread of its own, at most once in `interval` seconds, after each `ask`.

    `draw` returns whether it is to be called again without being asked. What it raises is logged: nothing of
    it reaches who asks.
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
        self._sleep = sleep
        self._interval = interval
        self._name = name
        self._lock = threading.Lock()
        self._asked = False
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self) -> None:
        """Have `draw` called soon, once for all who ask until then."""
        with self._lock:
            self._asked = True
            if self._thread is None and not self._closed:
                run = partial(contextvars.copy_context().run, self._run)
                self._thread = start_thread(run, self._name)

    def close(self) -> None:
        """Draw no more."""
        with self._lock:
            self._closed = True

    def _run(self) -> None:
        goes_on = False
        while True:
            with self._lock:
                if self._closed or not (self._asked or goes_on):
                    self._thread = None
                    return
                self._asked = False
            try:
                goes_on = self._draw()
            except Exception as error:
                goes_on = False
                logger.info("drawing a panel failed", exc_info=error)
            self._sleep(self._interval)


class Section:
    """A part of a panel, which folds."""

    def __init__(
        self, name: str, is_open: bool, above: Sequence[Any] = (), below: Sequence[Any] = ()
    ) -> None:
        self._name = name
        self._is_open = is_open
        self._line = html()
        self._content = html()
        self._toggle = button("", "", "", self._fold)
        for trait, value in _CARET.items():
            setattr(self._toggle.layout, trait, value)
        self._toggle.style.button_color = "transparent"
        self._body = widgets.VBox([*above, self._content, *below], layout={"padding": "0 0 6px 28px"})
        line = widgets.HBox([self._toggle, self._line], layout={"align_items": "flex-start"})
        self.box = widgets.VBox([line, self._body], layout={"border_top": "1px solid rgba(128,128,128,0.3)"})
        self._set()

    def draw(self, facts: Facts, now: Now) -> None:
        """Show the section, and in its title what is in it."""
        words, blocks = pages.section(self._name, facts, now)
        title = doc.Span(pages.TITLES[self._name], doc.Style.BOLD)
        draw(self._line, [line(title, faint(DOT.join(words)))])
        draw(self._content, blocks)

    def _fold(self) -> None:
        self._is_open = not self._is_open
        self._set()

    def _set(self) -> None:
        show(self._body, self._is_open)
        self._toggle.icon = "caret-down" if self._is_open else "caret-right"
        self._toggle.tooltip = f"{'close' if self._is_open else 'open'} {pages.TITLES[self._name].lower()}"


def _offer(choice: Any, names: Mapping[str, str]) -> None:
    """Offer values by their names, and keep the one that is selected."""
    options = tuple((name, value) for value, name in names.items())
    if options != choice.options:
        before = choice.value
        choice.options = options
        choice.value = before if before in names else next(iter(names), None)


class Graphs(Section):
    """Graphs, and a list to show one of them whole, with its guards and code."""

    def __init__(self, act: Act, verbs: Verbs, is_open: bool) -> None:
        self._graph = widgets.Dropdown(layout={"width": "220px"}, tooltip="graph")
        what = "show it whole, with its guards and the code that torch has generated"
        whole = with_magic(
            "show", "%nbcache graphs GRAPH", what, lambda: act(partial(verbs.graph, self._graph.value))
        )
        self._choice = row([self._graph, whole])
        super().__init__("graphs", is_open, (), [self._choice])

    def draw(self, facts: Facts, now: Now) -> None:
        """Show the graphs, and keep the choice while graphs arrive."""
        super().draw(facts, now)
        newest = reversed(now.graphs[-_MOST_OFFERED:])
        names = {graph.compile_id: one_line(f"{graph.compile_id} {graph.function}", 40) for graph in newest}
        _offer(self._graph, names)
        show(self._choice, bool(names))


class People(Section):
    """The shared store, its publishers, and signers who are not trusted."""

    def __init__(self, act: Act, verbs: Verbs, ask: Ask, is_open: bool) -> None:
        self._act = act
        self._verbs = verbs
        self._ask = ask
        self._url = text("280px", "redis://host, s3://bucket/folder, a folder")
        start = partial(once_typed, self._connect)
        connect = with_magic("connect", "%nbcache connect URL", "share live with all there", start)
        self._connecting = row([self._url, connect])
        stop = partial(act, verbs.disconnect)
        self._connected = with_magic("disconnect", "%nbcache disconnect", "share no more", stop)
        self._who = widgets.Dropdown(layout={"width": "220px"}, tooltip="signer")
        self._nickname = text("180px", "what you call them")
        self._who.observe(self._forget_name, "value")
        add, ignore = "%nbcache trust add FINGERPRINT --name NAME", "%nbcache trust ignore FINGERPRINT"
        trust = partial(once_typed, self._trust)
        hide = partial(self._for_signer, verbs.ignore)
        self._strangers = row(
            [
                self._who,
                self._nickname,
                with_magic("trust…", add, "show what trusting means", trust),
                with_magic("ignore", ignore, "hide them in this kernel", hide),
            ]
        )
        super().__init__("people", is_open, (), [self._strangers, self._connecting, self._connected])

    def draw(self, facts: Facts, now: Now) -> None:
        """Show the people, and the controls that serve now."""
        super().draw(facts, now)
        self._url.disabled = bool(now.running)  # or a password would stand in it until the cell ends
        show(self._connecting, not now.shared)
        show(self._connected, bool(now.shared))
        _offer(self._who, {stranger.fingerprint: stranger.fingerprint for stranger in facts.strangers})
        show(self._strangers, bool(facts.strangers))

    def _forget_name(self, change: object) -> None:
        self._nickname.value = ""  # a name belongs to one signer, and is never one that a stranger chose

    def _for_signer(self, verb: Callable[[str], Sequence[str]]) -> None:
        self._act(partial(verb, self._who.value))

    def _trust(self) -> None:
        fingerprint, name = self._who.value, self._nickname.value.strip()
        shown = f"{fingerprint} ({name})" if name else fingerprint
        what = (shown, partial(self._verbs.trust, fingerprint, name))
        self._ask(lambda: what, f"{MEANS} {COMPARE} Trust this signer?")

    def _connect(self) -> None:
        url, self._url.value = self._url.value.strip(), ""  # which may hold a password: it stays nowhere
        self._act(partial(self._verbs.connect, url))


class SettingsForm(Section):
    """Every setting, and a line to change one."""

    def __init__(self, act: Act, verbs: Verbs, ask: Ask, is_open: bool) -> None:
        self._act = act
        self._verbs = verbs
        self._ask = ask
        self._change = text("260px", "NAME=VALUE")
        what, magic = "change it for this kernel", "%nbcache config NAME=VALUE"
        form = row([self._change, with_magic("set", magic, what, partial(once_typed, self._set_value))])
        super().__init__("settings", is_open, [form])

    def _set_value(self) -> None:
        name, _, value = map(str.strip, self._change.value.partition("="))
        self._change.value = ""
        change = partial(self._verbs.change, name, value)
        if (name, value.lower()) == ("trust", Policy.OFF):
            self._ask(lambda: (_TRUST_OFF, change), "Change it?")
        else:
            self._act(change)
