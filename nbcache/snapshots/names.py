"""Names of snapshots in stores: `URL#team/name`, and how a store spells them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from nbcache.core.errors import ConfigError

__all__ = ["SNAPSHOTS", "Place", "name_of", "place", "prefix_of"]


SNAPSHOTS = "snapshot/"
"""Where a store has snapshots under names."""
_LONGEST, _LONGEST_PART = 100, 200
"""Characters of a name, and of the part of a key that stands for it: filesystems bound that."""


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


_ENCODED = re.compile(r"(?:[a-z0-9-]|_[0-9a-f]{2})+", re.ASCII)


_FILES = (".nbcache", ".ipynb")


@dataclass(frozen=True, slots=True)
class Place:
    """A name in a store."""

    url: str = field(repr=False)
    """The store's, which may hold a password."""
    name: str


def place(text: str) -> Place | None:
    """Return the store and name that `text` gives, `URL#NAME`; None where it is a file's path or on the web.

    What exists, or ends in .nbcache or .ipynb, is a file. Raises ConfigError, which quotes no part of a URL.
    """
    url, separator, name = text.rpartition("#")
    if text.startswith(("https://", "http://")):
        return None
    if not separator:
        if "://" not in text:
            return None
        raise _no_name("the URL of a store names no snapshot in it")
    if "://" not in url and (text.endswith(_FILES) or os.path.exists(os.path.expanduser(text))):
        return None
    if "://" in url and "@" in name and "@" not in url:  # redis://:pass#word@host/0
        raise _no_name("after the '#' of a store's URL stands an '@': in a password a '#' is written %23")
    if not name.isprintable() or not all(name.split("/")):
        raise _no_name("what is after '#' is no name: parts, joined by '/', of characters that can be seen")
    if len(name) > _LONGEST or len(_encoded(name)) > _LONGEST_PART:
        raise _no_name(
            f"a snapshot's name is too long: {_LONGEST} characters at most, and {_LONGEST_PART} where all "
            "but a-z, 0-9 and - count three times or more"
        )
    return Place(url, name)


def _no_name(what: str) -> ConfigError:
    return ConfigError(
        what, next_step="write URL#NAME, as in redis://host/0#team/gpt; `nbcache ls URL` lists them"
    )


def name_of(key: str) -> str | None:
    """Return the name that a version's key holds; None where it holds none that a writer would make."""
    match key.split("/"):
        case ["snapshot", part, _] if _ENCODED.fullmatch(part):
            data = re.sub(rb"_(..)", lambda each: bytes.fromhex(each[1].decode()), part.encode())
            name = data.decode(errors="replace")
            return name if _encoded(name) == part else None
    return None


def _encoded(name: str) -> str:
    return "".join(
        character if character in _PLAIN else "".join(f"_{byte:02x}" for byte in character.encode())
        for character in name
    )


def prefix_of(name: str) -> str:
    return f"{SNAPSHOTS}{_encoded(name)}/"
