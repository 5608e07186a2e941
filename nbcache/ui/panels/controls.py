"""The few controls that panels are made of, each from ipywidgets' own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import ipywidgets as widgets

from nbcache.core.text import DOT
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import faint, line
from nbcache.ui.display.html import BOX, to_html

__all__ = [
    "INDENT",
    "Section",
    "button",
    "caret",
    "close_all",
    "draw",
    "every",
    "html",
    "once_typed",
    "row",
    "show",
    "text",
    "with_magic",
]

INDENT = "28px"
"""The indentation of what opens below a caret."""

_TURNS = 0.05
"""Seconds in which a kernel's event loop takes all messages that it has."""
_FITTING = f"{BOX};display:grid;grid-template-columns:minmax(0,1fr)"
"""No wider than the page: what is in it scrolls."""


def html(value: str = "") -> Any:
    """Return a place for HTML that is as wide as there is room."""
    return widgets.HTML(value, layout={"min_width": "0", "margin": "0 2px"})


def draw(place: Any, blocks: Sequence[doc.Block]) -> None:
    """Show a document in a place for HTML."""
    place.value = to_html(blocks, box=_FITTING) if blocks else ""


def button(
    label: str, magic: str, what: str, act: Callable[[], object], *, style: str = "", icon: str = ""
) -> Any:
    """Return a button; its tooltip says what it does, and the magic that does the same."""
    tooltip = f"{what} ({magic})" if magic else what
    layout = {"width": "auto", "flex": "0 0 auto"}
    made = widgets.Button(description=label, tooltip=tooltip, button_style=style, icon=icon, layout=layout)
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


def caret(act: Callable[[], object]) -> Any:
    """Return the small button before what opens and closes."""
    made = button("", "", "", act)
    made.layout.width = "24px"
    made.layout.height = "22px"
    made.layout.margin = "-3px 2px 2px 2px"
    made.layout.padding = "0"
    made.style.button_color = "transparent"
    return made


def row(children: Iterable[Any]) -> Any:
    """Return widgets side by side, folded where the page is narrow."""
    return widgets.HBox(list(children), layout={"flex_flow": "row wrap", "align_items": "center"})


def show(widget: Any, wanted: bool) -> None:
    """Show a widget, or hide it."""
    widget.layout.display = None if wanted else "none"


def every(root: Any) -> list[Any]:
    """Return a widget and all widgets in it."""
    return [root, *(part for child in getattr(root, "children", ()) for part in every(child))]


def close_all(root: Any) -> None:
    """Remove a widget and all widgets in it from the front end."""
    parts = every(root)
    looks = [getattr(part, name, None) for part in parts for name in ("layout", "style")]
    for part in filter(None, [*reversed(parts), *looks]):
        with suppress(Exception):  # a front end or a kernel that is gone
            part.close()


class Section:
    """A part of a panel, which folds: a document, and the controls that belong to it."""

    def __init__(
        self, title: str, is_open: bool, above: Sequence[Any] = (), below: Sequence[Any] = ()
    ) -> None:
        self._title = title
        self._is_open = is_open
        self._line = html()
        self._content = html()
        self._toggle = caret(self._fold)
        body = [*above, self._content, *below]
        self._body = widgets.VBox(body, layout={"padding": f"0 0 6px {INDENT}"})
        line = widgets.HBox([self._toggle, self._line], layout={"align_items": "flex-start"})
        self.box = widgets.VBox([line, self._body], layout={"border_top": "1px solid rgba(128,128,128,0.3)"})
        self._set()

    def draw(self, words: Iterable[str], blocks: Sequence[doc.Block] = ()) -> None:
        """Show a document, and in the title what is in it."""
        draw(self._line, [line(doc.Span(self._title, doc.Style.BOLD), faint(DOT.join(words)))])
        draw(self._content, blocks)

    def _fold(self) -> None:
        self._is_open = not self._is_open
        self._set()

    def _set(self) -> None:
        show(self._body, self._is_open)
        self._toggle.icon = "caret-down" if self._is_open else "caret-right"
        self._toggle.tooltip = f"{'close' if self._is_open else 'open'} {self._title.lower()}"
