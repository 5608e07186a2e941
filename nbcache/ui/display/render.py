"""Show reports, the session, settings, checks and the live line, as text and as HTML: values in, strings out.

The HTML keeps to what JupyterLab's sanitizer leaves of an untrusted notebook: inline styles with plain
values, `<details>`, no `<style>`, `<script>` or `<svg>`. It sets no text colour, so that it reads in light
and dark themes alike. The text is at most `WIDTH` wide, and ASCII but for a dash and a middle dot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbcache.core.reports import Activity, CellReport
from nbcache.core.text import DOT, clean, one_line
from nbcache.kernel.prewarming import Prewarming
from nbcache.shared.level import SharedFigures
from nbcache.ui.display.html import (
    BOX,
    _head,
    _notices_html,
    _tag,
    activity_html,
    checks_html,
    report_html,
    settings_html,
    status_html,
)
from nbcache.ui.display.rows import (
    JSON_LIMIT,
    Check,
    SettingRow,
    StoreFigures,
    kernel_parts,
    prewarming_parts,
    shared_parts,
    store_parts,
)
from nbcache.ui.display.text import (
    _notices_text,
    activity_text,
    checks_text,
    report_text,
    settings_text,
    status_text,
)

__all__ = [
    "Rendered",
    "render_activity",
    "render_checks",
    "render_idle",
    "render_report",
    "render_settings",
    "render_status",
]


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a person sees, ready for IPython's `display`: text in a terminal, HTML in a notebook."""

    text: str
    html: str
    data: Mapping[str, Any] | None = None
    """The same as JSON values; carried along where small."""
    mime: str = "application/vnd.nbcache.report+json"
    """MIME type of `data`."""

    def __post_init__(self) -> None:
        """Clean the text, in which others may have written."""
        object.__setattr__(self, "text", clean(self.text))

    def bundle(self) -> dict[str, Any]:
        """Return the MIME bundle; `data` is left out above 16 KiB of JSON."""
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": self.html}
        if self.data is not None and len(json.dumps(self.data)) <= JSON_LIMIT:
            bundle[self.mime] = dict(self.data)
        return bundle

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return self.bundle()

    def __str__(self) -> str:
        return self.text


def render_report(report: CellReport, *, stored: bool = True, why: str = "") -> Rendered:
    """Return the report after a cell; `stored` and `why` as in `report_text`."""
    text = report_text(report, stored=stored, why=why)
    html = report_html(report, stored=stored, why=why)
    return Rendered(text, html, report.to_json())


def render_notices(report: CellReport) -> Rendered:
    """Return a report's notices alone, for a cell whose report is not to be shown."""
    text = "\n".join(["nbcache", *_notices_text(report.notices)])
    return Rendered(text, _tag("div", BOX, _head("nbcache", []), _notices_html(report.notices)))


def render_status(
    reports: Sequence[CellReport],
    stores: Sequence[StoreFigures],
    prewarming: Prewarming,
    shared: SharedFigures | None = None,
    nursery: int = 0,
) -> Rendered:
    """Return the session by cell and graph; `shared` is the store that it is connected to, if it is.

    `nursery` is the process that this kernel was forked from, 0 for an ordinary kernel.
    """
    data = {
        "cells": [report.to_json() for report in reports],
        "stores": [asdict(store) for store in stores],
        "prewarm": prewarming.to_json(),
        "shared": None if shared is None else asdict(shared),
        "nursery": nursery or None,
    }
    facts = [*map(store_parts, stores), shared_parts(shared), kernel_parts(nursery)]
    facts.append(prewarming_parts(prewarming))
    text, html = status_text(reports, facts), status_html(reports, facts)
    return Rendered(text, html, data, "application/vnd.nbcache.status+json")


def render_settings(rows: Sequence[SettingRow], torch_rows: Sequence[SettingRow] = ()) -> Rendered:
    """Return nbcache's settings, and those of torch's caches."""
    data = {"settings": [asdict(row) for row in rows], "torch": [asdict(row) for row in torch_rows]}
    text, html = settings_text(rows, torch_rows), settings_html(rows, torch_rows)
    return Rendered(text, html, data, "application/vnd.nbcache.settings+json")


def render_checks(checks: Sequence[Check]) -> Rendered:
    """Return what was checked."""
    data = {"checks": [check.to_json() for check in checks]}
    return Rendered(checks_text(checks), checks_html(checks), data, "application/vnd.nbcache.checks+json")


def render_activity(now: Activity) -> Rendered:
    """Return the live line."""
    return Rendered(activity_text(now), activity_html(now))


def render_idle(last: Activity) -> Rendered:
    """Return the live line while the cell runs but compiles nothing; `last` is what it compiled before."""
    parts = ["running the cell"]
    if last.phase != "restoring":
        parts.append(f"last compiled {one_line(last.function, 60)} {last.compile_id}".rstrip())
    return Rendered("nbcache: " + DOT.join(parts), _tag("div", BOX, _head("nbcache", parts)))


# What text and HTML share


# Text


# HTML: what comes from outside passes through `_text`
