"""The logger `nbcache`: what is looked up where, why it is used or not, and faults with their tracebacks.

It is off the screen, unless the setting `log` says otherwise; then handlers of other loggers are not asked.
What may be a secret in a URL is taken out before any handler sees it, whoever has installed that.
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
    """Fails no caller, and shows handlers no secrets."""

    _formatter = logging.Formatter()

    def handle(self, record: logging.LogRecord) -> None:
        try:
            record.msg, record.args = _without_secrets(record.getMessage()), ()
            if record.exc_info:
                record.exc_text = _without_secrets(self._formatter.formatException(record.exc_info))
                record.exc_info = None
            if (records := getattr(_here, "records", None)) is not None:
                records.append(record)
            else:
                super().handle(record)
        except Exception:  # a cell is worth more than a line about it
            pass


class _OnScreen(logging.Handler):
    """Writes to what `sys.stderr` is now: a notebook's kernel has another one than it began with."""

    def emit(self, record: logging.LogRecord) -> None:
        print(clean(self.format(record)), file=sys.stderr)


def _without_secrets(text: str) -> str:
    # The part after "@" and the part after "?" may each be part of the other.
    return _URL.sub(lambda url: "…" if "@" in url[0] and "?" in url[0] else redacted(url[0]), text)


logger = logging.getLogger("nbcache")
logger.__class__ = _Logger  # somebody may have asked for this logger before
logger.addHandler(logging.NullHandler())
_screen = _OnScreen()
_screen.setFormatter(logging.Formatter("nbcache %(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
_here = threading.local()
"""`records`: what this thread has logged since `defer`; None outside."""
_before: list[tuple[int, bool]] = []
"""The level, and whether the handlers of other loggers are asked, as they were found."""


def defer() -> None:
    """Keep what this thread logs until `deliver`: no handler runs before."""
    _here.records = []


def deliver() -> None:
    """Hand on what this thread has logged since `defer`."""
    records, _here.records = getattr(_here, "records", None), None
    for record in records or ():
        logger.handle(record)


def show(level: str) -> None:
    """Show what is logged from `level` on, one of `LEVELS`; with `off`, leave it to other handlers."""
    if level == "off":
        logger.removeHandler(_screen)
        if _before:
            before, logger.propagate = _before.pop()
            logger.setLevel(before)
        return
    if not _before:
        _before.append((logger.level, logger.propagate))
    logger.propagate = False
    logger.setLevel(level.upper())
    logger.addHandler(_screen)
