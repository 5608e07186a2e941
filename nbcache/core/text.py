"""Texts for people: amounts with units, printable lines, columns, and URLs without secrets."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

NOTHING = "–"
DOT = " · "
LIMIT = 2_000
"""The usual length to which a text is cut."""
_LONGEST_LINE = 10_000
_CHAINED = re.compile(r"::(?=[a-z][\w+.-]*(?:://|::))")


def duration(seconds: float) -> str:
    """Return seconds for people: `0.003 s`, `0.31 s`, `12.4 s`, `2 min 05 s`, `1 h 02 min`."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if 0 < seconds < 0.0005:
        return "<0.001 s"
    for below, digits in ((0.00995, 3), (0.995, 2), (59.95, 1)):
        if seconds < below:
            return f"{seconds:.{digits}f} s"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remainder:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def ago(seconds: float) -> str:
    """Return how long ago something was, roughly: `just now`, `23 s ago`, `3 h ago`, `4 days ago`."""
    if seconds < 1:
        return "just now"
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def size(count: int) -> str:
    """Return bytes for people, in powers of 1000: `640 B`, `1.2 MB`, `12 MB`."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.5:
            return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"
    return f"{amount / 1000:.1f} TB"


def percent(part: int, total: int) -> str:
    """Return a share, `83 %`; 199 of 200 is 99 %, and 1 of 1000 is `<1 %`."""
    if not total:
        return NOTHING
    share = round(100 * part / total)
    if 0 < part < total:
        return f"{min(share, 99)} %" if share else "<1 %"
    return f"{share} %"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 graph`, `2 graphs`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """Return `text` with "?" for control characters and line ends; it may be untrusted."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def clean(text: str) -> str:
    """Return any text as a terminal may show it: lines of bounded length, without control characters."""
    lines = (printable(line.expandtabs()) for line in text.split("\n"))
    return "\n".join(f"{line[:_LONGEST_LINE]}..." if len(line) > _LONGEST_LINE else line for line in lines)


def one_line(text: str, limit: int = LIMIT) -> str:
    """Return `text` on one line, without control characters, cut with `...` beyond `limit` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 3].rstrip() + "..."


def aligned(rows: Sequence[Sequence[str]], right: Container[int]) -> list[str]:
    """Return rows as lines of columns; `right` are the numbers of the columns that are aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad = [str.rjust if i in right else str.ljust for i in range(len(widths))]
    return ["  ".join(pad[i](row[i], widths[i]) for i in range(len(widths))).rstrip() for row in rows]


def redacted(url: str) -> str:
    """Return a URL without user, password and query; a path as it is."""
    return "::".join(map(_redacted, _CHAINED.split(url))) if "://" in url else url


def _redacted(url: str) -> str:
    scheme, separator, location = url.partition("://")
    if not separator:
        return url
    if scheme not in ("file", "local"):
        location = re.split(r"[?#]", location)[0]
    # With a password up to the last "@", since it may hold a "/" that should have been encoded.
    return f"{scheme}://" + re.sub(r"^([^/@]*:.*|[^/@]*)@", "", location)
