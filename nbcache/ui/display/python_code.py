"""Colour Python code in HTML by inline styles."""

from __future__ import annotations

from html import escape

from nbcache.core.text import counted, printable

__all__ = ["coloured", "shown_lines"]

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
"""The style of each kind of token. The contrast of each colour is above 4.3 to 1 on white and on black."""


def shown_lines(code: str) -> tuple[list[str], str]:
    """Return the lines of code to show, and how many of all they are."""
    lines = code.splitlines()
    shown = [printable(line.expandtabs(4))[:_LONGEST] for line in lines[:_MOST_LINES]]
    total = counted(len(lines), "line")
    return shown, f"the first {len(shown)} of {total}" if len(lines) > len(shown) else total


def coloured(code: str) -> str:
    """Return code as HTML; without colours if Pygments, which IPython brings, is missing."""
    try:
        from pygments.lexers.python import PythonLexer  # takes a moment to import
    except ImportError:
        return escape(code)
    tokens = PythonLexer(stripnl=False, ensurenl=False).get_tokens(code)
    return "".join(_token(str(kind).removeprefix("Token."), text) for kind, text in tokens)


def _token(kind: str, text: str) -> str:
    style = next((style for prefix, style in _COLOURS if kind.startswith(prefix)), "")
    if not style or not text.strip():
        return escape(text)
    return f'<span style="{style}">{escape(text)}</span>'
