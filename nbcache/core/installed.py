"""Which files of Python code are installed, and which are a user's own."""

from __future__ import annotations

import os

__all__ = ["is_installed", "module_of_stdlib"]

_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def is_installed(file: str) -> bool:
    """Tell whether a file is the standard library's or an installed package's, by its path alone."""
    return file.startswith((_STDLIB, "<frozen ")) or "/site-packages/" in file or "/dist-packages/" in file


def module_of_stdlib(file: str) -> str:
    """Return the top-level name of the module of the standard library that a file belongs to; else empty."""
    if file.startswith("<frozen "):
        return file.removeprefix("<frozen ").rstrip(">").partition(".")[0]
    if not file.startswith(_STDLIB) or "/site-packages/" in file or "/dist-packages/" in file:
        return ""
    return file.removeprefix(_STDLIB).partition(os.sep)[0].removesuffix(".py")
