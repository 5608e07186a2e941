"""What is known of a notebook's graphs that cannot be used here: of other environments, and of strangers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nbcache.artifacts.compatibility import differences, telling
from nbcache.core.model import Environment, GraphSummary, Manifest
from nbcache.core.reports import Difference

__all__ = ["Elsewhere", "unusable"]

_LONGEST = 60
"""Characters of a component of an environment that are shown."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Graphs that cannot be used here, and why."""

    graphs: tuple[GraphSummary, ...]
    where: str
    """Where they are, as part of a sentence: `in model.nbcache`."""
    differences: tuple[Difference, ...] = ()
    """What of their environment differs from the one here, what tells most first; empty where it fits."""


def unusable(manifests: Iterable[Manifest], here: Environment, where: str) -> Iterator[Elsewhere]:
    """Yield those of `manifests` that hold graphs for another environment than this one."""
    for manifest in manifests:
        if manifest.graphs and (found := differences(manifest, here)):
            told = [
                Difference(_called(each.label), *map(_shown, telling(each)))
                for each in sorted(found, key=lambda each: _order(each.label))
            ]
            yield Elsewhere(manifest.graphs, where, tuple(told))


_FIRST = ("torch", "device", "triton", "python", "cpu", "compiler")


def _order(label: str) -> tuple[int, str]:
    group = label.partition(".")[0]
    return (_FIRST.index(group) if group in _FIRST else len(_FIRST), label)


def _called(label: str) -> str:
    """Return what people call a component: `torch` for `torch.version`."""
    return label.removesuffix(".version").replace(".", " ")


def _shown(value: str | None) -> str:
    text = value or ""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
