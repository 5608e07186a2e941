"""URLs as they may be shown: without user, password and query, any of which may hold a secret."""

from __future__ import annotations

import re

__all__ = ["redacted"]


def redacted(url: str) -> str:
    """Return a URL without user, password and query; a path as it is."""
    return "::".join(map(_redacted, url.split("::"))) if "://" in url else url


def _redacted(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    if scheme not in ("file", "local"):
        rest = re.split(r"[?#]", rest)[0]
    # With a password up to the last "@", since it may hold a "/" that should have been encoded.
    return f"{scheme}://" + re.sub(r"^([^/@]*:.*|[^/@]*)@", "", rest)
