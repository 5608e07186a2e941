"""URLs as they may be shown: without user, password and query, any of which may hold a secret."""

from __future__ import annotations

__all__: list[str] = []
