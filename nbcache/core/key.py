"""Keys that explain themselves: labelled, length-delimited components, a digest, and a diff in words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Component:
    label: str
    value: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A component that two keys do not share; `None` where one of them lacks it."""

    label: str
    old: str | None
    new: str | None


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None


def components(values: Mapping[str, object]) -> tuple[Component, ...]:
    """Return `values` as components, sorted by label, values as text."""
    return tuple(sorted(Component(label, str(value)) for label, value in values.items()))


def digest(parts: Iterable[Component]) -> str:
    """Return the SHA-256 of `parts` in order; each text follows its length in bytes."""
    state = hashlib.sha256(b"nbcache key 1\n")
    for part in parts:
        for text in (part.label, part.value):
            data = text.encode()
            state.update(b"%d:" % len(data))
            state.update(data)
    return state.hexdigest()


def diff(old: Iterable[Component], new: Iterable[Component]) -> list[Difference]:
    """Return the components that differ between two keys, in the order of their labels."""
    old_values = {part.label: part.value for part in old}
    new_values = {part.label: part.value for part in new}
    return [
        Difference(label, old_values.get(label), new_values.get(label))
        for label in sorted(old_values.keys() | new_values.keys())
        if old_values.get(label) != new_values.get(label)
    ]
