"""The few controls that panels are made of, each from ipywidgets' own, and the pace of their updates."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import ipywidgets as widgets

from nbcache.core.log import logger
from nbcache.core.threads import start_thread
from nbcache.ui.display import document as doc
from nbcache.ui.display.document import line
from nbcache.ui.display.html import BOX, to_html

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
