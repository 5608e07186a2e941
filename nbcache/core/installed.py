"""Which files of Python code are installed, and which are a user's own."""

from __future__ import annotations

import os

__all__ = ["is_installed"]

_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def is_installed(file: str) -> bool:
    """Tell whether a file is the standard library's or an installed package's, by its path alone."""
    return file.startswith((_STDLIB, "<frozen ")) or "/site-packages/" in file or "/dist-packages/" in file
