"""Forked children: the threads of their parent are not there, but the locks that those held still are."""

from __future__ import annotations

__all__: list[str] = []
