"""Takes HTML apart, and checks that JupyterLab's sanitizer leaves it as it is."""

import re
from html.parser import HTMLParser

COLOUR = r"(rgba\(\d+,\d+,\d+,0\.\d+\)|#[0-9a-f]{6}|transparent)"
LENGTH = r"(0|\d+(\.\d+)?(px|em|%))"
SANITIZER_KEEPS = {
    "background-color": COLOUR,
    "border": rf"none|\d+px solid {COLOUR}",
    "border-collapse": r"collapse",
    "border-left": rf"\d+px solid {COLOUR}",
    "border-radius": LENGTH,
    "border-top": rf"\d+px solid {COLOUR}",
    "color": r"#[0-9a-f]{6}",
    "cursor": r"pointer",
    "display": r"inline-block",
    "font-family": r"monospace",
    "font-size": LENGTH,
    "font-style": r"italic",
    "font-weight": r"normal|bold",
    "height": LENGTH,
    "line-height": r"\d(\.\d+)?|\d+px",
    "margin": rf"{LENGTH}( {LENGTH})*",
    "margin-left": LENGTH,
    "max-height": LENGTH,
    "min-width": LENGTH,
    "opacity": r"0\.\d+",
    "overflow": r"auto",
    "overflow-x": r"auto",
    "padding": rf"{LENGTH}( {LENGTH})*",
    "padding-left": LENGTH,
    "table-layout": r"auto",
    "text-align": r"left|right",
    "text-indent": r"-?\d+px",
    "vertical-align": r"top|middle",
    "white-space": r"normal|nowrap|pre|pre-wrap",
    "width": LENGTH,
    "word-break": r"break-all|break-word",
    "word-wrap": r"break-word",
}
"""The part of JupyterLab's `packages/apputils/src/sanitizer.ts` (4.6) that the HTML uses. It knows neither
`currentColor` nor `inherit`: where a colour is not set, the theme's holds."""
TAGS = {"b", "details", "div", "span", "summary", "table", "tbody", "td", "th", "thead", "tr"}
ATTRIBUTES = {"style", "title", "open", "scope", "tabindex"}


class Page(HTMLParser):
    """HTML taken apart: text, rows of cells. It fails on HTML that a sanitizer would strip."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.titles: list[str] = []
        self.rows: list[list[str]] = []
        self.badges: dict[str, str] = {}
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.folded = 0
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        values = dict(attributes)
        assert values.keys() <= ATTRIBUTES
        for declaration in filter(None, (values.get("style") or "").split(";")):
            name, value = declaration.split(":")
            assert re.fullmatch(SANITIZER_KEEPS[name], value), declaration
        self.open.append((tag, values))
        self.folded += tag == "details" and "open" not in values
        self.titles += [values["title"] or ""] if "title" in values else []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, text: str) -> None:
        self.text += text
        if any(tag in ("td", "th") for tag, _ in self.open):
            self.rows[-1][-1] += text
        style = self.open[-1][1].get("style") or ""
        if "border-radius" in style and "background-color" in style:
            self.badges[text] = re.findall(r"background-color:([^;]*)", style)[0]
