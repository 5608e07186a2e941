"""The sections of a live panel: a document each, and the controls that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import ipywidgets as widgets

from nbcache.core.text import DOT, one_line
from nbcache.core.trust import Policy
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import faint, line
from nbcache.ui.display.render import Rendered
from nbcache.ui.display.snapshots import COMPARE, MEANS
from nbcache.ui.panels import pages
from nbcache.ui.panels.controls import button, draw, html, once_typed, row, show, text, with_magic
from nbcache.ui.panels.values import Facts, Now, Verbs

__all__ = ["Act", "Ask", "Graphs", "People", "Section", "SettingsForm"]

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
            "show", "%nbcache graphs GRAPH", what, lambda: act(partial(verbs.whole, self._graph.value))
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
