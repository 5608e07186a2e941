"""A document as IPython's `display` takes it: as text, as HTML and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbcache.core.text import clean
from nbcache.ui.display.document import Block
from nbcache.ui.display.html import to_html
from nbcache.ui.display.text import to_text

_JSON_LIMIT = 16_384
"""Bytes of JSON above which a report is displayed without it, to keep notebooks small."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The output of a magic: text in a terminal, HTML in a notebook."""

    text: str
    html: str
    data: Mapping[str, Any] | None = None
    """The same as JSON values."""
    mime: str = "application/vnd.nbcache.report+json"
    """MIME type of `data`."""

    def __post_init__(self) -> None:
        """Clean the text, parts of which others may have written."""
        object.__setattr__(self, "text", clean(self.text))

    def bundle(self) -> dict[str, Any]:
        """Return the MIME bundle, without `data` if that is more than 16 KiB of JSON."""
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": self.html}
        if self.data is not None and len(json.dumps(self.data)) <= _JSON_LIMIT:
            bundle[self.mime] = dict(self.data)
        return bundle

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return self.bundle()

    def __str__(self) -> str:
        return self.text


def render(blocks: Sequence[Block], data: Mapping[str, Any] | None = None, kind: str = "report") -> Rendered:
    """Return a document rendered twice; `kind` names its JSON in the MIME type."""
    return Rendered(to_text(blocks), to_html(blocks), data, f"application/vnd.nbcache.{kind}+json")
