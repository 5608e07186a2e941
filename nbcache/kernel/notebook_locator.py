"""Which notebook this kernel runs, found out in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable

from nbcache.core.threads import renew_in_children, start_thread

__all__ = ["NotebookLocator"]


class NotebookLocator:
    """`locate` returns the notebook's identity, empty where there is none; `say` is given notices."""

    def __init__(self, locate: Callable[[], str], say: Callable[[str], None]) -> None:
        self._locate = locate
        self._say = say
        self._found = ""
        self._known = threading.Event()
        renew_in_children(self)

    def renew(self) -> None:
        """Go on in a forked child, in which nobody looks for the notebook."""
        self._known = threading.Event()
        self._known.set()

    def start(self) -> None:
        """Find it out, anew where it was known."""
        self._known.clear()
        if start_thread(self._find, "locate") is None:
            self._find()

    def notebook(self, timeout: float) -> str:
        """Return the notebook's identity, empty where there is none to be found within `timeout` seconds."""
        self._known.wait(timeout)
        return self._found

    def _find(self) -> None:
        try:
            self._found = self._locate()
        except Exception as error:  # finding the notebook asks servers and files of every kind
            self._say(f"nbcache could not find out which notebook this is: {error!r}")
        finally:
            self._known.set()
