"""A thread that does what nobody waits for."""

from __future__ import annotations

__all__: list[str] = []
