"""Compare what kernels answered, and tell their graphs' outcomes and reasons."""

from __future__ import annotations

from typing import Any

import pytest

ADOPTED = "not traced: "
"""The beginning of the reason of a graph whose function adopted a trace."""
_OF_COMPILING = ("runs as plain Python, and torch compiles no part of it", "of at most 8 versions: one more")
"""Parts of notices that describe functions, and no faults."""


def difference(answer: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return what differs in the tensors of two kernels; nothing where they are the same."""
    if error := answer.get("error") or expected.get("error"):
        return str(error)
    for one, other in zip(answer["tensors"], expected["tensors"], strict=True):
        if one[:2] != other[:2] or one[2] != pytest.approx(other[2], rel=1e-3, abs=1e-3, nan_ok=True):
            return f"{one} is not {other}"
    return ""


def outcomes(answer: dict[str, Any]) -> list[str]:
    assert "error" not in answer, answer["error"]
    return [outcome for outcome, *_ in answer["graphs"]]


def reasons(answer: dict[str, Any]) -> list[str]:
    """Return the reason of each forward graph, where nothing went wrong."""
    assert "error" not in answer, answer["error"]
    notices = [text for text in answer["notices"] if not any(words in text for words in _OF_COMPILING)]
    assert not notices, notices
    return [reason for _, direction, reason in answer["graphs"] if direction != "backward"]


def adopts(answer: dict[str, Any]) -> list[bool]:
    """Return of each forward graph whether its function adopted a trace."""
    return [reason.startswith(ADOPTED) for reason in reasons(answer)]
