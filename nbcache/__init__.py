"""nbcache: `torch.compile` starts at once in notebooks, and says for every graph where it came from.

`%load_ext nbcache` in a notebook; `nbcache.session()` in Python. Importing this imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbcache.core.errors import NbcacheError
    from nbcache.core.reports import CellReport, GraphRecord
    from nbcache.core.version import __version__
    from nbcache.kernel.session import Session

__all__ = [
    "CellReport",
    "GraphRecord",
    "NbcacheError",
    "__version__",
    "load_ipython_extension",
    "session",
    "unload_ipython_extension",
]

_MODULES = {
    "CellReport": "reports",
    "GraphRecord": "reports",
    "NbcacheError": "errors",
    "__version__": "version",
}
"""Exported value → its module in `nbcache.core`."""


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


def __getattr__(name: str) -> Any:
    """Import the rest of what is public when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"nbcache.core.{_MODULES[name]}"), name)
