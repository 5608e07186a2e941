"""nbcache: `torch.compile` starts at once in notebooks, and says for every graph where it came from.

`%load_ext nbcache` in a notebook; `nbcache.session()` in Python. Importing this imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbcache.kernel.session import Session

__all__ = ["__version__", "load_ipython_extension", "session", "unload_ipython_extension"]

__version__ = "0.1.0"


def load_ipython_extension(ipython: Any) -> None:
    """Start the session of this kernel and register the magics: `%load_ext nbcache`."""
    from nbcache.ui.ipython.extension import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Leave the kernel as it was found: `%unload_ext nbcache`."""
    from nbcache.ui.ipython.extension import unload

    unload(ipython)


def session() -> Session:
    """Return the session of this kernel; NbcacheError where the extension is not loaded."""
    from nbcache.ui.ipython.extension import current_session

    return current_session()
