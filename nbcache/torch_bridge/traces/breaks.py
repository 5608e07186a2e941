"""What a trace holds of the graph break that its function ends in, and what is told of it again."""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any

from nbcache.torch_bridge.events import break_text, words_of_break

if TYPE_CHECKING:
    from nbcache.artifacts.traces import Trace
    from nbcache.kernel.session import Session

__all__ = ["break_of", "told_of_break"]


def break_of(session: Session, trace: Trace, code: CodeType) -> str | None:
    """Return why an adopted function ends in a graph break, and where."""
    if not trace.break_reason or not trace.break_line:
        return trace.break_reason or None
    line = code.co_firstlineno + trace.break_line - 1
    return break_text(session, trace.break_reason, code.co_filename, line)


def told_of_break(reason: Any, code: CodeType) -> dict[str, Any]:
    """Return what a trace holds of the graph break that this code ends in."""
    if reason is None:
        return {}
    told: dict[str, Any] = {"break_reason": words_of_break(reason.reason)}
    stack = getattr(reason, "user_stack", None)
    own = {line for *_, line in code.co_lines()}
    if stack and stack[-1].filename == code.co_filename and stack[-1].lineno in own:
        told["break_line"] = max(0, stack[-1].lineno - code.co_firstlineno + 1)
    return told
