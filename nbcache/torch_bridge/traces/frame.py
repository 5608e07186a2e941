"""The call of a function that Dynamo is asked to trace."""

from __future__ import annotations

from dataclasses import dataclass
from types import CellType, CodeType
from typing import Any

__all__ = ["Frame"]


@dataclass(frozen=True, slots=True)
class Frame:
    """A call of a function that is compiled."""

    code: CodeType
    scope: dict[str, Any]
    """The function's globals."""
    values: dict[str, Any]
    """Its locals, and what its closure holds."""
    closure: tuple[CellType, ...]
