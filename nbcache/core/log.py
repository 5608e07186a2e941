"""The logger `nbcache` explains lookups and decisions, and has the tracebacks of faults.

The setting `log` writes it to the screen; records then do not reach handlers of other loggers. Parts of a URL
that may be secret are removed before any handler sees them.
"""

from __future__ import annotations

import logging
import re
import sys
import threading

from nbcache.core.text import clean, redacted

LEVELS = ("off", "debug")
_URL = re.compile(r"[\w+.-]+://\S+")


class _Logger(logging.Logger):
    """Removes secrets from records, and never raises."""

    _formatter = logging.Formatter()

    def handle(self, record: logging.LogRecord) -> None:
        try:
            record.msg, record.args = _without_secrets(record.getMessage()), ()
            if record.exc_info:
                record.exc_text = _without_secrets(self._formatter.formatException(record.exc_info))
                record.exc_info = None
            if (records := getattr(_thread, "records", None)) is not None:
                records.append(record)
            else:
                super().handle(record)
        except Exception:  # a fault in logging must not fail a cell
            pass


class _OnScreen(logging.Handler):
    """Writes to the current `sys.stderr`: a notebook's kernel replaces it after its start."""

    def emit(self, record: logging.LogRecord) -> None:
        print(clean(self.format(record)), file=sys.stderr)


def _without_secrets(text: str) -> str:
    # The part after "@" and the part after "?" may each be part of the other.
    return _URL.sub(lambda url: "…" if "@" in url[0] and "?" in url[0] else redacted(url[0]), text)


logger = logging.getLogger("nbcache")
logger.__class__ = _Logger  # the logger may exist already
logger.addHandler(logging.NullHandler())
_screen = _OnScreen()
_screen.setFormatter(logging.Formatter("nbcache %(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
_thread = threading.local()
"""`records`: this thread's records since `defer`; None outside of it."""
_original: list[tuple[int, bool]] = []
"""Level and `propagate` of the logger before `show` changed them."""


def defer() -> None:
    """Keep the records of this thread until `deliver`, so that no handler runs meanwhile."""
    _thread.records = []


def deliver() -> None:
    """Pass this thread's records since `defer` to the handlers."""
    records, _thread.records = getattr(_thread, "records", None), None
    for record in records or ():
        logger.handle(record)


def show(level: str) -> None:
    """Write records from `level` on to the screen; `off` leaves them to other handlers."""
    if level == "off":
        logger.removeHandler(_screen)
        if _original:
            level_found, logger.propagate = _original.pop()
            logger.setLevel(level_found)
        return
    if not _original:
        _original.append((logger.level, logger.propagate))
    logger.propagate = False
    logger.setLevel(level.upper())
    logger.addHandler(_screen)
