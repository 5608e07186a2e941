"""Why a graph missed: the nearest one that is stored, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nbcache.core.errors import FormatError
from nbcache.core.reports import Explanation
from nbcache.explain.components import Components, differences, from_text

__all__ = ["explained"]

_MOST = 32
"""So many graphs are compared at most."""


def explained(now: Components, stored: Iterable[tuple[str, str]]) -> Explanation | None:
    """Return how a graph differs from the nearest of `stored`, keys with components as manifests hold them.

    Of several as near, that which has most nodes in common, then the first. None where there is none to
    compare with, or none that differs: what made the miss is not in the key.
    """
    nodes = Counter(now.nodes)
    nearest: tuple[tuple[int, int], str, Components] | None = None
    for key, text in [each for each in stored if each[1]][:_MOST]:
        try:
            before = from_text(text)
        except FormatError:
            continue
        apart = len(differences(before, now, in_nodes=False))
        distance = (apart, -(nodes & Counter(before.nodes)).total())
        if apart and (nearest is None or distance < nearest[0]):
            nearest = (distance, key, before)
    if nearest is None:
        return None
    _, key, before = nearest
    found = differences(before, now)
    return Explanation(key, tuple(found)) if found else None
