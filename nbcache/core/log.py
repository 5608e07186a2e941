"""The logger `nbcache`: what is looked up where, why it is used or not, and faults with their tracebacks.

It is off the screen, unless the setting `log` says otherwise. What it is given loses what may be a secret
before any handler sees it, whoever has installed that.
"""

from __future__ import annotations

import logging
import re
import sys

__all__ = ["LEVELS", "logger", "show"]

LEVELS = ("off", "debug")
"""What the setting `log` can be."""
_SECRET = re.compile(r"(?<=://)\S*@|(?<=[\w/])\?[^\s#]*=[^\s#'\"]*")
"""User and password of a URL, and its query."""


class _NoSecrets(logging.Filter):
    """Takes secrets out of messages and tracebacks."""

    _formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _SECRET.sub("", record.getMessage()), ()
        if record.exc_info:
            record.exc_text = _SECRET.sub("", self._formatter.formatException(record.exc_info))
        return True


class _OnScreen(logging.Handler):
    """Writes to what `sys.stderr` is now: a notebook's kernel has another one than it began with."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)
        except Exception:  # a stream that is closed is no reason to fail who logs
            self.handleError(record)


logger = logging.getLogger("nbcache")
logger.addFilter(_NoSecrets())
logger.addHandler(logging.NullHandler())
_screen = _OnScreen()
_screen.setFormatter(logging.Formatter("nbcache %(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))


def show(level: str) -> None:
    """Show what is logged from `level` on, one of `LEVELS`; with `off`, leave it to other handlers."""
    logger.removeHandler(_screen)
    logger.propagate = level == "off"
    logger.setLevel(logging.NOTSET if level == "off" else level.upper())
    if level != "off":
        logger.addHandler(_screen)
