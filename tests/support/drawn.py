"""Reads what a panel shows on a page, and presses its buttons."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Drawn", "DrawsAtOnce"]


class DrawsAtOnce:
    """Takes the place of `Refresher`: draws on the thread that asks, before it goes on."""

    def __init__(self, draw: Callable[[], bool], interval: float, name: str) -> None:
        self._draw = draw
        self._is_closed = False

    def ask(self) -> None:
        if not self._is_closed:
            self._draw()

    def close(self) -> None:
        self._is_closed = True


class Drawn:
    """The widgets of a panel, as a person sees them."""

    def __init__(self, root: Any) -> None:
        self.root = root

    @property
    def html(self) -> str:
        """The HTML that is to be seen."""
        return "\n".join(widget.value for widget in self._visible() if type(widget).__name__ == "HTML")

    @property
    def text(self) -> str:
        """The HTML that is to be seen, as text."""
        return html.unescape(re.sub(r"<[^>]*>", " ", self.html))

    def buttons(self, label: str) -> list[Any]:
        """Return the buttons to be seen with this label, or with a tooltip that begins with it."""
        buttons = [widget for widget in self._visible() if type(widget).__name__ == "Button"]
        icons = (button for button in buttons if not button.description)
        labelled = [button for button in buttons if button.description == label]
        return labelled or [button for button in icons if button.tooltip.startswith(label)]

    def press(self, label: str, index: int = 0) -> None:
        """Press a button."""
        self.buttons(label)[index].click()

    def field(self, placeholder: str) -> Any:
        """Return the field of text with this placeholder."""
        fields = (widget for widget in self._visible() if type(widget).__name__ == "Text")
        return next(field for field in fields if field.placeholder.startswith(placeholder))

    def choice(self, option: str) -> Any:
        """Return the list that offers an option."""
        lists = (widget for widget in self._visible() if type(widget).__name__ == "Dropdown")
        return next(widget for widget in lists if option in str(widget.options))

    def every(self, root: Any = None) -> Iterator[Any]:
        """Yield all widgets."""
        root = self.root if root is None else root
        yield root
        for child in getattr(root, "children", ()):
            yield from self.every(child)

    def _visible(self, root: Any = None) -> Iterator[Any]:
        root = self.root if root is None else root
        if root.layout.display != "none":
            yield root
            for child in getattr(root, "children", ()):
                yield from self._visible(child)
