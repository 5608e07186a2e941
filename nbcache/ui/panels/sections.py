"""The sections of a panel that have controls: graphs, people, settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import ipywidgets as widgets

from nbcache.core.model import Outcome
from nbcache.core.settings import Settings
from nbcache.core.text import counted, one_line
from nbcache.core.trust import Policy
from nbcache.torch_bridge import cache_settings
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import line
from nbcache.ui.display.graph import detail
from nbcache.ui.panels import pages
from nbcache.ui.panels.controls import (
    INDENT,
    Section,
    button,
    caret,
    draw,
    html,
    once_typed,
    row,
    show,
    text,
    with_magic,
)
from nbcache.ui.panels.values import PAGE, Facts, Now, Order, Stranger, graph_page
from nbcache.ui.panels.verbs import Verbs

__all__ = ["Act", "Ask", "Graphs", "People", "SettingsForm"]

Act: TypeAlias = Callable[[Callable[[], Sequence[str]]], None]
"""Calls a verb, now or when the running cell has ended, and shows its lines."""
Ask: TypeAlias = Callable[[Callable[[], tuple[str, Callable[[], Sequence[str]] | None]], str], None]
"""Shows what would be done, asks the question, and calls the verb once that is confirmed."""
_EVERY = "all outcomes"
_SECRET = "shared_url"
"""The setting that may hold a password: it is changed by connecting."""
_FIXED = ("dir", _SECRET)
"""Settings that are not changed here: the folder is read when the extension loads."""
_SWITCH = ("on", "off")
_TRUST_OFF = (
    "With trust=off, what anybody has compiled runs as you, with all your rights, signed or not, "
    "for as long as this kernel runs."
)
_MOST_STRANGERS = 5


class Graphs:
    """A page of graphs; each opens to all that is known of it, its guards and code."""

    def __init__(self, verbs: Verbs, ask: Callable[[], None], *, is_open: bool) -> None:
        self._verbs = verbs
        self._ask = ask
        self._page = 0
        self._opened: set[int] = set()
        """Indices of the open graphs, among all of this kernel."""
        self._shown: list[int] = []
        """Indices of the graphs on this page."""
        self._drawn: tuple[object, ...] = ()
        outcomes = [_EVERY, *(outcome.value for outcome in Outcome)]
        self._filter = widgets.Dropdown(options=outcomes, layout={"width": "150px"}, tooltip="outcome")
        orders = [order.value for order in Order]
        self._order = widgets.Dropdown(options=orders, layout={"width": "170px"}, tooltip="order")
        for choice in (self._filter, self._order):
            choice.observe(lambda _: self._turn(-self._page), "value")
        self._back = button("", "", "newer graphs", partial(self._turn, -1), icon="chevron-left")
        self._on = button("", "", "older graphs", partial(self._turn, 1), icon="chevron-right")
        self._place = html()
        self._paging = row([self._back, self._place, self._on])
        self._controls = row([self._filter, self._order, self._paging])
        self._rows: list[_GraphRow] = []
        """As many as were needed so far."""
        self._list = widgets.VBox([])
        self.section = Section(pages.TITLES["graphs"], is_open, [self._controls, self._list])

    def draw(self, facts: Facts, now: Now, *, anew: bool = False) -> None:
        """Show the page of the filter and the order, if it has changed, or `anew`."""
        looks = (self._filter.value, self._order.value, self._page, frozenset(self._opened))
        drawn = (len(now.graphs), *looks)
        if drawn == self._drawn and not anew:
            return
        self._drawn = drawn
        outcome = None if self._filter.value == _EVERY else Outcome(self._filter.value)
        page = graph_page(now.graphs, outcome, Order(self._order.value), self._page)
        self._page = page.page
        self.section.draw(pages.words_of("graphs", facts, now))
        first = page.page * PAGE
        draw(self._place, [line(f"{first + 1} to {first + len(page.rows)} of {page.found}")])
        show(self._paging, page.pages > 1)
        show(self._controls, len(now.graphs) > 1)
        self._back.disabled, self._on.disabled = page.page == 0, page.page == page.pages - 1
        self._shown = [index for index, _ in page.rows]
        if len(self._rows) < len(page.rows):
            self._rows += [
                _GraphRow(partial(self._toggle, i)) for i in range(len(self._rows), len(page.rows))
            ]
            self._list.children = [row.box for row in self._rows]
        for i, graph_row in enumerate(self._rows):
            show(graph_row.box, i < len(page.rows))
            if i < len(page.rows):
                index, graph = page.rows[i]
                draw(graph_row.above, pages.cell_blocks(page, i, now.graphs))
                is_open = index in self._opened
                blocks = detail(self._verbs.explain(graph), self._verbs.contents(graph)) if is_open else ()
                name = one_line(f"{graph.function} {graph.compile_id}", 60)
                graph_row.draw(
                    pages.graph_line(graph), f"{name} (%nbcache graphs {graph.compile_id})", blocks
                )

    def _turn(self, by: int) -> None:
        self._page += by
        self._ask()

    def _toggle(self, i: int) -> None:
        if i < len(self._shown):
            self._opened ^= {self._shown[i]}
            self._ask()


class _GraphRow:
    """One row, which opens."""

    def __init__(self, toggle: Callable[[], None]) -> None:
        self._toggle = caret(toggle)
        self.above, self._line, self._detail = html(), html(), html()
        self._line.layout.flex = "1 1 auto"
        self._detail.layout.margin = f"0 2px 6px {INDENT}"
        line = widgets.HBox([self._toggle, self._line], layout={"align_items": "flex-start"})
        self.box = widgets.VBox([self.above, line, self._detail])

    def draw(self, line: doc.Line, name: str, blocks: Sequence[doc.Block]) -> None:
        """Show a graph, and its detail, if it is open."""
        draw(self._line, [line])
        draw(self._detail, blocks)
        show(self._detail, bool(blocks))
        show(self.above, bool(self.above.value))
        self._toggle.icon = "caret-down" if blocks else "caret-right"
        self._toggle.tooltip = f"{'close' if blocks else 'open'} {name}"


class People:
    """The shared store, its publishers, and signers who are not trusted."""

    def __init__(self, act: Act, verbs: Verbs, trust: Callable[[str, str], None], *, is_open: bool) -> None:
        self._act = act
        self._verbs = verbs
        self._url = text("280px", "redis://host, s3://bucket/folder, a folder")
        start = partial(once_typed, self._connect)
        connect = with_magic("connect", "%nbcache connect URL", "share live with all there", start)
        self._connecting = row([self._url, connect])
        stop = partial(act, verbs.disconnect)
        self._connected = with_magic("disconnect", "%nbcache disconnect", "share no more", stop)
        self._strangers = [_StrangerRow(trust, self._ignore) for _ in range(_MOST_STRANGERS)]
        self._more = html()
        controls = [self._connecting, self._connected, *(row.box for row in self._strangers), self._more]
        self.section = Section(pages.TITLES["people"], is_open, (), controls)

    def draw(self, facts: Facts, now: Now) -> None:
        """Show who is there."""
        self.section.draw(pages.words_of("people", facts, now), pages.blocks_of("people", facts, now))
        self._url.disabled = bool(now.running)  # or a password would stand in it until the cell ends
        show(self._connecting, not now.shared)
        show(self._connected, bool(now.shared))
        for i, stranger_row in enumerate(self._strangers):
            stranger_row.draw(facts.strangers[i] if i < len(facts.strangers) else None)
        more = len(facts.strangers) - _MOST_STRANGERS
        text = f"and {counted(more, 'more signer')} (%nbcache trust asks about each)"
        draw(self._more, [line(text)] if more > 0 else [])

    def _ignore(self, fingerprint: str) -> None:
        self._act(partial(self._verbs.ignore, fingerprint))

    def _connect(self) -> None:
        url, self._url.value = self._url.value.strip(), ""  # which may hold a password: it stays nowhere
        self._act(partial(self._verbs.connect, url))


class _StrangerRow:
    """Somebody who is not trusted, and a name to call them."""

    def __init__(self, trust: Callable[[str, str], None], ignore: Callable[[str], None]) -> None:
        self._who = html()
        self._fingerprint = ""
        self._name = text("180px", "what you call them")
        choose = partial(once_typed, lambda: trust(self._fingerprint, self._name.value.strip()))
        add = "%nbcache trust add FINGERPRINT --name NAME"
        hide, ignoring = "hide them in this kernel", "%nbcache trust ignore FINGERPRINT"
        line = row(
            [
                self._name,
                with_magic("trust…", add, "show what trusting means", choose),
                with_magic("ignore", ignoring, hide, lambda: ignore(self._fingerprint)),
            ]
        )
        self.box = widgets.VBox([self._who, line])

    def draw(self, stranger: Stranger | None) -> None:
        """Show somebody, or nobody."""
        show(self.box, stranger is not None)
        draw(self._who, pages.stranger_blocks(stranger) if stranger else [])
        fingerprint = stranger.fingerprint if stranger else ""
        if fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
            self._name.value = ""  # never a name that a stranger chose


class SettingsForm:
    """Every setting, and a line to change one."""

    def __init__(self, act: Act, verbs: Verbs, ask_first: Ask, *, is_open: bool) -> None:
        self._act = act
        self._verbs = verbs
        self._ask_first = ask_first
        self._values: dict[str, str] = {}
        """The present value of each setting."""
        self._offered: tuple[object, ...] = ()
        """What stood in the form before anybody changed it."""
        names = [name for name in Settings.names() if name not in _FIXED]
        torchs = [name for name in cache_settings.NAMES if name != cache_settings.FOLDER]
        self._name = widgets.Dropdown(options=[*names, *torchs], layout={"width": "220px"})
        self._choice = widgets.Dropdown(layout={"width": "120px"})
        self._text = text("160px")
        self._magic = html()
        for control in (self._name, self._choice, self._text):
            control.observe(self._offer, "value")
        start = partial(once_typed, self._change)
        change = button("set", "%nbcache config NAME=VALUE", "change it for this kernel", start)
        form = row([self._name, self._choice, self._text, change, self._magic])
        self.section = Section(pages.TITLES["settings"], is_open, [form])
        self._offer()

    def draw(self, facts: Facts, now: Now) -> None:
        """Show values and origins."""
        self.section.draw(pages.words_of("settings", facts, now), pages.blocks_of("settings", facts, now))
        is_first = not self._values
        self._values = {row.name: row.value for row in (*facts.settings, *facts.torch_settings)}
        if is_first and self._offered == (self._choice.value, self._text.value):
            self._offer()

    def _offer(self, change: Any = None) -> None:
        """Offer the values that the selected setting can have, and the magic that does the same."""
        name = str(self._name.value)
        choices: Sequence[str] = _SWITCH if name in cache_settings.NAMES else Settings.choices(name)
        if change is None or change["owner"] is self._name:
            now = self._values.get(name, "")
            self._choice.options = choices
            self._choice.value = now if now in choices else next(iter(choices), None)
            self._text.value = "" if choices else now
            self._offered = (self._choice.value, self._text.value)
        show(self._choice, bool(choices))
        show(self._text, not choices)
        magic = f"%nbcache config {name}={self._value() or '…'}"
        draw(self._magic, [line(doc.Span(magic, doc.Style.CODE), style=doc.Style.FAINT)])

    def _value(self) -> str:
        value = self._choice.value if self._choice.options else self._text.value
        return str(value or "").strip()

    def _change(self) -> None:
        name, value = str(self._name.value), self._value()
        change = partial(self._verbs.change, name, value)
        if (name, value) == ("trust", Policy.OFF):
            self._ask_first(lambda: (_TRUST_OFF, change), "Change it?")
        else:
            self._act(change)
