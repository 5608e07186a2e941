"""Render a document as HTML for a notebook, and as a MIME bundle of HTML, text and JSON for IPython.

JupyterLab's sanitizer keeps all of this HTML, even in an untrusted notebook: it has inline styles with plain
values and `<details>`, but no `<style>`, `<script>` or `<svg>`. Only code has text colours, so that light and
dark themes both work. Untrusted text passes through `_text` or `escape`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from nbcache.core.text import DOT, LIMIT, clean, one_line, printable
from nbcache.ui.display import document as doc
from nbcache.ui.display.text import to_text

_JSON_LIMIT = 16_384
"""Bytes of JSON above which a report is displayed without it, to keep notebooks small."""
LINE = "rgba(128,128,128,0.3)"
BOX = "font-size:13px;line-height:1.5;margin:2px 0"
FAINT = "opacity:0.65"
CODE = "font-family:monospace;font-size:12px"
CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:top;border:none;white-space:nowrap"
NUMBER = CELL.replace("left;", "right;")
LAST = CELL.replace("nowrap", "normal") + ";width:100%;min-width:120px;word-break:break-word"
_GREEN, _AMBER, _RED, _GREY = "46,160,67", "219,148,0", "218,54,51", "128,128,128"
_BADGE = "border-radius:8px;padding:0 8px;font-size:12px"
_STYLES: Mapping[doc.Style, str] = {
    doc.Style.PLAIN: "",
    doc.Style.FAINT: FAINT,
    doc.Style.CODE: CODE,
    doc.Style.PATH: f"{CODE};word-break:break-all",
    doc.Style.WHOLE: "white-space:pre-wrap;word-wrap:break-word",
    doc.Style.GOOD: f"background-color:rgba({_GREEN},0.28);{_BADGE}",
    doc.Style.FAIR: f"background-color:rgba({_AMBER},0.32);{_BADGE}",
    doc.Style.BAD: f"background-color:rgba({_RED},0.32);{_BADGE}",
    doc.Style.NEUTRAL: f"background-color:rgba({_GREY},0.28);{_BADGE}",
}
_EDGE = "padding-left:8px;margin:3px 0"
_MARKS: Mapping[doc.Mark, str] = {
    doc.Mark.NONE: "",
    doc.Mark.NOTICE: f"border-left:3px solid rgba({_AMBER},0.8);{_EDGE}",
    doc.Mark.QUOTE: f"border-left:3px solid {LINE};{_EDGE}",
    doc.Mark.RUNNING: f"border-left:3px solid rgba({_GREEN},0.8);{_EDGE}",
}
_COLUMNS: Mapping[doc.Wrap, str] = {
    doc.Wrap.NEVER: CELL,
    doc.Wrap.NUMBER: NUMBER,
    doc.Wrap.WORDS: CELL.replace("nowrap", "normal") + ";min-width:60px;word-break:break-word",
    doc.Wrap.REST: LAST,
}
_CODE_BOX = (
    f"{CODE};line-height:1.45;white-space:pre;overflow:auto;max-height:420px;margin:3px 0;padding:6px 8px;"
    f"border:1px solid {LINE};border-radius:4px"
)
_COLOURS = (
    ("Comment", "opacity:0.65;font-style:italic"),
    ("Literal.String.Doc", "opacity:0.65;font-style:italic"),
    ("Keyword", "color:#9c56e1;font-weight:bold"),
    ("Operator.Word", "color:#9c56e1;font-weight:bold"),
    ("Name.Decorator", "color:#9c56e1"),
    ("Name.Function", "color:#407bbf;font-weight:bold"),
    ("Name.Class", "color:#407bbf;font-weight:bold"),
    ("Name.Builtin", "color:#19858f"),
    ("Name.Namespace", "color:#19858f"),
    ("Literal.String", "color:#2e8a3d"),
    ("Literal.Number", "color:#ac6939"),
)
"""Kind of token → its style. Each colour has a contrast above 4.3 to 1 on white and on black."""
_STEP = 14
_NAMES = 70
_METER = 90
"""Pixels of a full meter."""
_PIECE = "display:inline-block;vertical-align:middle"


@dataclass(frozen=True, slots=True)
class Rendered:
    """The output of a magic: text in a terminal, HTML in a notebook."""

    text: str
    html: str
    data: Mapping[str, Any] | None = None
    mime: str = "application/vnd.nbcache.report+json"

    def __post_init__(self) -> None:
        """Remove control characters from the text, of which other people may have written parts."""
        object.__setattr__(self, "text", clean(self.text))

    def bundle(self) -> dict[str, Any]:
        """Return the MIME bundle, without `data` if its JSON is longer than 16 KiB."""
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": self.html}
        if self.data is not None and len(json.dumps(self.data)) <= _JSON_LIMIT:
            bundle[self.mime] = dict(self.data)
        return bundle

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return self.bundle()

    def __str__(self) -> str:
        return self.text


def render(
    blocks: Sequence[doc.Block], data: Mapping[str, Any] | None = None, kind: str = "report"
) -> Rendered:
    """Return a document as text and HTML; `kind` is the part of the MIME type that names its JSON."""
    return Rendered(to_text(blocks), to_html(blocks), data, f"application/vnd.nbcache.{kind}+json")


def to_html(blocks: Iterable[doc.Block], *, box: str = BOX) -> str:
    return _tag("div", box, *map(_block, blocks))


def _block(block: doc.Block) -> str:
    match block:
        case doc.Title():
            return _tag("div", "", _title(block))
        case doc.Line():
            return _line(block)
        case doc.Table():
            return _table(block)
        case doc.Bar(label, parts, scale, total):
            track = _tag("div", "width:60%;min-width:200px;display:inline-block", *_pieces(parts, scale))
            name = _tag("span", f"{FAINT};display:inline-block;width:{_NAMES}px", escape(label))
            words = DOT.join(f"{part.name} {part.words}" for part in parts)
            below = _tag("div", f"{FAINT};font-size:12px;padding-left:{_NAMES}px", _text(words))
            row = _tag("div", "white-space:nowrap", name, track, _text(total, style="margin-left:8px"))
            return row + below
        case doc.Legend(parts):
            square = f"{_PIECE};width:10px;height:10px;margin:0 4px 0 10px;background-color:"
            swatches = (_tag("span", square + part.colour) + _text(part.name, style=FAINT) for part in parts)
            return _tag("div", "", *swatches)
        case doc.Code(lines, is_python):
            return _code(lines, is_python)
        case doc.Folded(head, blocks, is_open):
            indent = f"padding-left:{_STEP}px" if isinstance(head, doc.Line) and head.level else ""
            summary = _title(head) if isinstance(head, doc.Title) else _spans(head.spans)
            if not (inner := "".join(map(_block, blocks))):
                return _tag("div", indent, summary)
            body = _tag("div", f"padding-left:{_STEP}px", inner)
            opens = _tag("summary", "cursor:pointer", summary)
            folded = _tag("details", "margin:2px 0", opens, body, attributes=" open" if is_open else "")
            return _tag("div", indent, folded)


def _title(title: doc.Title) -> str:
    return DOT.join([f"<b>{_text(title.label)}</b>", *map(_inline, title.parts)])


def _line(line: doc.Line) -> str:
    if line == doc.GAP:
        return _tag("div", "margin:6px 0")
    indent = f"padding-left:{_STEP * line.level}px" if line.level else ""
    style = ";".join(filter(None, [_STYLES[line.style], _MARKS[line.mark] or indent]))
    return _tag("div", style, _spans(line.spans))


def _spans(cell: doc.Cell) -> str:
    return " ".join(filter(None, map(_inline, doc.spans_of(cell))))


def _inline(span: doc.Inline) -> str:
    if isinstance(span, str):
        return _text(span)
    if isinstance(span, doc.Span):
        if span.style is doc.Style.WHOLE:
            lines = "\n".join(map(printable, span.text[:LIMIT].splitlines()))
            return _tag("span", _STYLES[span.style], escape(lines))
        if span.style is doc.Style.BOLD:
            return f"<b>{_text(span.text, span.limit)}</b>"
        return _text(span.text, span.limit, _STYLES[span.style])
    full = round(_METER * span.value / span.most) if span.most else 0
    bar = _tag("span", f"{_PIECE};height:10px;background-color:rgba({_GREEN},0.7);width:{full}px")
    frame = f"{_PIECE};height:10px;line-height:10px;width:{_METER}px;background-color:rgba({_GREY},0.28)"
    return _tag("span", frame, bar)


def _table(table: doc.Table) -> str:
    rows = doc.rows_of(table)
    columns = [(column.title, _COLUMNS[column.wrap]) for column in table.columns]
    if any(column.wrap is doc.Wrap.WORDS for column in table.columns):  # these columns need room, too
        columns = [(title, style.replace(";width:100%", "")) for title, style in columns]
    has_notes = bool(table.notes) and any(row.notes for row in rows)
    if has_notes:
        columns.append((table.notes, LAST))
    head = (
        _tag("th", f"{style};font-weight:normal;{FAINT}", escape(title), attributes=' scope="col"')
        for title, style in columns
    )
    lines = []
    for row in rows:
        texts, notes = list(map(_spans, row.cells)), "".join(map(_line, row.notes))
        texts += [notes] if has_notes else [texts.pop() + notes]
        cells = (_tag("td", style, text) for (_, style), text in zip(columns, texts, strict=True))
        lines.append(_tag("tr", f"border-top:1px solid {LINE};background-color:transparent", *cells))
    style = "border-collapse:collapse;border:none;table-layout:auto;margin:2px 0;font-size:13px;width:100%"
    parts = _tag("thead", "", _tag("tr", "", *head)), _tag("tbody", "", *lines)
    return _tag("div", "overflow-x:auto", _tag("table", style, *parts))


def _pieces(parts: Sequence[doc.Part], scale: float) -> Iterator[str]:
    for part in parts:
        if scale and part.amount:
            colour, width = f"background-color:{part.colour}", f"width:{100 * part.amount / scale:.2f}%"
            title = f' title="{escape(part.name)} {escape(part.words)}"'
            yield _tag("span", f"{_PIECE};height:12px;{colour};{width}", attributes=title)


def _code(lines: Sequence[str], is_python: bool) -> str:
    scrolls = ' tabindex="0"'  # so that a keyboard can scroll it
    if is_python:
        return _tag("div", _CODE_BOX, *_highlight("\n".join(lines)), attributes=scrolls)
    inner = (_tag("div", "padding-left:14px;text-indent:-14px", escape(printable(line))) for line in lines)
    style = _CODE_BOX.replace("white-space:pre;", "white-space:pre-wrap;word-wrap:break-word;")
    return _tag("div", style, *inner, attributes=scrolls)


def _tag(name: str, style: str, *inner: str, attributes: str = "") -> str:
    """Return an element; the caller has escaped `inner` and `attributes`."""
    styled = f' style="{style}"' if style else ""
    return f"<{name}{attributes}{styled}>{''.join(inner)}</{name}>"


def _text(text: str, limit: int = LIMIT, style: str = "") -> str:
    """Return text as one line of HTML; if it is cut, its tooltip has the whole text."""
    shown = one_line(text, limit)
    title = "" if shown == one_line(text) else f' title="{escape(one_line(text))}"'
    return _tag("span", style, escape(shown), attributes=title) if title or style else escape(shown)


def _highlight(code: str) -> Iterator[str]:
    """Yield the tokens of Python code as coloured HTML."""
    from pygments.lexers.python import PythonLexer  # a dependency of IPython; imported late, as it is slow

    for kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens(code):
        name = str(kind).removeprefix("Token.")
        style = next((style for prefix, style in _COLOURS if name.startswith(prefix)), "")
        yield _tag("span", style, escape(text)) if style and text.strip() else escape(text)
