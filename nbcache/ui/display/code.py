"""Shows code: as text, and as HTML with the colours of its syntax as inline styles."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nbcache.core.text import counted, printable, size
from nbcache.ui.display.html import CODE, FAINT, LINE, _tag, _text

__all__ = ["code_html", "lines_html", "shown_lines"]

_MOST_LINES, _LONGEST = 400, 400
"""Lines of code that are shown, and characters of each."""
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
"""By kind of token. Each colour reads on white and on black: its contrast is above 4.3 to 1 on both."""
_BOX = (
    f"{CODE};line-height:1.45;white-space:pre;overflow:auto;max-height:420px;margin:3px 0;padding:6px 8px;"
    f"border:1px solid {LINE};border-radius:4px"
)


def shown_lines(code: str) -> tuple[list[str], str]:
    """Return the lines of code that are shown, and in words what is left out; empty where that is nothing."""
    every = code.splitlines()
    lines = [printable(line.expandtabs(4))[:_LONGEST] for line in every[:_MOST_LINES]]
    more = len(every) - len(lines)
    return lines, f"the first {len(lines)} of {counted(len(every), 'line')}" if more else ""


def code_html(code: str, where: str) -> str:
    """Return code with colours, in a box that scrolls; `where` says where the whole of it is."""
    lines, cut = shown_lines(code)
    parts = [cut or counted(len(lines), "line"), size(len(code.encode())), where]
    said = _tag("div", f"{FAINT};word-break:break-all", _text(" · ".join(filter(None, parts))))
    return said + _tag("div", _BOX, _coloured("\n".join(lines)), attributes=_FOCUSABLE)


def lines_html(lines: Sequence[str]) -> str:
    """Return lines of code without colours, each folded where it is long."""
    inner = (_tag("div", "padding-left:14px;text-indent:-14px", escape(printable(line))) for line in lines)
    style = _BOX.replace("white-space:pre;", "white-space:pre-wrap;word-break:break-word;")
    return _tag("div", style, *inner, attributes=_FOCUSABLE)


_FOCUSABLE = ' tabindex="0"'
"""What scrolls can be scrolled by keyboard."""


def _coloured(code: str) -> str:
    """Return code as HTML; without colours where Pygments, which IPython brings, is not there."""
    try:
        from pygments.lexers.python import PythonLexer  # takes a moment to import
    except ImportError:
        return escape(code)
    tokens = PythonLexer(stripnl=False, ensurenl=False).get_tokens(code)
    return "".join(_token(str(kind).removeprefix("Token."), text) for kind, text in tokens)


def _token(kind: str, text: str) -> str:
    """Return a token, in the colour of the first kind that its own begins with."""
    style = next((style for each, style in _COLOURS if kind.startswith(each)), "")
    return _tag("span", style, escape(text)) if style and text.strip() else escape(text)
