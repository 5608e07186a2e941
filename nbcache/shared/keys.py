"""Keys of a store that kernels share live. Each value but the lists is as in `nbcache.shared.layout`::

    live/<digest of scope, type, key>                             up to 32 variants of an artifact
    notebook/<digest of the file's name>/<digest of publisher>    what one publisher has of a notebook: a
                                                                  manifest (`nbcache.artifacts.encoding`)
    publishers/<digest of the file's name>                        digests of publishers, one a line: so that
                                                                  nobody lists all keys of the store

The scope is what an artifact of that type depends on (`nbcache.artifacts.compatibility.scope`).
"""

from __future__ import annotations

from nbcache.artifacts.compatibility import scope
from nbcache.core import key as keys
from nbcache.core.key import sha256
from nbcache.core.model import Environment

__all__ = ["LIVE", "NOTEBOOK", "PUBLISHERS", "channel", "publications", "publishers", "slot_of"]

LIVE, NOTEBOOK, PUBLISHERS = "live/", "notebook/", "publishers/"


def slot_of(environment: Environment, type: str, key: str) -> str:
    """Return the key for what torch has under `key`."""
    parts = keys.components({"scope": scope(environment, type), "type": type, "key": key})
    return LIVE + keys.digest(parts)


def publications(notebook: str) -> str:
    """Return the prefix of what publishers have of a notebook."""
    return f"{NOTEBOOK}{_name(notebook)}/"


def publishers(notebook: str) -> str:
    """Return the key of the list of a notebook's publishers."""
    return PUBLISHERS + _name(notebook)


def channel(notebook: str) -> str:
    """Return the channel on which publishers say that they have something new of a notebook."""
    return NOTEBOOK + _name(notebook)


def _name(notebook: str) -> str:
    return sha256(notebook.encode(errors="surrogatepass"))
